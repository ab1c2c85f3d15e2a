//! Identifiers (rdma_create_id(3), rdma_destroy_id(3)).

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roxie::cm::{EventChannel, Id, PathInfo, PortSpace};
use roxie::transport::{QpType, VerbsError, refuse};
use roxie::wire::PKey;

use crate::abi::Zeroed;
use crate::abi::cm::{
    RDMA_PS_IPOIB, RDMA_PS_UDP, SockAddr, ibv_sa_path_rec, rdma_cm_event, rdma_cm_id, rdma_event_channel,
    rdma_ib_addr,
};
use crate::abi::context::ibv_context;
use crate::abi::device::ibv_gid;
use crate::abi::objects::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_comp_channel, ibv_cq, ibv_pd,
    ibv_qp, ibv_srq,
};
use crate::errno::{Failure, done, given, minus1, no_argument};
use crate::handle::{GivenUp, Out, members, typed};
use crate::ibv::context::ContextObject;
use crate::ibv::cq::CqObject;
use crate::ibv::events::ObjectId;
use crate::ibv::pd_mr::PdObject;
use crate::ibv::qp::{InitAttr, QpObject};
use crate::ibv::query::PORT;
use crate::ibv::srq::SrqObject;
use crate::object::{IDS, Object};
use crate::observer::{BLOCKS_AFTER, observer, owned};

use super::addr::to_c;
use super::addrinfo::AddrInfo;
use super::channel;
use super::device::{AllDevices, close_removed, cm_device};
use super::event::drop_own_event;

pub(crate) type IdObject = Object<rdma_cm_id, IdTail>;

members! { IdObject {
    verbs: verbs as *mut ibv_context;
    context_object: verbs => ContextObject;
    channel: channel as *mut rdma_event_channel;
    context: context as *mut c_void;
    qp: qp as *mut ibv_qp;
    qp_object: qp => QpObject;
    path_rec: route.path_rec as *mut ibv_sa_path_rec;
    num_paths: route.num_paths as c_int;
    ps: ps as c_int;
    port_num: port_num as u8;
    event: event as *mut rdma_cm_event;
    send_cq_channel: send_cq_channel as *mut ibv_comp_channel;
    send_cq: send_cq as *mut ibv_cq;
    send_cq_object: send_cq => CqObject;
    recv_cq_channel: recv_cq_channel as *mut ibv_comp_channel;
    recv_cq: recv_cq as *mut ibv_cq;
    recv_cq_object: recv_cq => CqObject;
    srq: srq as *mut ibv_srq;
    srq_object: srq => SrqObject;
    pd: pd as *mut ibv_pd;
    pd_object: pd => PdObject;
    qp_type: qp_type as c_int;
} }

impl IdObject {
    /// Runs `f`, which uses the QP that `id->qp` names: applications assign this member, too. Calls that
    /// librdmacm makes without a look at it do not follow the pointer, which may lead to a destroyed QP.
    pub(crate) fn with_qp(
        &self,
        f: impl FnOnce(&IdTail) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        let qp = self.qp_object();
        self.tail.id.set_qp(qp.map(|qp| qp.tail.qp.transport()).transpose()?);
        if let Some(qp) = qp {
            qp.tail.join_cm(&self.tail.id);
        }
        let done = f(&self.tail);
        self.show_qp_state();
        done
    }

    /// Updates the state in the QP that `id->qp` names.
    pub(crate) fn show_qp_state(&self) {
        if let Some(qp) = self.qp_object() {
            qp.state().set(qp.tail.qp.state() as c_int);
        }
    }

    /// Sets the public addresses that are known.
    fn set_route(&self, src: Option<SockAddr>, dst: Option<SockAddr>, gids: Option<rdma_ib_addr>) {
        // SAFETY: members of the public part of a live object; librdmacm writes them inside its calls, too.
        unsafe {
            let addr = &raw mut (*self.public()).route.addr;
            if let Some(src) = src {
                (*addr).src_addr = src;
            }
            if let Some(dst) = dst {
                (*addr).dst_addr = dst;
            }
            if let Some(gids) = gids {
                (*addr).addr = gids;
            }
        }
    }
}

pub(crate) struct IdTail {
    pub(crate) id: Id,
    object_id: ObjectId,
    /// Set if calls wait for their event; the identifier owns its channel then.
    sync: AtomicBool,
    extra: Mutex<Extra>,
}

