//! Whether the peer repeats selectively or goes back N, and how much may be in flight to it.
//!
//! A selective-repeat peer keeps packets behind a gap; a go-back-N peer (hardware, rxe) drops them. Nothing
//! on the wire tells which. So the requester probes: it retransmits the first missing packet alone. A
//! selective-repeat peer then acknowledges, or misses, a packet further on; a go-back-N peer acknowledges
//! just this one and gets everything from there. The result holds until the peer shows otherwise.

/// What the peer was seen to do with packets behind a gap.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Kind {
    /// It never missed a packet.
    #[default]
    Unknown,
    /// The probe is in flight: the first packet that it missed, alone.
    Probed,
    SelectiveRepeat,
    GoBackN,
}

/// Smallest limit of packets in flight to a go-back-N peer: enough for an ACK every two packets, and for a
/// NAK after one loss.
const LIMIT_MIN: u64 = 4;
/// The limit when a peer has just turned out to go back N.
const LIMIT_FIRST: u64 = 64;
/// Packets that must arrive before the limit grows by one.
const GROWTH: u64 = 4;
/// A peer that misses exactly the packet behind a retransmission this many times in a row goes back N after
/// all.
const CREEPS_MAX: u8 = 4;

/// What the requester does about a sequence NAK.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Remedy {
    /// Retransmits this many packets, from the one that the NAK names.
    Packets(u64),
    /// Retransmits everything from there.
    GoBack,
}

/// The requester's view of its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    kind: Kind,
    /// Packets that may be in flight to a go-back-N peer.
    limit: u64,
    /// Packets acknowledged towards the next step of growth.
    credit: u64,
    /// Losses before this packet belong to one event.
    recover: u64,
    /// The packet behind those that were retransmitted last, and how often exactly that one was missing then.
    behind: u64,
    creeps: u8,
    /// It responds to a retransmitted part of a READ as to a READ, beginning with First or Only. rxe begins
    /// with Middle or Last, and from then on silently drops requests for earlier parts of the same READ.
    responds_to_parts: bool,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            kind: Kind::Unknown,
            limit: u64::MAX,
            credit: 0,
            recover: 0,
            behind: 0,
            creeps: 0,
            responds_to_parts: false,
        }
    }
}

impl Peer {
    /// Packets that may be in flight, at most `window`.
    #[inline]
    pub(crate) fn limit(&self, window: u64) -> u64 {
        match self.kind {
            Kind::Unknown | Kind::SelectiveRepeat => window,
            Kind::Probed => 1,
            Kind::GoBackN => window.min(self.limit),
        }
    }

    /// READ response packets that may be in flight. A go-back-N peer drops only requests, which are small.
    #[inline]
    pub(crate) fn fetch_limit(&self) -> u64 {
        if self.kind == Kind::Probed { 1 } else { u64::MAX }
    }

    /// Whether the peer is known to keep packets behind a gap.
    pub(crate) fn repeats_selectively(&self) -> bool {
        self.kind == Kind::SelectiveRepeat
    }

    /// Whether parts of one READ may be requested in any order.
    pub(crate) fn responds_to_parts(&self) -> bool {
        self.responds_to_parts || self.repeats_selectively()
    }

    /// It responded to a part of a READ, other than its beginning, with First or Only.
    pub(crate) fn responded_to_part(&mut self) {
        self.responds_to_parts = true;
    }

    /// One past the packets that were in flight at the last loss, to a go-back-N peer; else 0.
    #[inline]
    pub(crate) fn recover(&self) -> u64 {
        if self.kind == Kind::GoBackN { self.recover } else { 0 }
    }

    /// Whether this packet is the probe.
    pub(crate) fn is_probe(&self, position: u64) -> bool {
        self.kind == Kind::Probed && position + 1 == self.behind
    }

    /// Whether a probe is in flight.
    #[inline]
    pub(crate) fn is_probed(&self) -> bool {
        self.kind == Kind::Probed
    }

    /// The peer NAKs the packet at `position`; called before the NAK counts as an acknowledgement. A peer
    /// that misses the packet behind the probe has kept one further on. (Or that packet was sent since, and
    /// lost; the creep count notices.)
    pub(crate) fn on_sequence_nak(&mut self, position: u64) {
        if matches!(self.kind, Kind::Probed | Kind::GoBackN) && position == self.behind {
            self.set_selective();
        }
    }

    /// What to do about the missing packet at `position`. `numbers` is how many packet numbers it takes (a
    /// READ request: one per response), `next` the first packet that was never sent, `window` the limit
    /// without a loss.
    pub(crate) fn remedy(&mut self, position: u64, numbers: u64, next: u64, window: u64) -> Remedy {
        match self.kind {
            Kind::Unknown => {
                self.kind = Kind::Probed;
                self.behind = position + 1;
                Remedy::GoBack
            }
            Kind::Probed => Remedy::GoBack,
            Kind::SelectiveRepeat => {
                self.creeps = if position == self.behind { self.creeps + 1 } else { 0 };
                if self.creeps == CREEPS_MAX {
                    self.kind = Kind::GoBackN;
                    self.shrink(next, window);
                    return Remedy::GoBack;
                }
                let packets = 1 << self.creeps;
                self.behind = position + packets.max(numbers);
                Remedy::Packets(packets)
            }
            Kind::GoBackN => {
                if position >= self.recover {
                    self.shrink(next, window);
                }
                Remedy::GoBack
            }
        }
    }

