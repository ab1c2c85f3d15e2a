//! Work requests in the terms of the transport.

use std::ffi::c_int;

use roxie::transport::{Dest, QpType, RecvWr, SendFlags, SendWr, Sge, UdDest, VerbsError, WrOp, refuse};
use roxie::verbs::Qp;
use roxie::wire::{QKey, Qpn, Rkey};

use crate::abi::work::{
    Atomic, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW,
    IBV_WR_FLUSH, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_TSO, Rdma, Ud, ibv_recv_wr, ibv_send_wr,
};
use crate::errno::{code, given};
use crate::handle::{Hot, Out, WorkRequest, Wr, WrList};

use super::ah::AhObject;
use super::mw::wr_bind;

impl WorkRequest for ibv_send_wr {
    #[inline(always)]
    fn next(&self) -> *mut Self {
        self.next
    }

    #[inline(always)]
    fn sg_list(&self) -> (*const Sge, c_int) {
        (self.sg_list, self.num_sge)
    }
}

impl WorkRequest for ibv_recv_wr {
    #[inline(always)]
    fn next(&self) -> *mut Self {
        self.next
    }

    #[inline(always)]
    fn sg_list(&self) -> (*const Sge, c_int) {
        (self.sg_list, self.num_sge)
    }
}

/// Returns the member `rdma` of the union. The opcode and the type of the QP say which member counts.
#[inline(always)]
fn rdma(wr: &ibv_send_wr) -> Rdma {
    // SAFETY: numbers; the union was initialised with the structure.
    unsafe { wr.wr.rdma }
}

#[inline(always)]
fn atomic(wr: &ibv_send_wr) -> Atomic {
    // SAFETY: numbers; the union was initialised with the structure.
    unsafe { wr.wr.atomic }
}

#[inline(always)]
pub(crate) fn ud(wr: &ibv_send_wr) -> Ud {
    // SAFETY: numbers and an address; the union was initialised with the structure.
    unsafe { wr.wr.ud }
}

/// Tells the application which work request of its list was refused, and returns the errno.
#[cold]
#[track_caller]
pub(super) fn refuse<W>(wr: &Wr<W>, bad_wr: Option<Out<*mut W>>, error: VerbsError) -> c_int {
    if let Some(bad_wr) = bad_wr {
        bad_wr.write(wr.as_ptr());
    }
    code(error)
}

/// The flags of a send, bits of IBV_SEND_*.
#[inline]
pub(crate) fn send_flags(bits: u32) -> Result<SendFlags, VerbsError> {
    SendFlags::from_bits(bits).ok_or_else(|| {
        let known = SendFlags::all().bits();
        refuse!(EINVAL, "work request", "send_flags"; bits, known;
            is "{bits:#x}, the known bits are {known:#x}")
    })
}

/// The refusal of an operation that the device does not have.
#[cold]
pub(crate) fn no_operation(opcode: c_int) -> VerbsError {
    refuse!(EOPNOTSUPP, "work request", "opcode"; opcode as i32;
        is "{opcode}, which the device or this interface does not have (IBV_WR_* of verbs.h)")
}

/// The refusal of a number that is no operation.
#[cold]
pub(crate) fn unknown_operation(opcode: c_int) -> VerbsError {
    refuse!(EINVAL, "work request", "opcode"; opcode as i32; is "{opcode}, no IBV_WR_* of verbs.h")
}

