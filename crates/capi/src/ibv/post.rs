//! Posting work requests (ibv_post_send(3), ibv_post_recv(3)): the hot path, without allocation.

use std::ffi::c_int;
use std::slice;

use roxie::transport::{Dest, QpType, RecvWr, SendFlags, SendWr, Sge, UdDest, VerbsError, WrOp};
use roxie::verbs::Qp;
use roxie::wire::{QKey, Qpn, Rkey};

use crate::abi::objects::ibv_qp;
use crate::abi::work::{ibv_ah, ibv_recv_wr, ibv_send_wr};
use crate::errno::code;

use super::ah::AhObject;
use super::mw::wr_bind;
use super::qp::QpObject;

/// The operation behind `ibv_post_send`: one lock and one doorbell for the whole list.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { QpObject::from_qp(qp) }) else { return code(libc::EINVAL) };
    let qp = &object.tail.qp;
    let mut batch = qp.begin_post();
    let mut next = first;
    // SAFETY: the caller passes a list that ends with NULL.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as the caller's.
        let posted = unsafe { send_wr(qp, wr) }.and_then(|wr| batch.send(&wr));
        if let Err(error) = posted {
            // SAFETY: the caller passes room for a pointer, or NULL.
            unsafe { report(bad_wr, next) };
            return code(error.errno());
        }
        next = wr.next;
    }
    0
}

/// # Safety
/// `bad_wr` is NULL or has room for a pointer.
unsafe fn report<T>(bad_wr: *mut *mut T, wr: *mut T) {
    if !bad_wr.is_null() {
        // SAFETY: upheld by the caller.
        unsafe { bad_wr.write(wr) };
    }
}

/// The scatter/gather list of a work request.
///
/// # Safety
/// `list` is NULL or holds `count` elements for the time of `'a`.
#[inline]
pub(crate) unsafe fn sg_list<'a>(list: *const Sge, count: c_int) -> Result<&'a [Sge], VerbsError> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: upheld by the caller; `Sge` is laid out as `ibv_sge`.
        Ok(count) if !list.is_null() => Ok(unsafe { slice::from_raw_parts(list, count) }),
        _ => Err(VerbsError::Invalid),
    }
}

/// # Safety
/// The pointers in `wr` are those that its opcode and the type of `qp` ask for.
#[inline]
unsafe fn send_wr<'a>(qp: &Qp, wr: &'a ibv_send_wr) -> Result<SendWr<'a>, VerbsError> {
    let imm = wr.imm_data.to_ne_bytes();
    // SAFETY: every member of the union is plain data; the opcode says which one is meant.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let (remote_addr, r_key) = (rdma.remote_addr, Rkey(rdma.rkey));
    let op = match wr.opcode {
        0 => WrOp::Write { remote_addr, r_key },
        1 => WrOp::WriteImm { remote_addr, r_key, imm },
        2 => WrOp::Send,
        3 => WrOp::SendImm(imm),
        4 => WrOp::Read { remote_addr, r_key },
        5 => WrOp::CompareSwap {
            remote_addr: atomic.remote_addr,
            r_key: Rkey(atomic.rkey),
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        6 => WrOp::FetchAdd {
            remote_addr: atomic.remote_addr,
            r_key: Rkey(atomic.rkey),
            add: atomic.compare_add,
        },
        7 => WrOp::LocalInv(Rkey(wr.imm_data)),
        // SAFETY: as the caller's.
        8 => WrOp::BindMw(unsafe { wr_bind(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info) }?),
        9 => WrOp::SendInv(Rkey(wr.imm_data)),
        15 => WrOp::AtomicWrite { remote_addr, r_key },
        // There is no member of the structure that says what to flush; programs use the builder.
        10..=14 => return Err(VerbsError::NotSupported),
        _ => return Err(VerbsError::Invalid),
    };
    let dest = match qp.ty() {
        QpType::Ud => {
            // SAFETY: on a UD queue pair the program sets this member.
            let ud = unsafe { wr.wr.ud };
            // SAFETY: as the caller's.
            Some(Dest::Ud(unsafe { ud_dest(ud.ah, ud.remote_qpn, ud.remote_qkey) }?))
        }
        QpType::XrcIni => Some(Dest::Srq(wr.qp_type[0])),
        QpType::Rc | QpType::Uc | QpType::Gsi | QpType::XrcTgt => None,
    };
    let flags = SendFlags::from_bits(wr.send_flags).ok_or(VerbsError::Invalid)?;
    // SAFETY: the caller's list.
    let sg_list = unsafe { sg_list(wr.sg_list, wr.num_sge) }?;
    Ok(SendWr { wr_id: wr.wr_id, op, sg_list, flags, dest })
}

/// # Safety
/// `ah` is NULL or one of ours.
#[inline]
pub(crate) unsafe fn ud_dest(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<UdDest, VerbsError> {
    // SAFETY: upheld by the caller.
    let ah = unsafe { AhObject::from_ptr(ah) }.ok_or(VerbsError::Invalid)?;
    Ok(UdDest { av: ah.tail.av(), remote_qpn: Qpn::new(qpn), remote_qkey: QKey(qkey) })
}

/// The operation behind `ibv_post_recv`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { QpObject::from_qp(qp) }) else { return code(libc::EINVAL) };
    // SAFETY: as the caller's.
    unsafe { post_receives(first, bad_wr, |wr| object.tail.qp.post_recv(wr)) }
}

/// Posts a list of receives one by one.
///
/// # Safety
/// `first` is a list that ends with NULL; `bad_wr` is NULL or has room for a pointer.
pub(crate) unsafe fn post_receives(
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(&RecvWr<'_>) -> Result<(), VerbsError>,
) -> c_int {
    let mut next = first;
    // SAFETY: upheld by the caller.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: upheld by the caller.
        let sg_list = unsafe { sg_list(wr.sg_list, wr.num_sge) };
        let posted = sg_list.and_then(|sg_list| post(&RecvWr { wr_id: wr.wr_id, sg_list }));
        if let Err(error) = posted {
            // SAFETY: upheld by the caller.
            unsafe { report(bad_wr, next) };
            return code(error.errno());
        }
        next = wr.next;
    }
    0
}
