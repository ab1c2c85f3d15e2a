//! The queue pair of a connected stream and its memory: turns the accounting of [`Outbound`] and [`Inbound`]
//! into WRITEs.
//!
//! Invariant: work requests complete in order. So the oldest bytes of the staging ring are free when the
//! oldest WRITE completes, and four slots suffice for four control messages in flight.

use std::io::{IoSlice, IoSliceMut};

use transport::{Access, QpCap, QpType, RecvWr, SendFlags, SendWr, Sge, Wc, WcOpcode, WcStatus, WrOp};
use wire::Rkey;
use wire::rsocket::{ByteOrder, Control, Hello, Iomap, Message, Segment};

use crate::errno;
use crate::inbound::Inbound;
use crate::outbound::{Outbound, Pieces};
use crate::queues::Queues;
use crate::settings::{CONTROL_RECEIVES, Sizes};
use crate::{Broken, Violation};
use roxie::cm::Id;
use roxie::verbs::{Buffer, Mr, Pd};
use sys::PollFd;

/// Largest number of control messages in flight (rdma-core's RS_QP_CTRL_SIZE).
const CONTROLS: u32 = 4;
/// Entries for grants in the local table (rdma-core's RS_SGL_SIZE).
const GRANTS: u32 = 2;

/// A queue pair with its buffers. Fields are dropped in this order: the queue pair before its memory.
pub(super) struct Endpoint {
    queues: Queues,
    /// The ring of [`Outbound`], followed by one slot for each control message.
    staging: Buffer,
    staging_ring: usize,
    /// The ring of [`Inbound`].
    received: Buffer,
    /// Table that the peer writes: its grants, then its iomaps.
    table: Buffer,
    /// Index of the table entry for the peer's next grant.
    next_grant: u32,
    iomaps: u16,
    credits: u16,
    out: Outbound,
    inbound: Inbound,
    peer: Peer,
    controls_free: u32,
    next_control: u32,
    /// Number of work requests in flight.
    unfinished: u32,
}

/// The tables of the peer.
#[derive(Default)]
struct Peer {
    order: Option<ByteOrder>,
    table: Segment,
    /// Index of the peer's table entry for the next local grant.
    entry: u32,
    iomaps: u16,
}

/// Result of handling the completions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reaped {
    /// There was a completion.
    pub(super) any: bool,
    /// The peer's latest control message.
    pub(super) control: Option<Control>,
}

