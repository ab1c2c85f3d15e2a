//! What the lock of [`Raw`](super::Raw) protects: queues, rules, frames to send, ports; one poll of them.

use std::collections::VecDeque;
use std::io;

use transport::{
    AccessFault, Cause, Errno, Instant, Memory, QpState, RecvWr, SendFlags, SendWr, VerbsError, WcOpcode,
    WrOp, refuse,
};
use wire::Qpn;

use super::key::{ETHERNET_LEN, Key};
use super::ports::Ports;
use super::queue::{Delivery, Queue, SendSide};
use super::rss::RxHash;
use super::table::{FlowAttr, FlowRules, QueueId};
use super::{no_queue, socket_refused};
use crate::engine::Engine;
use crate::keys::KeyTable;
use crate::notice;
use sys::SEND_FRAMES_MAX;

/// See the module documentation.
pub(crate) struct State {
    entries: Vec<Option<Entry>>,
    rules: FlowRules,
    pub(super) ports: Ports,
    staged: VecDeque<Staged>,
    /// Buffers of frames that were sent.
    spare: Vec<Vec<u8>>,
    /// Frames that were sent to the device's own address, for the next [`poll`](Self::poll).
    returning: Vec<Vec<u8>>,
    /// The queues that the present frame reaches.
    reached: Vec<QueueId>,
    /// Since when the kernel takes no frame.
    stalled: Option<Instant>,
    counters: Counters,
    /// Indirection tables.
    pub(super) tables: u32,
}

/// A destination of rules.
pub(super) enum Entry {
    Queue(Box<Queue>),
    /// An RSS queue pair: the work queues of its indirection table, a power of two.
    Rss {
        hash: RxHash,
        table: Box<[QueueId]>,
    },
}

/// A posted send.
struct Staged {
    queue: QueueId,
    wr_id: u64,
    is_signaled: bool,
    frame: Vec<u8>,
    /// It is not sent, but completes with this error after all earlier ones.
    failure: Option<Cause>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    tx_frames: u64,
    /// Frames that the kernel did not take for [`STALL_NS`], or refused.
    tx_dropped: u64,
    rx_frames: u64,
    /// Frames that no rule wanted.
    rx_unsteered: u64,
    /// Frames for a queue without a receive, as mlx5 counts them.
    rx_out_of_buffer: u64,
}

/// How long a frame waits for a netdev that takes none. Shorter: losses while a receiver on the same CPU does
/// not run. Longer: the queues of a dead link block as long.
const STALL_NS: u64 = 20_000_000;
/// Most buffers that are kept.
const SPARE_MAX: usize = 1024;

impl State {
    /// Opens the sockets of the device.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW, with a notice; `EOPNOTSUPP` for a netdev that is not Ethernet.
    pub(super) fn open(&mut self) -> Result<(), VerbsError> {
        self.ports.open().map_err(|error| {
            let refused = socket_refused(&error);
            if refused.kind() == Errno::EPERM {
                notice(format_args!("{refused}"));
            }
            refused
        })
    }

    /// Names of the counters.
    pub(super) const COUNTERS: [&str; 6] = [
        "raw_tx_frames",
        "raw_tx_dropped",
        "raw_rx_frames",
        "raw_rx_unsteered",
        "raw_rx_out_of_buffer",
        "raw_rx_oversize",
    ];

    pub(super) fn new(ifindex: u32) -> Self {
        Self {
            entries: Vec::new(),
            rules: FlowRules::default(),
            ports: Ports::new(ifindex),
            staged: VecDeque::new(),
            spare: Vec::new(),
            returning: Vec::new(),
            reached: Vec::new(),
            stalled: None,
            counters: Counters::default(),
            tables: 0,
        }
    }

    /// Whether frames may arrive or wait.
    pub(super) fn is_active(&self) -> bool {
        self.ports.receives() || self.has_staged()
    }

    /// Whether frames wait to be sent, or to return.
    pub(super) fn has_staged(&self) -> bool {
        !self.staged.is_empty() || !self.returning.is_empty()
    }

    /// Closes the sockets, in a forked child.
    pub(crate) fn close(&mut self) {
        self.ports.close();
    }

