//! Queue pairs (ibv_create_qp(3), ibv_create_qp_ex(3), ibv_open_qp(3), ibv_modify_qp(3), ibv_query_qp(3)).

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use roxie::cm::Id;
use roxie::transport::{QpAttr, QpAttrMask, QpCap, QpType, Sge, VerbsError, refuse};
use roxie::verbs::{AsyncElement, QpInitAttr};
use roxie::wire::{Gid, Qpn};

use crate::abi::Zeroed;
use crate::abi::context::ibv_context;
use crate::abi::device::ibv_gid;
use crate::abi::objects::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM,
    IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_RAW_PACKET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
    IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_cq, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_srq,
};
use crate::errno::{code, done, given, known_bits, needed_bits, no_argument, null, status};
use crate::handle::{FromC, GivenUp, Hot, Out, members, typed};
use crate::object::Object;
use crate::observer::{Between, observer};

use super::context::ContextObject;
use super::cq::CqObject;
use super::events::{ObjectId, Queue, wait_acknowledged};
use super::pd_mr::PdObject;
use super::qp_attr::{attr_from_c, attr_to_c};
use super::queue_pair::QueuePair;
use super::raw;
use super::srq::SrqObject;
use super::wr::{self, Builder};
use super::xrc::XrcdObject;

/// Every QP has the size of an `ibv_qp_ex`, which begins with an `ibv_qp`.
pub(crate) type QpObject = Object<ibv_qp_ex, QpTail>;

pub(crate) struct QpTail {
    pub(crate) qp: QueuePair,
    id: ObjectId,
    pub(crate) sq_sig_all: bool,
    /// Present if the application asked for the work request builder.
    pub(crate) builder: Option<Builder>,
    /// The connection identifier that moves this QP through its states, and holds a handle of it.
    cm: Mutex<Option<Id>>,
}

impl QpTail {
    /// Ties the QP to a connection identifier; the one before forgets it.
    pub(crate) fn join_cm(&self, id: &Id) {
        let before = self.cm.lock().unwrap_or_else(PoisonError::into_inner).replace(id.clone());
        if let Some(before) = before.filter(|before| before != id && self.is_of(before)) {
            before.set_qp(None);
        }
    }

    /// Unties the QP from its connection identifier, which forgets it.
    fn leave_cm(&self) {
        let id = self.cm.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(id) = id.filter(|id| self.is_of(id)) {
            id.detach_qp();
        }
    }

    fn is_of(&self, id: &Id) -> bool {
        id.qp().is_some_and(|qp| qp.qpn() == self.qp.number())
    }
}

members! { QpObject {
    context: qp_base.context => ContextObject;
    qp_context: qp_base.qp_context as *mut c_void;
    send_cq: qp_base.send_cq as *mut ibv_cq;
    send_cq_object: qp_base.send_cq => CqObject;
    recv_cq: qp_base.recv_cq as *mut ibv_cq;
    recv_cq_object: qp_base.recv_cq => CqObject;
    srq: qp_base.srq as *mut ibv_srq;
    state: qp_base.state as c_int;
    qp_type: qp_base.qp_type as c_int;
    events_completed: qp_base.events_completed as u32;
    wr_id: wr_id as u64;
    wr_flags: wr_flags as u32;
} }

impl FromC<*mut ibv_qp> for Option<&QpObject> {
    #[inline(always)]
    unsafe fn from_c(qp: *mut ibv_qp) -> Self {
        // SAFETY: an `ibv_qp` of this library is the beginning of an `ibv_qp_ex`.
        unsafe { typed(qp.cast::<ibv_qp_ex>()) }
    }
}

impl FromC<Hot<ibv_qp>> for Option<&QpObject> {
    #[inline(always)]
    unsafe fn from_c(Hot(qp): Hot<ibv_qp>) -> Self {
        // SAFETY: an `ibv_qp` of this library is the beginning of an `ibv_qp_ex`.
        unsafe { typed(Hot(qp.cast::<ibv_qp_ex>())) }
    }
}

