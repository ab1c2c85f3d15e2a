//! The device as the connection manager sees it (rdma_get_devices(3)): opened once, with one protection domain.

use std::any::Any;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use sys::{generation, lock_until};

use crate::abi::context::ibv_context;
use crate::abi::objects::{ibv_pd, ibv_xrcd, ibv_xrcd_init_attr};
use crate::errno::{null, set_errno};
use crate::ibv::device::{device, ibv_open_device};
use crate::ibv::pd_mr::ibv_alloc_pd;
use crate::ibv::xrc::open_xrcd;
use crate::refusal;

/// The context and protection domain that every identifier shares; open for the life of the process.
#[derive(Clone, Copy)]
pub(crate) struct CmDevice {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

// SAFETY: both objects may be used from any thread and are never freed.
unsafe impl Send for CmDevice {}

static CONTEXT: Mutex<Shared<usize>> = Mutex::new(Shared { made: None });
static PD: Mutex<Shared<CmDevice>> = Mutex::new(Shared { made: None });
static XRCD: Mutex<Shared<usize>> = Mutex::new(Shared { made: None });

/// Something that a process makes once; a forked child does not take over its parent's.
struct Shared<T> {
    made: Option<(u32, T)>,
}

impl<T: Copy> Shared<T> {
    fn get_or_make(&mut self, make: impl FnOnce() -> Option<T>) -> Option<T> {
        let generation = generation();
        if self.made.is_none_or(|(of, _)| of != generation) {
            self.made = make().map(|made| (generation, made));
        }
        self.made.map(|(_, made)| made)
    }
}

/// The shared context, or NULL and `errno`.
fn context() -> *mut ibv_context {
    let mut slot = CONTEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let context = slot.get_or_make(|| {
        let device = device().inspect_err(refusal::explain).inspect_err(|_| set_errno(libc::ENODEV)).ok()?;
        // SAFETY: a device of ours.
        let opened = unsafe { ibv_open_device(device.public()) };
        (!opened.is_null()).then(|| opened.expose_provenance())
    });
    context.map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
}

/// Locks what is static here until the value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new((lock_until(&XRCD, until_ns), lock_until(&PD, until_ns), lock_until(&CONTEXT, until_ns)))
}

/// The device with its protection domain; `None` with `errno` set if it cannot be opened.
pub(crate) fn cm_device() -> Option<CmDevice> {
    let mut slot = PD.lock().unwrap_or_else(PoisonError::into_inner);
    slot.get_or_make(|| {
        let context = context();
        if context.is_null() {
            return None;
        }
        // SAFETY: a context of ours.
        let pd = unsafe { ibv_alloc_pd(context) };
        (!pd.is_null()).then_some(CmDevice { context, pd })
    })
}

/// The XRC domain of identifiers whose program brings none, or NULL and `errno`.
pub(crate) fn cm_xrcd() -> *mut ibv_xrcd {
    let mut slot = XRCD.lock().unwrap_or_else(PoisonError::into_inner);
    let xrcd = slot.get_or_make(|| {
        // Both members, no file.
        let mut asked = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: a context of ours or NULL.
        let opened = unsafe { open_xrcd(context(), &raw mut asked) };
        (!opened.is_null()).then(|| opened.expose_provenance())
    });
    xrcd.map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
}

pub(crate) unsafe extern "C" fn rdma_get_devices(number: *mut c_int) -> *mut *mut ibv_context {
    let context = context();
    // SAFETY: plain allocation, freed by rdma_free_devices.
    let list: *mut *mut ibv_context = unsafe { libc::calloc(2, size_of::<*mut ibv_context>()) }.cast();
    if list.is_null() {
        return null(libc::ENOMEM);
    }
    // SAFETY: the first of two elements; the caller passes an int or NULL.
    unsafe {
        list.write(context);
        if !number.is_null() {
            number.write(c_int::from(!context.is_null()));
        }
    }
    list
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the caller passes what rdma_get_devices returned.
    unsafe { libc::free(list.cast()) };
}
