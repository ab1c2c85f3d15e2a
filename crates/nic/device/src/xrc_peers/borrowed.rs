//! The receives that other processes lend to the receiving XRC queue pairs of this engine, and the packets
//! that wait for them. The engine's lock protects them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use transport::{PacketSource, PdId, RecvQueue, RecvWr, Sge, Wc};

use super::StoredMessages;
use crate::engine::QpIndex;
use crate::verbs::FileId;

/// Most shared receive queues of other processes that this engine knows at a time. Idle ones are forgotten.
const PROXIES_MAX: usize = 1024;
/// Packets that wait for a receive. A queue pair holds one: that which comes next.
const HELD_MAX: usize = 1024;

/// A shared receive queue in a domain.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct ForeignQueue {
    /// The protection domain that stands for the XRC domain here.
    pub(crate) domain: PdId,
    pub(crate) srqn: u32,
}

/// What the thread of [`XrcPeers`](super::XrcPeers) must do next.
pub(crate) enum Output {
    /// Ask the owner for a receive.
    Ask { file: FileId, queue: ForeignQueue },
    /// Pass a completed message on to the owner. The application may close the domain meanwhile.
    Finish { file: FileId, queue: ForeignQueue, wc: Wc, solicited: bool, stored: Arc<StoredMessages> },
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Borrowed {
    /// The domains that a file stands for, which other processes can open, too.
    domains: HashMap<PdId, SharedDomain>,
    proxies: HashMap<ForeignQueue, Proxy>,
    held: Vec<Held>,
    output: Vec<Output>,
}

struct SharedDomain {
    file: FileId,
    stored: Arc<StoredMessages>,
}

/// Stands for a shared receive queue of another process.
struct Proxy {
    /// The borrowed receives that no message has taken.
    queue: RecvQueue,
    /// The owner was asked for a receive.
    is_asked: bool,
    /// The owner does not have it.
    is_refused: bool,
}

/// A packet that waits for a receive.
pub(crate) struct Held {
    queue: ForeignQueue,
    /// Index of its queue pair.
    pub(crate) index: QpIndex,
    pub(crate) bytes: Vec<u8>,
    pub(crate) from: PacketSource,
}

impl Borrowed {
    pub(super) fn add_domain(&mut self, domain: PdId, file: FileId, stored: Arc<StoredMessages>) {
        self.domains.insert(domain, SharedDomain { file, stored });
    }

    /// The caller has a reference to the stored messages: dropping them takes the lock of the engine.
    pub(crate) fn remove_domain(&mut self, domain: PdId) {
        self.domains.remove(&domain);
        self.proxies.retain(|queue, _| queue.domain != domain);
        self.held.retain(|held| held.queue.domain != domain);
    }

    /// Drops the packets that wait for a queue pair, which is destroyed or starts anew.
    pub(crate) fn remove_qp(&mut self, index: QpIndex) {
        self.held.retain(|held| held.index != index);
    }

