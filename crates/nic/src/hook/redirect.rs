//! Results of redirects to other processes, which are handed over without the engine's lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::registry::ForwardOutcome;
use crate::stats::Row;

/// How long receiving is paused after a process had no space for redirected packets: the time to read the
/// 200 KB of its socket's buffer. Meanwhile packets wait in this process's socket, which delays them
/// instead of losing them.
const PAUSE_NS: u64 = 100_000;

/// Shared by the hooks and the thread that hands packets over.
#[derive(Debug, Default)]
pub(crate) struct RedirectOutcome {
    full: AtomicU64,
    absent: AtomicU64,
    paused_until_ns: AtomicU64,
}

impl RedirectOutcome {
    /// Counts the result of handing over one packet.
    pub(crate) fn count(&self, outcome: std::io::Result<ForwardOutcome>, now_ns: u64) {
        match outcome {
            Ok(ForwardOutcome::Delivered) => {}
            Ok(ForwardOutcome::Full) => {
                self.full.fetch_add(1, Ordering::Relaxed);
                self.paused_until_ns.store(now_ns + PAUSE_NS, Ordering::Relaxed);
            }
            Ok(ForwardOutcome::NoMember) | Err(_) => {
                self.absent.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether the source of redirects is to be slowed down.
    #[inline]
    pub(super) fn is_paused(&self, now_ns: u64) -> bool {
        now_ns < self.paused_until_ns.load(Ordering::Relaxed)
    }

    pub(super) fn rows(&self) -> [Row; 2] {
        [
            ("rx_xdp_redirect_full", self.full.load(Ordering::Relaxed)),
            ("rx_xdp_redirect_nobody", self.absent.load(Ordering::Relaxed)),
        ]
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
        assert_eq!(outcome.rows().map(|row| row.1), [1, 2]);
    }
}