/// Returns the work request in the terms of the transport.
#[inline]
pub(crate) fn send_wr<'a>(qp: &Qp, request: &Wr<'a, ibv_send_wr>) -> Result<SendWr<'a>, VerbsError> {
    let wr = request.get();
    let imm = wr.imm_data.to_ne_bytes();
    let (rdma, atomic) = (rdma(wr), atomic(wr));
    let (remote_addr, r_key) = (rdma.remote_addr, Rkey(rdma.rkey));
    let op = match wr.opcode {
        IBV_WR_RDMA_WRITE => WrOp::Write { remote_addr, r_key },
        IBV_WR_RDMA_WRITE_WITH_IMM => WrOp::WriteImm { remote_addr, r_key, imm },
        IBV_WR_SEND => WrOp::Send,
        IBV_WR_SEND_WITH_IMM => WrOp::SendImm(imm),
        IBV_WR_RDMA_READ => WrOp::Read { remote_addr, r_key },
        IBV_WR_ATOMIC_CMP_AND_SWP => WrOp::CompareSwap {
            remote_addr: atomic.remote_addr,
            r_key: Rkey(atomic.rkey),
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => WrOp::FetchAdd {
            remote_addr: atomic.remote_addr,
            r_key: Rkey(atomic.rkey),
            add: atomic.compare_add,
        },
        IBV_WR_LOCAL_INV => WrOp::LocalInv(Rkey(wr.imm_data)),
        IBV_WR_BIND_MW => {
            let (mw, region) = request.follow(|wr| (wr.bind_mw.mw, wr.bind_mw.bind_info.mr));
            WrOp::BindMw(wr_bind(mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info, region)?)
        }
        IBV_WR_SEND_WITH_INV => WrOp::SendInv(Rkey(wr.imm_data)),
        IBV_WR_ATOMIC_WRITE => WrOp::AtomicWrite { remote_addr, r_key },
        // No member of the structure says what to flush; programs use the builder.
        IBV_WR_TSO..=IBV_WR_FLUSH => return Err(no_operation(wr.opcode)),
        _ => return Err(unknown_operation(wr.opcode)),
    };
    let dest = match qp.ty() {
        QpType::Ud => {
            let ah = request.follow(|wr| Hot(ud(wr).ah));
            let ud = ud(wr);
            Some(Dest::Ud(ud_dest(ah, ud.remote_qpn, ud.remote_qkey)?))
        }
        QpType::XrcIni => Some(Dest::Srq(wr.qp_type[0])),
        QpType::Rc | QpType::Uc | QpType::Gsi | QpType::XrcTgt => None,
    };
    let flags = send_flags(wr.send_flags)?;
    let sg_list = request.sg_list()?;
    Ok(SendWr { wr_id: wr.wr_id, op, sg_list, flags, dest })
}

/// Returns the destination of a datagram; an error without an address handle.
#[inline]
pub(crate) fn ud_dest(ah: Option<&AhObject>, qpn: u32, qkey: u32) -> Result<UdDest, VerbsError> {
    given!(Err; ah);
    Ok(UdDest { av: ah.tail.av(), remote_qpn: Qpn::new(qpn), remote_qkey: QKey(qkey) })
}

/// Returns the receive in the terms of the transport.
#[inline(always)]
pub(crate) fn recv_wr<'a>(wr: &Wr<'a, ibv_recv_wr>) -> Result<RecvWr<'a>, VerbsError> {
    wr.sg_list().map(|sg_list| RecvWr { wr_id: wr.get().wr_id, sg_list })
}

/// Posts a list of receives one by one; returns 0 or an errno.
#[inline]
#[track_caller]
pub(crate) fn post_receives(
    list: WrList<ibv_recv_wr>,
    bad_wr: Option<Out<*mut ibv_recv_wr>>,
    mut post: impl FnMut(&RecvWr<'_>) -> Result<(), VerbsError>,
) -> c_int {
    for wr in list {
        let posted = recv_wr(&wr).and_then(|wr| post(&wr));
        if let Err(error) = posted {
            return refuse(&wr, bad_wr, error);
        }
    }
    0
}

/// Returns a send of a raw packet queue pair in the terms of the transport.
pub(super) fn raw_send_wr<'a>(request: &Wr<'a, ibv_send_wr>) -> Result<SendWr<'a>, VerbsError> {
    let wr = request.get();
    match wr.opcode {
        IBV_WR_SEND => {}
        IBV_WR_TSO => return Err(no_operation(wr.opcode)),
        _ => return Err(unknown_operation(wr.opcode)),
    }
    let flags = send_flags(wr.send_flags)?;
    Ok(SendWr { wr_id: wr.wr_id, op: WrOp::Send, sg_list: request.sg_list()?, flags, dest: None })
}
