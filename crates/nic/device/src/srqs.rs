//! The shared receive queues of an engine, and which of them a queue pair may use.

use std::sync::Arc;

use transport::numbering::{place_of, qpn_at, slot_of};
use transport::{PdId, RecvQueue, SrqTable};
use wire::Qpn;

use crate::cq::CompletionQueue;

/// A shared receive queue, and its attributes in the engine.
pub(crate) struct SrqEntry {
    /// Its number among the objects of the device.
    pub(crate) id: u32,
    pub(crate) queue: RecvQueue,
    /// Chosen by the creator; identifies the queue in its events.
    pub(crate) cookie: u64,
    /// Set for a queue that receives XRC messages.
    pub(crate) xrc: Option<XrcScope>,
}

/// Domain and CQ of an XRC shared receive queue.
pub(crate) struct XrcScope {
    /// The protection domain that stands for the XRC domain.
    pub(crate) domain: PdId,
    pub(crate) cq: Arc<CompletionQueue>,
}

/// All shared receive queues, by index.
#[derive(Default)]
pub(crate) struct Srqs {
    pub(crate) entries: Vec<Option<SrqEntry>>,
    /// How many SRQs were created so far.
    pub(crate) created: u64,
}

/// Returns the number of a queue in XRC messages: unique on the host, like a QPN.
pub(crate) fn srqn(slot: u16, index: u32) -> u32 {
    qpn_at(slot, index).value()
}

/// Returns the index of the queue with this number, or `None` if the number is not of `slot`: another process
/// has the queue.
fn index_in(slot: u16, srqn: u32) -> Option<u32> {
    let number = Qpn::new(srqn);
    (slot_of(number) == slot).then(|| place_of(number))
}

impl Srqs {
    pub(crate) fn get(&self, index: u32) -> Option<&SrqEntry> {
        self.entries.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut SrqEntry> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// Returns the XRC queue with this number, if it is in `slot`, the first one of this engine.
    pub(crate) fn by_number(&self, slot: u16, srqn: u32) -> Option<&SrqEntry> {
        self.get(index_in(slot, srqn)?).filter(|entry| entry.xrc.is_some())
    }
}

/// The shared receive queues that a queue pair may use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SrqScope {
    /// Index of the queue that the queue pair was created with.
    pub(crate) own: Option<u32>,
    /// An XRC queue pair may use all queues of this domain.
    pub(crate) xrcd: Option<PdId>,
}

/// A queue pair's view of the shared receive queues.
pub(crate) struct ScopedSrqs<'a> {
    pub(crate) srqs: &'a mut Srqs,
    pub(crate) slot: u16,
    pub(crate) scope: SrqScope,
}

impl SrqTable for ScopedSrqs<'_> {
    #[inline]
    fn own(&mut self) -> Option<&mut RecvQueue> {
        Some(&mut self.srqs.get_mut(self.scope.own?)?.queue)
    }

    #[inline]
    fn xrc(&mut self, srqn: u32) -> Option<&mut RecvQueue> {
        let domain = self.scope.xrcd?;
        let entry = self.srqs.get_mut(index_in(self.slot, srqn)?)?;
        entry.xrc.as_ref().filter(|scope| scope.domain == domain)?;
        Some(&mut entry.queue)
    }
}
