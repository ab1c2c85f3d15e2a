//! The shared receive queues of an engine, and which of them a queue pair may take receives from.

use std::sync::Arc;

use transport::{PdId, RecvQueue, SrqTable};

use crate::cq::CompletionQueue;

/// A shared receive queue with what the engine must know to serve it.
pub(crate) struct SrqEntry {
    pub(crate) queue: RecvQueue,
    /// The name its owner gave it.
    pub(crate) cookie: u64,
    /// Set for those that XRC messages name.
    pub(crate) xrc: Option<XrcScope>,
}

/// What makes a shared receive queue an XRC one.
pub(crate) struct XrcScope {
    /// The XRC domain, by the protection domain that stands for it.
    pub(crate) domain: PdId,
    pub(crate) cq: Arc<CompletionQueue>,
}

/// All of them, by index.
#[derive(Default)]
pub(crate) struct Srqs(pub(crate) Vec<Option<SrqEntry>>);

/// The number that XRC senders name: unique on the host, as QPNs are.
pub(crate) fn srqn(slot: u8, index: u32) -> u32 {
    u32::from(slot) << 16 | index
}

impl Srqs {
    pub(crate) fn get(&self, index: u32) -> Option<&SrqEntry> {
        self.0.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut SrqEntry> {
        self.0.get_mut(index as usize)?.as_mut()
    }

    /// The XRC one with this number.
    pub(crate) fn by_number(&self, srqn: u32) -> Option<&SrqEntry> {
        self.get(srqn & 0xffff).filter(|entry| entry.xrc.is_some())
    }
}

/// Which of them a queue pair reaches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InReach {
    /// Index of the one it was made with.
    pub(crate) own: Option<u32>,
    /// XRC: all of this domain.
    pub(crate) xrcd: Option<PdId>,
}

/// The queues of a queue pair of this slot.
pub(crate) struct Reached<'a> {
    pub(crate) srqs: &'a mut Srqs,
    pub(crate) slot: u8,
    pub(crate) reach: InReach,
}

impl SrqTable for Reached<'_> {
    #[inline]
    fn own(&mut self) -> Option<&mut RecvQueue> {
        Some(&mut self.srqs.get_mut(self.reach.own?)?.queue)
    }

    #[inline]
    fn xrc(&mut self, srqn: u32) -> Option<&mut RecvQueue> {
        let domain = self.reach.xrcd?;
        if (srqn >> 16) as u8 != self.slot {
            return None;
        }
        let entry = self.srqs.get_mut(srqn & 0xffff)?;
        entry.xrc.as_ref().filter(|scope| scope.domain == domain)?;
        Some(&mut entry.queue)
    }
}