impl FromC<*mut ibv_qp> for Option<GivenUp<'_, QpObject>> {
    unsafe fn from_c(qp: *mut ibv_qp) -> Self {
        // SAFETY: an `ibv_qp` of this library is the beginning of an `ibv_qp_ex`.
        unsafe { typed(qp.cast::<ibv_qp_ex>()) }
    }
}

/// A copy of the attributes of a new QP. Their pointers are NULL or name objects.
#[derive(Clone, Copy)]
pub(crate) struct InitAttr<'a> {
    attr: ibv_qp_init_attr,
    objects: PhantomData<&'a QpObject>,
}

// SAFETY: the objects behind the pointers may be used from any thread.
unsafe impl Send for InitAttr<'_> {}

impl FromC<*mut ibv_qp_init_attr> for Option<InitAttr<'_>> {
    unsafe fn from_c(attr: *mut ibv_qp_init_attr) -> Self {
        // SAFETY: NULL or initialised.
        let attr = unsafe { attr.as_ref() };
        attr.map(|attr| InitAttr { attr: *attr, objects: PhantomData })
    }
}

impl Deref for InitAttr<'_> {
    type Target = ibv_qp_init_attr;

    fn deref(&self) -> &ibv_qp_init_attr {
        &self.attr
    }
}

impl<'a> InitAttr<'a> {
    /// Attributes of the receiving end of XRC, which has no queues of its own.
    pub(crate) fn target(qp_context: *mut c_void) -> Self {
        let attr = ibv_qp_init_attr { qp_context, ..ibv_qp_init_attr::target() };
        Self { attr, objects: PhantomData }
    }

    /// Attributes of a queue pair that has no queues of its own.
    pub(crate) fn without_queues(qp_context: *mut c_void, qp_type: c_int) -> Self {
        let attr = ibv_qp_init_attr { qp_context, qp_type, ..ibv_qp_init_attr::target() };
        Self { attr, objects: PhantomData }
    }

    pub(crate) fn set_cap(&mut self, cap: QpCap) {
        self.attr.cap = cap;
    }

    /// The CQ of sends, the CQ of receives and the SRQ.
    pub(crate) fn queues(&self) -> (Option<&'a CqObject>, Option<&'a CqObject>, Option<&'a SrqObject>) {
        // SAFETY: `typed` made this value, and its contract covers the pointers.
        unsafe { typed((self.attr.send_cq, self.attr.recv_cq, self.attr.srq)) }
    }

    pub(crate) fn set_send_cq(&mut self, cq: Option<&'a CqObject>) {
        self.attr.send_cq = cq.map_or(ptr::null_mut(), |cq| cq.public().cast());
    }

    pub(crate) fn set_recv_cq(&mut self, cq: Option<&'a CqObject>) {
        self.attr.recv_cq = cq.map_or(ptr::null_mut(), |cq| cq.public().cast());
    }

    pub(crate) fn set_srq(&mut self, srq: Option<&'a SrqObject>) {
        self.attr.srq = srq.map_or(ptr::null_mut(), Object::public);
    }

    pub(crate) fn set_type(&mut self, qp_type: c_int) {
        self.attr.qp_type = qp_type;
    }
}

/// The extended attributes of a new QP. Their pointers name objects if `comp_mask` says so. The structure of
/// a program built with older headers ends earlier: members that `comp_mask` does not declare are not
/// accessed.
pub(crate) struct InitAttrEx<'a> {
    attr: &'a mut ibv_qp_init_attr_ex,
}

impl FromC<*mut ibv_qp_init_attr_ex> for Option<InitAttrEx<'_>> {
    unsafe fn from_c(attr: *mut ibv_qp_init_attr_ex) -> Self {
        // SAFETY: NULL or initialised.
        unsafe { attr.as_mut() }.map(|attr| InitAttrEx { attr })
    }
}

