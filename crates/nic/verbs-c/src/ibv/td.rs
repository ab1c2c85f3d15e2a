//! Thread domains and parent domains (ibv_alloc_td(3), ibv_alloc_parent_domain(3)).

use std::ffi::c_int;

use roxie::same_device;
use roxie::verbs::{Context, Td};

use crate::abi::context::ibv_context;
use crate::abi::objects::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use crate::errno::{busy, code, done, given, known_bits, null};
use crate::handle::{GivenUp, typed};
use crate::object::Object;
use crate::observer::Between;

use super::context::ContextObject;
use super::pd_mr::{PdObject, export_pd};

type TdObject = Object<ibv_td, TdTail>;

struct TdTail {
    td: Td,
    /// The context stays open for it, also that of a removed device which identifiers share.
    context: Context,
}

/// Implements `ibv_alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init_attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: ibv_alloc_td(3).
    let (owner, attr): (Option<&ContextObject>, Option<&ibv_td_init_attr>) =
        unsafe { typed((context, init_attr.cast_const())) };
    given!(null; owner as "context", attr);
    known_bits!(null; EOPNOTSUPP, "thread domain", "comp_mask"; attr.comp_mask, 0);
    TdObject::export(ibv_td { context }, TdTail { td: Td::default(), context: owner.tail.context.clone() })
}

/// Implements `ibv_dealloc_td`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: ibv_dealloc_td(3).
    let td: Option<GivenUp<TdObject>> = unsafe { typed(td) };
    given!(code; td);
    if td.tail.td.in_use() {
        return code(busy!("thread domain"; "protection domains use the thread domain"));
    }
    td.free();
    0
}

/// Implements `ibv_alloc_parent_domain`; `ibv_dealloc_pd` frees the domain.
///
/// The application's allocator is ignored: it is for memory that a hardware device reads.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    // SAFETY: ibv_alloc_parent_domain(3).
    let (context, attr): (Option<&ContextObject>, Option<&ibv_parent_domain_init_attr>) =
        unsafe { typed((context, attr.cast_const())) };
    given!(null; context, attr);
    known_bits!(null; EOPNOTSUPP, "parent domain", "comp_mask"; attr.comp_mask, KNOWN);
    // SAFETY: ibv_alloc_parent_domain(3): the attributes name objects.
    let (pd, td): (Option<&PdObject>, Option<&TdObject>) = unsafe { typed((attr.pd, attr.td)) };
    given!(null; pd);
    done!(null; pd.check_device(context));
    if let Some(td) = td {
        let same = same_device!("context", "td"; context.device(), td.tail.context.device());
        done!(null; same.between(&[("context", context.address()), ("td", td.address())]));
    }
    let parent = done!(null; pd.tail.parent(td.map(|td| &td.tail.td)));
    export_pd(context, parent).give()
}
