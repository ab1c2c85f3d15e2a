//! Endpoints: identifiers that one call sets up, used synchronously (rdma_create_ep(3), rdma_get_request(3)).

use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr;

use roxie::cm::CmEventKind;

use crate::abi::cm::{RAI_PASSIVE, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, rdma_addrinfo, rdma_cm_id};
use crate::abi::objects::{ibv_pd, ibv_qp_init_attr};
use crate::errno::{done, errno, given, minus1, set_errno};
use crate::handle::{FromC, GivenUp, Out, Ref, Room, typed};
use crate::ibv::pd_mr::PdObject;
use crate::ibv::qp::InitAttr;
use roxie::transport::refuse;

use super::addr::{bind, no_family, resolve, resolve_route};
use super::event::{complete, drop_own_event, event_failed, next_own};
use super::id::{self, IdObject, channel_of};
use super::option::set_option;
use super::qp::{create_qp, destroy_qp, destroy_srq};

/// Milliseconds that resolving an address may take.
const RESOLVE_TIMEOUT_MS: c_int = 2000;

/// A result of rdma_getaddrinfo(3).
struct Resolved<'a> {
    is_passive: bool,
    port_space: c_int,
    qp_type: c_int,
    src: Option<SocketAddr>,
    /// Whether there is a source address, of whatever family.
    has_src: bool,
    dst: Option<SocketAddr>,
    route: &'a [u8],
    /// The bytes that precede the private data of rdma_connect(3).
    connect: &'a [u8],
}

impl FromC<*mut rdma_addrinfo> for Option<Resolved<'_>> {
    unsafe fn from_c(res: *mut rdma_addrinfo) -> Self {
        // SAFETY: NULL or initialised, and the structure says how long its addresses and data are.
        unsafe {
            let res = res.as_ref()?;
            Some(Resolved {
                is_passive: res.ai_flags & RAI_PASSIVE != 0,
                port_space: res.ai_port_space,
                qp_type: res.ai_qp_type,
                src: typed(res.ai_src_addr),
                has_src: !res.ai_src_addr.is_null(),
                dst: typed(res.ai_dst_addr),
                route: typed((res.ai_route.cast_const(), res.ai_route_len)),
                connect: typed((res.ai_connect.cast_const(), res.ai_connect_len)),
            })
        }
    }
}

pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: rdma_create_ep(3). A listener keeps the attributes; the application keeps their objects as
    // long.
    let (id, res, pd, init): (
        Room<*mut rdma_cm_id>,
        Option<Resolved>,
        Ref<PdObject>,
        Option<InitAttr<'static>>,
    ) = unsafe { typed((id, res, pd, qp_init_attr)) };
    given!(minus1; id, res);
    let created = match id::create(ptr::null_mut(), ptr::null_mut(), res.port_space, res.qp_type) {
        Ok(created) => created,
        Err(errno) => return minus1(errno),
    };
    let init = init.map(|mut init| {
        init.set_type(res.qp_type);
        init
    });
    // The attributes of an active endpoint get the queues and capacities of its QP.
    let mut active_init: Option<InitAttr> = init.filter(|_| !res.is_passive);
    let set_up = if res.is_passive {
        passive(&created, &res, pd, init)
    } else {
        active(&created, &res, pd, active_init.as_mut())
    };
    if let Some(init) = active_init {
        // SAFETY: rdma_create_ep(3): the attributes are written, too.
        let room: Option<Out<ibv_qp_init_attr>> = unsafe { typed(qp_init_attr) };
        room.into_iter().for_each(|room| room.write(*init));
    }
    if set_up != 0 {
        // The application gets the errno and the reason of the step that failed.
        let errno = errno();
        destroy(GivenUp::never_given(created));
        set_errno(errno);
        return set_up;
    }
    id.write(created.give());
    0
}

/// Binds a listener, and keeps the attributes of the QPs of its requests.
#[track_caller]
fn passive(id: &IdObject, res: &Resolved, pd: Option<&PdObject>, init: Option<InitAttr<'static>>) -> c_int {
    let bound = bind(Some(id), res.src);
    if bound != 0 {
        return bound;
    }
    if let Some(pd) = pd {
        id.pd().set(pd.public());
    }
    if init.is_some() {
        id.tail.extra().qp_init_attr = init;
    }
    0
}

/// Resolves the destination and creates the QP.
#[track_caller]
fn active<'a>(
    id: &'a IdObject,
    res: &Resolved,
    pd: Option<&'a PdObject>,
    init: Option<&mut InitAttr<'a>>,
) -> c_int {
    if res.has_src && res.src.is_none() {
        return minus1(no_family("src_addr"));
    }
    let resolved = resolve(Some(id), res.src, res.dst, RESOLVE_TIMEOUT_MS);
    if resolved != 0 {
        return resolved;
    }
    let routed = if res.route.is_empty() {
        resolve_route(Some(id))
    } else {
        match set_option(Some(id), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, res.route) {
            0 => complete(id),
            failed => failed,
        }
    };
    if routed != 0 {
        return routed;
    }
    if let Some(init) = init {
        let created = create_qp(id, pd, init);
        if created != 0 {
            return created;
        }
    }
    if !res.connect.is_empty() {
        id.tail.extra().connect = res.connect.to_vec();
    }
    0
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    crate::exiting::note_use();
    // SAFETY: rdma_destroy_ep(3).
    let id: Option<GivenUp<IdObject>> = unsafe { typed(id) };
    if let Some(id) = id {
        destroy(id);
    }
}

/// Destroys an identifier and its queues.
fn destroy(id: GivenUp<IdObject>) {
    if !id.qp().get().is_null() {
        destroy_qp(&id);
    }
    if !id.srq().get().is_null() {
        destroy_srq(&id);
    }
    id::destroy(id);
}

/// Returns the next request at a synchronous listener, with a QP if the listener was created with attributes
/// for it.
pub(crate) unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: rdma_get_request(3).
    let (listen, id): (Option<&IdObject>, Option<Out<*mut rdma_cm_id>>) = unsafe { typed((listen, id)) };
    given!(minus1; listen, id);
    if !listen.tail.is_sync() {
        let channel = listen.channel().get().addr();
        return minus1(refuse!(EINVAL, "identifier", "channel"; channel;
            "the listener is not synchronous: its requests are events of its channel"));
    }
    drop_own_event(listen);
    let channel = done!(minus1; channel_of(listen));
    let event = done!(minus1; next_own(&channel));
    let (status, kind) = (event.status().get(), event.kind().get());
    if status != 0 || kind != CmEventKind::ConnectRequest as c_int {
        listen.event().set(event.public());
        return minus1(match status {
            0 => refuse!(EINVAL, "event", "event"; kind as i32; is "{kind}, no connection request"),
            _ => event_failed(kind, status),
        });
    }
    let child = event.id();
    given!(minus1; child as "id");
    let init = listen.tail.extra().qp_init_attr;
    if let Some(mut init) = init
        && create_qp(child, listen.pd_object(), &mut init) != 0
    {
        listen.event().set(event.public());
        return -1;
    }
    child.event().set(event.public());
    id.write(child.public());
    0
}
