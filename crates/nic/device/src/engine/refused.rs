//! Packets that their destination has refused by ICMP: when the engine asks the port for them.
//!
//! The port announces them by no descriptor. So the engine looks some times after each management datagram
//! that it has sent, soon at first and then at growing intervals. It looks only after requests, disconnects
//! and probes: other hosts can cause the rest with forged messages, and a refusal of the rest means nothing.
//! It looks for other packets when a peer has acknowledged nothing for some probes of the transport. Only
//! packets in flight count then: a stranger does not know their PSNs.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use transport::cm::may_be_refused;
use transport::{Instant, Qp};
use wire::mad::MAD_LEN;
use wire::{Bth, Deth, Gid, Psn, Qpn};

use super::{Core, Engine};
use crate::port::RefusedKind;
use crate::trace;

/// Time from a sent datagram to the first look (nanoseconds): longer than the round trip of most networks.
/// Half: one more look. Double: an absent server is noticed 20 ms later.
const FIRST_NS: u64 = 20_000_000;
/// Each look follows the one before after this many times as long.
const GROWTH: u64 = 3;
/// The longest time to the next look (nanoseconds); after it there is none.
const LAST_NS: u64 = 600_000_000;

/// Shortest time between two looks for packets (nanoseconds). A stranger that guesses PSNs has so much longer
/// to wait for each 64 guesses. Half: half that time. Double: a death is noticed 50 ms later at most.
const PACKETS_INTERVAL_NS: u64 = 50_000_000;

/// When the engine looks next.
#[derive(Debug, Default)]
pub(crate) struct RefusedWatch {
    /// For management datagrams; 0 for never (nanoseconds).
    at_ns: AtomicU64,
    interval_ns: AtomicU64,
    /// For packets; 0 for never, and the earliest time of the look after that.
    packets_at_ns: AtomicU64,
    packets_from_ns: AtomicU64,
}

impl RefusedWatch {
    /// A management datagram is about to be sent. True if the looks begin: ICMP messages that are there now
    /// are about earlier datagrams.
    fn begin(&self, now: Instant, mad: &[u8; MAD_LEN]) -> bool {
        if !may_be_refused(mad) {
            return false;
        }
        self.interval_ns.store(FIRST_NS, Ordering::Relaxed);
        let at_ns = self.at_ns.load(Ordering::Relaxed);
        if at_ns == 0 || at_ns > now.0 + FIRST_NS {
            self.at_ns.store(now.0 + FIRST_NS, Ordering::Relaxed);
        }
        at_ns == 0
    }

    /// When the next look of either kind is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let at_ns = [&self.at_ns, &self.packets_at_ns].map(|at| at.load(Ordering::Relaxed));
        at_ns.into_iter().filter(|at| *at != 0).min().map(Instant)
    }

    /// A peer is silent: a look for packets follows soon.
    fn suspect(&self, now: Instant) {
        let at_ns = now.0.max(self.packets_from_ns.load(Ordering::Relaxed));
        self.packets_at_ns.store(at_ns, Ordering::Relaxed);
    }

    /// Whether a look for packets is due.
    fn take_packets(&self, now: Instant) -> bool {
        let at_ns = self.packets_at_ns.load(Ordering::Relaxed);
        let is_due = at_ns != 0 && at_ns <= now.0;
        if is_due {
            self.packets_at_ns.store(0, Ordering::Relaxed);
            self.packets_from_ns.store(now.0 + PACKETS_INTERVAL_NS, Ordering::Relaxed);
        }
        is_due
    }

    /// Whether a look for management datagrams is due; schedules the next one.
    fn take_mads(&self, now: Instant) -> bool {
        let at_ns = self.at_ns.load(Ordering::Relaxed);
        if at_ns == 0 || at_ns > now.0 {
            return false;
        }
        let interval_ns = self.interval_ns.load(Ordering::Relaxed) * GROWTH;
        self.interval_ns.store(interval_ns, Ordering::Relaxed);
        let next = if interval_ns > LAST_NS { 0 } else { now.0 + interval_ns };
        self.at_ns.store(next, Ordering::Relaxed);
        true
    }
}

/// The packets that one look has found, by destination: all queue pairs are compared with them in one pass,
/// however many messages a stranger has forged.
#[derive(Debug, Default)]
struct RefusedPackets(HashMap<(IpAddr, Qpn), Vec<Psn>>);

impl RefusedPackets {
    /// Adds a packet to `dst`, which begins with a BTH, unless it is known.
    fn add(&mut self, dst: IpAddr, packet: &[u8]) {
        let Some(bth) = packet.first_chunk().map(Bth::parse) else { return };
        let psns = self.0.entry((dst, bth.dest_qp)).or_default();
        if !psns.contains(&bth.psn) {
            psns.push(bth.psn);
        }
    }

    /// The PSNs of the packets to queue pair `dest_qp` of `dst`.
    fn psns(&self, dst: IpAddr, dest_qp: Qpn) -> &[Psn] {
        self.0.get(&(dst, dest_qp)).map_or(&[], Vec::as_slice)
    }
}

impl Engine {
    /// Sends one management datagram from QP1, and looks for its refusal if that matters.
    pub(crate) fn send_mad(&self, src: Gid, dst: Gid, mad: &[u8; MAD_LEN]) {
        let begins = self.services.refused.begin(self.now(), mad);
        let mut core = self.lock();
        if begins {
            // Refused replies to forged messages would fill the buffer for the ICMP message about this one.
            core.port.take_refused(RefusedKind::Mads, &mut |_, _| {});
        }
        core.send_mad(src, dst, mad);
        trace::cm_message(mad, true);
        self.wake_for(&core);
        drop(core);
        self.wake_before(self.services.refused.next());
    }

