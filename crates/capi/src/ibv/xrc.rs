//! XRC domains, the numbers of their shared receive queues, and receiving queue pairs opened by number (ibv_open_xrcd(3),
//! ibv_get_srq_num(3), ibv_open_qp(3)).

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr;

use roxie::verbs::{Xrcd, XrcdInit};
use roxie::wire::Qpn;

use crate::abi::context::ibv_context;
use crate::abi::objects::{
    ibv_qp, ibv_qp_init_attr, ibv_qp_open_attr, ibv_srq, ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::errno::{code, null};
use crate::object::Object;

use super::device::ContextObject;
use super::events::ObjectId;
use super::qp::{self, QPT_XRC_RECV};
use super::srq::SrqObject;

pub(crate) type XrcdObject = Object<ibv_xrcd, Xrcd>;

/// The operation behind `ibv_open_xrcd`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init_attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    /// IBV_XRCD_INIT_ATTR_FD, OFLAGS: both are needed.
    const NEEDED: u32 = 1 | 1 << 1;
    /// The descriptor that means a domain without a file.
    const NO_FILE: c_int = -1;
    // SAFETY: a context of ours or NULL; NULL or the program's attributes.
    let (object, init) = unsafe { (ContextObject::from_ptr(context), init_attr.as_ref()) };
    let (Some(object), Some(init)) = (object, init) else { return null(libc::EINVAL) };
    if init.comp_mask & !NEEDED != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let no_file = init.fd < 0;
    if init.comp_mask != NEEDED || (no_file && init.fd != NO_FILE) {
        return null(libc::EINVAL);
    }
    let has = |flag| init.oflags & flag != 0;
    let asked = XrcdInit {
        // SAFETY: not negative; the program's descriptor stays open during the call, or the call fails.
        file: (!no_file).then(|| unsafe { BorrowedFd::borrow_raw(init.fd) }),
        create: has(libc::O_CREAT),
        exclusive: has(libc::O_EXCL),
    };
    match object.tail.context.open_xrcd(&asked) {
        Ok(xrcd) => XrcdObject::export(ibv_xrcd { context }, xrcd),
        Err(error) => null(error.errno()),
    }
}

/// The operation behind `ibv_close_xrcd`.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the inline function reads a member first, so it is one of ours.
    let Some(object) = (unsafe { XrcdObject::from_ptr(xrcd) }) else { return code(libc::EINVAL) };
    if object.tail.in_use() {
        return code(libc::EBUSY);
    }
    // SAFETY: the caller gives it up, and nothing uses it.
    drop(unsafe { XrcdObject::retire(xrcd) });
    0
}

/// The operation behind `ibv_get_srq_num`.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the inline function reads a member first, so it is one of ours.
    let object = unsafe { SrqObject::from_ptr(srq) };
    match object.and_then(|object| object.tail.srq.number()) {
        Some(found) if !number.is_null() => {
            // SAFETY: the caller passes room for a number.
            unsafe { number.write(found) };
            0
        }
        _ => code(libc::EINVAL),
    }
}

/// The operation behind `ibv_open_qp`.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    /// IBV_QP_OPEN_ATTR_NUM, XRCD, TYPE: needed; CONTEXT: optional.
    const NEEDED: u32 = 1 | 1 << 1 | 1 << 3;
    const CONTEXT: u32 = 1 << 2;
    // SAFETY: NULL or the program's attributes.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return null(libc::EINVAL) };
    if attr.comp_mask & !(NEEDED | CONTEXT) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: ours or NULL.
    let xrcd = unsafe { XrcdObject::from_ptr(attr.xrcd) };
    let Some(xrcd) = xrcd.filter(|_| attr.comp_mask & NEEDED == NEEDED) else { return null(libc::EINVAL) };
    if attr.qp_type != QPT_XRC_RECV {
        return null(libc::EINVAL);
    }
    let qp = match xrcd.tail.open_qp(Qpn::new(attr.qp_num)) {
        Ok(qp) => qp,
        Err(error) => return null(error.errno()),
    };
    let has_context = attr.comp_mask & CONTEXT != 0;
    let init = ibv_qp_init_attr {
        qp_context: if has_context { attr.qp_context } else { ptr::null_mut() },
        ..ibv_qp_init_attr::target()
    };
    qp::export(context, ptr::null_mut(), &init, qp, ObjectId::new(), None).cast()
}
