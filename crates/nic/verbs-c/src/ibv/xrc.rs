//! XRC domains, the numbers of their shared receive queues, and receiving queue pairs opened by number
//! (ibv_open_xrcd(3), ibv_get_srq_num(3), ibv_open_qp(3)).

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr;

use roxie::same_device;
use roxie::transport::{VerbsError, refuse};
use roxie::verbs::{Xrcd, XrcdInit};
use roxie::wire::Qpn;

use crate::abi::context::ibv_context;
use crate::abi::objects::{
    IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD,
    IBV_QPT_XRC_RECV, IBV_SRQT_BASIC, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_qp,
    ibv_qp_open_attr, ibv_srq, ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::errno::{busy, code, done, given, known_bits, needed_bits, null};
use crate::handle::{GivenUp, Out, typed};
use crate::object::{Object, Tail};
use crate::observer::Between;

use super::device::ContextObject;
use super::events::ObjectId;
use super::qp::{self, InitAttr};
use super::queue_pair::QueuePair;
use super::srq::SrqObject;

pub(crate) type XrcdObject = Object<ibv_xrcd, Xrcd>;

impl Tail for Xrcd {}

/// Implements `ibv_open_xrcd`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init_attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const NEEDED: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    /// The descriptor that means a domain without a file.
    const NO_FILE: c_int = -1;
    // SAFETY: ibv_open_xrcd(3).
    let (context, init): (Option<&ContextObject>, Option<&ibv_xrcd_init_attr>) =
        unsafe { typed((context, init_attr.cast_const())) };
    given!(null; context, init);
    known_bits!(null; EOPNOTSUPP, "XRC domain", "comp_mask"; init.comp_mask, NEEDED);
    needed_bits!(null; "XRC domain", "comp_mask"; init.comp_mask, NEEDED);
    let (no_file, fd) = (init.fd < 0, init.fd);
    if no_file && fd != NO_FILE {
        return null(refuse!(EINVAL, "XRC domain", "fd"; fd as i32;
            is "{fd}: a descriptor, or -1 for a domain without a file"));
    }
    // SAFETY: not negative. The application keeps its descriptor open during the call, or the call fails.
    let file = (!no_file).then(|| unsafe { BorrowedFd::borrow_raw(init.fd) });
    open(context, file, init.oflags).map_or_else(|errno| null(errno), XrcdObject::give)
}

impl XrcdObject {
    /// Refuses the XRC domain for objects of a context of another device.
    pub(crate) fn check_device(&self, context: &ContextObject) -> Result<(), VerbsError> {
        same_device!("context", "xrcd"; context.device(), self.tail.device())
            .between(&[("context", context.address()), ("xrcd", self.address())])
    }
}

/// Opens the XRC domain of a file, or one without a file; returns an errno on failure.
pub(crate) fn open(
    context: &ContextObject,
    file: Option<BorrowedFd<'_>>,
    oflags: c_int,
) -> Result<Box<XrcdObject>, VerbsError> {
    let has = |flag| oflags & flag != 0;
    let asked = XrcdInit { file, create: has(libc::O_CREAT), exclusive: has(libc::O_EXCL) };
    let xrcd = context.tail.context.open_xrcd(&asked)?;
    Ok(XrcdObject::boxed(ibv_xrcd { context: context.public() }, xrcd))
}

/// Implements `ibv_close_xrcd`.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: ibv_close_xrcd(3).
    let xrcd: Option<GivenUp<XrcdObject>> = unsafe { typed(xrcd) };
    given!(code; xrcd);
    if xrcd.tail.in_use() {
        return code(busy!("XRC domain"; "the XRC domain has shared receive queues or queue pairs"));
    }
    xrcd.free();
    0
}

/// Implements `ibv_get_srq_num`.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: ibv_get_srq_num(3).
    let (srq, number): (Option<&SrqObject>, Option<Out<u32>>) = unsafe { typed((srq, number)) };
    given!(code; srq, number as "srq_num");
    match srq.tail.srq.number() {
        Some(found) => {
            number.write(found);
            0
        }
        None => {
            let ty = IBV_SRQT_BASIC;
            code(refuse!(EINVAL, "SRQ", "srq_type"; ty; is "{ty}: only an XRC SRQ has a number"))
        }
    }
}

/// Implements `ibv_open_qp`.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    // SAFETY: ibv_open_qp(3).
    let (context, attr): (Option<&ContextObject>, Option<&ibv_qp_open_attr>) =
        unsafe { typed((context, attr.cast_const())) };
    given!(null; context, attr);
    let known = NEEDED | IBV_QP_OPEN_ATTR_CONTEXT;
    known_bits!(null; EOPNOTSUPP, "queue pair", "comp_mask"; attr.comp_mask, known);
    needed_bits!(null; "queue pair", "comp_mask"; attr.comp_mask, NEEDED);
    let ty = attr.qp_type;
    if ty != IBV_QPT_XRC_RECV {
        return null(refuse!(EINVAL, "queue pair", "qp_type"; ty;
            is "{ty}: only queue pairs of type XRC_RECV (10) are opened by number"));
    }
    // SAFETY: ibv_open_qp(3): the attributes name an XRC domain.
    let xrcd: Option<&XrcdObject> = unsafe { typed(attr.xrcd) };
    given!(null; xrcd);
    done!(null; xrcd.check_device(context));
    let qp = match xrcd.tail.open_qp(Qpn::new(attr.qp_num)) {
        Ok(qp) => qp,
        Err(error) => return null(error),
    };
    let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
    let init = InitAttr::target(if has_context { attr.qp_context } else { ptr::null_mut() });
    let qp = QueuePair::Transport(qp);
    qp::export(context.public(), ptr::null_mut(), &init, qp, ObjectId::new(), None).give().cast()
}
