//! Queue pairs (ibv_create_qp(3), ibv_create_qp_ex(3), ibv_modify_qp(3), ibv_query_qp(3)).

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use roxie::cm::Id;
use roxie::transport::{Access, PathMtu, QpAttr, QpAttrMask, QpCap, QpState, QpType, Sge, VerbsError};
use roxie::verbs::{AsyncElement, Qp, QpInitAttr};
use roxie::wire::{Gid, Psn, QKey, Qpn};

use crate::abi::context::ibv_context;
use crate::abi::device::ibv_gid;
use crate::abi::objects::{
    ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_rate_limit_attr, ibv_xrcd,
};
use crate::errno::{code, null, status};
use crate::object::Object;

use super::ah;
use super::cq::CqObject;
use super::device::ContextObject;
use super::events::{ObjectId, Queue, wait_acknowledged};
use super::pd_mr::PdObject;
use super::query::PORT;
use super::srq::SrqObject;
use super::wr::{self, Builder};
use super::xrc::XrcdObject;

/// Every QP has the room of an `ibv_qp_ex`, which begins with an `ibv_qp`.
pub(crate) type QpObject = Object<ibv_qp_ex, QpTail>;

pub(crate) struct QpTail {
    pub(crate) qp: Qp,
    id: ObjectId,
    sq_sig_all: bool,
    /// Present if the program asked for the work request builder.
    pub(crate) builder: Option<Builder>,
    /// The connection identifier that moves this QP, and holds a handle of it.
    cm: Mutex<Option<Id>>,
}

impl QpTail {
    /// The QP belongs to an identifier from now on.
    pub(crate) fn join_cm(&self, id: &Id) {
        *self.cm.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.clone());
    }

    /// The identifier is gone, or shall forget the QP.
    pub(crate) fn leave_cm(&self) {
        let id = self.cm.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(id) = id {
            id.detach_qp();
        }
    }
}

impl QpObject {
    /// # Safety
    /// `qp` is NULL or one of ours.
    #[inline]
    pub(crate) unsafe fn from_qp<'a>(qp: *mut ibv_qp) -> Option<&'a Self> {
        // SAFETY: upheld by the caller.
        unsafe { Self::from_ptr(qp.cast()) }
    }
}

/// IBV_QPT_RC, UC, UD, XRC_SEND and XRC_RECV.
pub(crate) const QPT_RC: c_int = 2;
pub(crate) const QPT_UC: c_int = 3;
pub(crate) const QPT_UD: c_int = 4;
pub(crate) const QPT_XRC_SEND: c_int = 9;
pub(crate) const QPT_XRC_RECV: c_int = 10;

/// IBV_QP_INIT_ATTR_PD.
pub(crate) const INIT_ATTR_PD: u32 = 1;
/// IBV_QP_INIT_ATTR_XRCD.
pub(crate) const INIT_ATTR_XRCD: u32 = 1 << 1;

pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init_attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: NULL or the program's attributes.
    let Some(init) = (unsafe { init_attr.as_mut() }) else { return null(libc::EINVAL) };
    // SAFETY: as the caller's.
    match unsafe { create(pd, init, None) } {
        Ok(qp) => qp.cast(),
        Err(errno) => null(errno),
    }
}

/// The operation behind `ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    /// IBV_QP_INIT_ATTR_CREATE_FLAGS, SEND_OPS_FLAGS.
    const MASK_CREATE_FLAGS: u32 = 1 << 2;
    const MASK_SEND_OPS: u32 = 1 << 6;
    // SAFETY: NULL or the program's attributes.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return null(libc::EINVAL) };
    let has = |mask| attr.comp_mask & mask != 0;
    let receives_xrc = attr.qp_type == QPT_XRC_RECV;
    if !has(if receives_xrc { INIT_ATTR_XRCD } else { INIT_ATTR_PD }) {
        return null(libc::EINVAL);
    }
    let flags = if has(MASK_CREATE_FLAGS) { attr.create_flags } else { 0 };
    if attr.comp_mask & !(INIT_ATTR_PD | INIT_ATTR_XRCD | MASK_CREATE_FLAGS | MASK_SEND_OPS) != 0
        || flags != 0
    {
        return null(libc::EOPNOTSUPP);
    }
    let send_ops = has(MASK_SEND_OPS).then_some(attr.send_ops_flags);
    let mut init = attr.classic();
    // SAFETY: as the caller's.
    let created = unsafe {
        if receives_xrc {
            create_target(context, attr.xrcd, &mut init)
        } else {
            create(attr.pd, &mut init, send_ops)
        }
    };
    match created {
        Ok(qp) => {
            attr.cap = init.cap;
            qp.cast()
        }
        Err(errno) => null(errno),
    }
}

