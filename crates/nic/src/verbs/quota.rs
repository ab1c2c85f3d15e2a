//! How many objects of each kind a device gives: the limits that `query_device` reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use transport::VerbsError;

use crate::engine::tables::QP_MAX;
use crate::keys::KEYS_MAX;

/// A protection domain is a number and two counters.
pub(super) const PD_MAX: u32 = 1 << 16;
/// Two for each queue pair.
pub(super) const CQ_MAX: u32 = 2 * QP_MAX as u32;
/// Peers of UD queue pairs.
pub(super) const AH_MAX: u32 = 1 << 17;
/// The index of a shared receive queue is 16 bits of its XRC number. The device searches a free one.
pub(super) const SRQ_MAX: u32 = 1 << 15;
/// A quarter of the keys is for windows. A region of any kind takes one of the others.
pub(super) const MW_MAX: u32 = KEYS_MAX as u32 / 4;
pub(super) const MR_MAX: u32 = KEYS_MAX as u32 - MW_MAX;

/// The number of objects of one kind.
#[derive(Debug)]
pub(super) struct Quota {
    used: Arc<AtomicU32>,
    max: u32,
}

/// The share of one object; dropped with it.
#[derive(Debug)]
pub(super) struct Share(Arc<AtomicU32>);

impl Quota {
    fn new(max: u32) -> Self {
        Self { used: Arc::default(), max }
    }

    /// Takes the share of a new object.
    ///
    /// # Errors
    /// `NoMem` at the limit.
    pub(super) fn take(&self) -> Result<Share, VerbsError> {
        let more = |used| (used < self.max).then_some(used + 1);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(|_| Share(Arc::clone(&self.used))).map_err(|_| VerbsError::NoMem)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            pds: Quota::new(PD_MAX),
            cqs: Quota::new(CQ_MAX),
            qps: Quota::new(QP_MAX as u32),
            srqs: Quota::new(SRQ_MAX),
            mrs: Quota::new(MR_MAX),
            mws: Quota::new(MW_MAX),
            ahs: Quota::new(AH_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_beyond_the_limit_is_refused_until_another_is_dropped() {
        let quota = Quota::new(2);
        let shares = [quota.take(), quota.take()];
        assert!(shares.iter().all(Result::is_ok));
        assert_eq!(quota.take().err(), Some(VerbsError::NoMem));
        drop(shares);
        assert!(quota.take().is_ok());
    }
}