impl Deref for InitAttrEx<'_> {
    type Target = ibv_qp_init_attr_ex;

    fn deref(&self) -> &ibv_qp_init_attr_ex {
        self.attr
    }
}

impl<'a> InitAttrEx<'a> {
    fn has(&self, mask: u32) -> bool {
        self.attr.comp_mask & mask != 0
    }

    /// The members that [`ibv_qp_init_attr`] has, too.
    pub(crate) fn classic(&self) -> InitAttr<'a> {
        InitAttr { attr: self.attr.classic(), objects: PhantomData }
    }

    pub(crate) fn set_classic(&mut self, init: &InitAttr<'a>) {
        self.attr.set_classic(init);
    }

    /// The protection domain, if it is given.
    pub(crate) fn pd(&self) -> Option<&'a PdObject> {
        let pd = if self.has(IBV_QP_INIT_ATTR_PD) { self.attr.pd } else { ptr::null_mut() };
        // SAFETY: `typed` made this value, and its contract covers the pointer.
        unsafe { typed(pd) }
    }

    pub(crate) fn set_pd(&mut self, pd: Option<&'a PdObject>) {
        self.attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        self.attr.pd = pd.map_or(ptr::null_mut(), Object::public);
    }

    /// The XRC domain, if it is given.
    pub(crate) fn xrcd(&self) -> Option<&'a XrcdObject> {
        let xrcd = if self.has(IBV_QP_INIT_ATTR_XRCD) { self.attr.xrcd } else { ptr::null_mut() };
        // SAFETY: `typed` made this value, and its contract covers the pointer.
        unsafe { typed(xrcd) }
    }

    pub(crate) fn set_xrcd(&mut self, xrcd: Option<&'a XrcdObject>) {
        self.attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        self.attr.xrcd = xrcd.map_or(ptr::null_mut(), Object::public);
    }
}

pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init_attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: ibv_create_qp(3).
    let (pd, init, room): (Option<&PdObject>, Option<InitAttr>, Option<Out<ibv_qp_init_attr>>) =
        unsafe { typed((pd, init_attr, init_attr)) };
    given!(null; init as "init_attr", room as "init_attr");
    let mut init = init;
    let qp = done!(null; create(pd, &mut init, None));
    room.write(*init);
    qp.give().cast()
}

/// Implements `ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: ibv_create_qp_ex(3).
    let (context, attr): (Option<&ContextObject>, Option<InitAttrEx>) = unsafe { typed((context, attr)) };
    given!(null; attr);
    let mut attr = attr;
    create_ex(context, &mut attr).map_or_else(|errno| null(errno), |qp| qp.give().cast())
}

/// Creates a QP with extended attributes and sets the capacities that it got, or returns the refusal.
pub(crate) fn create_ex(
    context: Option<&ContextObject>,
    attr: &mut InitAttrEx,
) -> Result<Box<QpObject>, VerbsError> {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const RSS: u32 = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    let receives_xrc = attr.qp_type == IBV_QPT_XRC_RECV;
    if !attr.has(if receives_xrc { IBV_QP_INIT_ATTR_XRCD } else { IBV_QP_INIT_ATTR_PD }) {
        let comp_mask = attr.comp_mask;
        return Err(refuse!(EINVAL, "queue pair", "comp_mask"; comp_mask;
            is "{comp_mask:#x}: a domain is missing (IBV_QP_INIT_ATTR_PD, for XRC_RECV \
                IBV_QP_INIT_ATTR_XRCD)"));
    }
    if let (Some(context), Some(pd)) = (context, attr.pd()) {
        pd.check_device(context)?;
    }
    let flags = if attr.has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { attr.create_flags } else { 0 };
    let known = if attr.qp_type == IBV_QPT_RAW_PACKET { KNOWN | RSS } else { KNOWN };
    known_bits!(Err; EOPNOTSUPP, "queue pair", "comp_mask"; attr.comp_mask, known);
    known_bits!(Err; EOPNOTSUPP, "queue pair", "create_flags"; flags, 0);
    if attr.has(RSS) {
        // One without the other, or with a sending side, which an RSS queue pair does not have.
        if attr.comp_mask & RSS != RSS || attr.has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
            let comp_mask = attr.comp_mask;
            return Err(refuse!(EINVAL, "RSS queue pair", "comp_mask"; comp_mask;
                is "{comp_mask:#x}: an RSS queue pair has a table and a hash, and no send operations"));
        }
        return raw::create_rss(attr.pd(), attr);
    }
    let send_ops = attr.has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags);
    let mut init = attr.classic();
    let qp = if receives_xrc {
        create_target(context, attr.xrcd(), &mut init)?
    } else {
        create(attr.pd(), &mut init, send_ops)?
    };
    attr.attr.cap = init.cap;
    Ok(qp)
}

