//! Management datagrams that their destination has refused by ICMP: when the engine asks the port for them.
//!
//! The port announces them by no descriptor. So the engine looks some times after each datagram that it has
//! sent, soon at first and then at growing intervals. It looks only after requests, disconnects and probes:
//! other hosts can cause the rest with forged messages, and a refusal of the rest means nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use transport::Instant;
use transport::cm::may_be_refused;
use wire::mad::MAD_LEN;
use wire::{Bth, Deth, Gid};

use super::Engine;

/// Time from a sent datagram to the first look (nanoseconds): longer than the round trip of most networks.
/// Half: one more look. Double: an absent server is noticed 20 ms later.
const FIRST_NS: u64 = 20_000_000;
/// Each look follows the one before after this many times as long.
const GROWTH: u64 = 3;
/// The longest time to the next look (nanoseconds); after it there is none.
const LAST_NS: u64 = 600_000_000;

/// When the engine looks next.
#[derive(Debug, Default)]
pub(crate) struct RefusedWatch {
    /// 0 for never (nanoseconds).
    at_ns: AtomicU64,
    interval_ns: AtomicU64,
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

    pub(super) fn next(&self) -> Option<Instant> {
        let at_ns = self.at_ns.load(Ordering::Relaxed);
        (at_ns != 0).then_some(Instant(at_ns))
    }

    /// Whether a look is due; schedules the next one.
    fn take(&self, now: Instant) -> bool {
        if self.next().is_none_or(|at| at > now) {
            return false;
        }
        let interval_ns = self.interval_ns.load(Ordering::Relaxed) * GROWTH;
        self.interval_ns.store(interval_ns, Ordering::Relaxed);
        let next = if interval_ns > LAST_NS { 0 } else { now.0 + interval_ns };
        self.at_ns.store(next, Ordering::Relaxed);
        true
    }
}

impl Engine {
    /// Sends one management datagram from QP1, and looks for its refusal if that matters.
    pub(crate) fn send_mad(&self, src: Gid, dst: Gid, mad: &[u8; MAD_LEN]) {
        let begins = self.refused.begin(self.now(), mad);
        let mut core = self.lock();
        if begins {
            // Refused replies to forged messages would fill the buffer for the ICMP message about this one.
            core.port.take_refused(&mut |_, _| {});
        }
        core.send_mad(src, dst, mad);
        self.wake_for(&core);
        drop(core);
        self.wake_before(self.refused.next());
    }

    /// Passes refused management datagrams to connection management, if it is time to look for them.
    pub(super) fn take_refused(&self) {
        // Without a datagram to look for, a poll reads no clock.
        if self.refused.next().is_none() || !self.refused.take(self.now()) {
            return;
        }
        let mut refused = Vec::new();
        self.lock().port.take_refused(&mut |dst, quoted| {
            let mad = quoted.get(Bth::LEN + Deth::LEN..).and_then(<[u8]>::first_chunk::<MAD_LEN>);
            refused.extend(mad.map(|mad| (*mad, Gid::from(dst))));
        });
        for (mad, dst) in &refused {
            self.cm.handle_refused(self.now(), mad, *dst);
        }
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
            assert!(!watch.take(Instant(at.0 - 1)) && watch.take(at));
            looks.push((at.0 - 1000) / 1_000_000);
        }
        assert_eq!(looks, [20, 80, 260, 800], "ms");
    }
}
