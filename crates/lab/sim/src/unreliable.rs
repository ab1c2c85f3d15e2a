//! The application of a queue pair without acknowledgements (UC, UD). Messages carry their number; receives
//! accept any message. A message may be lost, but it arrives complete, and no more often than the network
//! delivered it.

use std::collections::BTreeMap;

use transport::{
    AddressVector, Dest, Errno, GRH_LEN, PathMtu, RecvWr, SendFlags, SendWr, Sge, UdDest, Wc, WcOpcode,
    WcStatus, WrOp,
};
use wire::{Gid, Psn, Qpn};

use crate::memory::{LOCAL_BASE, LOCAL_KEY, REMOTE_BASE, REMOTE_KEY};
use crate::queue_pair::{Q_KEY, QueuePair};
use crate::rng::Rng;
use crate::violation::{Checked, ensure};

/// Operation of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Send,
    Write,
    WriteImm,
}

/// A message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    /// Whether the number is in the immediate data. Otherwise the first four bytes of a SEND hold it.
    pub(crate) imm: bool,
    pub(crate) local: usize,
    pub(crate) len: usize,
    /// Target offset of a WRITE.
    pub(crate) remote: usize,
    /// Receiving queue pair: an index into the run's queue pairs.
    pub(crate) to: usize,
    /// Sequence number of its first packet, from 0.
    pub(crate) first_packet: u32,
}

/// Length of the number at the front of a SEND without immediate data, in bytes.
const NUMBER_LEN: usize = 4;

/// State of a message at its receiver.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Times that its last packet reached the queue pair.
    offered: u32,
    completed: u32,
}

/// The application of one queue pair.
#[derive(Default)]
pub(crate) struct Unreliable {
    pub(crate) messages: Vec<Message>,
    /// Memory at the start: sources of messages, receive buffers, targets of WRITEs.
    pub(crate) local: Vec<u8>,
    pub(crate) remote: Vec<u8>,
    posted: usize,
    completed: usize,
    /// Receive buffers, all of the same length.
    pub(crate) slots: Slots,
    recvs_posted: u64,
    recvs_done: u64,
    /// State of messages by sender and number.
    seen: BTreeMap<(usize, usize), Seen>,
    /// The latest message of each sender.
    youngest: BTreeMap<usize, usize>,
    /// Bytes of received messages.
    pub(crate) bytes: u64,
}

/// Receive buffers in local memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slots {
    pub(crate) at: usize,
    pub(crate) count: u64,
    pub(crate) room: usize,
    /// Length of the gap after each buffer, which no access may touch.
    pub(crate) gap: usize,
}

impl Slots {
    fn start(&self, recv: u64) -> usize {
        self.at + (recv % self.count) as usize * (self.room + self.gap)
    }
}

/// Parameters for drawing the messages of one queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) is_datagram: bool,
    pub(crate) mtu: usize,
    pub(crate) count: usize,
    pub(crate) len_max: usize,
}

impl Shape {
    pub(crate) fn new(is_datagram: bool, mtu: PathMtu, count: usize) -> Self {
        // A datagram is one packet, limited by the MTU of the port.
        let len_max = if is_datagram { PathMtu::M4096.bytes() } else { 6 * mtu.bytes() };
        Self { is_datagram, mtu: mtu.bytes(), count, len_max }
    }
}

impl Unreliable {
    /// Draws messages to receivers in `to`. `remotes` is the memory that their WRITEs may access; it is
    /// extended.
    pub(crate) fn draw(shape: Shape, to: &[usize], remotes: &mut Vec<u8>, rng: &mut Rng) -> Self {
        let mut local = Vec::new();
        let mut messages = Vec::new();
        let mut packet = 0;
        for number in 0..shape.count {
            let kind = match rng.between(0, 9) {
                0..=1 if !shape.is_datagram => Kind::Write,
                2..=3 if !shape.is_datagram => Kind::WriteImm,
                _ => Kind::Send,
            };
            let imm = kind == Kind::WriteImm || kind == Kind::Send && rng.chance(400);
            let len_min = if imm || kind != Kind::Send { 0 } else { NUMBER_LEN as u64 };
            let len_max = rng.pick(&[32, shape.mtu.min(shape.len_max), shape.len_max]);
            let len = rng.between(len_min, len_max as u64) as usize;
            let at = grow(&mut local, len, rng);
            if kind == Kind::Send && !imm {
                local[at..at + NUMBER_LEN].copy_from_slice(&(number as u32).to_be_bytes());
            }
            let remote = if kind == Kind::Send { 0 } else { grow(remotes, len, rng) };
            let packets = if shape.is_datagram { 1 } else { len.div_ceil(shape.mtu).max(1) };
            messages.push(Message {
                kind,
                imm,
                local: at,
                len,
                remote,
                to: rng.pick(to),
                first_packet: packet,
            });
            packet += packets as u32;
        }
        let grh = if shape.is_datagram { GRH_LEN } else { 0 };
        let slots =
            Slots { at: local.len() + 8, count: rng.pick(&[1, 4, 32]), room: grh + shape.len_max, gap: 8 };
        let end = slots.at + slots.count as usize * (slots.room + slots.gap);
        local.resize(end, 0x33);
        Self { messages, local, slots, ..Self::default() }
    }

