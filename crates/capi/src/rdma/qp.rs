//! QPs and SRQs of identifiers (rdma_create_qp(3), rdma_create_srq(3), rdma_init_qp_attr(3)).

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use crate::abi::cm::rdma_cm_id;
use crate::abi::objects::{
    ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use crate::errno::{minus1, of_io};
use crate::ibv::cq::{ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq};
use crate::ibv::qp::{
    self, INIT_ATTR_XRCD, QPT_XRC_RECV, QpObject, attr_to_c, create_qp_ex, ibv_create_qp, ibv_destroy_qp,
    state_from_c,
};
use crate::ibv::srq::{self, create_srq_ex, ibv_create_srq, ibv_destroy_srq};

use super::device::cm_xrcd;
use super::id::{find, refresh};

pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: ours or NULL; the program's attributes or NULL.
    let (Some(object), Some(init)) = (unsafe { (find(id), init_attr.as_mut()) }) else {
        return minus1(libc::EINVAL);
    };
    // SAFETY: a live identifier.
    let pd = if pd.is_null() { unsafe { (*object.public()).pd } } else { pd };
    let create = |init: &mut ibv_qp_init_attr| {
        // SAFETY: as the caller's.
        unsafe {
            if init.qp_type == QPT_XRC_RECV { create_target(id, init) } else { ibv_create_qp(pd, init) }
        }
    };
    // SAFETY: as the caller's.
    unsafe { create_with(id, pd, init, create) }
}

pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: ours or NULL; the program's attributes or NULL.
    let (Some(object), Some(attr)) = (unsafe { (find(id), attr.as_mut()) }) else {
        return minus1(libc::EINVAL);
    };
    if attr.comp_mask & qp::INIT_ATTR_PD == 0 {
        attr.comp_mask |= qp::INIT_ATTR_PD;
        // SAFETY: a live identifier.
        attr.pd = unsafe { (*object.public()).pd };
    }
    if attr.qp_type == QPT_XRC_RECV && (attr.comp_mask & INIT_ATTR_XRCD == 0 || attr.xrcd.is_null()) {
        attr.comp_mask |= INIT_ATTR_XRCD;
        attr.xrcd = cm_xrcd();
    }
    let mut init = attr.classic();
    let pd = attr.pd;
    let create = |init: &mut ibv_qp_init_attr| {
        attr.set_classic(init);
        // SAFETY: as the caller's; a live identifier.
        let qp = unsafe { create_qp_ex((*id).verbs, ptr::from_mut(attr)) };
        init.cap = attr.cap;
        qp
    };
    // SAFETY: as the caller's.
    unsafe { create_with(id, pd, &mut init, create) }
}

/// The receiving end of XRC, in the domain of all identifiers.
///
/// # Safety
/// `id` is live.
unsafe fn create_target(id: *mut rdma_cm_id, init: &mut ibv_qp_init_attr) -> *mut ibv_qp {
    let xrcd = cm_xrcd();
    // SAFETY: zero bytes are a valid `ibv_qp_init_attr_ex`.
    let mut attr: ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    (attr.comp_mask, attr.xrcd) = (INIT_ATTR_XRCD, xrcd);
    attr.set_classic(init);
    // SAFETY: upheld by the caller; a domain of ours or NULL.
    unsafe { create_qp_ex((*id).verbs, &raw mut attr) }
}

