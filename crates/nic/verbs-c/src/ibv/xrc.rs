//! XRC domains (ibv_open_xrcd(3)).

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use roxie::same_device;
use roxie::transport::{VerbsError, refuse};
use roxie::verbs::{Xrcd, XrcdInit};

use crate::abi::context::ibv_context;
use crate::abi::objects::{IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_xrcd, ibv_xrcd_init_attr};
use crate::errno::{busy, code, given, known_bits, needed_bits, null};
use crate::handle::{GivenUp, typed};
use crate::object::Object;
use crate::observer::Between;

use super::context::ContextObject;

pub(crate) type XrcdObject = Object<ibv_xrcd, Xrcd>;

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
    Ok(XrcdObject::boxed(ibv_xrcd { context: context.public_context() }, xrcd))
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