    pub(crate) fn has_work(&self) -> bool {
        self.posted < self.messages.len() || self.recvs_posted < self.recvs_done + self.slots.count
    }

    /// Returns whether everything was sent.
    pub(crate) fn is_done(&self) -> bool {
        self.completed == self.messages.len()
    }

    /// Returns the progress as text.
    pub(crate) fn state(&self) -> String {
        format!("{}/{} sent, {} received", self.completed, self.messages.len(), self.recvs_done)
    }

    /// Posts some work requests; `paths` are address and QPN of the run's queue pairs.
    pub(crate) fn post(
        &mut self,
        queue: &mut QueuePair,
        posts: u64,
        recvs: u64,
        paths: &[(Gid, Qpn)],
    ) -> Checked {
        for _ in 0..recvs {
            if self.recvs_posted == self.recvs_done + self.slots.count || !self.post_recv(queue)? {
                break;
            }
        }
        for _ in 0..posts {
            if self.posted == self.messages.len() || !self.post_send(queue, paths)? {
                break;
            }
        }
        Ok(())
    }

    fn post_recv(&mut self, queue: &mut QueuePair) -> Checked<bool> {
        let addr = LOCAL_BASE + self.slots.start(self.recvs_posted) as u64;
        let sge = Sge { addr, length: self.slots.room as u32, lkey: LOCAL_KEY };
        match queue.post_recv(None, &RecvWr { wr_id: self.recvs_posted, sg_list: &[sge] }) {
            Ok(()) => self.recvs_posted += 1,
            Err(refused) if refused.kind() == Errno::ENOMEM => return Ok(false),
            Err(error) => ensure!(false, State, "post_recv refused a valid work request: {error}"),
        }
        Ok(true)
    }

    fn post_send(&mut self, queue: &mut QueuePair, paths: &[(Gid, Qpn)]) -> Checked<bool> {
        let message = &self.messages[self.posted];
        let imm = (self.posted as u32).to_be_bytes();
        let (remote_addr, r_key) = (REMOTE_BASE + message.remote as u64, REMOTE_KEY);
        let op = match message.kind {
            Kind::Send if message.imm => WrOp::SendImm(imm),
            Kind::Send => WrOp::Send,
            Kind::Write => WrOp::Write { remote_addr, r_key },
            Kind::WriteImm => WrOp::WriteImm { remote_addr, r_key, imm },
        };
        let sge =
            Sge { addr: LOCAL_BASE + message.local as u64, length: message.len as u32, lkey: LOCAL_KEY };
        let (dgid, remote_qpn) = paths[message.to];
        let to =
            UdDest { av: AddressVector { dgid, ..AddressVector::default() }, remote_qpn, remote_qkey: Q_KEY };
        let dest = queue.qp.ty().is_datagram().then_some(Dest::Ud(to));
        let wr = SendWr { wr_id: self.posted as u64, op, sg_list: &[sge], flags: SendFlags::SIGNALED, dest };
        match queue.post_send(&wr) {
            Ok(()) => self.posted += 1,
            Err(refused) if refused.kind() == Errno::ENOMEM => return Ok(false),
            Err(error) => ensure!(false, State, "post_send refused a valid work request: {error}"),
        }
        Ok(true)
    }

    pub(crate) fn on_send_wc(&mut self, wc: &Wc) -> Checked {
        let next = self.completed;
        ensure!(
            wc.status == WcStatus::Success && wc.wr_id == next as u64 && next < self.posted,
            Completion,
            "send {} completes with {:?}, expected success of {next}",
            wc.wr_id,
            wc.status
        );
        self.completed += 1;
        Ok(())
    }

    /// Returns the message that contains this PSN.
    pub(crate) fn message_at(&self, psn: Psn, sq_psn: Psn) -> Option<usize> {
        let packet = psn.value().wrapping_sub(sq_psn.value()) & 0xff_ffff;
        self.messages.partition_point(|message| message.first_packet <= packet).checked_sub(1)
    }

    /// Notes that the last packet of a message that consumes a receive has reached the queue pair.
    pub(crate) fn offer(&mut self, from: usize, number: usize) {
        self.seen.entry((from, number)).or_default().offered += 1;
    }

