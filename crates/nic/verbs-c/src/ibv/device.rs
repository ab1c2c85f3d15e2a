//! Devices and contexts (ibv_get_device_list(3), ibv_open_device(3), ibv_fork_init(3)).

use std::any::Any;
use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::mem::{self, ManuallyDrop, offset_of};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{io, ptr};

use libc::size_t;
use roxie::finding::FindingKind;
use roxie::verbs::{Device, DeviceList};
use sys::{lock_until, memory_file};

use crate::abi::Zeroed;
use crate::abi::context::{ibv_context, ibv_device, verbs_context};
use crate::abi::device::{IBV_FORK_UNNEEDED, IBV_NODE_CA, IBV_TRANSPORT_IB};
use crate::errno::{code, failed, given, no_memory, null};
use crate::handle::{FromC, GivenUp, Out, typed};
use crate::observer::{observer, owned};
use crate::refusal;
use roxie::transport::refuse;

use super::context::{ContextObject, ContextTail};
use super::device_object::{DeviceObject, DeviceTail};
use super::handles::Command;
use super::{buf, cq, cq_ex, dm, flow, mw, pd_mr, post, qp, query, srq, td, wq, xrc};

/// The devices of this process, and the object that C sees of each: the same in every list. Lists and open
/// contexts share it, so that of a removed device is freed with the last of them.
struct Devices {
    list: DeviceList,
    objects: Vec<Arc<DeviceObject>>,
    /// The index of the next object.
    next: c_int,
}

static DEVICES: Mutex<Devices> =
    Mutex::new(Devices { list: DeviceList::new(), objects: Vec::new(), next: 0 });

/// What the process does when this library begins to have devices: the end of the process and signals
/// concern all modules, so those that handle them are above this one.
pub(crate) struct Process {
    /// The first device is known.
    pub(crate) first_device: fn(),
    /// The interfaces were looked at: devices may have been removed.
    pub(crate) devices_looked_at: fn(),
    /// A device is opened.
    pub(crate) device_opened: fn(),
}

/// Set when the library is loaded.
pub(crate) static PROCESS: OnceLock<Process> = OnceLock::new();

/// Calls a function of the process.
fn tell(which: impl FnOnce(&Process) -> fn()) {
    if let Some(process) = PROCESS.get() {
        which(process)();
    }
}

impl Devices {
    /// Returns the objects of devices, in the order of the devices.
    fn objects_of(&mut self, devices: &[Device]) -> Vec<Arc<DeviceObject>> {
        devices.iter().map(|device| self.object_of(device)).collect()
    }

    fn object_of(&mut self, device: &Device) -> Arc<DeviceObject> {
        if let Some(object) = self.objects.iter().find(|object| object.tail.device == *device) {
            return Arc::clone(object);
        }
        if self.next == 0 {
            tell(|process| process.first_device);
        }
        let object = owned(|| made(device.clone(), self.next));
        self.next += 1;
        self.objects.push(Arc::clone(&object));
        object
    }
}

fn made(device: Device, index: c_int) -> Arc<DeviceObject> {
    let mut public = ibv_device::zeroed();
    public.node_type = IBV_NODE_CA;
    public.transport_type = IBV_TRANSPORT_IB;
    copy_name(&mut public.name, device.name());
    copy_name(&mut public.dev_name, &format!("uverbs{index}"));
    copy_name(&mut public.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{index}"));
    copy_name(&mut public.ibdev_path, &format!("/sys/class/infiniband/{}", device.name()));
    DeviceObject::shared(public, DeviceTail { rdma_core: [0; 16], device, index })
}

fn lock() -> MutexGuard<'static, Devices> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the devices that were found so far; none if another thread looks for devices until `until_ns`.
pub(crate) fn known_devices(until_ns: u64) -> Vec<Arc<DeviceObject>> {
    lock_until(&DEVICES, until_ns).map(|devices| devices.objects.clone()).unwrap_or_default()
}

/// Locks the list of devices until the returned value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new(lock_until(&DEVICES, until_ns))
}

/// Returns the devices of this process, after a look at the interfaces if `again`, or if none is known.
///
/// # Errors
/// Those of [`DeviceList::refresh`].
pub(crate) fn devices(again: bool) -> io::Result<Vec<Arc<DeviceObject>>> {
    let mut devices = lock();
    let known = devices.list.known();
    if !again && !known.is_empty() {
        return Ok(devices.objects_of(&known));
    }
    let list = devices.list.refresh()?;
    let removed: Vec<_> =
        devices.objects.extract_if(.., |object| !list.contains(&object.tail.device)).collect();
    let objects = devices.objects_of(&list);
    drop(devices);
    if observer().is_some() {
        // Their memory is kept, so that a use after the last share ends is found.
        removed.iter().map(Arc::downgrade).for_each(mem::forget);
    }
    tell(|process| process.devices_looked_at);
    Ok(objects)
}