    /// A peer acknowledges nothing: makes a look for refused packets follow.
    #[cold]
    pub(super) fn look_for_refused(&self) {
        self.services.refused.suspect(self.now());
        self.wake_before(self.services.refused.next());
    }

    /// Passes what was refused to connection management, if it is time to look.
    pub(super) fn take_refused(&self) {
        // Without anything to look for, a poll reads no clock.
        if self.services.refused.next().is_none() {
            return;
        }
        let now = self.now();
        if self.services.refused.take_mads(now) {
            self.take_refused_mads();
        }
        if self.services.refused.take_packets(now) {
            self.take_refused_packets();
        }
    }

    fn take_refused_mads(&self) {
        let mut refused = Vec::new();
        self.lock().port.take_refused(RefusedKind::Mads, &mut |dst, quoted| {
            let mad = quoted.get(Bth::LEN + Deth::LEN..).and_then(<[u8]>::first_chunk::<MAD_LEN>);
            refused.extend(mad.map(|mad| (*mad, Gid::from(dst))));
        });
        for (mad, dst) in &refused {
            self.services.cm.handle_refused(self.now(), mad, *dst);
        }
    }

    fn take_refused_packets(&self) {
        let senders = self.lock().take_refused_packets();
        if senders.is_empty() {
            return;
        }
        self.with_first(|first| {
            for (src, dst) in senders {
                first.services.cm.handle_refused_packet(first.now(), src, dst);
            }
            first.wake_before(first.services.cm.poll_timeout());
        });
    }
}

impl Core {
    /// Returns the addresses, ours and the peer's, of the queue pairs that have a refused packet in flight.
    fn take_refused_packets(&mut self) -> Vec<(Gid, Gid)> {
        let mut refused = RefusedPackets::default();
        self.port.take_refused(RefusedKind::Packets, &mut |dst, quoted| refused.add(dst, quoted));
        if refused.0.is_empty() {
            return Vec::new();
        }
        let is_sender = |qp: &Qp| {
            let dst = qp.av().dgid.ip();
            refused.psns(dst, qp.dest_qpn()).iter().any(|psn| qp.is_in_flight(*psn)).then_some(dst)
        };
        let senders = self.tables.qps().filter_map(|(_, entry)| Some((&entry.qp, is_sender(&entry.qp)?)));
        let hosts = senders.filter_map(|(qp, dst)| Some((self.tables.source_ip(qp.av().sgid_index)?, dst)));
        let hosts: BTreeSet<_> = hosts.collect();
        hosts.into_iter().map(|(src, dst)| (Gid::from(src), Gid::from(dst))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::cm::{Drep, Dreq, Rej, Rep, Rtu, SidrRep};

    fn request() -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        Dreq::default().emit(&mut mad);
        mad
    }

    #[test]
    fn no_look_follows_a_reply() {
        let mut replies = [[0; MAD_LEN]; 5];
        let [rep, rtu, rej, drep, sidr_rep] = &mut replies;
        Rep::default().emit(rep);
        Rtu::default().emit(rtu);
        Rej::default().emit(rej);
        Drep::default().emit(drep);
        SidrRep::default().emit(sidr_rep);
        let watch = RefusedWatch::default();
        for mad in &replies {
            assert!(!watch.begin(Instant(1000), mad));
        }
        assert_eq!(watch.next(), None);
    }

    #[test]
    fn looks_follow_a_sent_datagram_at_growing_intervals() {
        let watch = RefusedWatch::default();
        assert_eq!(watch.next(), None);
        assert!(watch.begin(Instant(1000), &request()) && !watch.begin(Instant(1000), &request()));
        let mut looks = Vec::new();
        while let Some(at) = watch.next() {
            assert!(!watch.take_mads(Instant(at.0 - 1)) && watch.take_mads(at));
            looks.push((at.0 - 1000) / 1_000_000);
        }
        assert_eq!(looks, [20, 80, 260, 800], "ms");
    }

    #[test]
    fn each_refused_packet_counts_once_and_only_for_its_destination() {
        let packet = |dest_qp: u8, psn: u8| [4, 0, 0xff, 0xff, 0, 0, 0, dest_qp, 0, 0, 0, psn];
        let [here, there] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let mut refused = RefusedPackets::default();
        for _ in 0..64 {
            refused.add(here, &packet(7, 1));
            refused.add(here, &packet(7, 2));
            refused.add(there, &packet(8, 3));
        }
        refused.add(there, &packet(9, 4)[..11]);
        let psns = |dst, dest_qp| {
            refused.psns(dst, Qpn::new(dest_qp)).iter().map(|psn| psn.value()).collect::<Vec<_>>()
        };
        assert_eq!((psns(here, 7), psns(there, 8)), (vec![1, 2], vec![3]));
        assert!(psns(there, 7).is_empty() && psns(here, 8).is_empty() && psns(there, 9).is_empty());
        assert_eq!(refused.0.len(), 2);
    }

    #[test]
    fn looks_for_packets_keep_an_interval() {
        let watch = RefusedWatch::default();
        assert!(!watch.take_packets(Instant(1000)));
        let mut looks = Vec::new();
        for ms in 1..=200 {
            let now = Instant(ms * 1_000_000);
            watch.suspect(now);
            looks.extend(watch.take_packets(now).then_some(ms));
        }
        assert_eq!(looks, [1, 51, 101, 151]);
        assert_eq!(watch.next(), Some(Instant(201_000_000)), "the last suspicion is not forgotten");
        assert!(!watch.take_mads(Instant(500_000_000)));
    }
}