/// The common part: supplies what the program left out, and gives the QP to the identifier.
///
/// # Safety
/// `id` is live; `pd` and the pointers in `init` are ours or NULL.
unsafe fn create_with(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    create: impl FnOnce(&mut ibv_qp_init_attr) -> *mut ibv_qp,
) -> c_int {
    // SAFETY: upheld by the caller.
    unsafe {
        let Some(object) = find(id) else { return minus1(libc::EINVAL) };
        let foreign = pd.as_ref().is_none_or(|pd| pd.context != (*id).verbs);
        if !(*id).qp.is_null() || (*id).verbs.is_null() || foreign {
            return minus1(libc::EINVAL);
        }
        let made = create_cqs(
            id,
            if init.send_cq.is_null() { init.cap.max_send_wr } else { 0 },
            if init.recv_cq.is_null() { init.cap.max_recv_wr } else { 0 },
        );
        if made != 0 {
            return made;
        }
        if init.send_cq.is_null() {
            init.send_cq = (*id).send_cq;
        }
        if init.recv_cq.is_null() {
            init.recv_cq = (*id).recv_cq;
        }
        if init.srq.is_null() {
            init.srq = (*id).srq;
        }
        let qp = create(init);
        let Some(qp_object) = QpObject::from_qp(qp) else {
            destroy_cqs(id);
            return -1;
        };
        if let Err(error) = object.tail.id.attach_qp(&qp_object.tail.qp) {
            ibv_destroy_qp(qp);
            destroy_cqs(id);
            return minus1(of_io(&error));
        }
        qp_object.tail.join_cm(&object.tail.id);
        (*id).qp = qp;
        (*id).pd = pd;
        refresh(id);
        0
    }
}

/// Creates the CQs, each with a channel, that a program did not bring; `cq_context` is the identifier.
///
/// # Safety
/// `id` is live.
unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, recv: u32) -> c_int {
    // SAFETY: upheld by the caller.
    unsafe {
        let (verbs, cookie) = ((*id).verbs, id.cast());
        let make = |entries: u32| {
            let channel = ibv_create_comp_channel(verbs);
            let cqe = c_int::try_from(entries).unwrap_or(c_int::MAX);
            let cq = if channel.is_null() {
                ptr::null_mut()
            } else {
                ibv_create_cq(verbs, cqe, cookie, channel, 0)
            };
            (channel, cq)
        };
        if send != 0 {
            ((*id).send_cq_channel, (*id).send_cq) = make(send);
        }
        if recv != 0 {
            ((*id).recv_cq_channel, (*id).recv_cq) = make(recv);
        }
        if (send != 0 && (*id).send_cq.is_null()) || (recv != 0 && (*id).recv_cq.is_null()) {
            destroy_cqs(id);
            return -1;
        }
        0
    }
}

/// # Safety
/// `id` is live, and no QP uses the CQs.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: upheld by the caller.
    unsafe {
        // The receives of XRC complete where its shared receive queue says.
        if (*id).qp_type == QPT_XRC_RECV && !(*id).srq.is_null() {
            return;
        }
        destroy_cq(&mut (*id).send_cq, &mut (*id).send_cq_channel);
        destroy_cq(&mut (*id).recv_cq, &mut (*id).recv_cq_channel);
    }
}

/// # Safety
/// Both are ours or NULL.
unsafe fn destroy_cq(cq: &mut *mut ibv_cq, channel: &mut *mut ibv_comp_channel) {
    let cq = std::mem::replace(cq, ptr::null_mut());
    let channel = std::mem::replace(channel, ptr::null_mut());
    // SAFETY: upheld by the caller.
    unsafe {
        if !cq.is_null() {
            ibv_destroy_cq(cq);
        }
        if !channel.is_null() {
            ibv_destroy_comp_channel(channel);
        }
    }
}

pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: ours or NULL.
    let Some(object) = (unsafe { find(id) }) else { return };
    object.tail.id.detach_qp();
    // SAFETY: a live identifier; the caller gives up its QP.
    unsafe {
        let qp = std::mem::replace(&mut (*id).qp, ptr::null_mut());
        if !qp.is_null() {
            ibv_destroy_qp(qp);
        }
        destroy_cqs(id);
    }
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: ours or NULL.
    unsafe {
        if find(id).is_none() {
            return minus1(libc::EINVAL);
        }
        let pd = if pd.is_null() { (*id).pd } else { pd };
        if (*id).qp_type == QPT_XRC_RECV {
            return create_xrc_srq(id, pd, attr);
        }
        let srq = ibv_create_srq(pd, attr);
        if srq.is_null() {
            return -1;
        }
        (*id).srq = srq;
        (*id).pd = pd;
        0
    }
}