/// Creates a QP and sets the capacities that it got, or returns the refusal.
pub(crate) fn create(
    pd: Option<&PdObject>,
    init: &mut InitAttr,
    send_ops: Option<u64>,
) -> Result<Box<QpObject>, VerbsError> {
    let ty = match init.qp_type {
        IBV_QPT_RC => QpType::Rc,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_UD => QpType::Ud,
        IBV_QPT_XRC_SEND => QpType::XrcIni,
        IBV_QPT_XRC_RECV => {
            let ty = init.qp_type;
            return Err(refuse!(EINVAL, "queue pair", "qp_type"; ty;
                is "{ty} (XRC_RECV): ibv_create_qp_ex creates it, with an XRC domain"));
        }
        IBV_QPT_RAW_PACKET => return raw::create(pd, init, send_ops),
        ty => {
            return Err(refuse!(EOPNOTSUPP, "queue pair", "qp_type"; ty;
                is "{ty}; the device has RC (2), UC (3), UD (4), RAW_PACKET (8) and XRC (9, 10)"));
        }
    };
    wr::check_ops(send_ops, wr::operations(ty))?;
    if ty == QpType::XrcIni {
        // It receives nothing.
        (init.attr.recv_cq, init.attr.srq) = (ptr::null_mut(), ptr::null_mut());
    }
    let pd = pd.ok_or_else(|| no_argument!("pd"))?;
    let (send_cq, recv_cq, srq) = init.queues();
    let send_cq = send_cq.ok_or_else(|| no_argument!("send_cq"))?;
    let recv_cq =
        recv_cq.or((ty == QpType::XrcIni).then_some(send_cq)).ok_or_else(|| no_argument!("recv_cq"))?;
    let id = ObjectId::new();
    let asked = QpInitAttr {
        ty,
        send_cq: send_cq.tail.cq.clone(),
        recv_cq: recv_cq.tail.cq.clone(),
        srq: srq.map(|s| s.tail.srq.clone()),
        cap: with_free_room(init.cap),
        sq_sig_all: init.sq_sig_all != 0,
        cookie: id.0,
    };
    let cqs = [("send_cq", send_cq.address()), ("recv_cq", recv_cq.address())];
    let parts = [("pd", pd.address()), cqs[0], cqs[1], ("srq", srq.map_or(0, Object::address))];
    let qp = pd.tail.create_qp(&asked).between(&parts)?;
    init.attr.cap = qp.cap();
    Ok(export(pd.context().get(), pd.public(), init, QueuePair::Transport(qp), id, send_ops))
}

/// Creates the receiving end of XRC. It has an XRC domain and ignores every other attribute but `qp_context`.
pub(crate) fn create_target(
    context: Option<&ContextObject>,
    xrcd: Option<&XrcdObject>,
    init: &mut InitAttr,
) -> Result<Box<QpObject>, VerbsError> {
    let xrcd = xrcd.ok_or_else(|| no_argument!("xrcd"))?;
    if let Some(context) = context {
        xrcd.check_device(context)?;
    }
    let id = ObjectId::new();
    let qp = xrcd.tail.create_qp(id.0)?;
    *init = InitAttr::target(init.qp_context);
    let context = context.map_or(ptr::null_mut(), ContextObject::public_context);
    Ok(export(context, ptr::null_mut(), init, QueuePair::Transport(qp), id, None))
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
    let qp = done!(null; xrcd.tail.open_qp(Qpn::new(attr.qp_num)));
    let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
    let init = InitAttr::target(if has_context { attr.qp_context } else { ptr::null_mut() });
    let qp = QueuePair::Transport(qp);
    export(context.public_context(), ptr::null_mut(), &init, qp, ObjectId::new(), None).give().cast()
}

