//! Shared receive queues (ibv_create_srq(3)).

use std::sync::Arc;

use transport::numbering::SLOT_QPNS;
use transport::{RecvQueue, RecvWr, VerbsError, refuse};

use super::quota::{SRQ_MAX, Share, memory_for, queue_memory};
use super::{Cq, Pd, Xrcd};
use crate::engine::Engine;
use crate::engine::owners::Owner;
use crate::same_device;
use crate::srqs::{SrqEntry, XrcScope, srqn};

/// Sizes of an SRQ; laid out as `ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SrqAttr {
    /// Capacity in receives.
    pub max_wr: u32,
    /// Largest number of SGEs in a receive.
    pub max_sge: u32,
    /// The event SRQ_LIMIT_REACHED is raised once when fewer receives than this are left; 0 disarms it.
    pub srq_limit: u32,
}

/// Attributes of a new SRQ.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SrqInitAttr {
    /// Requested sizes.
    pub attr: SrqAttr,
    /// Identifies the SRQ in its events.
    pub cookie: u64,
}

/// A shared receive queue.
#[derive(Clone)]
pub struct Srq(Arc<SrqInner>);

struct SrqInner {
    pd: Pd,
    /// The engine that also runs the queue pairs of this SRQ.
    engine: Arc<Engine>,
    index: u32,
    /// Domain and CQ that an XRC SRQ keeps in use.
    xrc: Option<(Xrcd, Cq)>,
    _share: Share,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let mut core = self.engine.lock();
        let srqs = &mut core.tables.srqs;
        if let Some(slot) = srqs.entries.get_mut(self.index as usize) {
            *slot = None;
        }
    }
}

#[cold]
fn no_number(most: u32) -> VerbsError {
    refuse!(ENOMEM, "device", "shared receive queues"; most;
        "the engine has its largest number of shared receive queues of this kind, {most}")
}

impl Pd {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// `EINVAL` for sizes beyond the device's limits, `ENOMEM` if the device has its largest number.
    pub fn create_srq(&self, init: &SrqInitAttr) -> Result<Srq, VerbsError> {
        Srq::new(self, init, None)
    }

    /// Creates a shared receive queue for XRC messages; their completions go to `cq`.
    ///
    /// # Errors
    /// As [`Pd::create_srq`]; `EINVAL` for a domain or a completion queue of another device.
    pub fn create_xrc_srq(&self, init: &SrqInitAttr, xrcd: &Xrcd, cq: &Cq) -> Result<Srq, VerbsError> {
        Srq::new(self, init, Some((xrcd, cq)))
    }
}

impl Srq {
    fn new(pd: &Pd, init: &SrqInitAttr, xrc: Option<(&Xrcd, &Cq)>) -> Result<Self, VerbsError> {
        let SrqAttr { max_wr, max_sge, .. } = init.attr;
        if max_wr == 0 {
            return Err(refuse!(EINVAL, "SRQ", "max_wr"; max_wr; is "0: an SRQ has room for receives"));
        }
        if let Some((xrcd, cq)) = xrc {
            same_device!("SRQ", "xrcd"; pd.device(), xrcd.device())?;
            same_device!("SRQ", "cq"; pd.device(), cq.device())?;
        }
        memory_for(queue_memory(max_wr, max_sge, 0))?;
        let queue = RecvQueue::new(max_wr, max_sge.max(1), pd.id())?;
        let _share = pd.context().quotas().srqs.take()?;
        let scope = xrc.map(|(xrcd, cq)| XrcScope { domain: xrcd.id(), cq: Arc::clone(cq.queue()) });
        // An XRC SRQ is on engine 0, where the receiving queue pairs of XRC domains are.
        let index = if xrc.is_some() { 0 } else { pd.engine_for(Owner::this_thread()) };
        let (engine, id) = (Arc::clone(pd.engine().at(index)), pd.engine().objects.next());
        let mut core = engine.lock();
        let srqs = &mut core.tables.srqs.entries;
        let index = match srqs.iter().position(Option::is_none) {
            Some(free) => free,
            None if srqs.len() < SRQ_MAX as usize => {
                srqs.push(None);
                srqs.len() - 1
            }
            None => return Err(no_number(SRQ_MAX)),
        };
        if xrc.is_some() && index >= SLOT_QPNS as usize {
            // Its number is in the first slot of the engine.
            return Err(no_number(SLOT_QPNS));
        }
        core.tables.srqs.created += 1;
        core.tables.srqs.entries[index] = Some(SrqEntry { id, queue, cookie: init.cookie, xrc: scope });
        drop(core);
        if let Some((_, cq)) = xrc {
            cq.add_engine(engine.index());
        }
        let xrc = xrc.map(|(xrcd, cq)| (xrcd.clone(), cq.clone()));
        Ok(Self(Arc::new(SrqInner { pd: pd.clone(), engine, index: index as u32, xrc, _share })))
    }

    pub(super) fn index(&self) -> u32 {
        self.0.index
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// Returns the 24-bit number that XRC senders name; `None` unless this is an XRC SRQ.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        let slot = self.0.engine.lock().tables.slot();
        self.0.xrc.as_ref().map(|_| srqn(slot, self.0.index))
    }

    /// Returns the protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    fn with<T>(&self, f: impl FnOnce(&mut RecvQueue) -> T) -> Result<T, VerbsError> {
        let mut core = self.0.engine.lock_to_post();
        let entry = core.tables.srqs.get_mut(self.0.index);
        entry.map(|entry| f(&mut entry.queue)).ok_or_else(|| {
            let index = self.0.index;
            refuse!(EINVAL, "SRQ", "index"; index; "there is no SRQ {index} in the engine")
        })
    }

    /// Adds a receive.
    ///
    /// # Errors
    /// `ENOMEM` when full, `EINVAL` for too many SGEs.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.with(|queue| queue.post(wr))?
    }

    /// Arms the limit event.
    ///
    /// # Errors
    /// `EINVAL` if the limit is above the size.
    pub fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        self.with(|queue| queue.arm_limit(limit))?
    }

    /// Changes the capacity to `max_wr` receives; posted receives stay.
    ///
    /// # Errors
    /// `EINVAL` if it is 0, above the device's limit, or below the armed limit or the number of posted
    /// receives.
    pub fn resize(&self, max_wr: u32) -> Result<(), VerbsError> {
        self.with(|queue| queue.resize(max_wr))?
    }

    /// Returns the sizes and the armed limit.
    ///
    /// # Errors
    /// `EINVAL` if the SRQ does not exist, which cannot happen while this handle lives.
    pub fn query(&self) -> Result<SrqAttr, VerbsError> {
        self.with(|queue| SrqAttr {
            max_wr: queue.max_wr(),
            max_sge: queue.max_sge(),
            srq_limit: queue.limit(),
        })
    }

    /// True if a QP still uses it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
