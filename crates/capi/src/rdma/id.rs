//! Identifiers (rdma_create_id(3), rdma_destroy_id(3)).

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roxie::cm::{EventChannel, Id, PathInfo, PortSpace};
use roxie::transport::QpType;
use roxie::wire::PKey;

use crate::abi::cm::{ibv_sa_path_rec, rdma_cm_id, rdma_event_channel, rdma_ib_addr};
use crate::abi::device::ibv_gid;
use crate::abi::objects::ibv_qp_init_attr;
use crate::errno::{minus1, of_io};
use crate::ibv::device::ContextObject;
use crate::ibv::events::ObjectId;
use crate::ibv::qp::{QPT_RC, QPT_UC, QPT_UD, QPT_XRC_RECV, QPT_XRC_SEND, QpObject};
use crate::ibv::query::PORT;
use crate::object::{Living, Object};

use super::addr::to_c;
use super::addrinfo::AddrInfo;
use super::channel::{self, rdma_create_event_channel, rdma_destroy_event_channel};
use super::device::cm_device;
use super::event::drop_own_event;

/// RDMA_PS_IPOIB, TCP and UDP.
pub(crate) const PS_IPOIB: c_int = 0x0002;
pub(crate) const PS_TCP: c_int = 0x0106;
pub(crate) const PS_UDP: c_int = 0x0111;

pub(crate) type IdObject = Object<rdma_cm_id, IdTail>;

pub(crate) struct IdTail {
    pub(crate) id: Id,
    object_id: ObjectId,
    /// Calls wait for their event; the channel is the identifier's own.
    sync: AtomicBool,
    extra: Mutex<Extra>,
}

pub(crate) static LIVING: Living = Living::new();

/// The identifier behind a pointer from C; `None` unless there is one.
///
/// # Safety
/// Nobody destroys it meanwhile.
pub(crate) unsafe fn find<'a>(id: *mut rdma_cm_id) -> Option<&'a IdObject> {
    if !LIVING.contains(id) {
        return None;
    }
    // SAFETY: registered, hence exported and not retired; upheld by the caller.
    unsafe { IdObject::from_ptr(id) }
}

/// The process ends: ends every connection, or agrees to its end, as the kernel does for a dead process.
pub(crate) fn leave_all() {
    LIVING.for_each(|id: *mut rdma_cm_id| {
        // SAFETY: it is in the set, and stays alive while the set is locked.
        if let Some(object) = unsafe { IdObject::from_ptr(id) } {
            // Identifiers without a connection have nobody to tell.
            object.tail.id.disconnect().ok();
        }
    });
}

/// What rdma_create_ep leaves for later calls, and what public pointers lead to.
#[derive(Default)]
pub(crate) struct Extra {
    /// For the QPs of accepted connections.
    pub(crate) qp_init_attr: Option<InitAttr>,
    /// Goes in front of the private data of rdma_connect.
    pub(crate) connect: Vec<u8>,
    path_rec: Option<Box<ibv_sa_path_rec>>,
    /// What rdma_resolve_addrinfo found, until somebody asks; and whether that is still to come.
    pub(crate) resolved: Option<AddrInfo>,
    pub(crate) resolving: bool,
}

/// Attributes with pointers to objects that may be used from any thread.
pub(crate) struct InitAttr(pub(crate) ibv_qp_init_attr);

// SAFETY: the objects behind the pointers are thread-safe.
unsafe impl Send for InitAttr {}

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
    let qp_type = if port_space == PS_UDP || port_space == PS_IPOIB { QPT_UD } else { QPT_RC };
    if id.is_null() {
        return minus1(libc::EINVAL);
    }
    // SAFETY: as the caller's.
    match unsafe { create(channel, context, port_space, qp_type) } {
        Ok(created) => {
            // SAFETY: the caller passes room for a pointer.
            unsafe { id.write(created) };
            0
        }
        Err(errno) => minus1(errno),
    }
}

/// # Safety
/// `channel` is ours or NULL.
pub(crate) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    port_space: c_int,
    qp_type: c_int,
) -> Result<*mut rdma_cm_id, c_int> {
    let space = u16::try_from(port_space).ok().and_then(PortSpace::from_code).ok_or(libc::EINVAL)?;
    let device = cm_device().ok_or(libc::ENODEV)?;
    // SAFETY: the shared context is never closed.
    let device = unsafe { ContextObject::from_ptr(device.context) }.ok_or(libc::ENODEV)?;
    let sync = channel.is_null();
    // SAFETY: no precondition.
    let channel = if sync { unsafe { rdma_create_event_channel() } } else { channel };
    let queue = channel::find(channel).ok_or(libc::EMFILE)?;
    let object_id = ObjectId::new();
    let id = match Id::of_service(&device.tail.context, &queue, space, service(space, qp_type), object_id.0) {
        Ok(id) => id,
        Err(error) => {
            if sync {
                // SAFETY: created above.
                unsafe { rdma_destroy_event_channel(channel) };
            }
            return Err(of_io(&error));
        }
    };
    let public = rdma_cm_id { channel, context, ps: port_space, qp_type, ..empty() };
    Ok(export(public, id, object_id, sync))
}