impl Endpoint {
    /// Creates a queue pair in RESET on the device of `id`; [`start`](Self::start) posts its receives.
    pub(super) fn new(id: &Id, sizes: &Sizes) -> std::io::Result<Self> {
        let context = id.context().ok_or(std::io::ErrorKind::NotConnected)?;
        let (send, receive) = (u32::from(sizes.send_queue), u32::from(sizes.receive_queue));
        let cap = QpCap {
            max_send_wr: send,
            max_recv_wr: receive + CONTROL_RECEIVES,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let queues = Queues::new(&context, QpType::Rc, cap)?;
        let staging_ring = sizes.send_buffer as usize;
        let slots = CONTROLS as usize * Segment::LEN;
        let table = GRANTS as usize * Segment::LEN + usize::from(sizes.iomaps) * Iomap::LEN;
        let remote = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let staging = queues.alloc(staging_ring + slots, Access::empty())?;
        let received = queues.alloc(sizes.receive_buffer as usize, remote)?;
        let table = queues.alloc(table, remote)?;
        Ok(Self {
            queues,
            staging,
            staging_ring,
            received,
            table,
            next_grant: 1,
            iomaps: sizes.iomaps,
            credits: sizes.receive_queue,
            out: Outbound::new(staging_ring, send - CONTROLS),
            inbound: Inbound::new(sizes.receive_buffer as usize, sizes.receive_queue),
            peer: Peer::default(),
            controls_free: CONTROLS,
            next_control: 0,
            unfinished: 0,
        })
    }

    /// Gives the queue pair to the identifier, and posts the receives.
    pub(super) fn start(&self, id: &Id) -> std::io::Result<()> {
        id.attach_qp(&self.queues.qp)?;
        for _ in 0..u32::from(self.credits) + CONTROL_RECEIVES {
            self.post_recv().map_err(|_| errno(libc::EIO))?;
        }
        Ok(())
    }

    /// Returns the private data that describes this end to the peer.
    pub(super) fn hello(&self) -> [u8; Hello::LEN] {
        let memory = Segment {
            addr: self.received.addr(),
            key: self.received.rkey(),
            length: (self.received.len() / 2) as u32,
        };
        let table = Segment { addr: self.table.addr(), key: self.table.rkey(), length: GRANTS };
        let hello =
            Hello { order: ByteOrder::NATIVE, credits: self.credits, iomaps: self.iomaps, table, memory };
        let mut bytes = [0; Hello::LEN];
        hello.emit(&mut bytes);
        bytes
    }

    /// Takes over the description of the peer.
    pub(super) fn open(&mut self, hello: &Hello) {
        self.peer = Peer { order: Some(hello.order), table: hello.table, entry: 1, iomaps: hello.iomaps };
        self.out.open(hello.memory, hello.credits);
    }

    /// True after [`open`](Self::open).
    pub(super) fn is_open(&self) -> bool {
        self.peer.order.is_some()
    }

    /// Returns the protection domain of its memory.
    pub(super) fn pd(&self) -> &Pd {
        &self.queues.pd
    }

    /// Requests an event at the next completion; returns the descriptor that becomes readable then.
    pub(super) fn arm(&self) -> PollFd {
        self.queues.arm()
    }

    /// Returns the descriptor of completion events.
    pub(super) fn completion_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.queues.channel)
    }

    /// Returns the number of unread bytes.
    pub(super) fn unread(&self) -> usize {
        self.inbound.unread()
    }

    /// True if stream data can be sent now.
    pub(super) fn has_room(&self) -> bool {
        self.out.room() > 0
    }

    /// True if no work request is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.unfinished == 0
    }

    /// True if [`control`](Self::control) has a free slot.
    pub(super) fn has_room_for_control(&self) -> bool {
        self.controls_free > 0
    }

    /// Copies unread bytes to `to` without consuming them; returns their number.
    pub(super) fn peek(&self, to: &mut [IoSliceMut<'_>]) -> usize {
        let total: usize = to.iter().map(|part| part.len()).sum();
        let len = total.min(self.inbound.unread());
        let mut parts = to.iter_mut().map(|part| &mut **part).filter(|part| !part.is_empty());
        let mut to: &mut [u8] = &mut [];
        for (mut offset, mut left) in self.inbound.front(len) {
            while left > 0 {
                if to.is_empty() {
                    let Some(next) = parts.next() else { return len };
                    to = next;
                }
                let (piece, rest) = to.split_at_mut(left.min(to.len()));
                self.received.read(offset, piece);
                offset += piece.len();
                left -= piece.len();
                to = rest;
            }
        }
        len
    }

    /// Consumes unread bytes, and sends grants that are due.
    pub(super) fn consume(&mut self, len: usize) -> Result<(), Broken> {
        self.inbound.consume(len);
        self.send_grants()
    }

    /// Sends bytes `done..total` of `from`, as many as fit in one message; returns their number.
    pub(super) fn send(&mut self, from: &[IoSlice<'_>], done: usize, total: usize) -> Result<usize, Broken> {
        let len = self.out.room().min(total - done);
        if len == 0 {
            return Ok(0);
        }
        let (staged, to) = self.out.take(len);
        self.stage(staged, from, done);
        let imm = Message::Data(len as u32).to_bytes();
        let op = WrOp::WriteImm { remote_addr: to.addr, r_key: to.key, imm };
        self.post_staged(op, staged)?;
        Ok(len)
    }

    /// Writes to the peer's memory at `at` without notifying the peer's program; returns the number of bytes.
    pub(super) fn write_direct(&mut self, from: &[u8], at: Segment) -> Result<usize, Broken> {
        let len = self.out.room_for_write().min(from.len()).min(at.length as usize);
        if len == 0 {
            return Ok(0);
        }
        let staged = self.out.take_write(len);
        self.stage(staged, &[IoSlice::new(from)], 0);
        let op = WrOp::Write { remote_addr: at.addr, r_key: at.key };
        self.post_staged(op, staged)?;
        Ok(len)
    }

    /// Returns the number of iomap entries in the peer's table.
    pub(super) fn peer_iomaps(&self) -> u16 {
        self.peer.iomaps
    }

    /// Writes a local iomap into the peer's table; false if there is no space now.
    pub(super) fn announce_iomap(&mut self, index: u16, mr: &Mr, offset: u64) -> Result<bool, Broken> {
        if !self.out.has_room_for_entry(Iomap::LEN) {
            return Ok(false);
        }
        let Some(order) = self.peer.order else { return Ok(false) };
        let length = u32::try_from(mr.len()).unwrap_or(u32::MAX);
        let entry = Iomap { offset, segment: Segment { addr: mr.iova(), key: mr.rkey(), length } };
        let mut bytes = [0; Iomap::LEN];
        entry.emit(&mut bytes, order);
        let staged = self.out.take_entry(Iomap::LEN);
        self.stage(staged, &[IoSlice::new(&bytes)], 0);
        let grants = u64::from(self.peer.table.length) * Segment::LEN as u64;
        let entry = grants + u64::from(index) * Iomap::LEN as u64;
        let remote_addr = self.peer.table.addr.wrapping_add(entry);
        let imm = Message::Iomap(index).to_bytes();
        let op = WrOp::WriteImm { remote_addr, r_key: self.peer.table.key, imm };
        self.post_staged(op, staged)?;
        Ok(true)
    }

    /// Returns the peer's memory at `offset` of its iomaps.
    pub(super) fn find_iomap(&self, offset: u64) -> Option<Segment> {
        (0..usize::from(self.iomaps)).find_map(|index| {
            let mut bytes = [0; Iomap::LEN];
            self.table.read(GRANTS as usize * Segment::LEN + index * Iomap::LEN, &mut bytes);
            let Iomap { offset: base, segment } = Iomap::parse(&bytes, ByteOrder::NATIVE);
            let within = offset.checked_sub(base).filter(|within| *within < u64::from(segment.length))?;
            let length = segment.length - within as u32;
            Some(Segment { addr: segment.addr.wrapping_add(within), length, ..segment })
        })
    }

    /// Sends a control message; needs a free slot.
    pub(super) fn control(&mut self, control: Control) -> Result<(), Broken> {
        self.post_control(Message::Control(control), None)
    }

    /// Handles all completions, and sends grants that are due.
    pub(super) fn reap(&mut self) -> Result<Reaped, Broken> {
        let mut reaped = Reaped::default();
        while let Some(wc) = self.queues.cq.poll_one() {
            reaped.any = true;
            if wc.status != WcStatus::Success {
                return Err(broken(wc.status));
            }
            if wc.opcode == WcOpcode::RecvRdmaWithImm {
                self.post_recv()?;
                reaped.control = self.arrived(&wc)?.or(reaped.control);
            } else {
                self.unfinished -= 1;
                match wc.wr_id {
                    CONTROL_WR => self.controls_free += 1,
                    len => self.out.completed(len as usize),
                }
            }
        }
        self.send_grants()?;
        Ok(reaped)
    }

    fn arrived(&mut self, wc: &Wc) -> Result<Option<Control>, Violation> {
        match Message::parse(wc.imm_data) {
            Message::Data(len) => self.inbound.arrived(len)?,
            Message::Credits(limit) => {
                self.out.credit(limit);
                if wc.byte_len as usize == Segment::LEN {
                    let mut bytes = [0; Segment::LEN];
                    self.table.read(self.next_grant as usize * Segment::LEN, &mut bytes);
                    self.next_grant = (self.next_grant + 1) % GRANTS;
                    self.out.grant(Segment::parse(&bytes, ByteOrder::NATIVE))?;
                }
            }
            Message::Iomap(_) => self.inbound.arrived_iomap(),
            Message::Control(control) => return Ok(Some(control)),
            Message::Unknown(_) => {}
        }
        Ok(None)
    }

    /// Sends grants and credits that are due.
    fn send_grants(&mut self) -> Result<(), Broken> {
        while self.controls_free > 0 && self.inbound.grant_due() {
            let grant = self.inbound.grant();
            let segment = grant.half.map(|(offset, len)| Segment {
                addr: self.received.addr() + offset as u64,
                key: self.received.rkey(),
                length: len as u32,
            });
            self.post_control(Message::Credits(grant.limit), segment)?;
        }
        Ok(())
    }

    /// Posts a message that needs no credit, with or without an entry for the peer's table.
    fn post_control(&mut self, message: Message, entry: Option<Segment>) -> Result<(), Broken> {
        let imm = message.to_bytes();
        self.controls_free -= 1;
        let (Some(entry), Some(order)) = (entry, self.peer.order) else {
            return self.post(WrOp::WriteImm { remote_addr: 0, r_key: Rkey(0), imm }, &[], CONTROL_WR);
        };
        let mut bytes = [0; Segment::LEN];
        entry.emit(&mut bytes, order);
        let slot = self.staging_ring + self.next_control as usize * Segment::LEN;
        self.next_control = (self.next_control + 1) % CONTROLS;
        self.staging.write(slot, &bytes);
        let remote_addr = self.peer.table.addr.wrapping_add(u64::from(self.peer.entry) * Segment::LEN as u64);
        self.peer.entry = (self.peer.entry + 1) % self.peer.table.length.max(1);
        let op = WrOp::WriteImm { remote_addr, r_key: self.peer.table.key, imm };
        self.post(op, &[self.staging.sge(slot, Segment::LEN)], CONTROL_WR)
    }

    fn post(&mut self, op: WrOp, sg_list: &[Sge], wr_id: u64) -> Result<(), Broken> {
        let wr = SendWr { wr_id, op, sg_list, flags: SendFlags::empty(), dest: None };
        self.queues.qp.post_send(&wr).map_err(|_| Broken(libc::ECONNRESET))?;
        self.unfinished += 1;
        Ok(())
    }

    fn post_recv(&self) -> Result<(), Broken> {
        self.queues.qp.post_recv(&RecvWr { wr_id: 0, sg_list: &[] }).map_err(|_| Broken(libc::ECONNRESET))
    }

    /// Posts a WRITE of staged bytes.
    fn post_staged(&mut self, op: WrOp, staged: Pieces) -> Result<(), Broken> {
        let sges = staged.map(|(at, len)| self.staging.sge(at, len));
        let parts = if sges[1].length == 0 { 1 } else { 2 };
        let len = u64::from(sges[0].length) + u64::from(sges[1].length);
        self.post(op, &sges[..parts], len)
    }

    /// Copies `from`, without its first `skip` bytes, to the staging ring.
    fn stage(&self, staged: Pieces, from: &[IoSlice<'_>], mut skip: usize) {
        let mut parts = from.iter().filter_map(|part| {
            let rest = part.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(part.len());
            (!rest.is_empty()).then_some(rest)
        });
        let mut from: &[u8] = &[];
        for (mut at, mut left) in staged {
            while left > 0 {
                if from.is_empty() {
                    let Some(next) = parts.next() else { return };
                    from = next;
                }
                let (piece, rest) = from.split_at(left.min(from.len()));
                self.staging.write(at, piece);
                at += piece.len();
                left -= piece.len();
                from = rest;
            }
        }
    }
}

/// `wr_id` of control messages; the `wr_id` of other WRITEs is their length.
const CONTROL_WR: u64 = u64::MAX;

/// Returns the errno for a failed work request.
fn broken(status: WcStatus) -> Broken {
    Broken(match status {
        WcStatus::RetryExcErr | WcStatus::RespTimeoutErr => libc::ETIMEDOUT,
        _ => libc::ECONNRESET,
    })
}