/// # Safety
/// `pd` and the pointers in `init` are ours or NULL.
unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    send_ops: Option<u64>,
) -> Result<*mut ibv_qp_ex, c_int> {
    let ty = match init.qp_type {
        QPT_RC => QpType::Rc,
        QPT_UC => QpType::Uc,
        QPT_UD => QpType::Ud,
        QPT_XRC_SEND => QpType::XrcIni,
        QPT_XRC_RECV => return Err(libc::EINVAL),
        _ => return Err(libc::EOPNOTSUPP),
    };
    if send_ops.is_some_and(|ops| !wr::supports(ty, ops)) {
        return Err(libc::EOPNOTSUPP);
    }
    if ty == QpType::XrcIni {
        // It receives nothing.
        (init.recv_cq, init.srq) = (ptr::null_mut(), ptr::null_mut());
    }
    // SAFETY: upheld by the caller.
    let (pd_object, send_cq, recv_cq, srq) = unsafe {
        (
            PdObject::from_ptr(pd).ok_or(libc::EINVAL)?,
            CqObject::from_cq(init.send_cq).ok_or(libc::EINVAL)?,
            CqObject::from_cq(init.recv_cq),
            SrqObject::from_ptr(init.srq),
        )
    };
    let recv_cq = recv_cq.or((ty == QpType::XrcIni).then_some(send_cq)).ok_or(libc::EINVAL)?;
    let id = ObjectId::new();
    let asked = QpInitAttr {
        ty,
        send_cq: send_cq.tail.cq.clone(),
        recv_cq: recv_cq.tail.cq.clone(),
        srq: srq.map(|s| s.tail.srq.clone()),
        cap: roomy(cap_from_c(&init.cap)),
        sq_sig_all: init.sq_sig_all != 0,
        cookie: id.0,
    };
    let qp = pd_object.tail.create_qp(&asked).map_err(VerbsError::errno)?;
    init.cap = cap_to_c(&qp.cap());
    // SAFETY: `pd` is one of ours.
    Ok(export(unsafe { (*pd).context }, pd, init, qp, id, send_ops))
}

/// The receiving end of XRC: of what the program asks for, it has only a domain.
///
/// # Safety
/// `xrcd` is ours or NULL.
unsafe fn create_target(
    context: *mut ibv_context,
    xrcd: *mut ibv_xrcd,
    init: &mut ibv_qp_init_attr,
) -> Result<*mut ibv_qp_ex, c_int> {
    // SAFETY: upheld by the caller.
    let xrcd = unsafe { XrcdObject::from_ptr(xrcd) }.ok_or(libc::EINVAL)?;
    let id = ObjectId::new();
    let qp = xrcd.tail.create_qp(id.0).map_err(VerbsError::errno)?;
    *init = ibv_qp_init_attr { qp_context: init.qp_context, ..ibv_qp_init_attr::target() };
    Ok(export(context, ptr::null_mut(), init, qp, id, None))
}

/// Makes the C object of a queue pair, which is called `id` from now on.
pub(crate) fn export(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    qp: Qp,
    id: ObjectId,
    send_ops: Option<u64>,
) -> *mut ibv_qp_ex {
    // SAFETY: zero bytes are a valid `ibv_qp_ex`.
    let mut public: ibv_qp_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    let base = &mut public.qp_base;
    base.context = context;
    base.qp_context = init.qp_context;
    base.pd = pd;
    base.send_cq = init.send_cq;
    base.recv_cq = init.recv_cq;
    base.srq = init.srq;
    base.handle = id.0 as u32;
    base.qp_num = qp.qpn().value();
    base.state = qp.state() as c_int;
    base.qp_type = init.qp_type;
    let builder = send_ops.map(|_| {
        wr::fill_operations(&mut public);
        Builder::new(&qp.cap())
    });
    let sq_sig_all = init.sq_sig_all != 0;
    let exported = QpObject::export(public, QpTail { qp, id, sq_sig_all, builder, cm: Mutex::default() });
    id.register(exported);
    exported
}

