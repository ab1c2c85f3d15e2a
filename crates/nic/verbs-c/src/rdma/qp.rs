//! QPs and SRQs of identifiers (rdma_create_qp(3), rdma_create_srq(3), rdma_init_qp_attr(3)).

use std::ffi::c_int;
use std::ptr;

use crate::abi::cm::rdma_cm_id;
use crate::abi::objects::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_QPT_XRC_RECV, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD,
    IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_XRC, ibv_comp_channel, ibv_cq, ibv_pd,
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use crate::errno::{Failure, done, given, minus1, needed_bits, no_argument};
use crate::handle::{GivenUp, Member, Out, Ref, Room, typed};
use crate::ibv::cq::{self, ChannelObject, CqObject};
use crate::ibv::pd_mr::PdObject;
use crate::ibv::qp::{self, InitAttr, InitAttrEx, QpObject};
use crate::ibv::qp_attr::{attr_to_c, state_of};
use crate::ibv::srq::{self, SrqObject};
use crate::ibv::xrc::XrcdObject;
use crate::object::Object;
use crate::observer::owned;
use roxie::transport::{VerbsError, refuse};

use super::device::cm_xrcd;
use super::id::IdObject;

pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: rdma_create_qp(3).
    let (id, pd, init, room): (Ref<IdObject>, Ref<PdObject>, Option<InitAttr>, Room<ibv_qp_init_attr>) =
        unsafe { typed((id, pd, init_attr, init_attr)) };
    given!(minus1; id, init as "qp_init_attr", room as "qp_init_attr");
    let mut init = init;
    let created = create_qp(id, pd, &mut init);
    room.write(*init);
    created
}

/// Creates the QP of an identifier, in its own domain if `pd` is `None`. Returns 0, or -1 with `errno` set.
#[track_caller]
pub(crate) fn create_qp<'a>(id: &'a IdObject, pd: Option<&'a PdObject>, init: &mut InitAttr<'a>) -> c_int {
    let pd = pd.or_else(|| id.pd_object());
    create_with(id, pd, init, |init| {
        if init.qp_type == IBV_QPT_XRC_RECV {
            // The application's attributes stay as they are.
            let xrcd = xrcd_of(id)?;
            Ok(qp::create_target(id.context_object(), xrcd, &mut init.clone())?)
        } else {
            Ok(qp::create(pd, init, None)?)
        }
    })
}

pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: rdma_create_qp_ex(3).
    let (id, attr): (Option<&IdObject>, Option<InitAttrEx>) = unsafe { typed((id, attr)) };
    given!(minus1; id, attr);
    let mut attr = attr;
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        attr.set_pd(id.pd_object());
    }
    let lacks_xrcd = attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null();
    if attr.qp_type == IBV_QPT_XRC_RECV && lacks_xrcd {
        attr.set_xrcd(done!(minus1; xrcd_of(id)));
    }
    let mut init = attr.classic();
    let pd = attr.pd();
    create_with(id, pd, &mut init, |init| {
        attr.set_classic(init);
        let created = qp::create_ex(id.context_object(), &mut attr);
        *init = attr.classic();
        Ok(created?)
    })
}

/// Supplies the queues that the application left out, creates a QP by `create` and ties it to the identifier.
/// Returns 0, or -1 with `errno` set.
#[track_caller]
fn create_with<'a>(
    id: &'a IdObject,
    pd: Option<&PdObject>,
    init: &mut InitAttr<'a>,
    create: impl FnOnce(&mut InitAttr<'a>) -> Result<Box<QpObject>, Failure>,
) -> c_int {
    let verbs = id.verbs().get();
    given!(minus1; pd);
    done!(minus1; check_device(id, Some(pd)));
    if verbs.is_null() || pd.context().get() != verbs {
        let pd = pd.public().addr();
        return minus1(refuse!(EINVAL, "identifier", "pd"; pd;
            "the identifier has no device yet, or the domain is of another one"));
    }
    let own = id.qp().get().addr();
    if own != 0 {
        return minus1(refuse!(EINVAL, "identifier", "qp"; own; "the identifier has a queue pair"));
    }
    // The application may have assigned the queues of the identifier, and taken away an earlier QP.
    id.tail.id.set_qp(None);
    let (send, recv) = (id.send_cq().get(), id.recv_cq().get());
    let differs = |own: *mut ibv_cq, asked: *mut ibv_cq| !own.is_null() && !asked.is_null() && own != asked;
    if differs(send, init.send_cq) || differs(recv, init.recv_cq) {
        let own = if differs(send, init.send_cq) { send.addr() } else { recv.addr() };
        return minus1(refuse!(EINVAL, "identifier", "cq"; own;
            "the identifier has other completion queues (its members send_cq and recv_cq)"));
    }
    let missing = |own: *mut ibv_cq, asked: *mut ibv_cq| own.is_null() && asked.is_null();
    let made = create_cqs(
        id,
        if missing(send, init.send_cq) { init.cap.max_send_wr } else { 0 },
        if missing(recv, init.recv_cq) { init.cap.max_recv_wr } else { 0 },
    );
    if made != 0 {
        return made;
    }
    if init.send_cq.is_null() {
        init.set_send_cq(id.send_cq_object());
    }
    if init.recv_cq.is_null() {
        init.set_recv_cq(id.recv_cq_object());
    }
    if init.srq.is_null() {
        init.set_srq(id.srq_object());
    }
    let created = match create(init) {
        Ok(created) => created,
        Err(errno) => {
            destroy_cqs(id);
            return minus1(errno);
        }
    };
    let attached = created.tail.qp.transport().and_then(|qp| id.tail.id.attach_qp(qp));
    if let Err(error) = attached {
        qp::destroy(GivenUp::never_given(created));
        destroy_cqs(id);
        return minus1(error);
    }
    created.tail.join_cm(&id.tail.id);
    id.qp().set(created.give().cast());
    id.pd().set(pd.public());
    id.show_qp_state();
    0
}