    /// Returns the receives that were borrowed from a shared receive queue; `None` if the owner does not have
    /// it in this domain, or if no other process can be in the domain.
    pub(crate) fn queue(&mut self, queue: ForeignQueue) -> Option<&mut RecvQueue> {
        if !self.domains.contains_key(&queue.domain) {
            return None;
        }
        if self.proxies.len() >= PROXIES_MAX && !self.proxies.contains_key(&queue) {
            self.proxies.retain(|_, proxy| proxy.is_asked || !proxy.queue.is_empty());
            if self.proxies.len() >= PROXIES_MAX {
                return None;
            }
        }
        let proxy = match self.proxies.entry(queue) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Proxy::new(queue.domain)?),
        };
        (!proxy.is_refused).then_some(&mut proxy.queue)
    }

    /// Keeps a packet until the owner of the queue has answered, and asks it if nothing was asked yet.
    /// Returns false if the packet need not wait, or too many wait.
    pub(crate) fn hold(
        &mut self,
        queue: ForeignQueue,
        index: QpIndex,
        packet: &[u8],
        from: &PacketSource,
    ) -> bool {
        let (Some(proxy), Some(shared)) = (self.proxies.get_mut(&queue), self.domains.get(&queue.domain))
        else {
            return false;
        };
        self.held.retain(|held| held.index != index);
        if !proxy.queue.is_awaited() || self.held.len() >= HELD_MAX {
            return false;
        }
        self.held.push(Held { queue, index, bytes: packet.to_vec(), from: *from });
        if !std::mem::replace(&mut proxy.is_asked, true) {
            self.output.push(Output::Ask { file: shared.file, queue });
        }
        true
    }

    /// A message has completed a borrowed receive.
    pub(crate) fn finish(&mut self, queue: ForeignQueue, wc: Wc, solicited: bool) {
        if let Some(SharedDomain { file, stored }) = self.domains.get(&queue.domain) {
            let stored = Arc::clone(stored);
            self.output.push(Output::Finish { file: *file, queue, wc, solicited, stored });
        }
    }

    /// Whether the thread has something to do.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    pub(crate) fn take_output(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.output)
    }

    /// True if the owner was asked for a receive and has not answered.
    pub(super) fn is_asked(&self, queue: ForeignQueue) -> bool {
        self.proxies.get(&queue).is_some_and(|proxy| proxy.is_asked)
    }

    /// True if a queue of another process was used and not refused.
    #[cfg(test)]
    pub(super) fn is_known(&self, queue: ForeignQueue) -> bool {
        self.proxies.contains_key(&queue)
    }

    /// The queues of a slot for which the owner was asked.
    pub(super) fn asked_of(&self, is_of_slot: impl Fn(u32) -> bool) -> Vec<ForeignQueue> {
        let asked = self.proxies.iter().filter(|(queue, proxy)| proxy.is_asked && is_of_slot(queue.srqn));
        asked.map(|(queue, _)| *queue).collect()
    }

    /// Begins to handle the owner's answer: a receive with id `wr_id`, or that there is none now, or ever.
    /// Returns the packets that waited for it. [`end_answer`](Self::end_answer) follows.
    pub(super) fn begin_answer(&mut self, queue: ForeignQueue, answer: Answer) -> Vec<Held> {
        let Some(proxy) = self.proxies.get_mut(&queue) else { return Vec::new() };
        proxy.is_asked = false;
        match answer {
            Answer::Lent { id, sge } => {
                // There is room: unused receives were withdrawn after the last answer.
                let _full = proxy.queue.post(&RecvWr { wr_id: id, sg_list: &[sge] });
            }
            Answer::NotReady => proxy.queue.set_awaited(false),
            Answer::Refused => proxy.is_refused = true,
        }
        let (ready, held) = std::mem::take(&mut self.held).into_iter().partition(|held| held.queue == queue);
        self.held = held;
        ready
    }

    /// The packets were handled. Returns the receives that none of them took.
    pub(super) fn end_answer(&mut self, queue: ForeignQueue) -> Vec<u64> {
        let Some(proxy) = self.proxies.get_mut(&queue) else { return Vec::new() };
        if proxy.is_refused {
            self.proxies.remove(&queue);
            return Vec::new();
        }
        proxy.queue.set_awaited(true);
        std::iter::from_fn(|| proxy.queue.withdraw().map(|(wqe, _)| wqe.wr_id())).collect()
    }
}

/// The answer of the owner of a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// Message bytes go to `sge` of this process.
    Lent {
        id: u64,
        sge: Sge,
    },
    NotReady,
    Refused,
}

impl Proxy {
    fn new(domain: PdId) -> Option<Self> {
        let mut queue = RecvQueue::new(1, 1, domain).ok()?;
        queue.set_awaited(true);
        Some(Self { queue, is_asked: false, is_refused: false })
    }
}
