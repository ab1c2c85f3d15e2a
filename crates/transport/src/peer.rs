//! What the peer does with packets behind a gap, and how much it is sent because of that.
//!
//! Nothing on the wire says whether a responder keeps them. So the first packet that it misses is sent again alone: one that
//! keeps then acknowledges, or misses, something further on; a go-back-N responder (hardware, rxe) acknowledges just this
//! packet and gets everything from there. Both are believed until they show themselves otherwise.

/// What the peer was seen to do.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Kind {
    /// It never missed anything.
    #[default]
    Unknown,
    /// The first packet it missed is on its way, alone.
    Asked,
    Keeps,
    GoesBack,
}

/// Packets towards a go-back-N peer that are not lost with the one before them, at the least: an acknowledgement for each
/// two, and one loss does not end the flow.
const LIMIT_MIN: u64 = 4;
/// ... and when it has just shown itself to be one.
const LIMIT_FIRST: u64 = 64;
/// Packets that must arrive for one more to be on its way.
const GROWTH: u64 = 4;
/// So many times a peer may miss just what was not sent again, before it is taken for one that does not keep.
const CREEPS_MAX: u8 = 4;

/// What a sequence NAK asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Remedy {
    /// So many packets, from the one that it names.
    Packets(u64),
    /// Everything from there.
    GoBack,
}

/// The requester's view of its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    kind: Kind,
    /// Packets that may be on their way to one that does not keep.
    limit: u64,
    /// Packets acknowledged towards the next step of growth.
    credit: u64,
    /// Losses before this packet belong to one event.
    recover: u64,
    /// The packet behind those that were sent again last, and how often just that was missing then.
    behind: u64,
    creeps: u8,
    /// It answers a part of a READ that is asked for again as it would a READ, beginning with First or Only. rxe goes on with
    /// Middle or Last, and from then on drops, without a word, whatever is asked for before that part of the same READ.
    answers_parts: bool,
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
            answers_parts: false,
        }
    }
}

impl Peer {
    /// Packets that may be on their way, of at most `window`.
    #[inline]
    pub(crate) fn limit(&self, window: u64) -> u64 {
        match self.kind {
            Kind::Unknown | Kind::Keeps => window,
            Kind::Asked => 1,
            Kind::GoesBack => window.min(self.limit),
        }
    }

    /// Of answers to READ requests. One that does not keep drops only requests, which are small.
    #[inline]
    pub(crate) fn fetch_limit(&self) -> u64 {
        if self.kind == Kind::Asked { 1 } else { u64::MAX }
    }

    pub(crate) fn keeps(&self) -> bool {
        self.kind == Kind::Keeps
    }

    /// Whether parts of one READ may be asked for in any order.
    pub(crate) fn answers_parts(&self) -> bool {
        self.answers_parts || self.keeps()
    }

    /// It has answered a part of a READ, other than its beginning, with First or Only.
    pub(crate) fn hear_part(&mut self) {
        self.answers_parts = true;
    }

    /// What was on its way at the last loss ends here; 0 if it keeps, or misses nothing.
    #[inline]
    pub(crate) fn recover(&self) -> u64 {
        if self.kind == Kind::GoesBack { self.recover } else { 0 }
    }

    /// Whether this packet is on its way alone, to see what the peer does.
    pub(crate) fn is_asked(&self, position: u64) -> bool {
        self.kind == Kind::Asked && position + 1 == self.behind
    }

    /// Whether it is to be seen what it does, for which just one packet is on its way.
    #[inline]
    pub(crate) fn is_being_asked(&self) -> bool {
        self.kind == Kind::Asked
    }

    /// It says that it misses the packet at `position`, before that counts as an acknowledgement. Right behind the one that
    /// was sent alone, it can know only because it has kept something further on. (Or this one was sent since, and lost: then
    /// it creeps.)
    pub(crate) fn hear_nak(&mut self, position: u64) {
        if matches!(self.kind, Kind::Asked | Kind::GoesBack) && position == self.behind {
            self.keep();
        }
    }

    /// What to do about a missing packet at `position`, which takes `numbers` (a READ request: one for each answer); `next` is
    /// the first that was never sent, `window` what was allowed.
    pub(crate) fn on_nak(&mut self, position: u64, numbers: u64, next: u64, window: u64) -> Remedy {
        match self.kind {
            Kind::Unknown => {
                self.kind = Kind::Asked;
                self.behind = position + 1;
                Remedy::GoBack
            }
            Kind::Asked => Remedy::GoBack,
            Kind::Keeps => {
                self.creeps = if position == self.behind { self.creeps + 1 } else { 0 };
                if self.creeps == CREEPS_MAX {
                    self.kind = Kind::GoesBack;
                    self.shrink(next, window);
                    return Remedy::GoBack;
                }
                let packets = 1 << self.creeps;
                self.behind = position + packets.max(numbers);
                Remedy::Packets(packets)
            }
            Kind::GoesBack => {
                if position >= self.recover {
                    self.shrink(next, window);
                }
                Remedy::GoBack
            }
        }
    }