/// Refuses a domain of another device than that of the identifier.
fn check_device(id: &IdObject, pd: Option<&PdObject>) -> Result<(), VerbsError> {
    match (id.context_object(), pd) {
        (Some(context), Some(pd)) => pd.check_device(context),
        _ => Ok(()),
    }
}

/// Creates the CQs that the application left out, with the given numbers of entries (0: none). Each has a
/// channel; its `cq_context` is the identifier. Returns 0, or -1 with `errno` set.
#[track_caller]
fn create_cqs(id: &IdObject, send: u32, recv: u32) -> c_int {
    let made = owned(|| {
        create_cq(id, send, id.send_cq_channel(), id.send_cq())
            .and_then(|()| create_cq(id, recv, id.recv_cq_channel(), id.recv_cq()))
    });
    match made {
        Ok(()) => 0,
        Err(errno) => {
            destroy_cqs(id);
            minus1(errno)
        }
    }
}

/// Creates a CQ with a channel, and stores both in the given members of the identifier; does nothing for 0
/// entries.
fn create_cq(
    id: &IdObject,
    entries: u32,
    channel: &Member<*mut ibv_comp_channel>,
    cq: &Member<*mut ibv_cq>,
) -> Result<(), Failure> {
    if entries == 0 {
        return Ok(());
    }
    let entries = entries.min(c_int::MAX as u32);
    let context = id.context_object().ok_or_else(|| no_argument!("verbs"))?;
    let new_channel = cq::create_comp_channel(context)?;
    let new_cq = cq::create(context, entries, id.public().cast(), Some(&new_channel), 0);
    channel.set(new_channel.give());
    cq.set(new_cq?.give().cast());
    Ok(())
}

/// Returns the XRC domain of the device of an identifier.
fn xrcd_of(id: &IdObject) -> Result<Option<&XrcdObject>, Failure> {
    let xrcd = cm_xrcd(&id.tail.id.context().ok_or_else(|| no_argument!("verbs"))?)?;
    // SAFETY: it stays as long as the identifier has the device.
    Ok(unsafe { typed(xrcd) })
}

/// Destroys the CQs of an identifier, which no QP uses.
fn destroy_cqs(id: &IdObject) {
    // The receives of XRC complete in the CQ of the shared receive queue.
    if id.qp_type().get() == IBV_QPT_XRC_RECV && !id.srq().get().is_null() {
        return;
    }
    // An application that assigned the members may have used one queue, or one channel, for both.
    if id.send_cq().get() == id.recv_cq().get() {
        id.send_cq().set(ptr::null_mut());
    }
    if id.send_cq_channel().get() == id.recv_cq_channel().get() {
        id.send_cq_channel().set(ptr::null_mut());
    }
    destroy_cq(id.send_cq(), id.send_cq_channel());
    destroy_cq(id.recv_cq(), id.recv_cq_channel());
}

fn destroy_cq(cq: &Member<*mut ibv_cq>, channel: &Member<*mut ibv_comp_channel>) {
    let (cq, channel) = (cq.replace(ptr::null_mut()), channel.replace(ptr::null_mut()));
    // SAFETY: NULL or objects that the identifier owned, which refers to them no more.
    let (cq, channel): (Option<GivenUp<CqObject>>, Option<GivenUp<ChannelObject>>) =
        unsafe { typed((cq, channel)) };
    // Fails, and leaves both as they are, if the application uses the CQ for another queue.
    cq.map(cq::destroy);
    channel.map(cq::destroy_comp_channel);
}

pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: rdma_destroy_qp(3).
    let id: Option<&IdObject> = unsafe { typed(id) };
    id.into_iter().for_each(destroy_qp);
}

