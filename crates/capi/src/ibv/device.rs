//! Devices and contexts (ibv_get_device_list(3), ibv_open_device(3), ibv_fork_init(3)).

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::{io, ptr};

use libc::size_t;
use roxie::verbs::{Context, Device, DeviceConfig};
use sys::lock_until;

use crate::abi::context::{ibv_context, ibv_device, verbs_context};
use crate::errno::{code, minus1, null, of_io};
use crate::object::Object;
use crate::{exit, fork, refusal, signal};

use super::{cq, cq_ex, mw, pd_mr, post, qp, query, srq, td, xrc};

/// IBV_NODE_CA.
const NODE_CA: c_int = 1;
/// IBV_TRANSPORT_IB, which RoCE devices report too.
const TRANSPORT_IB: c_int = 0;

/// `ibv_device` and what follows it.
pub(crate) type DeviceObject = Object<ibv_device, DeviceTail>;

#[repr(C)]
pub(crate) struct DeviceTail {
    /// Where rdma-core keeps its own members: provider libraries compare the first with their operations to find out
    /// whether a device is theirs. Zero says no.
    foreign: [usize; 16],
    pub(crate) device: Device,
}

/// The device, once found: the same object in every listing, never freed.
static DEVICE: Mutex<Option<&'static DeviceObject>> = Mutex::new(None);

/// The device, if it was found and nobody is about to find it.
pub(crate) fn known_device() -> Option<&'static DeviceObject> {
    DEVICE.try_lock().ok().and_then(|slot| *slot)
}

/// Locks the place of the device until the value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new(lock_until(&DEVICE, until_ns))
}

/// The device of this process.
pub(crate) fn device() -> io::Result<&'static DeviceObject> {
    let mut slot = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = *slot {
        return Ok(device);
    }
    let device = Device::open(&DeviceConfig::from_env())?;
    // SAFETY: zero bytes are a valid `ibv_device`.
    let mut public: ibv_device = unsafe { MaybeUninit::zeroed().assume_init() };
    public.node_type = NODE_CA;
    public.transport_type = TRANSPORT_IB;
    copy_name(&mut public.name, device.name());
    copy_name(&mut public.dev_name, "uverbs0");
    copy_name(&mut public.dev_path, "/sys/class/infiniband_verbs/uverbs0");
    copy_name(&mut public.ibdev_path, &format!("/sys/class/infiniband/{}", device.name()));
    let object = DeviceObject::export(public, DeviceTail { foreign: [0; 16], device });
    // SAFETY: just exported, and never retired.
    let object = unsafe { DeviceObject::from_ptr(object) };
    *slot = object;
    exit::register();
    fork::register();
    object.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Copies a name, cut to fit with its terminating zero.
fn copy_name(to: &mut [c_char], name: &str) {
    let room = to.len() - 1;
    for (to, from) in to[..room].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
}

pub(crate) unsafe extern "C" fn ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    let device = device().inspect_err(refusal::explain).ok();
    // SAFETY: plain allocation; freed by ibv_free_device_list.
    let list: *mut *mut ibv_device = unsafe { libc::calloc(2, size_of::<*mut ibv_device>()) }.cast();
    if list.is_null() {
        return null(libc::ENOMEM);
    }
    if let Some(device) = device {
        // SAFETY: the first of two elements.
        unsafe { list.write(device.public()) };
    }
    if !number.is_null() {
        // SAFETY: the caller passes an int, or NULL.
        unsafe { number.write(c_int::from(device.is_some())) };
    }
    list
}

pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the caller passes what ibv_get_device_list returned.
    unsafe { libc::free(list.cast()) };
}

pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: not NULL, hence a device of ours; the name is constant.
    unsafe { (&raw const (*device).name).cast() }
}

/// Network byte order.
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: a device of ours or NULL.
    let device = unsafe { DeviceObject::from_ptr(device) };
    device.map_or(0, |d| d.tail.device.node_guid().to_be())
}

pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    if device.is_null() { minus1(libc::EINVAL) } else { 0 }
}