    pub(super) fn insert(&mut self, entry: Entry) -> QueueId {
        let free = self.entries.iter().position(Option::is_none).unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[free] = Some(entry);
        free as QueueId
    }

    pub(super) fn remove(&mut self, id: QueueId) {
        self.unstage(id);
        if let Some(slot) = self.entries.get_mut(id as usize) {
            *slot = None;
        }
    }

    pub(super) fn queue(&mut self, id: QueueId) -> Option<&mut Queue> {
        match self.entries.get_mut(id as usize)? {
            Some(Entry::Queue(queue)) => Some(queue),
            _ => None,
        }
    }

    /// Adds a rule and makes the ports follow it; returns its id.
    pub(super) fn add_flow(&mut self, attr: &FlowAttr, queue: QueueId) -> Result<u64, VerbsError> {
        let id = self.rules.add(attr, queue)?;
        if let Err(error) = self.ports.follow(&self.rules) {
            self.remove_flow(id);
            notice(format_args!("no frames for a flow rule: {error}"));
            return Err(socket_refused(&error));
        }
        Ok(id)
    }

    pub(super) fn remove_flow(&mut self, id: u64) {
        self.rules.remove(id);
        if let Err(error) = self.ports.follow(&self.rules) {
            notice(format_args!("the flow rules of {}: {error}", self.ports.netdev()));
        }
    }

    pub(super) fn has_flows(&self, queue: QueueId) -> bool {
        self.rules.uses(queue)
    }

    /// Changes the state of a queue, with what follows from ERR and RESET.
    pub(super) fn set_state(&mut self, now: Instant, id: QueueId, state: QpState) {
        let Some(queue) = self.queue(id) else { return };
        queue.state = state;
        match state {
            QpState::Err => {
                self.flush(now, id, Cause::FlushedByApplication);
                self.transmit(now);
            }
            QpState::Reset => {
                queue.clear();
                self.unstage(id);
            }
            _ => {}
        }
    }

    /// Forgets the sends of a queue.
    fn unstage(&mut self, id: QueueId) {
        self.staged.retain(|staged| staged.queue != id);
        if let Some(Queue { send: Some(send), .. }) = self.queue(id) {
            send.outstanding = 0;
        }
    }

    pub(super) fn post_recv(&mut self, now: Instant, id: QueueId, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.queue(id).ok_or_else(|| no_queue(id))?.post_recv(now, wr)
    }

    /// Copies the frame of a send; [`transmit`](Self::transmit) sends it.
    ///
    /// # Errors
    /// `EINVAL` before RTS, for another operation, too many SGEs, too much inline data, and less than an
    /// Ethernet header; `ENOMEM` when the queue is full.
    pub(super) fn post_send(
        &mut self,
        id: QueueId,
        wr: &SendWr<'_>,
        keys: &KeyTable,
    ) -> Result<(), VerbsError> {
        let frame_max = self.ports.frame_max();
        let spare = self.spare.pop();
        let queue = self.queue(id).ok_or_else(|| no_queue(id))?;
        let is_failed = queue.state == QpState::Err;
        let (number, state) = (Qpn::new(queue.completer.number), queue.state);
        let send = queue.send.as_mut().ok_or_else(|| {
            refuse!(EINVAL, "queue pair", "qp_type"; number as Qpn; "the queue {number} has no send queue")
        })?;
        let len: u64 = wr.sg_list.iter().map(|sge| u64::from(sge.length)).sum();
        let is_inline = wr.flags.contains(SendFlags::INLINE);
        let (wr_id, opcode, sges) = (wr.wr_id, wr.op.wc_opcode(), wr.sg_list.len());
        let (elements, room, limit) = (send.max_sge, send.max_inline, send.max_wr);
        if wr.op != WrOp::Send {
            return Err(refuse!(EINVAL, "work request", "opcode"; opcode as WcOpcode, wr_id;
                "the work request {wr_id:#x} ({opcode:?}): raw queue pairs do not have this operation"));
        }
        if !is_failed && state != QpState::Rts {
            return Err(refuse!(EINVAL, "queue pair", "state"; state as QpState, number as Qpn;
                "the queue pair {number} is in {state}; it sends from RTS on"));
        }
        if sges > elements as usize {
            return Err(refuse!(EINVAL, "work request", "num_sge"; sges, wr_id, elements;
                "the work request {wr_id:#x} has {sges} elements, the queue pair was created for \
                 max_send_sge {elements}"));
        }
        if is_inline && len > u64::from(room) {
            return Err(refuse!(EINVAL, "work request", "length"; len, wr_id, room;
                "the work request {wr_id:#x} has {len} bytes of inline data, the queue pair was created for \
                 max_inline_data {room}"));
        }
        if len < ETHERNET_LEN as u64 {
            return Err(refuse!(EINVAL, "work request", "length"; len, wr_id;
                "the work request {wr_id:#x} has {len} bytes, an Ethernet header alone has {ETHERNET_LEN}"));
        }
        if send.outstanding >= limit {
            return Err(refuse!(ENOMEM, "send queue", "max_send_wr"; limit;
                "the send queue is full: max_send_wr {limit}"));
        }
        let mut frame = spare.unwrap_or_default();
        frame.clear();
        let failure = if is_failed {
            Some(Cause::PostedInError)
        } else if len > frame_max as u64 {
            Some(Cause::FrameLength)
        } else {
            frame.resize(len as usize, 0);
            gather(wr, send, keys, &mut frame).err().map(Cause::of_send)
        };
        send.outstanding += 1;
        let is_signaled = send.all_signaled || wr.flags.contains(SendFlags::SIGNALED);
        self.staged.push_back(Staged { queue: id, wr_id: wr.wr_id, is_signaled, frame, failure });
        Ok(())
    }

