//! The send queue: a ring of work requests. Elements, inline data and datagram destinations have arrays of
//! their own; all is allocated once.

use crate::attr::{MAX_INLINE_DATA, MAX_MSG_SZ, MAX_QP_WR, MAX_SGE, QpConfig, QpType};
use crate::cause::Cause;
use crate::endpoint::Endpoint;
use crate::memory::{AccessFault, Memory, PdId};
use crate::recv_queue::gather;
use crate::refusal::VerbsError;
use crate::refuse;
use crate::wc::WcOpcode;
use crate::wr::{Dest, SendFlags, SendWr, Sge, UdDest, WrOp};

/// A posted send work request.
///
/// Packets are numbered from `sq_psn` on without wrapping; the PSN is the low 24 bits of that number. So
/// packet numbers compare as plain integers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: WrOp,
    /// Number of the first packet.
    pub(crate) first: u64,
    /// One past the number of the last packet. A READ counts the packets of its response, a local operation
    /// none.
    pub(crate) end: u64,
    /// Bytes of all earlier messages.
    pub(crate) first_byte: u64,
    pub(crate) length: u32,
    num_sge: u8,
    pub(crate) flags: SendFlags,
    /// Why it cannot be executed, if that was known when it was posted.
    pub(crate) fault: Option<Cause>,
}

impl SendWqe {
    /// Whether it makes a completion on success.
    #[inline]
    pub(crate) fn is_signaled(&self, ep: &Endpoint) -> bool {
        ep.sq_sig_all || self.flags.contains(SendFlags::SIGNALED)
    }
}

impl WrOp {
    /// The opcode of the completion.
    pub fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendInv(_) => WcOpcode::Send,
            Self::Write { .. } | Self::WriteImm { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::LocalInv(_) => WcOpcode::LocalInv,
            Self::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            Self::Flush { .. } => WcOpcode::Flush,
            Self::BindMw(_) => WcOpcode::BindMw,
            Self::RegMr(_) => WcOpcode::RegMr,
        }
    }

    #[inline]
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether its response carries data: READ and atomics.
    #[inline]
    pub(crate) fn scatters(&self) -> bool {
        matches!(self, Self::Read { .. }) || self.is_atomic()
    }

    /// Whether it has a response of its own, which no ACK replaces: READ, atomics, ATOMIC WRITE, FLUSH.
    #[inline]
    pub(crate) fn is_fetch(&self) -> bool {
        self.scatters() || matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// Whether it sends nothing and only changes keys of this side.
    #[inline]
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::LocalInv(_) | Self::BindMw(_) | Self::RegMr(_))
    }

    fn may_be_inline(&self) -> bool {
        !self.scatters() && !self.is_local() && !matches!(self, Self::Flush { .. })
    }

    /// Whether its elements may have this length in total.
    fn takes(&self, length: u64) -> bool {
        match self {
            Self::AtomicWrite { remote_addr, .. } => length == 8 && remote_addr.is_multiple_of(8),
            Self::Flush { .. } => length == 0,
            _ => !self.is_atomic() || length >= 8,
        }
    }

    fn exists_on(&self, ty: QpType) -> bool {
        match ty {
            QpType::Rc => true,
            QpType::XrcIni => !matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. }),
            QpType::XrcTgt => false,
            QpType::Uc => {
                self.is_local()
                    || matches!(
                        self,
                        Self::Send | Self::SendImm(_) | Self::Write { .. } | Self::WriteImm { .. }
                    )
            }
            QpType::Ud | QpType::Gsi => matches!(self, Self::Send | Self::SendImm(_)),
        }
    }
}

/// The ring of send work requests, oldest at `head`.
#[derive(Debug)]
pub(crate) struct SendQueue {
    wqes: Box<[SendWqe]>,
    /// `max_sge` elements for each slot.
    sges: Box<[Sge]>,
    /// `max_inline` bytes for each slot.
    inline: Box<[u8]>,
    /// One for each slot on datagram queue pairs, else empty.
    destinations: Box<[UdDest]>,
    /// One for each slot on XRC queue pairs, else empty.
    srqns: Box<[u32]>,
    ty: QpType,
    limit: u32,
    max_sge: usize,
    max_inline: usize,
    head: u32,
    tail: u32,
    /// Number of the packet after the youngest work request's last.
    end: u64,
    /// Payload bytes of all messages posted.
    end_byte: u64,
}

