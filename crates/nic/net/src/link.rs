//! The connection under a message socket: a queue pair, its memory, and the accounting of its slots. No call
//! waits; `WouldBlock` means try again after the next event.
//!
//! Memory is divided into slots of one message each: first those of the receives, then those of the sends. A
//! send slot belongs to a work request until that completes, whatever becomes of the caller.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use transport::{
    Access, QpAttr, QpAttrMask, QpCap, QpType, RecvWr, SendFlags, SendWr, Sge, VerbsError, Wc, WcStatus, WrOp,
};

use crate::errno;
use roxie::cm::{CmEvent, CmEventKind, EventChannel, Id};
use roxie::verbs::{Buffer, CompChannel, Cq, Pd, Qp, QpInitAttr};

/// Begins the private data of message sockets: this, then the length of a receive slot.
const HELLO: [u8; 4] = *b"rxms";
const HELLO_LEN: usize = 8;
/// Marks the `wr_id` of receives; the rest is the number of the slot.
const RECEIVE: u64 = 1 << 32;

/// How long a peer waits before it repeats a message that found no receive: code 7, 0.12 ms (IBA table 45).
/// The connection manager's own value is 655 ms. Half of it doubles the packets to a program that is late;
/// double delays the message after a full queue.
const MIN_RNR_TIMER: u8 = 7;

/// Sizes of a message socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Bytes of a slot.
    pub(super) message_len: u32,
    /// Slots in each direction.
    pub(super) depth: u16,
}

/// Fields are dropped in this order: the identifier and the queue pair before their memory.
pub(super) struct Link {
    id: Id,
    qp: Qp,
    cq: Cq,
    completions: CompChannel,
    events: EventChannel,
    memory: Buffer,
    sizes: Sizes,
    tasks: Waker,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// Longest message that the peer receives, if it said so.
    peer_max: Option<u32>,
    /// Received messages: number of the slot, length.
    arrived: VecDeque<(usize, usize)>,
    sends: Vec<Slot>,
}

/// State of the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Opening,
    Connected,
    /// Ended by either side.
    Closed,
    /// Failed with this errno.
    Failed(i32),
}

/// State of a send slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Slot {
    Free,
    /// Becomes free when the work request completes.
    Posted,
    /// The result will be taken by [`Link::take_result`].
    Awaited,
    Done(WcStatus),
}

/// A one-sided operation on a peer's memory at an address with a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum OneSided {
    Read,
    Write,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

impl Link {
    /// Creates a queue pair for the identifier, and posts all receives. `events` is the identifier's channel.
    pub(super) fn new(id: Id, events: EventChannel, pd: &Pd, sizes: Sizes, tasks: Waker) -> io::Result<Self> {
        let context = pd.context();
        let depth = u32::from(sizes.depth);
        let completions = context.create_comp_channel()?;
        let cq = context.create_cq(2 * depth, Some(&completions), 0)?;
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init =
            QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
        let qp = pd.create_qp(&init)?;
        let slots = 2 * usize::from(sizes.depth);
        let memory = pd.alloc_buffer(slots * sizes.message_len as usize, Access::LOCAL_WRITE)?;
        id.attach_qp(&qp)?;
        let sends = vec![Slot::Free; usize::from(sizes.depth)];
        let state = State { phase: Phase::Opening, peer_max: None, arrived: VecDeque::new(), sends };
        let state = Mutex::new(state);
        let link = Self { id, qp, cq, completions, events, memory, sizes, tasks, state };
        for slot in 0..usize::from(sizes.depth) {
            link.post_recv(slot)?;
        }
        Ok(link)
    }

    pub(super) fn id(&self) -> &Id {
        &self.id
    }