    /// Sends the frames that wait, in order, until the kernel takes no more.
    pub(super) fn transmit(&mut self, now: Instant) {
        let own = self.ports.own();
        let returns = |staged: &Staged| own.is_some_and(|own| staged.frame.starts_with(&own));
        while let Some(first) = self.staged.front() {
            if let Some(failure) = first.failure {
                self.finish(now, Err(failure));
                continue;
            }
            if returns(first) {
                let frame = first.frame.clone();
                self.turn_back(now, frame);
                continue;
            }
            let leaves = |staged: &&Staged| staged.failure.is_none() && !returns(staged);
            let frames = self.staged.iter().take_while(leaves);
            let mut frames = frames.map(|staged| staged.frame.as_slice()).take(SEND_FRAMES_MAX);
            match self.ports.send(&mut frames) {
                Ok(count) if count > 0 => {
                    self.stalled = None;
                    self.counters.tx_frames += count as u64;
                    (0..count).for_each(|_| self.finish(now, Ok(())));
                }
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    self.finish(now, Err(Cause::FrameLength));
                }
                Ok(_) => return self.stall(now),
                Err(error) if is_full(&error) => return self.stall(now),
                // The link is down: a NIC loses such frames, too.
                Err(_) => self.drop_first(now),
            }
        }
    }

    /// The first staged frame is for the device itself.
    fn turn_back(&mut self, now: Instant, frame: Vec<u8>) {
        if frame.len() > self.ports.frame_max() {
            return self.finish(now, Err(Cause::FrameLength));
        }
        if self.returning.len() >= SPARE_MAX {
            return self.drop_first(now);
        }
        self.returning.push(frame);
        self.counters.tx_frames += 1;
        self.finish(now, Ok(()));
    }

    /// The kernel takes no frame now. After a while the first one counts as sent.
    fn stall(&mut self, now: Instant) {
        let since = *self.stalled.get_or_insert(now);
        if now.0.saturating_sub(since.0) > STALL_NS {
            self.drop_first(now);
        }
    }

    fn drop_first(&mut self, now: Instant) {
        self.counters.tx_dropped += 1;
        self.finish(now, Ok(()));
    }

    /// Completes the first staged send. An error moves its queue to ERR.
    fn finish(&mut self, now: Instant, result: Result<(), Cause>) {
        let Some(Staged { queue: id, wr_id, is_signaled, frame, .. }) = self.staged.pop_front() else {
            return;
        };
        let byte_len = frame.len() as u32;
        if self.spare.len() < SPARE_MAX {
            self.spare.push(frame);
        }
        let Some(queue) = self.queue(id) else { return };
        let mut is_added = true;
        if let Some(send) = &mut queue.send {
            send.outstanding = send.outstanding.saturating_sub(1);
            if is_signaled || result.is_err() {
                is_added = send.completer.complete(now, wr_id, result, WcOpcode::Send, byte_len);
            }
        }
        if (result.is_err() || !is_added) && queue.state != QpState::Err {
            queue.state = QpState::Err;
            self.flush(now, id, Cause::FlushedAfterFailure);
        }
    }

    /// Flushes the receives of a queue, and its sends once they are first.
    fn flush(&mut self, now: Instant, id: QueueId, cause: Cause) {
        let Some(queue) = self.queue(id) else { return };
        queue.flush_receives(now, cause);
        for staged in self.staged.iter_mut().filter(|staged| staged.queue == id) {
            staged.failure = Some(cause);
        }
    }

    /// Sends what waits, and delivers one batch of frames and those that return. Returns their number.
    pub(super) fn poll(&mut self, engine: &Engine) -> usize {
        if self.has_staged() {
            self.transmit(engine.now());
        }
        let (count, returned) = (self.ports.fetch(), std::mem::take(&mut self.returning));
        let all = count + returned.len();
        if all == 0 {
            return 0;
        }
        let now = engine.now();
        let core = engine.lock();
        let mut reached = std::mem::take(&mut self.reached);
        let mut failed = Vec::new();
        for i in 0..all {
            let returned = i.checked_sub(count).map(|i| (returned[i].as_slice(), false));
            let Some((frame, is_outgoing)) = returned.or_else(|| self.ports.frame(i)) else { continue };
            let key = Key::of(frame);
            self.rules.decide(&key, is_outgoing, &mut reached);
            self.counters.rx_frames += 1;
            self.counters.rx_unsteered += u64::from(reached.is_empty());
            for id in &reached {
                match deliver(&mut self.entries, *id, &key, now, &core.tables.mrs, frame) {
                    (_, Delivery::Done) => {}
                    (_, Delivery::NoReceive) => self.counters.rx_out_of_buffer += 1,
                    (id, Delivery::Failed) => failed.push(id),
                }
            }
        }
        drop(core);
        self.reached = reached;
        failed.into_iter().for_each(|id| self.set_state(now, id, QpState::Err));
        all
    }

    /// Returns the values of [`COUNTERS`](Self::COUNTERS).
    pub(super) fn counters(&self) -> [u64; Self::COUNTERS.len()] {
        let Counters { tx_frames, tx_dropped, rx_frames, rx_unsteered, rx_out_of_buffer } = self.counters;
        [tx_frames, tx_dropped, rx_frames, rx_unsteered, rx_out_of_buffer, self.ports.oversize()]
    }
}