/// Destroys the QP of an identifier and the CQs that were created with it.
pub(crate) fn destroy_qp(id: &IdObject) {
    // Fails for a raw packet QP that the application has assigned.
    let _known = id.with_qp(|tail| {
        tail.id.detach_qp();
        Ok(())
    });
    // SAFETY: NULL or a QP that the application gives up (rdma_destroy_qp(3)).
    let qp: Option<GivenUp<QpObject>> = unsafe { typed(id.qp().replace(ptr::null_mut())) };
    if let Some(qp) = qp {
        // The function cannot report that the QP is still in a group.
        if let Ok(qp) = qp.tail.qp.transport() {
            qp.leave_groups();
        }
        qp::destroy(qp);
    }
    destroy_cqs(id);
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: rdma_create_srq(3).
    let (id, pd, attr): (Option<&IdObject>, Option<&PdObject>, Option<&mut ibv_srq_init_attr>) =
        unsafe { typed((id, pd, attr)) };
    given!(minus1; id, attr);
    let pd = pd.or_else(|| id.pd_object());
    done!(minus1; check_device(id, pd));
    if id.qp_type().get() == IBV_QPT_XRC_RECV {
        return create_xrc_srq(id, pd, attr);
    }
    let srq = done!(minus1; srq::create(pd, attr.srq_context, &mut attr.attr, None));
    id.srq().set(srq.give());
    set_first_pd(id, pd.map_or(ptr::null_mut(), Object::public));
    0
}

/// Sets `id->pd`, unless the identifier has a domain.
fn set_first_pd(id: &IdObject, pd: *mut ibv_pd) {
    if id.pd().get().is_null() {
        id.pd().set(pd);
    }
}

/// Creates the SRQ of the receiving end of an XRC connection, which senders name by number. Returns 0, or -1
/// with `errno` set.
#[track_caller]
fn create_xrc_srq(id: &IdObject, pd: Option<&PdObject>, attr: &mut ibv_srq_init_attr) -> c_int {
    let mut extended = ibv_srq_init_attr_ex {
        srq_context: attr.srq_context,
        attr: attr.attr,
        comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
        srq_type: IBV_SRQT_XRC,
        pd: pd.map_or(ptr::null_mut(), Object::public),
        xrcd: ptr::null_mut(),
        cq: ptr::null_mut(),
        tm_cap: [0; 2],
    };
    // SAFETY: the declared pointer is that of a live domain or NULL.
    let created = unsafe { create_srq_ex(id, &mut extended) };
    attr.attr = extended.attr;
    created
}

pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: rdma_create_srq_ex(3).
    let (id, attr): (Option<&IdObject>, Option<&mut ibv_srq_init_attr_ex>) = unsafe { typed((id, attr)) };
    given!(minus1; id, attr);
    // SAFETY: rdma_create_srq_ex(3): the attributes name objects where `comp_mask` says so.
    unsafe { create_srq_ex(id, attr) }
}

/// Creates the SRQ of an identifier. Returns 0, or -1 with `errno` set.
///
/// # Safety
/// As for [`srq::create_ex`].
#[track_caller]
unsafe fn create_srq_ex(id: &IdObject, attr: &mut ibv_srq_init_attr_ex) -> c_int {
    needed_bits!(minus1; "SRQ", "comp_mask"; attr.comp_mask, IBV_SRQ_INIT_ATTR_TYPE);
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        attr.pd = id.pd().get();
    }
    if attr.srq_type == IBV_SRQT_XRC {
        let supplied = supply_xrc_scope(id, attr);
        if supplied != 0 {
            return supplied;
        }
    }
    // SAFETY: the contract is the same; the supplied pointers are those of live objects or NULL.
    let srq = done!(minus1; unsafe { srq::create_ex(id.context_object(), attr) });
    id.srq().set(srq.give());
    set_first_pd(id, attr.pd);
    0
}

/// Supplies the XRC domain and the CQ that the application left out. Returns 0, or -1 with `errno` set.
#[track_caller]
fn supply_xrc_scope(id: &IdObject, attr: &mut ibv_srq_init_attr_ex) -> c_int {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
        attr.xrcd = done!(minus1; xrcd_of(id)).map_or(ptr::null_mut(), XrcdObject::public);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
        let made = if id.recv_cq().get().is_null() { create_cqs(id, 0, attr.attr.max_wr) } else { 0 };
        if made != 0 {
            return made;
        }
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
        attr.cq = id.recv_cq().get();
    }
    0
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: rdma_destroy_srq(3).
    let id: Option<&IdObject> = unsafe { typed(id) };
    id.into_iter().for_each(destroy_srq);
}

/// Destroys the SRQ of an identifier, and its CQs if it has no QP.
pub(crate) fn destroy_srq(id: &IdObject) {
    // SAFETY: NULL or a queue that the application gives up (rdma_destroy_srq(3)).
    let srq: Option<GivenUp<SrqObject>> = unsafe { typed(id.srq().replace(ptr::null_mut())) };
    srq.map(srq::destroy);
    if id.qp().get().is_null() {
        destroy_cqs(id);
    }
}

/// Returns the attributes and the mask with which ibv_modify_qp reaches `attr->qp_state`.
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: rdma_init_qp_attr(3).
    let (id, attr, mask): (Option<&IdObject>, Option<&mut ibv_qp_attr>, Option<Out<c_int>>) =
        unsafe { typed((id, attr, mask)) };
    given!(minus1; id, attr, mask);
    let state = done!(minus1; state_of("qp_state", attr.qp_state));
    let (filled, bits) = done!(minus1; id.tail.id.init_qp_attr(state));
    *attr = attr_to_c(&filled);
    mask.write(bits.bits() as c_int);
    0
}