/// As rxe: inline data may at least fill the place of the SGEs. Programs that never asked for any rely on it.
fn roomy(cap: QpCap) -> QpCap {
    let sges = cap.max_send_sge.saturating_mul(size_of::<Sge>() as u32);
    QpCap { max_inline_data: cap.max_inline_data.max(sges.min(INLINE_FREE_MAX)), ..cap }
}

/// Most bytes of inline data given unasked.
const INLINE_FREE_MAX: u32 = 512;

fn cap_from_c(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

fn cap_to_c(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// The builder of a QP that was created with one; else NULL.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: one of ours or NULL.
    match unsafe { QpObject::from_qp(qp) } {
        Some(object) if object.tail.builder.is_some() => object.public(),
        _ => null(libc::EINVAL),
    }
}

pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: one of ours or NULL; NULL or the program's attributes.
    let (Some(object), Some(attr)) = (unsafe { (QpObject::from_qp(qp), attr.as_ref()) }) else {
        return code(libc::EINVAL);
    };
    let Some(mask) = QpAttrMask::from_bits(mask as u32) else { return code(libc::EINVAL) };
    let modified = attr_from_c(attr, mask).and_then(|attr| object.tail.qp.modify(&attr, mask));
    if let Err(error) = modified {
        return code(error.errno());
    }
    if mask.contains(QpAttrMask::STATE) {
        // SAFETY: a member of a live object.
        unsafe { (*qp).state = attr.qp_state };
    }
    0
}

/// The operation behind `ibv_modify_qp_rate_limit`. The burst is ours, whatever size the program would like.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    // SAFETY: one of ours or NULL; NULL or the program's.
    let (Some(object), Some(attr)) = (unsafe { (QpObject::from_qp(qp), attr.as_ref()) }) else {
        return code(libc::EINVAL);
    };
    if attr.comp_mask != 0 {
        return code(libc::EINVAL);
    }
    let to = QpAttr { rate_limit: attr.rate_limit, ..QpAttr::default() };
    status(object.tail.qp.modify(&to, QpAttrMask::RATE_LIMIT))
}

pub(crate) fn state_from_c(state: c_int) -> Option<QpState> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].into_iter().find(|s| *s as c_int == state)
}

/// The attributes that `mask` names; the others stay at their defaults.
pub(crate) fn attr_from_c(attr: &ibv_qp_attr, mask: QpAttrMask) -> Result<QpAttr, VerbsError> {
    let has = |bit| mask.contains(bit);
    let wrong_port = has(QpAttrMask::PORT) && attr.port_num != PORT;
    let wrong_pkey = has(QpAttrMask::PKEY_INDEX) && attr.pkey_index != 0;
    if wrong_port || wrong_pkey {
        return Err(VerbsError::Invalid);
    }
    let mut to = QpAttr {
        q_key: QKey(attr.qkey),
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        dest_qp: Qpn::new(attr.dest_qp_num),
        cap: cap_from_c(&attr.cap),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rate_limit: attr.rate_limit,
        ..QpAttr::default()
    };
    if has(QpAttrMask::STATE) {
        to.state = state_from_c(attr.qp_state).ok_or(VerbsError::Invalid)?;
    }
    if has(QpAttrMask::CUR_STATE) {
        to.cur_state = state_from_c(attr.cur_qp_state).ok_or(VerbsError::Invalid)?;
    }
    if has(QpAttrMask::PATH_MTU) {
        let mtu = u8::try_from(attr.path_mtu).ok().and_then(PathMtu::from_code);
        to.path_mtu = mtu.ok_or(VerbsError::Invalid)?;
    }
    if has(QpAttrMask::ACCESS_FLAGS) {
        to.access = Access::from_bits(attr.qp_access_flags).ok_or(VerbsError::Invalid)?;
    }
    if has(QpAttrMask::AV) {
        to.av = ah::address_vector(&attr.ah_attr).ok_or(VerbsError::Invalid)?;
    }
    Ok(to)
}