/// Delivers a frame to a queue, or to the work queue that its hash selects; returns which queue it was.
fn deliver(
    entries: &mut [Option<Entry>],
    id: QueueId,
    key: &Key,
    now: Instant,
    keys: &KeyTable,
    frame: &[u8],
) -> (QueueId, Delivery) {
    let id = match entries.get(id as usize) {
        Some(Some(Entry::Rss { hash, table })) => table[hash.hash(key) as usize & (table.len() - 1)],
        _ => id,
    };
    match entries.get_mut(id as usize) {
        Some(Some(Entry::Queue(queue))) => (id, queue.deliver(now, keys, frame)),
        _ => (id, Delivery::NoReceive),
    }
}

/// Copies the memory of a send to `frame`.
fn gather(wr: &SendWr<'_>, send: &SendSide, keys: &KeyTable, frame: &mut [u8]) -> Result<(), AccessFault> {
    let mut rest = frame;
    for sge in wr.sg_list {
        let (here, after) = rest.split_at_mut(sge.length as usize);
        rest = after;
        if here.is_empty() {
            continue;
        }
        if wr.flags.contains(SendFlags::INLINE) {
            keys.read_inline(sge.addr, here)?;
        } else {
            keys.read_local(send.pd, sge.lkey, sge.addr, here)?;
        }
    }
    Ok(())
}

/// Whether the queue of the socket or of the netdev is full.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::ENOBUFS | libc::EBUSY | libc::EINTR | libc::ENOMEM)
    )
}
