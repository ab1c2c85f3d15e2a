//! Work requests as the application posts them.

use bitflags::bitflags;
use wire::{Gid, Lkey, QKey, Qpn, Rkey};

use crate::memory::{FastReg, MwBind};

/// One piece of local memory; laid out as `ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sge {
    /// Address, or offset for a zero-based region.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The key of that memory; ignored when `length` is 0.
    pub lkey: Lkey,
}

bitflags! {
    /// The bits of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
    pub struct SendFlags: u32 {
        /// Do not start before all earlier READs and atomics are complete.
        const FENCE = 1;
        /// Make a completion on success.
        const SIGNALED = 2;
        /// Set the solicited-event bit on the last packet.
        const SOLICITED = 4;
        /// Copy the data while posting.
        const INLINE = 8;
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: WrOp,
    /// The local memory, in order: a gather list; for READ and atomics a scatter list.
    pub sg_list: &'a [Sge],
    /// Options.
    pub flags: SendFlags,
    /// The destination, on UD and XRC.
    pub dest: Option<Dest>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The memory that the message is written to.
    pub sg_list: &'a [Sge],
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)] // the fields are those of the headers they end up in
pub enum WrOp {
    /// SEND.
    Send,
    /// SEND with immediate data: four bytes as the application stored them.
    SendImm([u8; 4]),
    /// SEND with invalidate of the peer's key.
    SendInv(Rkey),
    /// RDMA WRITE.
    Write { remote_addr: u64, r_key: Rkey },
    /// RDMA WRITE with immediate data.
    WriteImm { remote_addr: u64, r_key: Rkey, imm: [u8; 4] },
    /// RDMA READ.
    Read { remote_addr: u64, r_key: Rkey },
    /// Atomic compare and swap of 8 bytes.
    CompareSwap { remote_addr: u64, r_key: Rkey, compare: u64, swap: u64 },
    /// Atomic fetch and add of 8 bytes.
    FetchAdd { remote_addr: u64, r_key: Rkey, add: u64 },
    /// Store 8 bytes at once; the address is a multiple of 8.
    AtomicWrite { remote_addr: u64, r_key: Rkey },
    /// Wait until earlier WRITEs have arrived: see [`wire::Feth`] for how far, and for how much of the
    /// region.
    Flush { remote_addr: u64, r_key: Rkey, length: u32, placement: u8, selectivity: u8 },
    /// Invalidate a key of this side, in queue order.
    LocalInv(Rkey),
    /// Bind a memory window of this side, in queue order.
    BindMw(MwBind),
    /// Make a fast-registered region of this side valid, in queue order.
    RegMr(FastReg),
}

/// The path to a peer: the RoCE part of `ibv_ah_attr`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AddressVector {
    /// The peer's address.
    pub dgid: Gid,
    /// Index of the own address.
    pub sgid_index: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// TOS or traffic class byte: DSCP and ECN.
    pub traffic_class: u8,
    /// 20 bits; 0 lets the device choose the UDP source port.
    pub flow_label: u32,
    /// Service level (priority).
    pub sl: u8,
}

/// The destination of one message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Dest {
    /// UD: any queue pair.
    Ud(UdDest),
    /// XRC: a shared receive queue of the peer, 24 bits. Requests that take no receive name one, too: its
    /// protection domain is the one that the R_Key must be of.
    Srq(u32),
}

/// The destination of one UD message.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct UdDest {
    /// The path.
    pub av: AddressVector,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The peer's Q_Key; with the high bit set, the sender's own is used (IBA 10.2.5).
    pub remote_qkey: QKey,
}