/// Returns the object of a device.
pub(crate) fn object_of(device: &Device) -> Arc<DeviceObject> {
    lock().object_of(device)
}

/// Copies a name, cut to fit with its terminating zero.
fn copy_name(to: &mut [c_char], name: &str) {
    let room = to.len() - 1;
    for (to, from) in to[..room].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
}

pub(crate) unsafe extern "C" fn ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: ibv_get_device_list(3).
    let number: Option<Out<c_int>> = unsafe { typed(number) };
    let devices = devices(true).inspect_err(refusal::explain).unwrap_or_default();
    let given = devices.into_iter().map(|device| Arc::into_raw(device).cast_mut().cast());
    let devices: Vec<*mut ibv_device> = given.collect();
    let list = null_terminated(&devices);
    if list.is_null() {
        // SAFETY: the application has not got them.
        unsafe { release(devices.into_iter()) };
        return null(no_memory!("device list"));
    }
    if let Some(number) = number {
        number.write(devices.len() as c_int);
    }
    list
}

/// Returns an array on the C heap that has these elements and ends with NULL; NULL if memory is short.
pub(crate) fn null_terminated<T>(elements: &[*mut T]) -> *mut *mut T {
    // SAFETY: the array has room for the elements and one more, which stays NULL.
    unsafe {
        let list: *mut *mut T = libc::calloc(elements.len() + 1, size_of::<*mut T>()).cast();
        if !list.is_null() {
            list.copy_from_nonoverlapping(elements.as_ptr(), elements.len());
        }
        list
    }
}

/// Gives up the devices of a list.
///
/// # Safety
/// `Arc::into_raw` returned each, and the application does not use them by this list any more.
unsafe fn release(devices: impl Iterator<Item = *mut ibv_device>) {
    // SAFETY: the contract is that of this function.
    devices.for_each(|device| drop(unsafe { Arc::from_raw(device.cast::<DeviceObject>()) }));
}

/// Returns the elements of an array that ends with NULL.
///
/// # Safety
/// `list` is NULL or such an array, which is not freed before the iterator has ended.
pub(crate) unsafe fn elements<T>(list: *mut *mut T) -> impl Iterator<Item = *mut T> {
    // SAFETY: the elements before NULL are inside the array.
    let at = move |index: usize| (!list.is_null()).then(|| unsafe { *list.add(index) });
    (0..).map_while(at).take_while(|element| !element.is_null())
}

pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the application passes what ibv_get_device_list returned.
    unsafe {
        release(elements(list));
        libc::free(list.cast());
    }
}

pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: ibv_get_device_name(3).
    let device: Option<&DeviceObject> = unsafe { typed(device) };
    given!(null; device);
    device.public().wrapping_byte_add(offset_of!(ibv_device, name)).cast()
}

/// Returns the GUID in network byte order.
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: ibv_get_device_guid(3).
    let device: Option<&DeviceObject> = unsafe { typed(device) };
    device.map_or(0, |d| d.tail.device.node_guid().to_be())
}

/// Returns -1: the kernel has no number for the device. With another one UCX would ask the kernel, by
/// NETLINK_RDMA, about a device that is not this one.
pub(crate) unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// A share of a device object, or `None` for NULL.
impl FromC<*mut ibv_device> for Option<Arc<DeviceObject>> {
    unsafe fn from_c(device: *mut ibv_device) -> Self {
        // SAFETY: the contract is that of this function.
        let _known: &DeviceObject = unsafe { Option::from_c(device) }?;
        let device = device.cast_const().cast();
        // SAFETY: a device that is not freed, which a list or a context has from `Arc::into_raw`.
        unsafe {
            Arc::increment_strong_count(device);
            Some(Arc::from_raw(device))
        }
    }
}

