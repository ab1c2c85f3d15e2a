//! Open devices, as the functions of the other modules get them.

use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

use roxie::verbs::{Context, Device};

use crate::abi::context::{ibv_context, verbs_context};
use crate::handle::{FromC, GivenUp, typed};
use crate::object::Object;

use super::device_object::DeviceObject;
use super::handles::Command;

/// An open device: what precedes and follows the `ibv_context` that applications hold.
pub(crate) type ContextObject = Object<verbs_context, ContextTail>;

pub(crate) struct ContextTail {
    pub(crate) context: Context,
    /// What the public context points to.
    pub(super) _device: Arc<DeviceObject>,
    /// Stands in for the uverbs descriptor, which applications duplicate and import.
    pub(crate) command: Command,
}

/// Returns the address of the structure that holds this context.
fn around(context: *mut ibv_context) -> *mut verbs_context {
    if context.is_null() {
        return ptr::null_mut();
    }
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

impl ContextObject {
    /// Returns the pointer that C holds.
    pub(crate) fn public_context(&self) -> *mut ibv_context {
        self.public().wrapping_byte_add(offset_of!(verbs_context, context)).cast()
    }

    pub(crate) fn device(&self) -> &Device {
        self.tail.context.device()
    }

    /// Gives the object to C.
    pub(crate) fn give_context(self: Box<Self>) -> *mut ibv_context {
        self.give().wrapping_byte_add(offset_of!(verbs_context, context)).cast()
    }
}

/// An open device, or `None` for NULL.
impl FromC<*mut ibv_context> for Option<&ContextObject> {
    #[inline]
    unsafe fn from_c(context: *mut ibv_context) -> Self {
        // SAFETY: an `ibv_context` of this library is in a `verbs_context`.
        unsafe { typed(around(context)) }
    }
}

impl FromC<*mut ibv_context> for Option<GivenUp<'_, ContextObject>> {
    unsafe fn from_c(context: *mut ibv_context) -> Self {
        // SAFETY: as above; the application gives it up.
        unsafe { typed(around(context)) }
    }
}