    /// Returns the message of a receive completion: its number, and offset and length of its bytes.
    pub(crate) fn on_recv_wc(&mut self, wc: &Wc, queue: &QueuePair) -> Checked<(usize, usize, usize)> {
        let number = self.recvs_done;
        ensure!(
            wc.status == WcStatus::Success && wc.wr_id == number && number < self.recvs_posted,
            Completion,
            "receive {} completes with {:?}, expected success of {number}",
            wc.wr_id,
            wc.status
        );
        self.recvs_done += 1;
        let grh = if wc.wc_flags & Wc::GRH != 0 { GRH_LEN } else { 0 };
        ensure!((grh > 0) == queue.qp.ty().is_datagram(), Completion, "flags {:#x}", wc.wc_flags);
        let len = (wc.byte_len as usize).checked_sub(grh);
        let at = self.slots.start(number) + grh;
        let Some(len) = len.filter(|len| grh + len <= self.slots.room || wc.opcode != WcOpcode::Recv) else {
            ensure!(false, Completion, "received an impossible length of {} bytes", wc.byte_len);
            return Ok((0, 0, 0));
        };
        let local = queue.memory.local.borrow();
        let text = if wc.wc_flags & Wc::WITH_IMM != 0 {
            wc.imm_data
        } else {
            ensure!(len >= NUMBER_LEN, Bytes, "received a message of {len} bytes, too short for its number");
            [local[at], local[at + 1], local[at + 2], local[at + 3]]
        };
        self.bytes += len as u64;
        Ok((u32::from_be_bytes(text) as usize, at, len))
    }

    /// Checks that message `number` of `from`, sent by `sender`, arrived complete, and no more often than it
    /// was delivered.
    pub(crate) fn check_delivery(
        &mut self,
        (from, sender, is_in_order): (usize, &Self, bool),
        (number, at, len): (usize, usize, usize),
        wc: &Wc,
        queue: &QueuePair,
        me: usize,
    ) -> Checked {
        let Some(message) = sender.messages.get(number).filter(|message| message.to == me) else {
            ensure!(false, Bytes, "message {number} of queue pair {from} is not for queue pair {me}");
            return Ok(());
        };
        let source = &sender.local[message.local..message.local + message.len];
        let opcode = if message.kind == Kind::Send { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        let is_expected = (len, wc.opcode) == (message.len, opcode)
            && (wc.wc_flags & Wc::WITH_IMM != 0) == message.imm
            && message.kind != Kind::Write;
        ensure!(
            is_expected,
            Completion,
            "message {number} completes as {wc:?}, but it was sent as {message:?}"
        );
        let (local, remote) = (queue.memory.local.borrow(), queue.memory.remote.borrow());
        let there = match message.kind {
            Kind::Send => &local[at..at + len],
            _ => &remote[message.remote..message.remote + len],
        };
        ensure!(there == source, Bytes, "message {number} of queue pair {from} has unexpected bytes");
        let seen = self.seen.entry((from, number)).or_default();
        seen.completed += 1;
        let Seen { offered, completed } = *seen;
        ensure!(
            completed <= offered,
            Completion,
            "message {number} of queue pair {from} was delivered {offered} times, but completed {completed} \
                 times"
        );
        let youngest = self.youngest.insert(from, number);
        ensure!(
            !is_in_order || youngest.is_none_or(|before| before < number),
            Completion,
            "message {number} of queue pair {from} completes after message {youngest:?}"
        );
        Ok(())
    }

    /// Checks that every datagram that reached the queue pair was received, or counted as dropped without a
    /// receive.
    pub(crate) fn check_datagrams(&self, queue: &QueuePair) -> Checked {
        let offered: u64 = self.seen.values().map(|seen| u64::from(seen.offered)).sum();
        let without = queue.qp.counters().rcvd_no_wqe;
        let received = self.recvs_done;
        ensure!(
            offered == received + without,
            Completion,
            "{offered} datagrams were delivered, but {received} were received and {without} had no receive"
        );
        Ok(())
    }

    /// Checks that only receive buffers and targets of WRITEs were written, with the bytes that were sent.
    pub(crate) fn check_memory(&self, queue: &QueuePair, senders: &[(&Self, usize)]) -> Checked {
        let local = queue.memory.local.borrow();
        let Slots { at, count, room, gap } = self.slots;
        let first = at..at + count as usize * (room + gap);
        for (offset, (is, was)) in local.iter().zip(&self.local).enumerate() {
            let is_buffer = first.contains(&offset) && (offset - at) % (room + gap) < room;
            ensure!(is == was || is_buffer, Bytes, "local byte {offset} is {is:#x}, it was {was:#x}");
        }
        let mut after = self.remote.clone();
        for (sender, me) in senders {
            for message in sender.messages.iter().filter(|m| m.kind != Kind::Send && m.to == *me) {
                after[message.remote..message.remote + message.len]
                    .copy_from_slice(&sender.local[message.local..message.local + message.len]);
            }
        }
        let remote = queue.memory.remote.borrow();
        let mut bytes = remote.iter().zip(&self.remote).zip(&after).enumerate();
        if let Some((at, ((is, was), expected))) =
            bytes.find(|(_, ((is, was), expected))| is != was && is != expected)
        {
            ensure!(false, Bytes, "remote byte {at} is {is:#x}; it was {was:#x}, a WRITE sent {expected:#x}");
        }
        Ok(())
    }
}

/// Extends a region by `len` random bytes and a random gap. Returns the offset of the bytes.
fn grow(region: &mut Vec<u8>, len: usize, rng: &mut Rng) -> usize {
    let old = region.len();
    let start = old + rng.between(1, 16) as usize;
    region.resize(start + len, 0);
    rng.fill(&mut region[old..]);
    start
}
