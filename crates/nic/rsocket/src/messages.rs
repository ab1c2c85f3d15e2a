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

use crate::queues::Queues;
use crate::settings::Sizes;
use roxie::verbs::{Buffer, Context};
use sys::PollFd;

/// The queue pair and its memory. Fields are dropped in this order: the queue pair before its memory.
pub(super) struct Messages {
    queues: Queues,
    sends: Buffer,
    receives: Buffer,
    /// Length of the longest message, [`Source`] included: the path MTU.
    len_max: usize,
    /// Slots of `sends` without a message in flight.
    free: Vec<usize>,
    /// The queue pair is in ERR: its device was removed.
    has_failed: bool,
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
        let len_max = context.query_port().active_mtu.bytes();
        let slots = |buffer: u32, queue: u16| (buffer as usize / len_max).clamp(1, usize::from(queue));
        let send_slots = slots(sizes.send_buffer, sizes.send_queue);
        let receive_slots = slots(sizes.receive_buffer, sizes.receive_queue);
        let cap = QpCap {
            max_send_wr: send_slots as u32,
            max_recv_wr: receive_slots as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let queues = Queues::new(context, QpType::Ud, cap)?;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let step = QpStep::ud(state, UDP_QKEY)?;
            queues.qp.modify(&step.attr, step.mask)?;
        }
        let sends = queues.alloc(send_slots * len_max, Access::empty())?;
        let receives = queues.alloc(receive_slots * (GRH_LEN + len_max), Access::LOCAL_WRITE)?;
        let free = (0..send_slots).collect();
        let messages = Self { queues, sends, receives, len_max, free, has_failed: false };
        for slot in 0..receive_slots {
            messages.release(Arrived { slot, at: 0, len: 0 })?;
        }
        Ok(messages)
    }

    /// Returns the device.
    pub(super) fn context(&self) -> &Context {
        self.queues.context()
    }

    /// Returns its QPN.
    pub(super) fn qpn(&self) -> Qpn {
        self.queues.qp.qpn()
    }

    /// Returns the length of the longest message, [`Source`] included.
    pub(super) fn len_max(&self) -> usize {
        self.len_max
    }

    /// True if [`send`](Self::send) has a free slot.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// True if [`reap`](Self::reap) has found a flushed work request: the device was removed.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Requests an event at the next completion; returns the descriptor that becomes readable then.
    pub(super) fn arm(&self) -> PollFd {
        self.queues.arm()
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
        let posted =
            self.queues.qp.post_send(&SendWr { wr_id, op, sg_list, flags, dest: Some(Dest::Ud(to)) });
        posted.map_err(|error| {
            self.free.push(slot);
            error.into()
        })
    }

    /// Handles all completions, and passes received messages to `arrived`. Returns true if there was a
    /// completion.
    pub(super) fn reap(&mut self, mut arrived: impl FnMut(SocketAddr, Arrived)) -> io::Result<bool> {
        let mut any = false;
        while let Some(wc) = self.queues.cq.poll_one() {
            any = true;
            let slot = wc.wr_id as usize;
            self.has_failed |= wc.status == WcStatus::WrFlushErr;
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
                // Flushed again at once.
                None if self.has_failed => {}
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
        self.queues.qp.post_recv(&wr).map_err(io::Error::from)
    }

    fn begin(&self, slot: usize) -> usize {
        slot * (GRH_LEN + self.len_max)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use roxie::registry::DomainConfig;
    use roxie::verbs::{Device, DeviceConfig};
    use transport::{QpAttr, QpAttrMask};

    use super::*;
    use crate::settings::Settings;

    /// Opens a device on `lo` in a domain of its own.
    pub(crate) fn context() -> Context {
        let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let udp_port = probe.local_addr().unwrap().port();
        drop(probe);
        let name = format!("roxie-test/messages-{udp_port}");
        let domain = Some(DomainConfig { name, udp_port, ..DomainConfig::default() });
        let config = DeviceConfig { netdev: Some("lo".to_owned()), domain, ..DeviceConfig::default() };
        Device::open(&config).and_then(|device| device.context()).unwrap()
    }

    #[test]
    fn receives_that_a_removed_device_flushes_are_not_posted_again() {
        let mut messages = Messages::new(&context(), &Settings::get().sizes).unwrap();
        assert!(!messages.reap(|_, _| {}).unwrap() && !messages.has_failed());
        let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
        messages.queues.qp.modify(&error, QpAttrMask::STATE).unwrap();
        assert!(messages.reap(|_, _| {}).unwrap() && messages.has_failed());
        assert!(!messages.reap(|_, _| {}).unwrap());
    }
}
