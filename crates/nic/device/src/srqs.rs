//! The shared receive queues of an engine, and which of them a queue pair may use.

use std::sync::Arc;

use transport::numbering::{self, place_of, qpn_at};
use transport::{PdId, RecvQueue, SrqTable};
use wire::Qpn;

use crate::cq::CompletionQueue;
use crate::events::EventQueue;
use crate::verbs::AsyncEvent;
use crate::xrc_peers::{Borrowed, ForeignQueue, Lent};

/// A shared receive queue, and its attributes in the engine.
pub(crate) struct SrqEntry {
    pub(crate) queue: RecvQueue,
    /// Chosen by the creator; identifies the queue in its events.
    pub(crate) cookie: u64,
    /// Its asynchronous events.
    pub(crate) events: Arc<EventQueue<AsyncEvent>>,
    /// Set for a queue that receives XRC messages.
    pub(crate) xrc: Option<XrcScope>,
}

/// Domain and CQ of an XRC shared receive queue.
pub(crate) struct XrcScope {
    /// The protection domain that stands for the XRC domain.
    pub(crate) domain: PdId,
    pub(crate) cq: Arc<CompletionQueue>,
}

/// All shared receive queues, by index, and what other processes share with them.
#[derive(Default)]
pub(crate) struct Srqs {
    pub(crate) entries: Vec<Option<SrqEntry>>,
    /// How many SRQs were created so far.
    pub(crate) created: u64,
    pub(crate) lent: Lent,
    pub(crate) borrowed: Borrowed,
}

/// Returns the number of a queue in XRC messages: unique on the host, like a QPN.
pub(crate) fn srqn(slot: u16, index: u32) -> u32 {
    qpn_at(slot, index).value()
}

/// Returns the slot of the process that has the queue.
pub(crate) fn slot_of(srqn: u32) -> u16 {
    numbering::slot_of(Qpn::new(srqn))
}

/// Returns the index of the queue in its process.
pub(crate) fn index_of(srqn: u32) -> u32 {
    place_of(Qpn::new(srqn))
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
        let index = (slot_of(srqn) == slot).then(|| index_of(srqn))?;
        self.get(index).filter(|entry| entry.xrc.is_some())
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
        if slot_of(srqn) != self.slot {
            return self.srqs.borrowed.queue(ForeignQueue { domain, srqn });
        }
        let entry = self.srqs.get_mut(index_of(srqn))?;
        entry.xrc.as_ref().filter(|scope| scope.domain == domain)?;
        Some(&mut entry.queue)
    }
}
