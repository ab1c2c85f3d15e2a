//! The UD queue pair of a datagram socket and its memory: one slot for each message in flight, and one for
//! each posted receive.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;

use transport::cm::{QpStep, UDP_QKEY};
use transport::{
    Access, Dest, GRH_LEN, QpCap, QpState, QpType, RecvWr, SendFlags, SendWr, UdDest, WcOpcode, WcStatus,
    WrOp,
};
use wire::Qpn;
use wire::rsocket::datagram::Source;

use super::settings::Sizes;
use crate::cm;
use crate::verbs::{Buffer, CompChannel, Context, Cq, Pd, Qp, QpInitAttr};

/// The queue pair and its memory. Fields are dropped in this order: the queue pair before its memory.
pub(super) struct Messages {
    qp: Qp,
    cq: Cq,
    channel: CompChannel,
    _pd: Pd,
    sends: Buffer,
    receives: Buffer,
    /// Length of the longest message, [`Source`] included: the path MTU.
    len_max: usize,
    /// Slots of `sends` without a message in flight.
    free: Vec<usize>,
}

/// A received message in a slot. The owner returns the slot with [`Messages::release`].
#[derive(Debug)]
pub(super) struct Arrived {
    slot: usize,
    /// Offset in the slot.
    at: usize,
    /// Length in bytes.
    pub(super) len: usize,
}

impl Messages {
    /// Creates a queue pair in RTS with posted receives.
    pub(super) fn new(context: &Context, sizes: &Sizes) -> io::Result<Self> {
        let pd = context.alloc_pd()?;
        let len_max = context.query_port().active_mtu.bytes();
        let slots = |buffer: u32, queue: u16| (buffer as usize / len_max).clamp(1, usize::from(queue));
        let sends = slots(sizes.send_buffer, sizes.send_queue);
        let receives = slots(sizes.receive_buffer, sizes.receive_queue);
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq((sends + receives) as u32, Some(&channel), 0).map_err(cm::verbs)?;
        let cap = QpCap {
            max_send_wr: sends as u32,
            max_recv_wr: receives as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init =
            QpInitAttr { ty: QpType::Ud, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
        let qp = pd.create_qp(&init).map_err(cm::verbs)?;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let step = QpStep::ud(state, UDP_QKEY).map_err(cm::verbs)?;
            qp.modify(&step.attr, step.mask).map_err(cm::verbs)?;
        }
        let alloc = |len, access| pd.alloc_buffer(len, access).map_err(cm::verbs);
        let (free, memory) = ((0..sends).collect(), alloc(sends * len_max, Access::empty())?);
        let stride = GRH_LEN + len_max;
        let received = alloc(receives * stride, Access::LOCAL_WRITE)?;
        let messages = Self { qp, cq, channel, _pd: pd, sends: memory, receives: received, len_max, free };
        for slot in 0..receives {
            messages.release(Arrived { slot, at: 0, len: 0 })?;
        }
        Ok(messages)
    }

    /// Returns its QPN.
    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Returns the length of the longest message, [`Source`] included.
    pub(super) fn len_max(&self) -> usize {
        self.len_max
    }

    /// True if [`send`](Self::send) has a free slot.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the channel that is readable when a completion follows [`arm`](Self::arm).
    pub(super) fn channel(&self) -> &CompChannel {
        &self.channel
    }

    /// Requests an event of the channel at the next completion.
    pub(super) fn arm(&self) {
        self.channel.discard_events();
        self.cq.req_notify(false);
    }

    /// Sends a message of at most [`len_max`](Self::len_max) bytes; `WouldBlock` if no slot is free.
    pub(super) fn send(&mut self, from: SocketAddr, to: UdDest, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let Some(slot) = self.free.pop() else { return Err(io::ErrorKind::WouldBlock.into()) };
        let begin = slot * self.len_max;
        let mut header = [0; Source::LEN_MAX];
        let header_len = Source(from).emit(&mut header);
        self.sends.write(begin, &header[..header_len]);
        let mut len = header_len;
        for part in parts {
            self.sends.write(begin + len, part);
            len += part.len();
        }
        let sg_list = &[self.sends.sge(begin, len)];
        let (wr_id, op, flags) = (slot as u64, WrOp::Send, SendFlags::empty());
        let posted = self.qp.post_send(&SendWr { wr_id, op, sg_list, flags, dest: Some(Dest::Ud(to)) });
        posted.map_err(|error| {
            self.free.push(slot);
            cm::verbs(error)
        })
    }

    /// Handles all completions, and passes received messages to `arrived`. Returns true if there was a
    /// completion.
    pub(super) fn reap(&mut self, mut arrived: impl FnMut(SocketAddr, Arrived)) -> io::Result<bool> {
        let mut any = false;
        while let Some(wc) = self.cq.poll_one() {
            any = true;
            let slot = wc.wr_id as usize;
            if wc.opcode == WcOpcode::Send {
                self.free.push(slot);
                continue;
            }
            let len = (wc.byte_len as usize).saturating_sub(GRH_LEN);
            let mut header = [0; Source::LEN_MAX];
            let seen = len.min(header.len());
            self.receives.read(self.begin(slot) + GRH_LEN, &mut header[..seen]);
            match Source::parse(&header[..seen]).filter(|_| wc.status == WcStatus::Success) {
                Some((Source(from), header_len)) => {
                    arrived(from, Arrived { slot, at: GRH_LEN + header_len, len: len - header_len });
                }
                None => self.release(Arrived { slot, at: 0, len: 0 })?,
            }
        }
        Ok(any)
    }

    /// Copies a message to `to`, as far as it fits; returns the number of bytes.
    pub(super) fn read(&self, message: &Arrived, to: &mut [IoSliceMut<'_>]) -> usize {
        let (begin, mut done) = (self.begin(message.slot) + message.at, 0);
        for part in to {
            let len = part.len().min(message.len - done);
            self.receives.read(begin + done, &mut part[..len]);
            done += len;
        }
        done
    }

    /// Posts the slot as a receive again.
    pub(super) fn release(&self, message: Arrived) -> io::Result<()> {
        let sge = self.receives.sge(self.begin(message.slot), GRH_LEN + self.len_max);
        let wr = RecvWr { wr_id: message.slot as u64, sg_list: &[sge] };
        self.qp.post_recv(&wr).map_err(cm::verbs)
    }

    fn begin(&self, slot: usize) -> usize {
        slot * (GRH_LEN + self.len_max)
    }
}