/// An open device: what precedes and follows the `ibv_context` that programs hold.
#[repr(C)]
pub(crate) struct ContextObject {
    verbs: UnsafeCell<verbs_context>,
    pub(crate) tail: ContextTail,
}

pub(crate) struct ContextTail {
    pub(crate) context: Context,
    /// Stands in for the uverbs descriptor, which programs duplicate.
    _cmd: File,
}

// SAFETY: the C part is written once, before its pointer is given away.
unsafe impl Sync for ContextObject {}

impl ContextObject {
    /// The object behind a pointer from C; `None` for NULL.
    ///
    /// # Safety
    /// `ptr` is NULL or a context that is open.
    #[inline]
    pub(crate) unsafe fn from_ptr<'a>(ptr: *mut ibv_context) -> Option<&'a Self> {
        if ptr.is_null() {
            return None;
        }
        // SAFETY: upheld by the caller; the context lies inside `verbs`, the first member.
        unsafe { ptr.byte_sub(offset_of!(verbs_context, context)).cast::<Self>().as_ref() }
    }
}

/// A zeroed context with the operations that this library has.
fn operations() -> Box<verbs_context> {
    // SAFETY: zero bytes are a valid `verbs_context`: empty slots, and an initialised mutex.
    let mut verbs: Box<verbs_context> = unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
    verbs.alloc_td = Some(td::alloc_td);
    verbs.dealloc_td = Some(td::dealloc_td);
    verbs.alloc_parent_domain = Some(td::alloc_parent_domain);
    verbs.modify_cq = Some(cq::modify_cq);
    verbs.modify_qp_rate_limit = Some(qp::modify_qp_rate_limit);
    verbs.advise_mr = Some(pd_mr::advise_mr);
    verbs.alloc_null_mr = Some(pd_mr::alloc_null_mr);
    verbs.query_port = Some(query::query_port);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.query_rt_values = Some(query::query_rt_values);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.open_xrcd = Some(xrc::open_xrcd);
    verbs.close_xrcd = Some(xrc::close_xrcd);
    verbs.get_srq_num = Some(xrc::get_srq_num);
    verbs.open_qp = Some(xrc::open_qp);
    verbs.sz = size_of::<verbs_context>();
    let context = &mut verbs.context;
    context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    let ops = &mut context.ops;
    ops._compat_query_device = query::ibv_query_device as *const c_void;
    ops._compat_query_port = query::ibv_query_port as *const c_void;
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    verbs
}

pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: a device of ours or NULL.
    let Some(object) = (unsafe { DeviceObject::from_ptr(device) }) else { return null(libc::EINVAL) };
    match open(object) {
        Ok(context) => context,
        Err(error) => {
            refusal::explain(&error);
            null(of_io(&error))
        }
    }
}

fn open(device: &DeviceObject) -> io::Result<*mut ibv_context> {
    let context = device.tail.device.context()?;
    signal::watch();
    let cmd = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let mut verbs = operations();
    verbs.context.device = device.public();
    verbs.context.cmd_fd = cmd.as_raw_fd();
    verbs.context.async_fd = context.async_fd();
    verbs.context.num_comp_vectors = context.comp_vectors() as c_int;
    let tail = ContextTail { context, _cmd: cmd };
    let object = Box::into_raw(Box::new(ContextObject { verbs: UnsafeCell::new(*verbs), tail }));
    // SAFETY: stays inside the allocation.
    Ok(unsafe { object.byte_add(offset_of!(verbs_context, context)) }.cast())
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    if context.is_null() {
        return code(libc::EINVAL);
    }
    // SAFETY: not NULL, hence one that `open` made; the caller gives it up.
    drop(unsafe {
        Box::from_raw(context.byte_sub(offset_of!(verbs_context, context)).cast::<ContextObject>())
    });
    0
}

/// Nothing to prepare: the engine reaches memory by virtual address in its own process.
pub(crate) unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// IBV_FORK_UNNEEDED.
pub(crate) unsafe extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

pub(crate) unsafe extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}

pub(crate) unsafe extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}

/// Constructors of provider libraries announce themselves at load. No provider drives our device.
pub(crate) unsafe extern "C" fn register_nothing() {}
