//! Thread domains and parent domains (ibv_alloc_td(3), ibv_alloc_parent_domain(3)).

use std::ffi::c_int;

use roxie::verbs::Td;

use crate::abi::context::ibv_context;
use crate::abi::objects::{ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use crate::errno::{code, null};
use crate::object::Object;

use super::pd_mr::PdObject;

type TdObject = Object<ibv_td, Td>;

/// The operation behind `ibv_alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init_attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: NULL or the program's attributes.
    match unsafe { init_attr.as_ref() } {
        None => null(libc::EINVAL),
        Some(attr) if attr.comp_mask != 0 => null(libc::EOPNOTSUPP),
        Some(_) => TdObject::export(ibv_td { context }, Td::default()),
    }
}

/// The operation behind `ibv_dealloc_td`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the inline function reads a member first, so it is one of ours.
    let Some(object) = (unsafe { TdObject::from_ptr(td) }) else { return code(libc::EINVAL) };
    if object.tail.in_use() {
        return code(libc::EBUSY);
    }
    // SAFETY: the caller gives it up, and no parent domain has it.
    drop(unsafe { TdObject::retire(td) });
    0
}

/// The operation behind `ibv_alloc_parent_domain`; `ibv_dealloc_pd` ends it. The program's allocator is for memory that a
/// device reads, of which there is none.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    /// IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, PD_CONTEXT.
    const KNOWN: u32 = 1 | 1 << 1;
    // SAFETY: NULL or the program's attributes.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return null(libc::EINVAL) };
    if attr.comp_mask & !KNOWN != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: ours or NULL.
    let (pd, td) = unsafe { (PdObject::from_ptr(attr.pd), TdObject::from_ptr(attr.td)) };
    let Some(pd) = pd else { return null(libc::EINVAL) };
    let parent = pd.tail.parent(td.map(|td| &td.tail));
    PdObject::export(ibv_pd { context, handle: 0 }, parent)
}
