//! The devices as the connection manager uses them (rdma_get_devices(3)): each opened once, with one
//! protection domain.

use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard};

use sys::ProcessMutex;

use crate::abi::context::ibv_context;
use crate::abi::objects::{ibv_pd, ibv_xrcd};
use crate::errno::{Failure, failed, no_memory, null, set_errno};
use crate::handle::{GivenUp, Out, typed};
use crate::ibv::context::ContextObject;
use crate::ibv::device::{self, null_terminated};
use crate::ibv::device_object::DeviceObject;
use crate::ibv::pd_mr::{self, PdObject, alloc_pd};
use crate::ibv::xrc::{self, XrcdObject};
use crate::observer::owned;
use crate::refusal;
use roxie::transport::refusal::Os;
use roxie::transport::refuse;
use roxie::verbs::{Context, Device, cause};
use roxie::wire::Gid;

/// What all identifiers of a device share; open for the life of the process, or of a device that is removed.
/// A forked child makes its own.
struct Shared {
    context: GivenUp<'static, ContextObject>,
    pd: Option<GivenUp<'static, PdObject>>,
    xrcd: Option<GivenUp<'static, XrcdObject>>,
    /// Lists of rdma_get_devices that have it.
    lists: usize,
}

impl Shared {
    fn is_removed(&self) -> bool {
        self.context.device().is_removed()
    }

    /// True if the application uses neither the context nor the domains. Each identifier and each object has
    /// a handle of the context; an XRC domain has two, of its protection domain and its CQ.
    fn is_unused(&self) -> bool {
        let own = 1 + usize::from(self.pd.is_some()) + 2 * usize::from(self.xrcd.is_some());
        self.lists == 0
            && self.context.tail.context.handles() == own
            && self.pd.as_ref().is_none_or(|pd| !pd.tail.in_use())
            && self.xrcd.as_ref().is_none_or(|xrcd| !xrcd.tail.in_use())
    }
}

/// Closes the devices that were removed and that the application does not use any more.
pub(crate) fn close_removed() {
    let is_over = |shared: &mut Shared| shared.is_removed() && shared.is_unused();
    let over: Vec<_> = lock().extract_if(.., is_over).collect();
    for Shared { context, pd, xrcd, .. } in over {
        xrcd.into_iter().for_each(GivenUp::free);
        pd.into_iter().for_each(pd_mr::dealloc);
        context.free();
    }
}

static SHARED: ProcessMutex<Vec<Shared>> = ProcessMutex::new();

fn lock() -> MutexGuard<'static, Vec<Shared>> {
    SHARED.lock()
}

/// Calls `f` with what the identifiers of a device share; opens the device at the first call.
fn with<R>(device: &Device, f: impl FnOnce(&mut Shared) -> R) -> io::Result<R> {
    let is_of = |shared: &Shared| shared.context.device() == device;
    let mut all = lock();
    if let Some(shared) = all.iter_mut().find(|shared| is_of(shared)) {
        return Ok(f(shared));
    }
    drop(all);
    // Without the lock, which calls for other devices need: another thread may be starting the engine.
    let opened = owned(|| device::open(device::object_of(device)))?;
    let mut all = lock();
    let at = match all.iter().position(is_of) {
        Some(at) => at,
        None => {
            all.push(Shared { context: GivenUp::never_given(opened), pd: None, xrcd: None, lists: 0 });
            all.len() - 1
        }
    };
    Ok(f(&mut all[at]))
}

/// As [`with`], for the device of an identifier.
fn of<R>(context: &Context, f: impl FnOnce(&mut Shared) -> Result<R, Failure>) -> Result<R, Failure> {
    with(context.device(), f)
        .map_err(|error| failed!(error, "device", "context"; "the device cannot be opened"))?
}

