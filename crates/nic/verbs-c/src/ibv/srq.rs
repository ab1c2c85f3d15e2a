//! Shared receive queues (ibv_create_srq(3), ibv_create_srq_ex(3), ibv_get_srq_num(3), ibv_post_srq_recv(3)).

use std::ffi::{c_int, c_void};

use roxie::transport::{VerbsError, refuse};
use roxie::verbs::{AsyncElement, Srq, SrqAttr, SrqInitAttr};

use crate::abi::Zeroed;
use crate::abi::context::ibv_context;
use crate::abi::objects::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_pd, ibv_srq, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};
use crate::abi::work::ibv_recv_wr;
use crate::errno::{busy, code, done, given, known_bits, needed_bits, no_argument, null, status};
use crate::handle::{GivenUp, Hot, Out, WrList, members, typed};
use crate::object::Object;
use crate::observer::Between;

use super::context::ContextObject;
use super::cq::CqObject;
use super::events::{ObjectId, Queue, wait_acknowledged};
use super::pd_mr::PdObject;
use super::work::post_receives;
use super::xrc::XrcdObject;

pub(crate) type SrqObject = Object<ibv_srq, SrqTail>;

pub(crate) struct SrqTail {
    pub(crate) srq: Srq,
    id: ObjectId,
}

members! { SrqObject {
    context: context => ContextObject;
    events_completed: events_completed as u32;
} }

pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init_attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: ibv_create_srq(3).
    let (pd, init): (Option<&PdObject>, Option<&mut ibv_srq_init_attr>) = unsafe { typed((pd, init_attr)) };
    given!(null; init);
    create(pd, init.srq_context, &mut init.attr, None).map_or_else(|errno| null(errno), SrqObject::give)
}

/// Implements `ibv_create_srq_ex`: basic and XRC queues.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: ibv_create_srq_ex(3).
    let (context, attr): (Option<&ContextObject>, Option<&mut ibv_srq_init_attr_ex>) =
        unsafe { typed((context, attr)) };
    given!(null; attr);
    // SAFETY: ibv_create_srq_ex(3): the attributes name objects where `comp_mask` says so.
    unsafe { create_ex(context, attr) }.map_or_else(|errno| null(errno), SrqObject::give)
}

/// Creates a queue with extended attributes, or returns the refusal.
///
/// # Safety
/// The pointers in `attr` that its `comp_mask` declares keep the contract of [`typed`].
pub(crate) unsafe fn create_ex(
    context: Option<&ContextObject>,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<Box<SrqObject>, VerbsError> {
    let has = |mask| attr.comp_mask & mask != 0;
    let ty = if has(IBV_SRQ_INIT_ATTR_TYPE) { attr.srq_type } else { IBV_SRQT_BASIC };
    let is_xrc = ty == IBV_SRQT_XRC;
    let xrc_attrs = if is_xrc { IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ } else { 0 };
    let needed = IBV_SRQ_INIT_ATTR_PD | xrc_attrs;
    if !matches!(ty, IBV_SRQT_BASIC | IBV_SRQT_XRC) {
        return Err(refuse!(EOPNOTSUPP, "SRQ", "srq_type"; ty as i32;
            is "{ty}, the device has basic (0) and XRC (1) queues"));
    }
    known_bits!(Err; EOPNOTSUPP, "SRQ", "comp_mask"; attr.comp_mask, IBV_SRQ_INIT_ATTR_TYPE | needed);
    needed_bits!(Err; "SRQ", "comp_mask"; attr.comp_mask, needed);
    // SAFETY: the contract covers the pointers, all of which are declared.
    let (pd, scope): (Option<&PdObject>, _) = unsafe {
        let scope: Option<(Option<&XrcdObject>, Option<&CqObject>)> =
            is_xrc.then(|| typed((attr.xrcd, attr.cq)));
        (typed(attr.pd), scope)
    };
    if let (Some(context), Some(pd)) = (context, pd) {
        pd.check_device(context)?;
    }
    let scope = match scope {
        None => None,
        Some((Some(xrcd), Some(cq))) => Some((xrcd, cq)),
        Some((None, _)) => return Err(no_argument!("xrcd")),
        Some((_, None)) => return Err(no_argument!("cq")),
    };
    create(pd, attr.srq_context, &mut attr.attr, scope)
}

/// Creates a queue and sets the sizes that it got, or returns the refusal. XRC queues have a domain and a CQ.
pub(crate) fn create(
    pd: Option<&PdObject>,
    srq_context: *mut c_void,
    attr: &mut SrqAttr,
    xrc: Option<(&XrcdObject, &CqObject)>,
) -> Result<Box<SrqObject>, VerbsError> {
    let pd = pd.ok_or_else(|| no_argument!("pd"))?;
    let id = ObjectId::new();
    let asked = SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: 0 };
    let init = SrqInitAttr { attr: asked, cookie: id.0 };
    let created = match xrc {
        None => pd.tail.create_srq(&init),
        Some((xrcd, cq)) => pd.tail.create_xrc_srq(&init, &xrcd.tail, &cq.tail.cq),
    };
    let (xrcd, cq) = xrc.map_or((0, 0), |(xrcd, cq)| (xrcd.address(), cq.address()));
    let srq = created.between(&[("pd", pd.address()), ("xrcd", xrcd), ("cq", cq)])?;
    let granted = srq.query()?;
    (attr.max_wr, attr.max_sge) = (granted.max_wr, granted.max_sge);
    let mut public = ibv_srq::zeroed();
    public.context = pd.context().get();
    public.srq_context = srq_context;
    public.pd = pd.public();
    public.handle = id.0 as u32;
    let object = SrqObject::boxed(public, SrqTail { srq, id });
    id.register(object.public());
    Ok(object)
}