/// Makes the C object of a queue pair and registers it under `id`.
pub(crate) fn export(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    init: &InitAttr,
    qp: QueuePair,
    id: ObjectId,
    send_ops: Option<u64>,
) -> Box<QpObject> {
    let mut public = ibv_qp_ex::zeroed();
    let base = &mut public.qp_base;
    base.context = context;
    base.qp_context = init.qp_context;
    base.pd = pd;
    base.send_cq = init.send_cq;
    base.recv_cq = init.recv_cq;
    base.srq = init.srq;
    base.handle = id.0 as u32;
    base.qp_num = qp.number().value();
    base.state = qp.state() as c_int;
    base.qp_type = init.qp_type;
    let builder = send_ops.map(|_| {
        wr::fill_operations(&mut public);
        Builder::new(&qp.cap())
    });
    let sq_sig_all = init.sq_sig_all != 0;
    let object = QpObject::boxed(public, QpTail { qp, id, sq_sig_all, builder, cm: Mutex::default() });
    id.register(object.public());
    object
}

/// Raises the number of SGEs to one, and the size of inline data to that of the SGEs, as rxe does with the
/// latter. Programs that never asked for any rely on it; a checked program gets what it asked for, as from
/// some NICs.
pub(super) fn with_free_room(cap: QpCap) -> QpCap {
    if observer().is_some() {
        return cap;
    }
    let (max_send_sge, max_recv_sge) = (cap.max_send_sge.max(1), cap.max_recv_sge.max(1));
    let sges = max_send_sge.saturating_mul(size_of::<Sge>() as u32);
    let max_inline_data = cap.max_inline_data.max(sges.min(INLINE_FREE_MAX));
    QpCap { max_send_sge, max_recv_sge, max_inline_data, ..cap }
}

/// Most bytes of inline data that a QP gets without asking.
const INLINE_FREE_MAX: u32 = 512;

/// Returns the builder of a QP that was created with one; else NULL.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: ibv_qp_to_qp_ex(3).
    let object: Option<&QpObject> = unsafe { typed(qp) };
    match object {
        Some(object) if object.tail.builder.is_some() => qp.cast(),
        Some(object) => {
            let number = object.tail.qp.number();
            null(refuse!(EINVAL, "queue pair", "send_ops_flags"; number as Qpn;
                "the queue pair {number} was created without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS"))
        }
        None => null(no_argument!("qp")),
    }
}

pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: ibv_modify_qp(3).
    let (qp, attr): (Option<&QpObject>, Option<&ibv_qp_attr>) = unsafe { typed((qp, attr.cast_const())) };
    given!(code; qp, attr);
    known_bits!(code; EINVAL, "queue pair", "attr_mask"; mask as u32, QpAttrMask::all().bits());
    let mask = QpAttrMask::from_bits_truncate(mask as u32);
    done!(code; attr_from_c(attr, mask).and_then(|attr| qp.tail.qp.modify(&attr, mask)));
    if mask.contains(QpAttrMask::STATE) {
        qp.state().set(attr.qp_state);
        if let Some(observer) = observer() {
            (observer.moved)(qp.address());
        }
    }
    0
}

