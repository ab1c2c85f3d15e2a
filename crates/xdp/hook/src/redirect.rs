//! Results of redirects: to other processes, which are handed over without the engine's lock, to the
//! reader, and back to the port.

use std::sync::atomic::{AtomicU64, Ordering};

use roxie::registry::ForwardOutcome;
use roxie::status::Row;

/// How long the source of redirects is paused after its target had no space: the time to read the 200 KB of a
/// socket's buffer. Meanwhile received packets wait in this process's socket, and packets to send in their
/// queue pairs, which delays them instead of losing them.
const PAUSE_NS: u64 = 100_000;

/// Of one hook point. Shared by the hooks and the thread that hands packets over.
#[derive(Debug, Default)]
pub(crate) struct RedirectOutcome {
    full: AtomicU64,
    absent: AtomicU64,
    paused_until_ns: AtomicU64,
    stalls: AtomicU64,
    stalled_ns: AtomicU64,
}

impl RedirectOutcome {
    /// Counts the result of handing over one packet. Returns whether no process has the slot.
    pub(crate) fn count(&self, outcome: std::io::Result<ForwardOutcome>, now_ns: u64) -> bool {
        match outcome {
            Ok(ForwardOutcome::Delivered) => false,
            Ok(ForwardOutcome::Full) => {
                self.full.fetch_add(1, Ordering::Relaxed);
                self.pause(now_ns);
                false
            }
            Ok(ForwardOutcome::NoMember) | Err(_) => {
                self.absent.fetch_add(1, Ordering::Relaxed);
                true
            }
        }
    }

    /// Slows the source down: a target is full.
    pub(super) fn pause(&self, now_ns: u64) {
        let until_ns = now_ns + PAUSE_NS;
        let before_ns = self.paused_until_ns.swap(until_ns, Ordering::Relaxed);
        if before_ns <= now_ns {
            self.stalls.fetch_add(1, Ordering::Relaxed);
        }
        self.stalled_ns.fetch_add(until_ns.saturating_sub(before_ns.max(now_ns)), Ordering::Relaxed);
    }

    /// Whether the source of redirects is to be slowed down.
    #[inline]
    pub(super) fn is_paused(&self, now_ns: u64) -> bool {
        now_ns < self.paused_until_ns.load(Ordering::Relaxed)
    }

    /// Of the ingress hook.
    pub(super) fn rx_rows(&self) -> [Row; 4] {
        let [full, stalls, stalled_us] = self.values();
        [
            ("rx_xdp_redirect_full", full),
            ("rx_xdp_redirect_nobody", self.absent.load(Ordering::Relaxed)),
            ("rx_xdp_redirect_stalls", stalls),
            ("rx_xdp_redirect_stalled_us", stalled_us),
        ]
    }

    /// Of the egress hook.
    pub(super) fn tx_rows(&self) -> [Row; 3] {
        let [full, stalls, stalled_us] = self.values();
        [
            ("tx_xdp_redirect_full", full),
            ("tx_xdp_redirect_stalls", stalls),
            ("tx_xdp_redirect_stalled_us", stalled_us),
        ]
    }

    /// For `roxie hook stats`: since the engine's start; nothing if every target was there and had space.
    pub(super) fn status_rows(&self) -> Vec<(String, u64)> {
        let [full, stalls, stalled_us] = self.values();
        let rows = [
            ("redirect_full", full),
            ("redirect_nobody", self.absent.load(Ordering::Relaxed)),
            ("redirect_stalls", stalls),
            ("redirect_stalled_us", stalled_us),
        ]
        .into_iter();
        rows.filter(|(_, value)| *value != 0).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn values(&self) -> [u64; 3] {
        let [full, stalls, stalled_ns] =
            [&self.full, &self.stalls, &self.stalled_ns].map(|count| count.load(Ordering::Relaxed));
        [full, stalls, stalled_ns / 1000]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_process_slows_the_source_and_not_for_ever() {
        let outcome = RedirectOutcome::default();
        outcome.count(Ok(ForwardOutcome::Delivered), 1);
        outcome.count(Ok(ForwardOutcome::NoMember), 1);
        outcome.count(Err(std::io::ErrorKind::PermissionDenied.into()), 1);
        assert!(!outcome.is_paused(1));
        outcome.count(Ok(ForwardOutcome::Full), 1);
        assert!(outcome.is_paused(PAUSE_NS) && !outcome.is_paused(1 + PAUSE_NS));
        assert_eq!(outcome.rx_rows().map(|row| row.1), [1, 2, 1, PAUSE_NS / 1000]);
        // The second pause continues the first one, the third does not.
        outcome.pause(1 + PAUSE_NS / 2);
        assert_eq!(outcome.tx_rows().map(|row| row.1), [1, 1, PAUSE_NS * 3 / 2 / 1000]);
        outcome.pause(10 * PAUSE_NS);
        assert_eq!(outcome.tx_rows().map(|row| row.1), [1, 2, PAUSE_NS * 5 / 2 / 1000]);
    }
}
