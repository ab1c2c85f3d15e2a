//! The device as the connection manager sees it (rdma_get_devices(3)): opened once, with one protection domain.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use crate::abi::context::ibv_context;
use crate::abi::objects::ibv_pd;
use crate::errno::null;
use crate::ibv::device::{device, ibv_open_device};
use crate::ibv::pd_mr::ibv_alloc_pd;

/// The context and protection domain that every identifier shares; open for the life of the process.
#[derive(Clone, Copy)]
pub(crate) struct CmDevice {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

// SAFETY: both objects may be used from any thread and are never freed.
unsafe impl Send for CmDevice {}

static CONTEXT: Mutex<usize> = Mutex::new(0);
static PD: Mutex<Option<CmDevice>> = Mutex::new(None);

/// The shared context, or NULL and `errno`.
fn context() -> *mut ibv_context {
    let mut slot = CONTEXT.lock().unwrap_or_else(PoisonError::into_inner);
    if *slot == 0 {
        let Ok(device) = device() else { return null(libc::ENODEV) };
        // SAFETY: a device of ours.
        let opened = unsafe { ibv_open_device(device.public()) };
        *slot = opened.expose_provenance();
    }
    std::ptr::with_exposed_provenance_mut(*slot)
}

/// The device with its protection domain; `None` with `errno` set if it cannot be opened.
pub(crate) fn cm_device() -> Option<CmDevice> {
    let mut slot = PD.lock().unwrap_or_else(PoisonError::into_inner);
    if slot.is_none() {
        let context = context();
        if context.is_null() {
            return None;
        }
        // SAFETY: a context of ours.
        let pd = unsafe { ibv_alloc_pd(context) };
        if pd.is_null() {
            return None;
        }
        *slot = Some(CmDevice { context, pd });
    }
    *slot
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
