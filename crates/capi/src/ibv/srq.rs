//! Shared receive queues (ibv_create_srq(3), ibv_create_srq_ex(3), ibv_post_srq_recv(3)).

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use roxie::verbs::{AsyncElement, Srq, SrqAttr, SrqInitAttr};

use crate::abi::context::ibv_context;
use crate::abi::objects::{ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::abi::work::ibv_recv_wr;
use crate::errno::{code, null, status};
use crate::object::Object;

use super::cq::CqObject;
use super::device::ContextObject;
use super::events::{ObjectId, Queue, wait_acknowledged};
use super::pd_mr::PdObject;
use super::post::post_receives;
use super::xrc::XrcdObject;

pub(crate) type SrqObject = Object<ibv_srq, SrqTail>;

pub(crate) struct SrqTail {
    pub(crate) srq: Srq,
    id: ObjectId,
}

/// IBV_SRQ_INIT_ATTR_TYPE, PD, XRCD, CQ.
pub(crate) const INIT_ATTR_TYPE: u32 = 1;
pub(crate) const INIT_ATTR_PD: u32 = 1 << 1;
pub(crate) const INIT_ATTR_XRCD: u32 = 1 << 2;
pub(crate) const INIT_ATTR_CQ: u32 = 1 << 3;
/// IBV_SRQT_BASIC, XRC.
const BASIC: c_int = 0;
pub(crate) const XRC: c_int = 1;

pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init_attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: NULL or the program's attributes.
    let Some(init) = (unsafe { init_attr.as_mut() }) else { return null(libc::EINVAL) };
    // SAFETY: as the caller's.
    match unsafe { create(pd, init.srq_context, &mut init.attr, None) } {
        Ok(srq) => srq,
        Err(errno) => null(errno),
    }
}

/// The operation behind `ibv_create_srq_ex`: basic and XRC queues.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const XRC_ATTRS: u32 = INIT_ATTR_XRCD | INIT_ATTR_CQ;
    // SAFETY: NULL or the program's attributes.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return null(libc::EINVAL) };
    let ty = if attr.comp_mask & INIT_ATTR_TYPE != 0 { attr.srq_type } else { BASIC };
    let xrc_attrs = if ty == XRC { XRC_ATTRS } else { 0 };
    if !matches!(ty, BASIC | XRC) || attr.comp_mask & !(INIT_ATTR_TYPE | INIT_ATTR_PD | xrc_attrs) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let needed = INIT_ATTR_PD | xrc_attrs;
    // SAFETY: ours or NULL, if they are needed.
    let scope = (ty == XRC && attr.comp_mask & needed == needed)
        .then(|| unsafe { XrcdObject::from_ptr(attr.xrcd).zip(CqObject::from_cq(attr.cq)) })
        .flatten();
    if attr.comp_mask & needed != needed || (ty == XRC) != scope.is_some() {
        return null(libc::EINVAL);
    }
    // SAFETY: as the caller's.
    match unsafe { create(attr.pd, attr.srq_context, &mut attr.attr, scope) } {
        Ok(srq) => srq,
        Err(errno) => null(errno),
    }
}

/// # Safety
/// `pd` is ours or NULL.
unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(&XrcdObject, &CqObject)>,
) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: upheld by the caller.
    let object = unsafe { PdObject::from_ptr(pd) }.ok_or(libc::EINVAL)?;
    let id = ObjectId::new();
    let asked = SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: 0 };
    let init = SrqInitAttr { attr: asked, cookie: id.0 };
    let created = match xrc {
        None => object.tail.create_srq(&init),
        Some((xrcd, cq)) => object.tail.create_xrc_srq(&init, &xrcd.tail, &cq.tail.cq),
    };
    let srq = created.map_err(|e| e.errno())?;
    let granted = srq.query().map_err(|e| e.errno())?;
    (attr.max_wr, attr.max_sge) = (granted.max_wr, granted.max_sge);
    // SAFETY: zero bytes are a valid `ibv_srq`.
    let mut public: ibv_srq = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: `pd` is one of ours.
    public.context = unsafe { (*pd).context };
    public.srq_context = srq_context;
    public.pd = pd;
    public.handle = id.0 as u32;
    let exported = SrqObject::export(public, SrqTail { srq, id });
    id.register(exported);
    Ok(exported)
}

pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    /// IBV_SRQ_MAX_WR, IBV_SRQ_LIMIT.
    const MAX_WR: c_int = 1;
    const LIMIT: c_int = 2;
    // SAFETY: one of ours or NULL; NULL or the program's attributes.
    let (Some(object), Some(attr)) = (unsafe { (SrqObject::from_ptr(srq), attr.as_ref()) }) else {
        return code(libc::EINVAL);
    };
    if mask & !(MAX_WR | LIMIT) != 0 {
        return code(libc::EINVAL);
    }
    let srq = &object.tail.srq;
    let resized = if mask & MAX_WR != 0 { srq.resize(attr.max_wr) } else { Ok(()) };
    status(resized.and_then(|()| if mask & LIMIT != 0 { srq.set_limit(attr.srq_limit) } else { Ok(()) }))
}

pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { SrqObject::from_ptr(srq) }) else { return code(libc::EINVAL) };
    if attr.is_null() {
        return code(libc::EINVAL);
    }
    match object.tail.srq.query() {
        Ok(SrqAttr { max_wr, max_sge, srq_limit }) => {
            // SAFETY: the caller passes room for the structure.
            unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
            0
        }
        Err(error) => code(error.errno()),
    }
}

pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { SrqObject::from_ptr(srq) }) else { return code(libc::EINVAL) };
    if object.tail.srq.in_use() {
        return code(libc::EBUSY);
    }
    let id = object.tail.id;
    let delivered = id.unregister();
    // SAFETY: a live object whose context outlives it.
    unsafe {
        if let Some(context) = ContextObject::from_ptr((*srq).context) {
            context.tail.context.forget_async_events(AsyncElement::Srq(id.0));
        }
        wait_acknowledged(&raw mut (*srq).events_completed, delivered[Queue::Async as usize]);
        // The caller gives it up, no QP uses it, and every event is acknowledged.
        drop(SrqObject::retire(srq));
    }
    0
}

/// The operation behind `ibv_post_srq_recv`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { SrqObject::from_ptr(srq) }) else { return code(libc::EINVAL) };
    // SAFETY: as the caller's.
    unsafe { post_receives(first, bad_wr, |wr| object.tail.srq.post_recv(wr)) }
}