/// Ends every connection, or agrees to its end, because the process ends. The kernel does that for a dead
/// process.
pub(crate) fn disconnect_all() {
    IDS.for_each(|id: *mut rdma_cm_id| {
        // SAFETY: it is in the set, and stays alive while the set is locked.
        if let Some(object) = unsafe { IdObject::from_ptr(id) } {
            // Fails for identifiers without a connection, which have no peer.
            object.tail.id.disconnect().ok();
        }
    });
}

/// Ends the identifiers of a channel that is being destroyed. The application still destroys the objects.
/// Member `channel` does not tell the identifiers: a later channel may have the address of a destroyed one.
pub(crate) fn abandon_all(channel: &EventChannel) {
    let mut ids = Vec::new();
    IDS.for_each_locked(|id: *mut rdma_cm_id| {
        // SAFETY: as above.
        let object = unsafe { IdObject::from_ptr(id) };
        ids.extend(object.map(|object| &object.tail.id).filter(|id| id.is_on(channel)).cloned());
    });
    // Without the lock of the set: this waits for the threads that use the identifiers.
    ids.iter().for_each(Id::abandon);
}

/// What calls leave for later calls, and what public pointers lead to.
#[derive(Default)]
pub(crate) struct Extra {
    /// For the QPs of the requests at a listener.
    pub(crate) qp_init_attr: Option<InitAttr<'static>>,
    /// Precedes the private data of rdma_connect.
    pub(crate) connect: Vec<u8>,
    path_rec: Option<Box<ibv_sa_path_rec>>,
    /// The result of rdma_resolve_addrinfo, until the application gets it.
    pub(crate) resolved: Option<AddrInfo>,
    /// Set from a call of rdma_resolve_addrinfo until the application gets the result.
    pub(crate) resolving: bool,
}

impl IdTail {
    pub(crate) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Acquire)
    }

    pub(crate) fn set_sync(&self, sync: bool) {
        self.sync.store(sync, Ordering::Release);
    }

    pub(crate) fn extra(&self) -> MutexGuard<'_, Extra> {
        self.extra.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: c_int,
) -> c_int {
    // SAFETY: rdma_create_id(3).
    let id: Option<Out<*mut rdma_cm_id>> = unsafe { typed(id) };
    let datagram = port_space == RDMA_PS_UDP || port_space == RDMA_PS_IPOIB;
    let qp_type = if datagram { IBV_QPT_UD } else { IBV_QPT_RC };
    given!(minus1; id);
    let created = done!(minus1; create(channel, context, port_space, qp_type));
    id.write(created.give());
    0
}

/// Creates an identifier; NULL as the channel makes it synchronous. Returns an errno on failure.
pub(crate) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    port_space: c_int,
    qp_type: c_int,
) -> Result<Box<IdObject>, Failure> {
    let space = u16::try_from(port_space).ok().and_then(PortSpace::from_code).ok_or_else(|| {
        refuse!(EINVAL, "identifier", "ps"; port_space as i32;
            is "{port_space:#x}, the device has RDMA_PS_TCP, _UDP, _IPOIB and _IB")
    })?;
    let sync = channel.is_null();
    let channel = if sync { owned(channel::create)? } else { channel };
    let queue = channel::find(channel).ok_or_else(|| no_channel(channel))?;
    let object_id = ObjectId::new();
    let service = service(space, qp_type);
    match Id::of_any(Arc::new(AllDevices), &queue, space, service, object_id.0) {
        Ok(id) => {
            let public = rdma_cm_id { channel, context, ps: port_space, qp_type, ..rdma_cm_id::zeroed() };
            Ok(export(public, id, object_id, sync))
        }
        Err(refused) => {
            if sync {
                channel::destroy(channel);
            }
            Err(refused.into())
        }
    }
}

/// The refusal of a channel that was destroyed, with the errno that rdma-core has for it.
#[cold]
fn no_channel(channel: *mut rdma_event_channel) -> VerbsError {
    let address = channel.addr();
    refuse!(EMFILE, "argument", "channel"; address; "there is no event channel at {address:#x}")
}

/// Returns the service of a QP type, where the port space has several.
fn service(space: PortSpace, qp_type: c_int) -> QpType {
    match qp_type {
        _ if space.qp_type() == QpType::Ud => QpType::Ud,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_XRC_SEND => QpType::XrcIni,
        IBV_QPT_XRC_RECV => QpType::XrcTgt,
        _ => QpType::Rc,
    }
}