/// The service that a program names, where its port space has several.
fn service(space: PortSpace, qp_type: c_int) -> QpType {
    match qp_type {
        _ if space.qp_type() == QpType::Ud => QpType::Ud,
        QPT_UC => QpType::Uc,
        QPT_XRC_SEND => QpType::XrcIni,
        QPT_XRC_RECV => QpType::XrcTgt,
        _ => QpType::Rc,
    }
}

/// The C object of a connection request: in the listener's channel, with its context.
///
/// # Safety
/// `listener` is live.
pub(crate) unsafe fn create_child(listener: *mut rdma_cm_id, id: &Id) -> *mut rdma_cm_id {
    let object_id = ObjectId::new();
    id.set_cookie(object_id.0);
    // SAFETY: upheld by the caller.
    let public = unsafe {
        rdma_cm_id {
            channel: (*listener).channel,
            context: (*listener).context,
            ps: (*listener).ps,
            qp_type: (*listener).qp_type,
            ..empty()
        }
    };
    let child = export(public, id.clone(), object_id, false);
    // SAFETY: just created.
    unsafe {
        refresh(child);
        set_path_record(child);
    }
    child
}

fn empty() -> rdma_cm_id {
    // SAFETY: zero bytes are a valid `rdma_cm_id`.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn export(public: rdma_cm_id, id: Id, object_id: ObjectId, sync: bool) -> *mut rdma_cm_id {
    let tail = IdTail { id, object_id, sync: AtomicBool::new(sync), extra: Mutex::default() };
    let exported = IdObject::export(public, tail);
    object_id.register(exported);
    LIVING.insert(exported)
}

/// Brings the public addresses, device and QP state up to date with the identifier.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn refresh(id: *mut rdma_cm_id) {
    // SAFETY: upheld by the caller.
    let Some(object) = (unsafe { find(id) }) else { return };
    let inner = &object.tail.id;
    // SAFETY: members of a live object; librdmacm writes them inside its calls, too.
    unsafe {
        if let Some(src) = inner.local_addr() {
            (*id).route.addr.src_addr = to_c(src);
        }
        if let Some(dst) = inner.peer_addr() {
            (*id).route.addr.dst_addr = to_c(dst);
        }
        if inner.context().is_some()
            && let Some(device) = cm_device()
        {
            (*id).verbs = device.context;
            if (*id).pd.is_null() {
                (*id).pd = device.pd;
            }
            (*id).port_num = PORT;
        }
        if let Some(path) = inner.path() {
            (*id).route.addr.addr = rdma_ib_addr {
                sgid: ibv_gid { raw: path.sgid.0 },
                dgid: ibv_gid { raw: path.dgid.0 },
                pkey: PKey::DEFAULT.0.to_be(),
            };
        }
        if let Some(qp) = QpObject::from_qp((*id).qp) {
            (*(*id).qp).state = qp.tail.qp.state() as c_int;
        }
    }
}

/// Fills `route.path_rec`.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn set_path_record(id: *mut rdma_cm_id) {
    // SAFETY: upheld by the caller.
    let Some(object) = (unsafe { find(id) }) else { return };
    let Some(path) = object.tail.id.path() else { return };
    let mut extra = object.tail.extra();
    let record = extra.path_rec.insert(Box::new(path_record(&path)));
    // SAFETY: members of a live object, which owns the record.
    unsafe {
        (*id).route.path_rec = ptr::from_mut(&mut **record);
        (*id).route.num_paths = 1;
    }
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

/// The object with this cookie, if it still lives.
pub(crate) fn by_cookie(id: &Id) -> Option<*mut rdma_cm_id> {
    ObjectId(id.cookie()).find()
}

/// The channel of an identifier.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn channel_of(id: *mut rdma_cm_id) -> Option<Arc<EventChannel>> {
    // SAFETY: upheld by the caller.
    channel::find(unsafe { (*id).channel })
}

pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: ours or NULL.
    let Some(object) = (unsafe { find(id) }) else { return minus1(libc::EINVAL) };
    LIVING.remove(id);
    // From here on no event finds it; those found before hold receipts, for which `destroy` waits.
    object.tail.object_id.unregister();
    // SAFETY: a live identifier that the caller gives up.
    unsafe {
        drop_own_event(id);
        object.tail.id.destroy();
        if let Some(qp) = QpObject::from_qp((*id).qp) {
            qp.tail.leave_cm();
        }
        let channel = (*id).channel;
        let sync = object.tail.is_sync();
        drop(IdObject::retire(id));
        if sync {
            rdma_destroy_event_channel(channel);
        }
    }
    0
}