/// One that XRC senders name, of the receiving end of a connection.
///
/// # Safety
/// `id` is live; `pd` is ours or NULL, `attr` the program's or NULL.
unsafe fn create_xrc_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int {
    // SAFETY: upheld by the caller.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return minus1(libc::EINVAL) };
    let mut extended = ibv_srq_init_attr_ex {
        srq_context: attr.srq_context,
        attr: attr.attr,
        comp_mask: srq::INIT_ATTR_TYPE | srq::INIT_ATTR_PD,
        srq_type: srq::XRC,
        pd,
        xrcd: ptr::null_mut(),
        cq: ptr::null_mut(),
        tm_cap: [0; 2],
    };
    // SAFETY: upheld by the caller.
    let created = unsafe { rdma_create_srq_ex(id, &raw mut extended) };
    attr.attr = extended.attr;
    created
}

pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: ours or NULL; the program's attributes or NULL.
    unsafe {
        let (Some(_), Some(attr)) = (find(id), attr.as_mut()) else { return minus1(libc::EINVAL) };
        if attr.comp_mask & srq::INIT_ATTR_TYPE == 0 {
            return minus1(libc::EINVAL);
        }
        if attr.comp_mask & srq::INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= srq::INIT_ATTR_PD;
            attr.pd = (*id).pd;
        }
        if attr.srq_type == srq::XRC {
            let scoped = supply_scope(id, attr);
            if scoped != 0 {
                return scoped;
            }
        }
        let srq = create_srq_ex((*id).verbs, ptr::from_mut(attr));
        if srq.is_null() {
            return -1;
        }
        (*id).srq = srq;
        (*id).pd = attr.pd;
        0
    }
}

/// The XRC domain and the CQ that a program left out.
///
/// # Safety
/// `id` is live.
unsafe fn supply_scope(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> c_int {
    if attr.comp_mask & srq::INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        attr.comp_mask |= srq::INIT_ATTR_XRCD;
        attr.xrcd = cm_xrcd();
    }
    if attr.comp_mask & srq::INIT_ATTR_CQ == 0 || attr.cq.is_null() {
        // SAFETY: upheld by the caller.
        unsafe {
            let made = if (*id).recv_cq.is_null() { create_cqs(id, 0, attr.attr.max_wr) } else { 0 };
            if made != 0 {
                return made;
            }
            attr.comp_mask |= srq::INIT_ATTR_CQ;
            attr.cq = (*id).recv_cq;
        }
    }
    0
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: ours or NULL.
    unsafe {
        if find(id).is_some() {
            let srq = std::mem::replace(&mut (*id).srq, ptr::null_mut());
            if !srq.is_null() {
                ibv_destroy_srq(srq);
            }
            if (*id).qp.is_null() {
                destroy_cqs(id);
            }
        }
    }
}

/// What to give to `ibv_modify_qp` to reach `attr->qp_state`.
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: ours or NULL; the program's attributes or NULL.
    let (object, attr) = unsafe { (find(id), attr.as_mut()) };
    let (Some(object), Some(attr)) = (object, attr) else { return minus1(libc::EINVAL) };
    let Some(state) = state_from_c(attr.qp_state) else { return minus1(libc::EINVAL) };
    if mask.is_null() {
        return minus1(libc::EINVAL);
    }
    match object.tail.id.init_qp_attr(state) {
        Ok((filled, bits)) => {
            *attr = attr_to_c(&filled);
            // SAFETY: the caller passes room for an int.
            unsafe { mask.write(bits.bits() as c_int) };
            0
        }
        Err(error) => minus1(of_io(&error)),
    }
}
