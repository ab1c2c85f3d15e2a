//! The device as the connection manager uses it (rdma_get_devices(3)): opened once, with one protection
//! domain.

use std::any::Any;
use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use sys::{generation, lock_until};

use crate::abi::context::ibv_context;
use crate::check;
use crate::errno::{Failure, failed, no_memory, null, set_errno};
use crate::handle::{Out, typed};
use crate::ibv::device::{self, ContextObject, null_terminated};
use crate::ibv::pd_mr::{PdObject, alloc_pd};
use crate::ibv::xrc::{self, XrcdObject};
use crate::refusal;
use roxie::transport::refusal::Os;
use roxie::transport::refuse;

/// The context and protection domain that all identifiers share; open for the life of the process.
#[derive(Clone, Copy)]
pub(crate) struct CmDevice {
    pub(crate) context: &'static ContextObject,
    pub(crate) pd: &'static PdObject,
}

static CONTEXT: Mutex<Shared<&ContextObject>> = Mutex::new(Shared { made: None });
static PD: Mutex<Shared<CmDevice>> = Mutex::new(Shared { made: None });
static XRCD: Mutex<Shared<&XrcdObject>> = Mutex::new(Shared { made: None });

/// A value that each process makes once. A forked child makes its own instead of using its parent's.
struct Shared<T> {
    made: Option<(u32, T)>,
}

impl<T: Copy> Shared<T> {
    fn get_or_make(&mut self, make: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let generation = generation();
        match self.made {
            Some((of, made)) if of == generation => Ok(made),
            _ => {
                let made = check::owned(make)?;
                self.made = Some((generation, made));
                Ok(made)
            }
        }
    }
}

/// Returns the shared context.
fn context() -> Result<&'static ContextObject, Failure> {
    let mut slot = CONTEXT.lock().unwrap_or_else(PoisonError::into_inner);
    slot.get_or_make(|| {
        let device = device::device().inspect_err(refusal::explain).map_err(|error| {
            let os = Os::from(&error);
            refuse!(ENODEV, "device", "netdev"; os as Os; "there is no device"; "'roxie doctor' may know why")
        })?;
        let opened = device::open(device).inspect_err(refusal::explain);
        let opened =
            opened.map_err(|error| failed!(error, "device", "context"; "the device cannot be opened"))?;
        Ok(&*Box::leak(opened))
    })
}

/// Locks the statics of this file until the returned value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new((lock_until(&XRCD, until_ns), lock_until(&PD, until_ns), lock_until(&CONTEXT, until_ns)))
}

/// Returns the device with its protection domain.
pub(crate) fn cm_device() -> Result<CmDevice, Failure> {
    let mut slot = PD.lock().unwrap_or_else(PoisonError::into_inner);
    slot.get_or_make(|| {
        let context = context()?;
        let pd = alloc_pd(context)?;
        Ok(CmDevice { context, pd: Box::leak(pd) })
    })
}

/// Returns the XRC domain of identifiers for which the application names none.
pub(crate) fn cm_xrcd() -> Result<&'static XrcdObject, Failure> {
    let mut slot = XRCD.lock().unwrap_or_else(PoisonError::into_inner);
    slot.get_or_make(|| Ok(&*Box::leak(xrc::open(context()?, None, libc::O_CREAT)?)))
}

pub(crate) unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    // SAFETY: rdma_get_devices(3).
    let number: Option<Out<c_int>> = unsafe { typed(number) };
    // Without a device the list is empty, and errno says why.
    let context = context().inspect_err(|failure| set_errno(failure.errno())).ok();
    let list = null_terminated(context.map_or(ptr::null_mut(), ContextObject::public));
    if list.is_null() {
        return null(no_memory!("device list"));
    }
    if let Some(number) = number {
        number.write(c_int::from(context.is_some()));
    }
    list
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the application passes what rdma_get_devices returned.
    unsafe { libc::free(list.cast()) };
}
