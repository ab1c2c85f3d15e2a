//! XRC domains that several processes of one user share.
//!
//! A file stands for the domain. The process with the receiving queue pair (the *borrower*) may get messages
//! for a shared receive queue of another process (the *owner*). It cannot write that memory, so it
//! borrows a receive from the owner for each such message:
//!
//! 1. The packet that needs the receive is kept ([`Borrowed::hold`]), as if the network delayed it, and the
//!    owner is asked. The number of the queue names the owner's slot.
//! 2. The owner takes a receive out of its queue and says how many bytes fit, or that the queue is empty, or
//!    that it has no such queue in this domain. Then the packet is handled: the peer gets an RNR NAK or a NAK
//!    as if the queue was local.
//! 3. The message is received into memory of the borrower and acknowledged. Its bytes and its completion
//!    follow to the owner, which writes them to the receive and adds the completion to its CQ.
//!
//! Nothing is borrowed in advance: a receive that waits in one process would be missing in the others. One
//! thread, started with the first such domain, talks to the other processes. Each process has a listener
//! with its slot in the name (`meeting.rs`); only processes of the same user are accepted. Neither side
//! trusts the other: an owner checks offsets, lengths and ids, a borrower checks that it has asked.
//!
//! When the owner ends, messages for its queues are refused. When the borrower ends, its receives return to
//! their queues. WRITEs, READs and atomics that name a queue of another process are refused with a remote
//! access error, because the borrower does not have the keys.

mod borrowed;
#[cfg(feature = "fuzz")]
mod fuzz;
mod lent;
mod peer;
mod record;
mod stored;

#[cfg(feature = "fuzz")]
pub use fuzz::check as check_records;

pub(crate) use borrowed::{Borrowed, ForeignQueue, Output};
pub(crate) use lent::Lent;
pub(crate) use stored::StoredMessages;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sys::{EventFd, KeptLock};

use crate::engine::Engine;
use crate::notice::notice;
use crate::registry::meeting;
use crate::verbs::FileId;
use peer::Peers;
use transport::PdId;

/// Connections of other processes that may wait to be accepted.
const BACKLOG: i32 = 64;

/// The engine's end of the thread.
#[derive(Default)]
pub(crate) struct XrcPeers(pub(crate) Mutex<State>);

/// What the engine and the thread share. A forking thread holds its lock, so that the child can detach the
/// sockets.
#[derive(Default)]
pub(crate) struct State {
    /// `None` until the thread is started.
    kick: Option<Arc<EventFd>>,
    output: Vec<Output>,
    /// The thread's sockets.
    sockets: Vec<Weak<OwnedFd>>,
}

impl XrcPeers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives work to the thread.
    #[cold]
    pub(crate) fn put(&self, output: Vec<Output>) {
        let mut state = self.lock();
        state.output.extend(output);
        if let Some(kick) = &state.kick {
            kick.signal(1);
        }
    }

    fn take_output(&self) -> Vec<Output> {
        std::mem::take(&mut self.lock().output)
    }

    fn add_socket(&self, socket: &Arc<OwnedFd>) {
        let mut state = self.lock();
        state.sockets.retain(|socket| socket.strong_count() > 0);
        state.sockets.push(Arc::downgrade(socket));
    }

    /// Wakes the thread, which ends when its engine is destroyed.
    pub(crate) fn end(&self) {
        if let Some(kick) = &self.lock().kick {
            kick.signal(1);
        }
    }
}

impl Engine {
    /// Lets other processes share the XRC domain of a file, for which the protection domain `domain` stands
    /// in this process. Without a listener the domain is this process's own, and a notice says so.
    pub(crate) fn share_xrc_domain(
        self: &Arc<Self>,
        file: FileId,
        domain: PdId,
        stored: Arc<StoredMessages>,
    ) {
        if self.has_xrc_listener() {
            self.lock().tables.srqs.borrowed.add_domain(domain, file, stored);
        }
    }

    /// Starts the thread and its listener at the first call; false if there is none.
    fn has_xrc_listener(self: &Arc<Self>) -> bool {
        let mut state = self.xrc_peers.lock();
        if state.kick.is_some() {
            return true;
        }
        let name = self.registry.membership().map(|member| member.xrc_name(self.registry.slot()));
        let Some(name) = name else { return false };
        let started = EventFd::new().map(Arc::new).and_then(|kick| {
            let listener = meeting::listen(&name, BACKLOG)?;
            let peers = Peers::new(Arc::downgrade(self), Arc::clone(&kick), listener);
            state.sockets.extend(peers.listeners().map(Arc::downgrade));
            self.runtime().spawn("roxie-xrc", move || peers.run())?;
            Ok(kick)
        });
        match started {
            Ok(kick) => state.kick = Some(kick),
            Err(error) => notice(format_args!(
                "the XRC domain is not shared with other processes: {error}; messages to their shared \
                 receive queues are refused"
            )),
        }
        state.kick.is_some()
    }
}

/// The lock and the sockets of the thread; held while the process forks.
pub(crate) struct XrcLocks(KeptLock<Engine, State>);

impl XrcLocks {
    /// Takes the lock, or returns `None` if that lasts until `until_ns`.
    pub(crate) fn take(engine: &Arc<Engine>, until_ns: u64) -> Option<Self> {
        KeptLock::take(engine, |engine| &engine.xrc_peers.0, until_ns).map(Self)
    }

    /// Detaches a forked child's copies of the sockets; the child has no thread.
    pub(crate) fn release_in_child(&mut self) {
        for socket in self.0.sockets.drain(..).filter_map(|socket| socket.upgrade()) {
            debug_assert!(socket.as_raw_fd() >= 0);
            sys::disconnect(&*socket);
            // The thread that would close it does not exist here.
            std::mem::forget(socket);
        }
        // Dropping a message takes the lock of the engine, which this thread holds.
        std::mem::forget(std::mem::take(&mut self.0.output));
        self.0.kick = None;
    }
}