/// Returns a zeroed context with the operations that this library has.
fn operations() -> Box<verbs_context> {
    // Zero is an initialised mutex, too.
    let mut verbs = Box::new(verbs_context::zeroed());
    set!(verbs;
        td::alloc_td, td::dealloc_td, td::alloc_parent_domain, cq::modify_cq, qp::modify_qp_rate_limit,
        pd_mr::advise_mr, pd_mr::alloc_null_mr, dm::reg_dm_mr, dm::alloc_dm, dm::free_dm, query::query_port,
        query::query_device_ex, query::query_rt_values, cq_ex::create_cq_ex, qp::create_qp_ex,
        srq::create_srq_ex, xrc::open_xrcd, xrc::close_xrcd, srq::get_srq_num, qp::open_qp, wq::create_wq,
        wq::modify_wq, wq::destroy_wq, wq::create_rwq_ind_table, wq::destroy_rwq_ind_table);
    verbs.free_buf = Some(buf::ibv_free_buf);
    verbs.alloc_buf = Some(buf::ibv_alloc_buf);
    verbs.reg_mr_ex = Some(buf::ibv_reg_mr_ex);
    verbs.ibv_create_flow = Some(flow::create_flow);
    verbs.ibv_destroy_flow = Some(flow::destroy_flow);
    verbs.sz = size_of::<verbs_context>();
    let context = &mut verbs.context;
    context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    let ops = &mut context.ops;
    ops._compat_query_device = query::ibv_query_device as *const c_void;
    ops._compat_query_port = query::ibv_query_port as *const c_void;
    set!(ops;
        mw::alloc_mw, post::bind_mw, mw::dealloc_mw, cq::poll_cq, cq::req_notify_cq, post::post_send,
        post::post_recv, srq::post_srq_recv);
    verbs
}

pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: ibv_open_device(3).
    let device: Option<Arc<DeviceObject>> = unsafe { typed(device) };
    given!(null; device);
    // This call has a share, and `DEVICES` unless the device was removed; others are of lists and contexts.
    let shares = || 1 + usize::from(lock().objects.iter().any(|known| Arc::ptr_eq(known, &device)));
    if let Some(observer) = observer().filter(|_| Arc::strong_count(&device) <= shares()) {
        let name = device.tail.device.name();
        let text = format!("device {name} came from a list that ibv_free_device_list freed; open it before");
        (observer.mistaken)(FindingKind::UseAfterDestroy, &text);
    }
    match open(device) {
        Ok(context) => context.give_context(),
        Err(error) => {
            refusal::explain(&error);
            null(failed!(error, "device", "context"; "the device cannot be opened"))
        }
    }
}

/// Opens a device.
pub(crate) fn open(device: Arc<DeviceObject>) -> io::Result<Box<ContextObject>> {
    open_with(device, memory_file(c"roxie uverbs")?)
}

/// Makes a context with the command descriptor `cmd`.
pub(crate) fn open_with(device: Arc<DeviceObject>, cmd: File) -> io::Result<Box<ContextObject>> {
    let context = device.tail.device.context()?;
    tell(|process| process.device_opened);
    let mut verbs = operations();
    verbs.context.device = Arc::as_ptr(&device).cast_mut().cast();
    verbs.context.cmd_fd = cmd.as_raw_fd();
    verbs.context.async_fd = context.async_fd();
    verbs.context.num_comp_vectors = context.comp_vectors() as c_int;
    let command = Command::new(cmd, device.tail.index)?;
    let tail = ContextTail { context, _device: device, command };
    Ok(ContextObject::boxed(*verbs, tail))
}

/// Opens the device once more with a duplicate of the command descriptor of an open context. The new context
/// owns the descriptor, and imports find the objects of the other.
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    if cmd_fd < 0 {
        return null(refuse!(EBADF, "context", "cmd_fd"; cmd_fd as i32; is "{cmd_fd}, no descriptor"));
    }
    // SAFETY: ibv_import_device(3): the application gives the descriptor up, unless the call fails.
    let cmd = ManuallyDrop::new(unsafe { File::from_raw_fd(cmd_fd) });
    let Some(index) = Command::device_of(&cmd) else {
        return null(refuse!(EINVAL, "context", "cmd_fd"; cmd_fd as i32;
            is "{cmd_fd}, no command descriptor of an open context of this process"));
    };
    let device = lock().objects.iter().find(|object| object.tail.index == index).cloned();
    let Some(device) = device else {
        return null(refuse!(ENODEV, "context", "cmd_fd"; cmd_fd as i32;
            is "{cmd_fd}, of a context whose device was removed; close its contexts"));
    };
    match open_with(device, ManuallyDrop::into_inner(cmd)) {
        Ok(context) => context.give_context(),
        Err(error) => null(failed!(error, "device", "context"; "the device cannot be opened")),
    }
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: ibv_close_device(3).
    let context: Option<GivenUp<ContextObject>> = unsafe { typed(context) };
    given!(code; context);
    context.free();
    0
}

/// Prepares nothing: the engine reaches memory by virtual address in its own process.
pub(crate) unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

pub(crate) unsafe extern "C" fn ibv_is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED
}

pub(crate) unsafe extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}

pub(crate) unsafe extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}

/// Ignores the providers that constructors of provider libraries register at load: none of them drives this
/// device.
pub(crate) unsafe extern "C" fn register_nothing() {}
