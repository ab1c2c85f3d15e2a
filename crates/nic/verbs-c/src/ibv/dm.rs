//! Device memory (ibv_alloc_dm(3), ibv_import_dm(3)).

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use libc::size_t;
use roxie::transport::{VerbsError, refuse};
use roxie::verbs::Dm;

use crate::abi::context::ibv_context;
use crate::abi::memory::{ibv_alloc_dm_attr, ibv_dm};
use crate::abi::objects::{ibv_mr, ibv_pd};
use crate::errno::{busy, code, done, given, known_bits, no_argument, null, status};
use crate::handle::{GivenUp, members, typed};
use crate::object::Object;
use crate::observer::Between;

use super::context::ContextObject;
use super::handles::{self, Shared};
use super::pd_mr::{self, PdObject};

type DmObject = Object<ibv_dm, DmTail>;

struct DmTail {
    shared: Arc<Dm>,
    is_import: bool,
}

members! { DmObject {
    handle: handle as u32;
} }

fn export(context: &ContextObject, handle: u32, tail: DmTail) -> *mut ibv_dm {
    let public = ibv_dm {
        context: context.public_context(),
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: 0,
        handle,
    };
    DmObject::export(public, tail)
}

/// Implements `ibv_alloc_dm`.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: ibv_alloc_dm(3).
    let (context, attr): (Option<&ContextObject>, Option<&ibv_alloc_dm_attr>) =
        unsafe { typed((context, attr.cast_const())) };
    given!(null; context, attr);
    known_bits!(null; EOPNOTSUPP, "device memory", "comp_mask"; attr.comp_mask, 0);
    let dm = done!(null; context.tail.context.alloc_dm(attr.length, attr.log_align_req));
    let shared = Arc::new(dm);
    let handle = context.tail.command.identity().add(Shared::Dm(Arc::clone(&shared)));
    export(context, handle, DmTail { shared, is_import: false })
}

/// Implements `ibv_free_dm`.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: ibv_alloc_dm(3).
    let dm: Option<GivenUp<DmObject>> = unsafe { typed(dm) };
    given!(code; dm);
    if dm.tail.shared.in_use() {
        return code(busy!("device memory"; "regions use the device memory"));
    }
    if !dm.tail.is_import {
        handles::remove(dm.handle().get());
    }
    dm.free();
    0
}

pub(crate) unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    // SAFETY: ibv_import_dm(3).
    let context: Option<&ContextObject> = unsafe { typed(context) };
    given!(null; context);
    match context.tail.command.identity().find(handle) {
        Some(Shared::Dm(shared)) => export(context, handle, DmTail { shared, is_import: true }),
        _ => null(pd_mr::no_handle(handle)),
    }
}

pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: ibv_import_dm(3).
    let dm: Option<GivenUp<DmObject>> = unsafe { typed(dm) };
    if let Some(dm) = dm.filter(|dm| dm.tail.is_import) {
        dm.free();
    }
}

/// Implements `ibv_reg_dm_mr`. The address in the C object is NULL: only the device can reach the memory.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: size_t,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: ibv_alloc_dm(3).
    let (pd, dm): (Option<&PdObject>, Option<&DmObject>) = unsafe { typed((pd, dm)) };
    given!(null; pd, dm);
    let region =
        pd_mr::rights(access).and_then(|access| pd.tail.reg_dm_mr(&dm.tail.shared, offset, length, access));
    let mr = done!(null; region.between(&[("pd", pd.address()), ("dm", dm.address())]));
    let rkey = mr.rkey().0;
    pd_mr::export(pd, ptr::null_mut(), length, mr, rkey)
}

/// Device memory is copied in units of this many bytes, as hardware demands: a program that works here works
/// there.
const UNIT: u64 = 4;

/// Checks that a copy has memory of the application and whole units.
fn check_copy(offset: u64, length: size_t, given: usize) -> Result<(), VerbsError> {
    if given != length {
        return Err(no_argument!("host_addr"));
    }
    if offset.is_multiple_of(UNIT) && (length as u64).is_multiple_of(UNIT) {
        return Ok(());
    }
    Err(refuse!(EINVAL, "device memory", "dm_offset"; offset, length;
        "{length} bytes at {offset}; offset and length are multiples of {UNIT}"))
}

/// Implements `ibv_memcpy_to_dm`.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: size_t,
) -> c_int {
    // SAFETY: ibv_alloc_dm(3).
    let (dm, from): (Option<&DmObject>, &[u8]) = unsafe { typed((dm, (from, length))) };
    given!(code; dm);
    status(check_copy(offset, length, from.len()).and_then(|()| dm.tail.shared.write(offset, from)))
}

/// Implements `ibv_memcpy_from_dm`.
unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: size_t) -> c_int {
    // SAFETY: ibv_alloc_dm(3).
    let (dm, to): (Option<&DmObject>, &mut [u8]) = unsafe { typed((dm, (to, length))) };
    given!(code; dm);
    status(check_copy(offset, length, to.len()).and_then(|()| dm.tail.shared.read(offset, to)))
}