    /// Everything before `to` is acknowledged, `packets` of them new. After going back, everything before
    /// `sent` was retransmitted.
    #[inline]
    pub(crate) fn on_ack(&mut self, to: u64, packets: u64, sent: u64) {
        match self.kind {
            Kind::Unknown | Kind::SelectiveRepeat => {}
            _ if to > sent => self.set_selective(),
            Kind::Probed if to >= self.behind => {
                self.kind = Kind::GoBackN;
                self.limit = LIMIT_FIRST;
            }
            Kind::Probed => {}
            Kind::GoBackN => self.grow(packets),
        }
    }

    /// The peer was silent for too long: everything in flight may be lost.
    pub(crate) fn on_timeout(&mut self, next: u64, window: u64) {
        if self.kind == Kind::GoBackN {
            self.shrink(next, window);
            self.limit = LIMIT_MIN;
        }
    }

    fn set_selective(&mut self) {
        self.kind = Kind::SelectiveRepeat;
        self.creeps = 0;
    }

    fn shrink(&mut self, next: u64, window: u64) {
        self.limit = (self.limit.min(window) / 2).max(LIMIT_MIN);
        self.credit = 0;
        self.recover = next;
    }

    /// Grows the limit by one packet for every four that arrive. As each loss halves the limit, it settles
    /// near half the number of packets that arrive between two losses.
    fn grow(&mut self, packets: u64) {
        self.credit += packets;
        self.limit = self.limit.saturating_add(self.credit / GROWTH);
        self.credit %= GROWTH;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_acknowledges_packets_beyond_the_probe_repeats_selectively() {
        let mut peer = Peer::default();
        assert_eq!((peer.limit(310), peer.remedy(10, 1, 100, 310)), (310, Remedy::GoBack));
        assert_eq!(peer.limit(310), 1, "the probe only");
        peer.on_ack(50, 40, 11);
        assert!(peer.repeats_selectively());
        assert_eq!((peer.limit(310), peer.remedy(60, 1, 200, 310)), (310, Remedy::Packets(1)));
    }

    #[test]
    fn a_peer_that_naks_the_packet_behind_the_probe_repeats_selectively() {
        let mut peer = Peer::default();
        peer.remedy(10, 1, 100, 310);
        peer.on_sequence_nak(11);
        peer.on_ack(11, 1, 11);
        assert_eq!(peer.remedy(11, 1, 100, 310), Remedy::Packets(2));
        assert!(peer.repeats_selectively());
    }

    /// READ responses leave before the NAK.
    #[test]
    fn a_peer_that_naks_the_packet_behind_a_probed_read_repeats_selectively() {
        let mut peer = Peer::default();
        peer.remedy(10, 64, 200, 310);
        assert_eq!((peer.fetch_limit(), peer.is_probe(10)), (1, true));
        peer.on_ack(11, 1, 11);
        assert!(!peer.repeats_selectively());
        peer.on_sequence_nak(11);
        assert!(peer.repeats_selectively());
    }

    #[test]
    fn a_peer_that_acknowledges_only_the_probe_goes_back_n() {
        let mut peer = Peer::default();
        peer.remedy(10, 1, 100, 310);
        peer.on_ack(11, 1, 11);
        assert_eq!(peer.limit(310), LIMIT_FIRST);
        for _ in 0..10 {
            let limit = peer.limit(310);
            peer.on_ack(12, limit, 1000);
        }
        assert_eq!(peer.limit(310), 310);
        assert_eq!(peer.remedy(500, 1, 700, 310), Remedy::GoBack);
        assert_eq!(peer.limit(310), 155);
        peer.remedy(600, 1, 700, 310);
        assert_eq!(peer.limit(310), 155, "one event");
        peer.on_ack(700, 155, 1000);
        assert_eq!(peer.limit(310), 155 + 155 / 4);
        peer.on_timeout(800, 310);
        assert_eq!(peer.limit(310), LIMIT_MIN);
    }

    #[test]
    fn an_ack_before_the_probe_decides_nothing() {
        let mut peer = Peer::default();
        peer.remedy(10, 1, 100, 310);
        peer.on_ack(10, 4, 11);
        assert_eq!(peer.limit(310), 1);
    }

    /// A peer taken for selective repeat misses the next packet again and again: each retransmission covers
    /// twice as many packets, then the requester goes back N.
    #[test]
    fn a_peer_that_misses_each_next_packet_goes_back_n() {
        let mut peer = Peer { kind: Kind::SelectiveRepeat, ..Peer::default() };
        assert_eq!(peer.remedy(10, 1, 100, 310), Remedy::Packets(1));
        assert_eq!(peer.remedy(11, 1, 100, 310), Remedy::Packets(2));
        assert_eq!(peer.remedy(13, 1, 100, 310), Remedy::Packets(4));
        assert_eq!(peer.remedy(17, 1, 100, 310), Remedy::Packets(8));
        assert_eq!(peer.remedy(25, 1, 100, 310), Remedy::GoBack);
        assert!(!peer.repeats_selectively());
        peer.on_ack(90, 65, 40);
        assert!(peer.repeats_selectively(), "an ACK beyond the retransmission counts again");
    }

    #[test]
    fn a_peer_that_misses_each_next_read_goes_back_n() {
        let mut peer = Peer { kind: Kind::SelectiveRepeat, ..Peer::default() };
        for read in 1..5 {
            assert!(matches!(peer.remedy(64 * read, 64, 640, 310), Remedy::Packets(_)));
        }
        assert_eq!(peer.remedy(64 * 5, 64, 640, 310), Remedy::GoBack);
    }
}
