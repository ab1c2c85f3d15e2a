//! The devices as the connection manager uses them (rdma_get_devices(3)): each opened once, with one
//! protection domain.

use std::any::Any;
use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sys::{generation, lock_until};

use crate::abi::context::ibv_context;
use crate::errno::{Failure, failed, no_memory, null, set_errno};
use crate::handle::{Out, typed};
use crate::ibv::context::ContextObject;
use crate::ibv::device::{self, DeviceObject, null_terminated};
use crate::ibv::pd_mr::{PdObject, alloc_pd};
use crate::ibv::xrc::{self, XrcdObject};
use crate::observer::owned;
use crate::refusal;
use roxie::transport::refusal::Os;
use roxie::transport::refuse;
use roxie::verbs::{Context, Device};
use roxie::wire::Gid;

/// What all identifiers of a device share; open for the life of the process. A forked child makes its own.
struct Shared {
    generation: u32,
    context: &'static ContextObject,
    pd: Option<&'static PdObject>,
    xrcd: Option<&'static XrcdObject>,
}

static SHARED: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

fn lock() -> MutexGuard<'static, Vec<Shared>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the statics of this file until the returned value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new(lock_until(&SHARED, until_ns))
}

/// Calls `f` with what the identifiers of a device share; opens the device at the first call.
fn with<R>(device: &'static DeviceObject, f: impl FnOnce(&mut Shared) -> R) -> io::Result<R> {
    let generation = generation();
    let is_of = |shared: &Shared| {
        shared.generation == generation && shared.context.tail.context.device() == &device.tail.device
    };
    let mut all = lock();
    if let Some(shared) = all.iter_mut().find(|shared| is_of(shared)) {
        return Ok(f(shared));
    }
    drop(all);
    // Without the lock, which calls for other devices need: another thread may be starting the engine.
    let opened = owned(|| device::open(device))?;
    let mut all = lock();
    let at = match all.iter().position(is_of) {
        Some(at) => at,
        None => {
            all.push(Shared { generation, context: Box::leak(opened), pd: None, xrcd: None });
            all.len() - 1
        }
    };
    Ok(f(&mut all[at]))
}

/// As [`with`], for the device of an identifier.
fn of<R>(context: &Context, f: impl FnOnce(&mut Shared) -> Result<R, Failure>) -> Result<R, Failure> {
    with(device::object_of(context.device()), f)
        .map_err(|error| failed!(error, "device", "context"; "the device cannot be opened"))?
}

/// Returns the shared context of a device, and its protection domain.
pub(crate) fn cm_device(context: &Context) -> Result<(&'static ContextObject, &'static PdObject), Failure> {
    of(context, |shared| {
        let pd = match shared.pd {
            Some(pd) => pd,
            None => Box::leak(owned(|| alloc_pd(shared.context))?),
        };
        shared.pd = Some(pd);
        Ok((shared.context, pd))
    })
}

/// Returns the XRC domain of a device, for identifiers for which the application names none.
pub(crate) fn cm_xrcd(context: &Context) -> Result<&'static XrcdObject, Failure> {
    of(context, |shared| {
        let xrcd = match shared.xrcd {
            Some(xrcd) => xrcd,
            None => Box::leak(owned(|| xrc::open(shared.context, None, libc::O_CREAT))?),
        };
        shared.xrcd = Some(xrcd);
        Ok(xrcd)
    })
}

/// The devices among which identifiers choose.
pub(crate) struct AllDevices;

impl roxie::cm::Devices for AllDevices {
    fn devices(&self, again: bool) -> Vec<Device> {
        let devices = device::devices(again).inspect_err(refusal::explain).unwrap_or_default();
        devices.into_iter().map(|object| object.tail.device.clone()).collect()
    }

    fn context(&self, device: &Device) -> io::Result<Context> {
        with(device::object_of(device), |shared| shared.context.tail.context.clone())
    }

    fn explain(&self, error: &io::Error) {
        refusal::explain(error);
    }
}

/// Returns the shared context of the device with a local address; of the first device for `None`.
pub(crate) fn context_at(local: Option<IpAddr>) -> io::Result<Context> {
    let has = |object: &DeviceObject| {
        local.is_none_or(|ip| object.tail.device.gids().index_of(&Gid::from(ip)).is_some())
    };
    let find = |again| -> io::Result<Option<&DeviceObject>> {
        let devices = device::devices(again).inspect_err(refusal::explain)?;
        Ok(devices.into_iter().find(|object| has(object)))
    };
    let found = match find(false)? {
        Some(device) => Some(device),
        None => find(true)?,
    };
    let device = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    with(device, |shared| shared.context.tail.context.clone())
}

pub(crate) unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    // SAFETY: rdma_get_devices(3).
    let number: Option<Out<c_int>> = unsafe { typed(number) };
    // Without a device the list is empty, and errno says why.
    let contexts = contexts().inspect_err(|failure| set_errno(failure.errno())).unwrap_or_default();
    let list = null_terminated(&contexts);
    if list.is_null() {
        return null(no_memory!("device list"));
    }
    if let Some(number) = number {
        number.write(contexts.len() as c_int);
    }
    list
}

fn contexts() -> Result<Vec<*mut ibv_context>, Failure> {
    let devices = device::devices(true).inspect_err(refusal::explain).map_err(|error| {
        let os = Os::from(&error);
        refuse!(ENODEV, "device", "netdev"; os as Os; "there is no device"; "'roxie doctor' may know why")
    })?;
    let opened = devices.into_iter().map(|object| with(object, |shared| shared.context.public_context()));
    let opened = opened.collect::<io::Result<_>>().inspect_err(refusal::explain);
    opened.map_err(|error| failed!(error, "device", "context"; "the device cannot be opened"))
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the application passes what rdma_get_devices returned.
    unsafe { libc::free(list.cast()) };
}