/// Implements `ibv_modify_qp_rate_limit`. The device chooses the size of bursts and ignores the
/// wish of the application.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    // SAFETY: ibv_modify_qp_rate_limit(3).
    let (qp, attr): (Option<&QpObject>, Option<&ibv_qp_rate_limit_attr>) =
        unsafe { typed((qp, attr.cast_const())) };
    given!(code; qp, attr);
    known_bits!(code; EINVAL, "rate limit", "comp_mask"; attr.comp_mask, 0);
    let to = QpAttr { rate_limit: attr.rate_limit, ..QpAttr::default() };
    status(qp.tail.qp.modify(&to, QpAttrMask::RATE_LIMIT))
}

/// Fills every attribute, whatever `mask` asks for. The public state is set if it asks for the state.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: ibv_query_qp(3).
    let (qp, attr, init_attr): (Option<&QpObject>, Option<Out<ibv_qp_attr>>, Option<Out<ibv_qp_init_attr>>) =
        unsafe { typed((qp, attr, init_attr)) };
    given!(code; qp, attr, init_attr);
    let mut now = attr_to_c(&done!(code; qp.tail.qp.query()));
    now.cap = qp.tail.qp.cap();
    if QpAttrMask::from_bits_truncate(mask as u32).contains(QpAttrMask::STATE) {
        qp.state().set(now.qp_state);
    }
    init_attr.write(ibv_qp_init_attr {
        qp_context: qp.qp_context().get(),
        send_cq: qp.send_cq().get(),
        recv_cq: qp.recv_cq().get(),
        srq: qp.srq().get(),
        cap: now.cap,
        qp_type: qp.qp_type().get(),
        sq_sig_all: c_int::from(qp.tail.sq_sig_all),
    });
    attr.write(now);
    0
}

pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: ibv_destroy_qp(3).
    let qp: Option<GivenUp<QpObject>> = unsafe { typed(qp) };
    given!(code; qp);
    destroy(qp)
}

/// Destroys a QP once the application has acknowledged its events; returns 0, or `EBUSY` for a member of a
/// multicast group and for the target of a flow rule.
#[track_caller]
pub(crate) fn destroy(qp: GivenUp<QpObject>) -> c_int {
    done!(code; qp.tail.qp.check_unused());
    qp.tail.leave_cm();
    let id = qp.tail.id;
    let delivered = id.unregister();
    if let Some(context) = qp.context() {
        context.tail.context.forget_async_events(AsyncElement::Qp(id.0));
    }
    wait_acknowledged(qp.events_completed(), delivered[Queue::Async as usize]);
    qp.free();
    0
}

pub(crate) unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: ibv_attach_mcast(3).
    let (qp, gid): (Option<&QpObject>, Option<&ibv_gid>) = unsafe { typed((qp, gid)) };
    given!(code; qp, gid);
    status(qp.tail.qp.transport().and_then(|qp| qp.attach_mcast(Gid(gid.raw))))
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: ibv_detach_mcast(3).
    let (qp, gid): (Option<&QpObject>, Option<&ibv_gid>) = unsafe { typed((qp, gid)) };
    given!(code; qp, gid);
    status(qp.tail.qp.transport().and_then(|qp| qp.detach_mcast(Gid(gid.raw))))
}

/// Returns `EOPNOTSUPP` and no options: the device has no enhanced connection establishment.
pub(crate) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: ibv_query_ece(3).
    let ece: Option<Out<ibv_ece>> = unsafe { typed(ece) };
    if let Some(ece) = ece {
        ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 });
    }
    code(no_ece(0))
}

#[cold]
fn no_ece(options: u32) -> VerbsError {
    refuse!(EOPNOTSUPP, "queue pair", "ece"; options; "the device has no enhanced connection establishment")
}

pub(crate) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: ibv_set_ece(3).
    let ece: Option<&ibv_ece> = unsafe { typed(ece.cast_const()) };
    match ece {
        None => code(no_argument!("ece")),
        Some(ece) if ece.vendor_id == 0 && ece.options == 0 => 0,
        Some(ece) => code(no_ece(ece.options)),
    }
}

/// Returns 0: the device promises no order in which the bytes of a message appear in memory.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: c_int,
    _flags: u32,
) -> c_int {
    0
}