/// Returns the shared context of a device, and its protection domain. Both stay as long as an identifier has
/// the device.
pub(crate) fn cm_device(context: &Context) -> Result<(*mut ibv_context, *mut ibv_pd), Failure> {
    of(context, |shared| {
        let pd = match shared.pd.take() {
            Some(pd) => pd,
            None => GivenUp::never_given(owned(|| alloc_pd(&shared.context))?),
        };
        Ok((shared.context.public_context(), shared.pd.insert(pd).public()))
    })
}

/// Returns the XRC domain of a device, for identifiers for which the application names none.
pub(crate) fn cm_xrcd(context: &Context) -> Result<*mut ibv_xrcd, Failure> {
    of(context, |shared| {
        let xrcd = match shared.xrcd.take() {
            Some(xrcd) => xrcd,
            None => GivenUp::never_given(owned(|| xrc::open(&shared.context, None, libc::O_CREAT))?),
        };
        Ok(shared.xrcd.insert(xrcd).public())
    })
}

/// The devices among which identifiers choose.
pub(crate) struct AllDevices;

impl roxie::cm::Devices for AllDevices {
    fn devices(&self, again: bool) -> io::Result<Vec<Device>> {
        let devices = device::devices(again).inspect_err(refusal::explain)?;
        Ok(devices.into_iter().map(|object| object.tail.device.clone()).collect())
    }

    fn context(&self, device: &Device) -> io::Result<Context> {
        with(device, |shared| shared.context.tail.context.clone())
    }

    fn explain(&self, device: &Device, error: &io::Error) {
        refusal::explain_of(Some(device), error);
    }
}

/// Returns the shared context of the device with a local address; of the first device for `None`.
pub(crate) fn context_at(local: Option<IpAddr>) -> io::Result<Context> {
    let has = |object: &Arc<DeviceObject>| {
        local.is_none_or(|ip| object.tail.device.gids().index_of(&Gid::from(ip)).is_some())
    };
    let find = |again| -> io::Result<Option<Arc<DeviceObject>>> {
        let devices = device::devices(again).inspect_err(refusal::explain)?;
        Ok(devices.into_iter().find(|object| has(object)))
    };
    let found = match find(false)? {
        Some(device) => Some(device),
        None => find(true)?,
    };
    let device = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    with(&device.tail.device, |shared| shared.context.tail.context.clone())
}

pub(crate) unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    // SAFETY: rdma_get_devices(3).
    let number: Option<Out<c_int>> = unsafe { typed(number) };
    // Without a device the list is empty, and errno says why.
    let contexts = contexts().inspect_err(|failure| set_errno(failure.errno())).unwrap_or_default();
    let list = null_terminated(&contexts);
    if list.is_null() {
        give_back(contexts);
        return null(no_memory!("device list"));
    }
    if let Some(number) = number {
        number.write(contexts.len() as c_int);
    }
    list
}

fn contexts() -> Result<Vec<*mut ibv_context>, Failure> {
    let devices = device::devices(true).inspect_err(refusal::explain).map_err(|error| {
        let os = cause(&error);
        refuse!(ENODEV, "device", "netdev"; os as Os; "there is no device: {os}";
            "'roxie doctor' may know why")
    })?;
    let list = |shared: &mut Shared| {
        shared.lists += 1;
        shared.context.public_context()
    };
    let mut contexts = Vec::new();
    for object in devices {
        match with(&object.tail.device, list) {
            Ok(context) => contexts.push(context),
            Err(error) => {
                give_back(contexts);
                refusal::explain(&error);
                return Err(failed!(error, "device", "context"; "the device cannot be opened"));
            }
        }
    }
    Ok(contexts)
}

/// Gives up the devices of a list; closes those that were removed.
fn give_back(contexts: impl IntoIterator<Item = *mut ibv_context>) {
    for context in contexts {
        for shared in lock().iter_mut().filter(|shared| shared.context.public_context() == context) {
            shared.lists = shared.lists.saturating_sub(1);
        }
    }
    close_removed();
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the application passes what rdma_get_devices returned.
    give_back(unsafe { device::elements(list) });
    // SAFETY: as above; nothing uses the list any more.
    unsafe { libc::free(list.cast()) };
}
