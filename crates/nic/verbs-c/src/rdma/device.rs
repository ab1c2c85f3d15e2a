//! The device as the connection manager uses it (rdma_get_devices(3)): opened once, with one protection
//! domain.

use std::any::Any;
use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use sys::{generation, lock_until};

use crate::abi::context::ibv_context;
use crate::check;
use crate::errno::{null, of_io, set_errno};
use crate::handle::{Out, typed};
use crate::ibv::device::{self, ContextObject, null_terminated};
use crate::ibv::pd_mr::{PdObject, alloc_pd};
use crate::ibv::xrc::{self, XrcdObject};
use crate::refusal;

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
    fn get_or_make(&mut self, make: impl FnOnce() -> Option<T>) -> Option<T> {
        let generation = generation();
        if self.made.is_none_or(|(of, _)| of != generation) {
            self.made = check::owned(make).map(|made| (generation, made));
        }
        self.made.map(|(_, made)| made)
    }
}

/// Returns the shared context, or `None` with `errno` set.
fn context() -> Option<&'static ContextObject> {
    let mut slot = CONTEXT.lock().unwrap_or_else(PoisonError::into_inner);
    slot.get_or_make(|| {
        let device =
            device::device().inspect_err(refusal::explain).inspect_err(|_| set_errno(libc::ENODEV)).ok()?;
        let opened =
            device::open(device).inspect_err(refusal::explain).inspect_err(|error| set_errno(of_io(error)));
        opened.ok().map(|context| &*Box::leak(context))
    })
}

/// Locks the statics of this file until the returned value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new((lock_until(&XRCD, until_ns), lock_until(&PD, until_ns), lock_until(&CONTEXT, until_ns)))
}

/// Returns the device with its protection domain, or `None` with `errno` set if it cannot be opened.
pub(crate) fn cm_device() -> Option<CmDevice> {
    let mut slot = PD.lock().unwrap_or_else(PoisonError::into_inner);
    slot.get_or_make(|| {
        let context = context()?;
        let pd = alloc_pd(context).inspect_err(|errno| set_errno(*errno)).ok()?;
        Some(CmDevice { context, pd: Box::leak(pd) })
    })
}

/// Returns the XRC domain of identifiers for which the application names none, or `None` with `errno` set.
pub(crate) fn cm_xrcd() -> Option<&'static XrcdObject> {
    let mut slot = XRCD.lock().unwrap_or_else(PoisonError::into_inner);
    slot.get_or_make(|| {
        let xrcd = xrc::open(context()?, None, libc::O_CREAT).inspect_err(|errno| set_errno(*errno)).ok()?;
        Some(&*Box::leak(xrcd))
    })
}

pub(crate) unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    // SAFETY: rdma_get_devices(3).
    let number: Option<Out<c_int>> = unsafe { typed(number) };
    let context = context();
    let list = null_terminated(context.map_or(ptr::null_mut(), ContextObject::public));
    if list.is_null() {
        return null(libc::ENOMEM);
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