    pub(super) fn pd(&self) -> &Pd {
        self.qp.pd()
    }

    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    pub(super) fn completion_fd(&self) -> BorrowedFd<'_> {
        self.completions.as_fd()
    }

    /// Accepts the request with the private data `request`.
    pub(super) fn accept(&self, request: &[u8]) -> io::Result<()> {
        self.lock().peer_max = peer_max(request);
        self.id.accept(None, &self.hello())?;
        Ok(self.shorten_rnr_timer()?)
    }

    /// For a queue pair in RTS.
    fn shorten_rnr_timer(&self) -> Result<(), VerbsError> {
        let attr = QpAttr { min_rnr_timer: MIN_RNR_TIMER, ..QpAttr::default() };
        self.qp.modify(&attr, QpAttrMask::MIN_RNR_TIMER)
    }

    /// Discards events that were read, and requests new ones.
    pub(super) fn arm(&self) {
        self.completions.discard_events();
        self.cq.req_notify(false);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state after everything that is pending. Wakes the waiting tasks if there was anything.
    fn progress(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let mut any = false;
        while self.events.has_events()
            && let Ok(event) = self.events.get_event()
        {
            any = true;
            // Messages before the peer's disconnect have arrived; only then the queue pair may fail.
            self.reap(&mut state);
            self.handle_event(&mut state, &event);
        }
        any |= self.reap(&mut state);
        if any {
            self.tasks.wake_by_ref();
        }
        state
    }

    fn reap(&self, state: &mut State) -> bool {
        let mut any = false;
        while let Some(wc) = self.cq.poll_one() {
            any = true;
            self.handle_completion(state, &wc);
        }
        any
    }

    fn handle_completion(&self, state: &mut State, wc: &Wc) {
        if wc.wr_id & RECEIVE != 0 {
            if wc.status == WcStatus::Success {
                state.arrived.push_back(((wc.wr_id & !RECEIVE) as usize, wc.byte_len as usize));
            }
        } else if let Some(slot) = state.sends.get_mut(wc.wr_id as usize) {
            *slot = if *slot == Slot::Awaited { Slot::Done(wc.status) } else { Slot::Free };
        }
        // While the connection is being made, the event that flushed the receives says why it failed.
        let is_told = state.phase == Phase::Opening && wc.status == WcStatus::WrFlushErr;
        if wc.status != WcStatus::Success && !is_told {
            self.fail(state, completion_errno(wc.status));
        }
    }

    fn handle_event(&self, state: &mut State, event: &CmEvent) {
        let step = match event.kind {
            CmEventKind::AddrResolved => self.id.resolve_route().map_err(|refused| refused.errno()),
            CmEventKind::RouteResolved => {
                self.id.connect(None, &self.hello()).map_err(|refused| refused.errno())
            }
            CmEventKind::Established => {
                // The event of a passive side has no private data.
                state.peer_max = state.peer_max.or(peer_max(&event.private_data));
                if state.phase == Phase::Opening {
                    state.phase = Phase::Connected;
                }
                // The queue pair refuses it if it failed meanwhile: `handle_completion` ignored that flush.
                self.shorten_rnr_timer().map_err(|_failed| completion_errno(WcStatus::WrFlushErr))
            }
            CmEventKind::Rejected => Err(libc::ECONNREFUSED),
            CmEventKind::AddrError
            | CmEventKind::RouteError
            | CmEventKind::ConnectError
            | CmEventKind::Unreachable => Err(event.status.abs()),
            CmEventKind::DeviceRemoval => Err(libc::ENETDOWN),
            CmEventKind::Disconnected => {
                if matches!(state.phase, Phase::Opening | Phase::Connected) {
                    state.phase = Phase::Closed;
                }
                // Answers the disconnect.
                let _nothing_to_answer = self.id.disconnect();
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(number) = step {
            self.fail(state, number);
        }
    }

    /// Ends the connection with an error, unless it has ended.
    fn fail(&self, state: &mut State, errno: i32) {
        if matches!(state.phase, Phase::Opening | Phase::Connected) {
            state.phase = Phase::Failed(errno);
            // Tells the peer; fails if there was no connection.
            let _not_connected = self.id.disconnect();
        }
    }

    /// Returns the result of the connection attempt.
    pub(super) fn connected(&self) -> io::Result<()> {
        usable(&self.progress())
    }

    /// Posts a message.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        let mut state = self.progress();
        usable(&state)?;
        self.check_len(&state, message.len())?;
        let slot = free_slot(&state)?;
        self.memory.write(self.send_offset(slot), message);
        self.post(WrOp::Send, slot, message.len())?;
        state.sends[slot] = Slot::Posted;
        Ok(())
    }

    /// Takes the oldest message with `take`, which gets its memory, offset and length; `None` at the end of
    /// the connection. The slot is free to receive afterwards if `take` succeeds.
    pub(super) fn receive<T>(
        &self,
        take: impl FnOnce(&Buffer, usize, usize) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let mut state = self.progress();
        let Some(&(slot, len)) = state.arrived.front() else {
            return match state.phase {
                Phase::Opening | Phase::Connected => Err(io::ErrorKind::WouldBlock.into()),
                Phase::Closed => Ok(None),
                Phase::Failed(number) => Err(errno(number)),
            };
        };
        let taken = take(&self.memory, slot * self.sizes.message_len as usize, len)?;
        state.arrived.pop_front();
        if state.phase == Phase::Connected
            && let Err(error) = self.post_recv(slot)
        {
            self.fail(&mut state, error.errno());
        }
        Ok(Some(taken))
    }

    /// Posts a one-sided operation; returns its slot. The local bytes are `from`, or the first `len` of the
    /// slot after it completes.
    pub(super) fn start(
        &self,
        op: OneSided,
        at: crate::RemoteMemory,
        from: &[u8],
        len: usize,
    ) -> io::Result<usize> {
        let mut state = self.progress();
        usable(&state)?;
        if len > self.sizes.message_len as usize || len > at.len as usize {
            return Err(errno(libc::EMSGSIZE));
        }
        let slot = free_slot(&state)?;
        self.memory.write(self.send_offset(slot), from);
        let (remote_addr, r_key) = (at.addr, at.rkey);
        let op = match op {
            OneSided::Read => WrOp::Read { remote_addr, r_key },
            OneSided::Write => WrOp::Write { remote_addr, r_key },
            OneSided::CompareSwap { compare, swap } => {
                WrOp::CompareSwap { remote_addr, r_key, compare, swap }
            }
            OneSided::FetchAdd { add } => WrOp::FetchAdd { remote_addr, r_key, add },
        };
        self.post(op, slot, len)?;
        state.sends[slot] = Slot::Awaited;
        Ok(slot)
    }

    /// Copies the result of a completed operation to `to`, and frees its slot.
    pub(super) fn take_result(&self, slot: usize, to: &mut [u8]) -> io::Result<()> {
        let mut state = self.progress();
        match state.sends[slot] {
            Slot::Done(WcStatus::Success) => {
                self.memory.read(self.send_offset(slot), to);
                state.sends[slot] = Slot::Free;
                Ok(())
            }
            Slot::Done(status) => {
                state.sends[slot] = Slot::Free;
                Err(errno(match state.phase {
                    // The operation that broke the connection names the reason; later ones were flushed.
                    Phase::Failed(number) if status == WcStatus::WrFlushErr => number,
                    _ => completion_errno(status),
                }))
            }
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Gives up an operation: its slot becomes free when it has completed.
    pub(super) fn abandon(&self, slot: usize) {
        let mut state = self.lock();
        state.sends[slot] = match state.sends[slot] {
            Slot::Awaited => Slot::Posted,
            Slot::Done(_) => Slot::Free,
            other => other,
        };
        drop(state);
        self.tasks.wake_by_ref();
    }

    /// Succeeds when the peer's device has acknowledged all messages and operations.
    pub(super) fn flushed(&self) -> io::Result<()> {
        let state = self.progress();
        usable(&state)?;
        let in_flight = |slot: &Slot| matches!(slot, Slot::Posted | Slot::Awaited);
        if state.sends.iter().any(in_flight) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    /// Disconnects.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Opening | Phase::Connected) {
            state.phase = Phase::Closed;
            let _not_connected = self.id.disconnect();
        }
        drop(state);
        self.tasks.wake_by_ref();
    }

    /// Longest message that this side sends: the shorter of its slot and the peer's.
    pub(super) fn message_max(&self) -> usize {
        let own = self.sizes.message_len;
        self.lock().peer_max.map_or(own, |peer| peer.min(own)) as usize
    }

    fn check_len(&self, state: &State, len: usize) -> io::Result<()> {
        let own = self.sizes.message_len;
        if len > state.peer_max.map_or(own, |peer| peer.min(own)) as usize {
            return Err(errno(libc::EMSGSIZE));
        }
        Ok(())
    }

    fn hello(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..4].copy_from_slice(&HELLO);
        bytes[4..].copy_from_slice(&self.sizes.message_len.to_be_bytes());
        bytes
    }

    fn send_offset(&self, slot: usize) -> usize {
        (usize::from(self.sizes.depth) + slot) * self.sizes.message_len as usize
    }

    fn post(&self, op: WrOp, slot: usize, len: usize) -> io::Result<()> {
        let sge = [self.memory.sge(self.send_offset(slot), len)];
        let sg_list: &[Sge] = if len == 0 { &[] } else { &sge };
        let wr = SendWr { wr_id: slot as u64, op, sg_list, flags: SendFlags::SIGNALED, dest: None };
        self.qp.post_send(&wr).map_err(io::Error::from)
    }

    fn post_recv(&self, slot: usize) -> Result<(), transport::VerbsError> {
        let len = self.sizes.message_len as usize;
        let sg_list = &[self.memory.sge(slot * len, len)];
        self.qp.post_recv(&RecvWr { wr_id: RECEIVE | slot as u64, sg_list })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.id.destroy();
    }
}

fn usable(state: &State) -> io::Result<()> {
    match state.phase {
        Phase::Opening => Err(io::ErrorKind::WouldBlock.into()),
        Phase::Connected => Ok(()),
        Phase::Closed => Err(errno(libc::EPIPE)),
        Phase::Failed(number) => Err(errno(number)),
    }
}

fn free_slot(state: &State) -> io::Result<usize> {
    let free = state.sends.iter().position(|slot| *slot == Slot::Free);
    free.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

/// Returns the length of the peer's receive slots, if it is a message socket.
fn peer_max(private_data: &[u8]) -> Option<u32> {
    let hello: &[u8; HELLO_LEN] = private_data.first_chunk()?;
    let (magic, len) = hello.split_at(HELLO.len());
    (magic == HELLO).then(|| u32::from_be_bytes([len[0], len[1], len[2], len[3]]))
}

fn completion_errno(status: WcStatus) -> i32 {
    match status {
        WcStatus::RemAccessErr => libc::EACCES,
        WcStatus::RemInvReqErr => libc::EMSGSIZE,
        WcStatus::RetryExcErr | WcStatus::RespTimeoutErr => libc::ETIMEDOUT,
        _ => libc::ECONNRESET,
    }
}