impl SendQueue {
    pub(crate) fn new(config: &QpConfig) -> Result<Self, VerbsError> {
        let cap = &config.cap;
        if cap.max_send_wr > MAX_QP_WR
            || cap.max_send_sge as usize > MAX_SGE
            || cap.max_inline_data > MAX_INLINE_DATA
        {
            let (wrs, sges, inline) = (cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
            return Err(refuse!(EINVAL, "queue pair", "cap"; wrs, sges, inline;
                "max_send_wr {wrs}, max_send_sge {sges}, max_inline_data {inline}; the device has at most \
                 {MAX_QP_WR}, {MAX_SGE} and {MAX_INLINE_DATA}"));
        }
        let slots = (cap.max_send_wr as usize).next_power_of_two();
        let empty = SendWqe {
            wr_id: 0,
            op: WrOp::Send,
            first: 0,
            end: 0,
            first_byte: 0,
            length: 0,
            num_sge: 0,
            flags: SendFlags::empty(),
            fault: None,
        };
        let destinations = if config.ty.is_datagram() { slots } else { 0 };
        let srqns = if config.ty == QpType::XrcIni { slots } else { 0 };
        Ok(Self {
            wqes: vec![empty; slots].into_boxed_slice(),
            sges: vec![Sge::default(); slots * cap.max_send_sge as usize].into_boxed_slice(),
            inline: vec![0; slots * cap.max_inline_data as usize].into_boxed_slice(),
            destinations: vec![UdDest::default(); destinations].into_boxed_slice(),
            srqns: vec![0; srqns].into_boxed_slice(),
            ty: config.ty,
            limit: cap.max_send_wr,
            max_sge: cap.max_send_sge as usize,
            max_inline: cap.max_inline_data as usize,
            head: 0,
            tail: 0,
            end: 0,
            end_byte: 0,
        })
    }

    /// Checks what makes `ibv_post_send` fail at once, and returns the length of the work request.
    pub(crate) fn check(&self, wr: &SendWr<'_>, undelivered: u32) -> Result<u64, VerbsError> {
        let inline = wr.flags.contains(SendFlags::INLINE);
        let length: u64 = wr.sg_list.iter().map(|sge| u64::from(sge.length)).sum();
        if !wr.op.exists_on(self.ty)
            || !self.has_destination(wr.dest)
            || (inline && (length > self.max_inline as u64 || !wr.op.may_be_inline()))
            || (!inline && wr.sg_list.len() > self.max_sge)
            || !wr.op.takes(length)
        {
            return Err(self.refuse_malformed(wr, length));
        }
        if self.len() + undelivered >= self.limit {
            return Err(self.refuse_full(undelivered));
        }
        Ok(length)
    }

    #[cold]
    fn refuse_malformed(&self, wr: &SendWr<'_>, length: u64) -> VerbsError {
        let (ty, id, opcode, sges) = (self.ty, wr.wr_id, wr.op.wc_opcode(), wr.sg_list.len());
        let (room, elements) = (self.max_inline, self.max_sge);
        let inline = wr.flags.contains(SendFlags::INLINE);
        if !wr.op.exists_on(ty) {
            refuse!(EINVAL, "work request", "opcode"; opcode as WcOpcode, id, ty as QpType;
                "the work request {id:#x} ({opcode:?}): {ty} queue pairs do not have this operation")
        } else if !self.has_destination(wr.dest) {
            refuse!(EINVAL, "work request", "ah"; ty as QpType, id;
                "the work request {id:#x}: {ty} queue pairs need a destination in each of them")
        } else if inline && !wr.op.may_be_inline() {
            refuse!(EINVAL, "work request", "send_flags"; opcode as WcOpcode, id;
                "the work request {id:#x} ({opcode:?}) cannot carry inline data")
        } else if inline && length > room as u64 {
            refuse!(EINVAL, "work request", "length"; length, id, room;
                "the work request {id:#x} has {length} bytes of inline data, the queue pair was created for \
                 max_inline_data {room}")
        } else if !inline && sges > elements {
            refuse!(EINVAL, "work request", "num_sge"; sges, id, elements;
                "the work request {id:#x} has {sges} elements, the queue pair was created for max_send_sge \
                 {elements}")
        } else {
            refuse!(EINVAL, "work request", "length"; length, id, opcode as WcOpcode;
                "the work request {id:#x} ({opcode:?}) cannot have a length of {length} bytes")
        }
    }

    #[cold]
    fn refuse_full(&self, undelivered: u32) -> VerbsError {
        let (limit, waiting) = (self.limit, self.len());
        refuse!(ENOMEM, "send queue", "max_send_wr"; limit, waiting, undelivered;
            "the send queue is full: max_send_wr {limit}, {waiting} requests not complete, {undelivered} \
             completions not polled";
            "an unsignaled request counts until a later signaled one was polled")
    }

    /// Whether it names the destination that this service needs.
    #[inline]
    fn has_destination(&self, dest: Option<Dest>) -> bool {
        match self.ty {
            QpType::Ud | QpType::Gsi => matches!(dest, Some(Dest::Ud(_))),
            QpType::XrcIni => matches!(dest, Some(Dest::Srq(_))),
            QpType::Rc | QpType::Uc | QpType::XrcTgt => true,
        }
    }

    /// Appends a work request that [`SendQueue::check`] passed.
    #[inline]
    pub(crate) fn push(
        &mut self,
        wr: &SendWr<'_>,
        length: u64,
        mtu: usize,
        mem: &impl Memory,
    ) -> Result<(), VerbsError> {
        let slot = self.slot(self.tail);
        let num_sge = if wr.flags.contains(SendFlags::INLINE) {
            self.copy_inline(slot, wr.sg_list, mem)?;
            0
        } else {
            let first = slot * self.max_sge;
            self.sges[first..first + wr.sg_list.len()].copy_from_slice(wr.sg_list);
            wr.sg_list.len() as u8
        };
        let fault = (length > MAX_MSG_SZ).then_some(Cause::MessageLength);
        let length = if wr.op.is_atomic() { 8 } else { length.min(MAX_MSG_SZ) };
        let packets = match wr.op {
            _ if wr.op.is_local() => 0,
            WrOp::CompareSwap { .. } | WrOp::FetchAdd { .. } => 1,
            _ if length <= mtu as u64 || self.ty.is_datagram() => 1,
            _ => length.div_ceil(mtu as u64),
        };
        match wr.dest {
            None => {}
            Some(Dest::Ud(ud)) => self.destinations.get_mut(slot).into_iter().for_each(|kept| *kept = ud),
            Some(Dest::Srq(srqn)) => self.srqns.get_mut(slot).into_iter().for_each(|kept| *kept = srqn),
        }
        self.wqes[slot] = SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            first: self.end,
            end: self.end + packets,
            first_byte: self.end_byte,
            length: length as u32,
            num_sge,
            flags: wr.flags,
            fault,
        };
        self.end += packets;
        self.end_byte += length;
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    fn copy_inline(&mut self, slot: usize, sges: &[Sge], mem: &impl Memory) -> Result<(), VerbsError> {
        let mut at = slot * self.max_inline;
        for sge in sges {
            let (addr, length) = (sge.addr, sge.length as usize);
            mem.read_inline(addr, &mut self.inline[at..at + length]).map_err(|_| {
                refuse!(EFAULT, "work request", "addr"; addr, length;
                    "{length} bytes of inline data at {addr:#x} cannot be read")
            })?;
            at += length;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Work requests that the queue holds at most.
    #[inline]
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Index of the oldest work request.
    #[inline]
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// Index one past the youngest work request.
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }

    /// One past the number of the last packet.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Payload bytes of all messages since the start.
    #[inline]
    pub(crate) fn end_byte(&self) -> u64 {
        self.end_byte
    }

    /// Payload bytes of all packets before `position`, which belongs to the work request at `index`.
    #[inline]
    pub(crate) fn byte_at(&self, index: u32, position: u64, mtu: usize) -> u64 {
        if index == self.tail {
            return self.end_byte;
        }
        let wqe = self.wqe(index);
        wqe.first_byte + (position - wqe.first) * mtu as u64
    }

    /// Removes the oldest work request.
    #[inline]
    pub(crate) fn pop(&mut self) {
        self.head = self.head.wrapping_add(1);
    }

    /// The work request at an index between `head` and `tail`.
    #[inline]
    pub(crate) fn wqe(&self, index: u32) -> &SendWqe {
        &self.wqes[self.slot(index)]
    }

    /// As [`wqe`](Self::wqe), but cannot panic, so that the compiler may drop a call that has no use.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&SendWqe> {
        self.wqes.get(self.slot(index))
    }

    /// The work request that was posted last; the content of an unused slot before the first post.
    #[inline]
    pub(crate) fn last(&self) -> Option<&SendWqe> {
        self.get(self.tail.wrapping_sub(1))
    }

    /// Destination of a datagram.
    pub(crate) fn destination(&self, index: u32) -> Option<UdDest> {
        self.destinations.get(self.slot(index)).copied()
    }

    /// The XRC shared receive queue that a request names; `None` on other services.
    #[inline]
    pub(crate) fn srqn(&self, index: u32) -> Option<u32> {
        self.srqns.get(self.slot(index)).copied()
    }

    /// The elements of a work request.
    #[inline]
    pub(crate) fn sges(&self, index: u32) -> &[Sge] {
        let slot = self.slot(index);
        let first = slot * self.max_sge;
        &self.sges[first..first + usize::from(self.wqes[slot].num_sge)]
    }

    /// Copies payload of a work request, `offset` bytes from its start.
    #[inline]
    pub(crate) fn read_payload(
        &self,
        index: u32,
        mem: &impl Memory,
        pd: PdId,
        offset: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessFault> {
        if dst.is_empty() {
            return Ok(());
        }
        let slot = self.slot(index);
        if self.wqes[slot].flags.contains(SendFlags::INLINE) {
            let at = slot * self.max_inline + offset as usize;
            dst.copy_from_slice(&self.inline[at..at + dst.len()]);
            return Ok(());
        }
        gather(mem, pd, self.sges(index), offset, dst)
    }

    /// Drops all work requests; packets are numbered from `psn` on.
    pub(crate) fn restart_at(&mut self, psn: u64) {
        self.head = self.tail;
        self.end = psn;
        self.end_byte = 0;
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.wqes.len() - 1)
    }
}
