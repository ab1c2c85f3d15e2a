//! The notification point: sends CNPs for packets that a switch has marked (Annex A17.9; DCQCN, section 3).

use crate::time::Instant;

/// At most one CNP of a queue pair in this time (N of the paper; mlx5: `np_min_time_between_cnps`).
const INTERVAL_NS: u64 = 50_000;

/// Decides when the peer of one queue pair gets a CNP.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notifier {
    due: bool,
    not_before: Instant,
}

impl Notifier {
    /// A packet of the peer arrived marked.
    pub(crate) fn on_marked(&mut self, now: Instant) {
        if now >= self.not_before {
            self.due = true;
            self.not_before = now.plus_ns(INTERVAL_NS);
        }
    }

    /// Whether a CNP is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// Takes the CNP that is due; the caller sends it. Returns whether there was one.
    pub(crate) fn take(&mut self) -> bool {
        core::mem::take(&mut self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_gets_one_cnp_in_50_us() {
        let mut notifier = Notifier::default();
        let mut cnps = vec![];
        for us in 0..200 {
            notifier.on_marked(Instant(us * 1000));
            if notifier.is_due() && notifier.take() {
                cnps.push(us);
            }
        }
        assert_eq!(cnps, [0, 50, 100, 150]);
    }
}