/// The C form of all attributes.
pub(crate) fn attr_to_c(attr: &QpAttr) -> ibv_qp_attr {
    /// IBV_MIG_MIGRATED: there is no alternate path.
    const MIGRATED: c_int = 0;
    ibv_qp_attr {
        qp_state: attr.state as c_int,
        cur_qp_state: attr.state as c_int,
        path_mtu: attr.path_mtu as c_int,
        path_mig_state: MIGRATED,
        qkey: attr.q_key.0,
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qp.value(),
        qp_access_flags: attr.access.bits(),
        cap: cap_to_c(&attr.cap),
        ah_attr: ah::ah_attr(&attr.av),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: u8::from(attr.en_sqd_async_notify),
        sq_draining: u8::from(attr.sq_draining),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rate_limit: attr.rate_limit,
        ..ibv_qp_attr::default()
    }
}

/// Fills everything, whatever `mask` asks for.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { QpObject::from_qp(qp) }) else { return code(libc::EINVAL) };
    if attr.is_null() || init_attr.is_null() {
        return code(libc::EINVAL);
    }
    let mut now = match object.tail.qp.query() {
        Ok(now) => attr_to_c(&now),
        Err(error) => return code(error.errno()),
    };
    now.cap = cap_to_c(&object.tail.qp.cap());
    // SAFETY: the caller passes room for both structures; `qp` is a live object.
    unsafe {
        (*qp).state = now.qp_state;
        init_attr.write(ibv_qp_init_attr {
            qp_context: (*qp).qp_context,
            send_cq: (*qp).send_cq,
            recv_cq: (*qp).recv_cq,
            srq: (*qp).srq,
            cap: now.cap,
            qp_type: (*qp).qp_type,
            sq_sig_all: c_int::from(object.tail.sq_sig_all),
        });
        attr.write(now);
    }
    0
}

pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { QpObject::from_qp(qp) }) else { return code(libc::EINVAL) };
    let id = object.tail.id;
    if object.tail.qp.in_group() {
        return code(libc::EBUSY);
    }
    object.tail.leave_cm();
    let delivered = id.unregister();
    // SAFETY: a live object whose context outlives it.
    unsafe {
        if let Some(context) = ContextObject::from_ptr((*qp).context) {
            context.tail.context.forget_async_events(AsyncElement::Qp(id.0));
        }
        wait_acknowledged(&raw mut (*qp).events_completed, delivered[Queue::Async as usize]);
        // The caller gives it up, and every event is acknowledged.
        drop(QpObject::retire(qp.cast()));
    }
    0
}

pub(crate) unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: one of ours or NULL; NULL or the program's.
    let (Some(object), Some(gid)) = (unsafe { (QpObject::from_qp(qp), gid.as_ref()) }) else {
        return code(libc::EINVAL);
    };
    status(object.tail.qp.attach_mcast(Gid(gid.raw)))
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: one of ours or NULL; NULL or the program's.
    let (Some(object), Some(gid)) = (unsafe { (QpObject::from_qp(qp), gid.as_ref()) }) else {
        return code(libc::EINVAL);
    };
    status(object.tail.qp.detach_mcast(Gid(gid.raw)))
}

/// There are no enhanced connection options.
pub(crate) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    if !ece.is_null() {
        // SAFETY: the caller passes room for the structure.
        unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    }
    code(libc::EOPNOTSUPP)
}

pub(crate) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: NULL or the program's options.
    match unsafe { ece.as_ref() } {
        None => code(libc::EINVAL),
        Some(ece) if ece.vendor_id == 0 && ece.options == 0 => 0,
        Some(_) => code(libc::EOPNOTSUPP),
    }
}

/// Nothing is promised about the order in which bytes of a message appear.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: c_int,
    _flags: u32,
) -> c_int {
    0
}