pub(crate) unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut SrqAttr, mask: c_int) -> c_int {
    // SAFETY: ibv_modify_srq(3).
    let (srq, attr): (Option<&SrqObject>, Option<&SrqAttr>) = unsafe { typed((srq, attr.cast_const())) };
    given!(code; srq, attr);
    known_bits!(code; EINVAL, "SRQ", "srq_attr_mask"; mask, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT);
    let srq = &srq.tail.srq;
    let resized = if mask & IBV_SRQ_MAX_WR != 0 { srq.resize(attr.max_wr) } else { Ok(()) };
    let sets_limit = mask & IBV_SRQ_LIMIT != 0;
    status(resized.and_then(|()| if sets_limit { srq.set_limit(attr.srq_limit) } else { Ok(()) }))
}

pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut SrqAttr) -> c_int {
    // SAFETY: ibv_query_srq(3).
    let (srq, attr): (Option<&SrqObject>, Option<Out<SrqAttr>>) = unsafe { typed((srq, attr)) };
    given!(code; srq, attr);
    attr.write(done!(code; srq.tail.srq.query()));
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

pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: ibv_destroy_srq(3).
    let srq: Option<GivenUp<SrqObject>> = unsafe { typed(srq) };
    given!(code; srq);
    destroy(srq)
}

/// Destroys a queue that no QP uses, once the application has acknowledged its events; returns 0 or an errno.
#[track_caller]
pub(crate) fn destroy(srq: GivenUp<SrqObject>) -> c_int {
    if srq.tail.srq.in_use() {
        return code(busy!("SRQ"; "queue pairs use the shared receive queue"));
    }
    let id = srq.tail.id;
    let delivered = id.unregister();
    if let Some(context) = srq.context() {
        context.tail.context.forget_async_events(AsyncElement::Srq(id.0));
    }
    wait_acknowledged(srq.events_completed(), delivered[Queue::Async as usize]);
    srq.free();
    0
}

/// Implements `ibv_post_srq_recv`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: ibv_post_srq_recv(3).
    let (srq, list, bad_wr): (Option<&SrqObject>, WrList<ibv_recv_wr>, Option<Out<*mut ibv_recv_wr>>) =
        unsafe { typed((Hot(srq), first, bad_wr)) };
    given!(code; srq);
    post_receives(list, bad_wr, |wr| srq.tail.srq.post_recv(wr))
}