    /// Everything before `to` is acknowledged, `packets` of it news; after going back, everything before `sent` was sent
    /// again.
    #[inline]
    pub(crate) fn on_ack(&mut self, to: u64, packets: u64, sent: u64) {
        match self.kind {
            Kind::Unknown | Kind::Keeps => {}
            _ if to > sent => self.keep(),
            Kind::Asked if to >= self.behind => {
                self.kind = Kind::GoesBack;
                self.limit = LIMIT_FIRST;
            }
            Kind::Asked => {}
            Kind::GoesBack => self.grow(packets),
        }
    }

    /// It has not answered: whatever was on its way may be lost.
    pub(crate) fn on_timeout(&mut self, next: u64, window: u64) {
        if self.kind == Kind::GoesBack {
            self.shrink(next, window);
            self.limit = LIMIT_MIN;
        }
    }

    fn keep(&mut self) {
        self.kind = Kind::Keeps;
        self.creeps = 0;
    }

    fn shrink(&mut self, next: u64, window: u64) {
        self.limit = (self.limit.min(window) / 2).max(LIMIT_MIN);
        self.credit = 0;
        self.recover = next;
    }

    /// By a packet for every four that arrive. Halved with each loss, the limit settles where half of it is lost in vain with
    /// every one: at half as many packets as arrive between two losses.
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
    fn a_peer_that_acknowledges_what_was_not_sent_again_keeps() {
        let mut peer = Peer::default();
        assert_eq!((peer.limit(310), peer.on_nak(10, 1, 100, 310)), (310, Remedy::GoBack));
        assert_eq!(peer.limit(310), 1, "one packet, to see");
        peer.on_ack(50, 40, 11);
        assert!(peer.keeps());
        assert_eq!((peer.limit(310), peer.on_nak(60, 1, 200, 310)), (310, Remedy::Packets(1)));
    }

    #[test]
    fn a_peer_that_misses_the_next_one_without_being_sent_more_keeps() {
        let mut peer = Peer::default();
        peer.on_nak(10, 1, 100, 310);
        peer.hear_nak(11);
        peer.on_ack(11, 1, 11);
        assert_eq!(peer.on_nak(11, 1, 100, 310), Remedy::Packets(2));
        assert!(peer.keeps());
    }

    /// READ answers leave before the NAK.
    #[test]
    fn a_peer_that_misses_the_next_one_behind_its_answers_keeps() {
        let mut peer = Peer::default();
        peer.on_nak(10, 64, 200, 310);
        assert_eq!((peer.fetch_limit(), peer.is_asked(10)), (1, true));
        peer.on_ack(11, 1, 11);
        assert!(!peer.keeps());
        peer.hear_nak(11);
        assert!(peer.keeps());
    }

    #[test]
    fn a_peer_that_acknowledges_just_that_packet_goes_back() {
        let mut peer = Peer::default();
        peer.on_nak(10, 1, 100, 310);
        peer.on_ack(11, 1, 11);
        assert_eq!(peer.limit(310), LIMIT_FIRST);
        for _ in 0..10 {
            let limit = peer.limit(310);
            peer.on_ack(12, limit, 1000);
        }
        assert_eq!(peer.limit(310), 310);
        assert_eq!(peer.on_nak(500, 1, 700, 310), Remedy::GoBack);
        assert_eq!(peer.limit(310), 155);
        peer.on_nak(600, 1, 700, 310);
        assert_eq!(peer.limit(310), 155, "one event");
        peer.on_ack(700, 155, 1000);
        assert_eq!(peer.limit(310), 155 + 155 / 4);
        peer.on_timeout(800, 310);
        assert_eq!(peer.limit(310), LIMIT_MIN);
    }

    #[test]
    fn an_ack_before_the_packet_that_was_sent_alone_says_nothing() {
        let mut peer = Peer::default();
        peer.on_nak(10, 1, 100, 310);
        peer.on_ack(10, 4, 11);
        assert_eq!(peer.limit(310), 1);
    }

    /// Taken for one that keeps, it misses the next packet again and again: the runs double, then it is served the old way.
    #[test]
    fn a_peer_that_creeps_goes_back() {
        let mut peer = Peer { kind: Kind::Keeps, ..Peer::default() };
        assert_eq!(peer.on_nak(10, 1, 100, 310), Remedy::Packets(1));
        assert_eq!(peer.on_nak(11, 1, 100, 310), Remedy::Packets(2));
        assert_eq!(peer.on_nak(13, 1, 100, 310), Remedy::Packets(4));
        assert_eq!(peer.on_nak(17, 1, 100, 310), Remedy::Packets(8));
        assert_eq!(peer.on_nak(25, 1, 100, 310), Remedy::GoBack);
        assert!(!peer.keeps());
        peer.on_ack(90, 65, 40);
        assert!(peer.keeps(), "and shows itself again");
    }

    #[test]
    fn a_peer_that_creeps_from_read_to_read_goes_back() {
        let mut peer = Peer { kind: Kind::Keeps, ..Peer::default() };
        for read in 1..5 {
            assert!(matches!(peer.on_nak(64 * read, 64, 640, 310), Remedy::Packets(_)));
        }
        assert_eq!(peer.on_nak(64 * 5, 64, 640, 310), Remedy::GoBack);
    }
}
