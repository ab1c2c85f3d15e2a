//! How many objects of each kind a device gives: the limits that `query_device` reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use transport::refusal::Rule;
use transport::{Errno, MAX_QP_WR, MAX_SGE, Sge, VerbsError, refuse, rule};

use crate::engine::tables::QP_MAX;
use crate::keys::{MR_MAX, MW_MAX};

/// A protection domain is a number and two counters.
pub(super) const PD_MAX: u32 = 1 << 16;
/// Two for each queue pair.
pub(super) const CQ_MAX: u32 = 2 * QP_MAX as u32;
/// Peers of UD queue pairs.
pub(super) const AH_MAX: u32 = 1 << 17;
/// The device searches a free index for a shared receive queue. Only the first 4096 can be for XRC.
pub(super) const SRQ_MAX: u32 = 1 << 15;

/// A completion counter is two numbers. Twice as many as queue pairs: one for sends, one for receives.
pub(super) const COMP_COUNTER_MAX: u32 = 2 * QP_MAX as u32;

/// Bytes of device memory of a process: several times that of NICs (128 KiB to 1 MiB), so that programs
/// written for those find enough. It is ordinary memory, so a larger limit would have no use.
pub(super) const DM_MAX: u32 = 4 << 20;

/// Bytes that a new object may need beside its queues: the engine's tables grow with the number of objects.
/// Half: an allocation may fail and abort the process. Double: a process with limited memory creates fewer
/// objects.
const OBJECT_MEMORY: usize = 1 << 20;

/// The number of objects of one kind, or of their bytes.
#[derive(Debug)]
pub(super) struct Quota {
    used: Arc<AtomicU32>,
    max: u32,
    /// The refusal at the limit.
    full: Rule,
}

/// The share of one object; dropped with it.
#[derive(Debug)]
pub(super) struct Share {
    used: Arc<AtomicU32>,
    count: u32,
}

/// The refusal of an object beyond the limit of its kind.
macro_rules! full {
    ($what:literal) => {
        rule!("device", $what; max, count, used; let what = $what;
            "{count} more {what}: the device has {used} and gives at most {max}")
    };
}

impl Quota {
    fn new(max: u32, full: Rule) -> Self {
        Self { used: Arc::default(), max, full }
    }

    /// Takes the share of a new object.
    ///
    /// # Errors
    /// `ENOMEM` at the limit.
    pub(super) fn take(&self) -> Result<Share, VerbsError> {
        self.take_many(1)
    }

    /// Takes the share of a new object that counts `count` times.
    ///
    /// # Errors
    /// `ENOMEM` beyond the limit.
    pub(super) fn take_many(&self, count: u32) -> Result<Share, VerbsError> {
        memory_for(0)?;
        let more = |used: u32| used.checked_add(count).filter(|used| *used <= self.max);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(|_| Share { used: Arc::clone(&self.used), count }).map_err(|used| {
            VerbsError::new(Errno::ENOMEM, self.full, [self.max.into(), count.into(), used.into()])
        })
    }
}

/// Checks that the limits of the process permit an object with queues of so many bytes.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn memory_for(queues: usize) -> Result<(), VerbsError> {
    let bytes = queues.saturating_add(OBJECT_MEMORY);
    sys::memory_for(bytes).map_err(|_| {
        refuse!(ENOMEM, "process", "memory"; bytes;
            "{bytes} bytes of memory are beyond the limits of the process (ulimit -v, -d)")
    })
}

/// The refusal of memory that the kernel does not give.
#[cold]
pub(super) fn no_memory(len: usize) -> VerbsError {
    refuse!(ENOMEM, "process", "memory"; len; "the kernel has no {len} bytes of memory for the device")
}

/// Bytes that a queue of `wrs` work requests takes, at most, each with `sges` elements and `inline` bytes.
pub(super) fn queue_memory(wrs: u32, sges: u32, inline: u32) -> usize {
    /// A work request without its elements; for datagrams with the address of the peer.
    const WR_LEN: usize = 256;
    let elements = sges.min(MAX_SGE as u32) as usize * size_of::<Sge>();
    // The queues have lengths that are powers of two.
    wrs.min(MAX_QP_WR).next_power_of_two() as usize * (WR_LEN + elements + inline as usize)
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// The objects of a device.
#[derive(Debug)]
pub(super) struct Quotas {
    pub(super) pds: Quota,
    pub(super) cqs: Quota,
    pub(super) qps: Quota,
    pub(super) srqs: Quota,
    pub(super) mrs: Quota,
    pub(super) mws: Quota,
    pub(super) ahs: Quota,
    pub(super) comp_counters: Quota,
    /// Bytes of device memory.
    pub(super) dm_bytes: Quota,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            pds: Quota::new(PD_MAX, full!("protection domains")),
            cqs: Quota::new(CQ_MAX, full!("completion queues")),
            qps: Quota::new(QP_MAX as u32, full!("queue pairs")),
            srqs: Quota::new(SRQ_MAX, full!("shared receive queues")),
            mrs: Quota::new(MR_MAX, full!("memory regions")),
            mws: Quota::new(MW_MAX, full!("memory windows")),
            ahs: Quota::new(AH_MAX, full!("address handles")),
            comp_counters: Quota::new(COMP_COUNTER_MAX, full!("completion counters")),
            dm_bytes: Quota::new(DM_MAX, full!("bytes of device memory")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_beyond_the_limit_is_refused_until_another_is_dropped() {
        let quota = Quota::new(2, full!("objects"));
        let shares = [quota.take(), quota.take()];
        assert!(shares.iter().all(Result::is_ok));
        assert_eq!(quota.take().err().map(|refused| refused.kind()), Some(Errno::ENOMEM));
        drop(shares);
        assert!(quota.take().is_ok());
    }
}