/// Makes the C object of a connection request: with the listener's channel and context.
pub(crate) fn create_child(listener: &IdObject, id: &Id) -> Box<IdObject> {
    let object_id = ObjectId::new();
    id.set_cookie(object_id.0);
    let public = rdma_cm_id {
        channel: listener.channel().get(),
        context: listener.context().get(),
        ps: listener.ps().get(),
        qp_type: listener.qp_type().get(),
        ..rdma_cm_id::zeroed()
    };
    let child = export(public, id.clone(), object_id, false);
    refresh(&child);
    set_path_record(&child);
    child
}

fn export(public: rdma_cm_id, id: Id, object_id: ObjectId, sync: bool) -> Box<IdObject> {
    let tail = IdTail { id, object_id, sync: AtomicBool::new(sync), extra: Mutex::default() };
    let object = IdObject::boxed(public, tail);
    object_id.register(object.public());
    IDS.insert(object.public());
    object
}

/// Updates the public addresses and the device of an identifier.
pub(crate) fn refresh(id: &IdObject) {
    let inner = &id.tail.id;
    let gids = inner.path().map(|path| rdma_ib_addr {
        sgid: ibv_gid { raw: path.sgid.0 },
        dgid: ibv_gid { raw: path.dgid.0 },
        pkey: PKey::DEFAULT.0.to_be(),
    });
    id.set_route(inner.local_addr().map(to_c), inner.peer_addr().map(to_c), gids);
    if let Some(context) = inner.context()
        && let Ok((context, pd)) = cm_device(&context)
    {
        id.verbs().set(context);
        if id.pd().get().is_null() {
            id.pd().set(pd);
        }
        id.port_num().set(PORT);
    }
}

/// Fills `route.path_rec`.
pub(crate) fn set_path_record(id: &IdObject) {
    let Some(path) = id.tail.id.path() else { return };
    let mut extra = id.tail.extra();
    let record = extra.path_rec.insert(Box::new(path_record(&path)));
    id.path_rec().set(ptr::from_mut(&mut **record));
    id.num_paths().set(1);
}

fn path_record(path: &PathInfo) -> ibv_sa_path_rec {
    /// Selector: exactly this value (IBA 15.2.5.16).
    const EXACTLY: u8 = 2;
    ibv_sa_path_rec {
        dgid: ibv_gid { raw: path.dgid.0 },
        sgid: ibv_gid { raw: path.sgid.0 },
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: PKey::DEFAULT.0.to_be(),
        mtu_selector: EXACTLY,
        mtu: path.mtu as u8,
        rate_selector: EXACTLY,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life_time,
        ..ibv_sa_path_rec::default()
    }
}

/// Returns the C object of an identifier; `None` if it was destroyed.
///
/// # Safety
/// An unacknowledged event names the identifier, or the identifier is not destroyed before `'a` ends.
pub(crate) unsafe fn by_cookie<'a>(id: &Id) -> Option<&'a IdObject> {
    let found = ObjectId(id.cookie()).find()?;
    // SAFETY: registered, hence live; destroying it waits for the acknowledgement of its events.
    unsafe { IdObject::from_ptr(found) }
}

/// Returns the channel of an identifier.
pub(crate) fn channel_of(id: &IdObject) -> Result<Arc<EventChannel>, VerbsError> {
    channel::find(id.channel().get()).ok_or_else(|| no_argument!("channel"))
}

pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    crate::exiting::note_use();
    // SAFETY: rdma_destroy_id(3).
    let id: Option<GivenUp<IdObject>> = unsafe { typed(id) };
    given!(minus1; id);
    destroy(id);
    0
}

/// Destroys an identifier once its events are acknowledged.
pub(crate) fn destroy(id: GivenUp<IdObject>) {
    IDS.remove(id.public());
    // From here on no event finds it. Those that found it before hold receipts, for which `Id::destroy`
    // waits.
    id.tail.object_id.unregister();
    drop_own_event(&id);
    match observer() {
        Some(observer) => id.tail.id.destroy_or_say(BLOCKS_AFTER, |events| (observer.blocks)(events as u32)),
        None => id.tail.id.destroy(),
    }
    let (channel, sync) = (id.channel().get(), id.tail.is_sync());
    let is_removed = id.tail.id.context().is_some_and(|context| context.device().is_removed());
    id.free();
    if is_removed {
        close_removed();
    }
    if sync {
        channel::destroy(channel);
    }
}
