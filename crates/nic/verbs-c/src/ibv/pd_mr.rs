//! Protection domains and memory regions (ibv_alloc_pd(3), ibv_reg_mr(3)).

use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, ptr};

use libc::size_t;
use roxie::same_device;
use roxie::transport::{Access, PdId, Sge, VerbsError, refuse};
use roxie::verbs::{Mr, MrChange, Pd};

use crate::abi::context::ibv_context;
use crate::abi::objects::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_OPTIONAL_RANGE, IBV_ADVISE_MR_ADVICE_PREFETCH,
    IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT, ibv_mr, ibv_pd,
};
use crate::errno::{Failure, busy, code, done, failed, given, known_bits, no_argument, null};
use crate::handle::{GivenUp, members, typed};
use crate::object::Object;
use crate::observer::{Between, observer};
use crate::refusal;

use super::context::ContextObject;
use super::handles::{self, Shared, new_handle};
use super::pages;

pub(crate) type PdObject = Object<ibv_pd, PdTail>;
pub(crate) type MrObject = Object<ibv_mr, MrTail>;

/// A protection domain, which imports share.
pub(crate) struct PdTail {
    shared: Arc<Pd>,
    is_import: bool,
}

impl Deref for PdTail {
    type Target = Pd;

    fn deref(&self) -> &Pd {
        &self.shared
    }
}

members! { PdObject {
    context: context as *mut ibv_context;
    owner: context => ContextObject;
    handle: handle as u32;
} }

impl PdObject {
    /// Refuses the domain for objects of a context of another device.
    pub(crate) fn check_device(&self, context: &ContextObject) -> Result<(), VerbsError> {
        same_device!("context", "pd"; context.device(), self.tail.context().device())
            .between(&[("context", context.address()), ("pd", self.address())])
    }
}

members! { MrObject {
    pd: pd as *mut ibv_pd;
    addr: addr as *mut c_void;
    length: length as size_t;
    handle: handle as u32;
    lkey: lkey as u32;
} }

/// The region, which ibv_rereg_mr changes and imports share; `None` once it is deregistered.
pub(crate) struct MrTail {
    shared: Arc<Mutex<Option<Mr>>>,
    is_import: bool,
}

impl MrTail {
    fn lock(&self) -> MutexGuard<'_, Option<Mr>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another object is the one of the registration.
    pub(crate) fn is_import(&self) -> bool {
        self.is_import
    }

    /// Its domain, the first address for peers, and the rights; `None` once it is deregistered.
    pub(crate) fn remote(&self) -> Option<(PdId, u64, Access)> {
        self.lock().as_ref().map(|mr| (mr.pd().id(), mr.iova(), mr.access()))
    }
}

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: ibv_alloc_pd(3).
    let context: Option<&ContextObject> = unsafe { typed(context) };
    given!(null; context);
    let pd = done!(null; alloc_pd(context));
    pd.give()
}

/// Allocates a protection domain, or returns the errno after printing why the engine does not start.
pub(crate) fn alloc_pd(context: &ContextObject) -> Result<Box<PdObject>, Failure> {
    let context_of = &context.tail.context;
    let explain = |error: &io::Error| {
        // Otherwise the device has its largest number of protection domains.
        if !context_of.device().is_running() {
            refusal::explain(error);
        }
    };
    let pd = context_of
        .alloc_pd()
        .inspect_err(explain)
        .map_err(|error| failed!(error, "device", "engine"; "the engine of the device does not start"))?;
    Ok(export_pd(context, pd))
}

/// Makes the C object of a new domain.
pub(super) fn export_pd(context: &ContextObject, pd: Pd) -> Box<PdObject> {
    let shared = Arc::new(pd);
    let handle = context.tail.command.identity().add(Shared::Pd(Arc::clone(&shared)));
    PdObject::boxed(ibv_pd { context: context.public_context(), handle }, PdTail { shared, is_import: false })
}

pub(crate) unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: ibv_import_pd(3).
    let context: Option<&ContextObject> = unsafe { typed(context) };
    given!(null; context);
    let Some(Shared::Pd(shared)) = context.tail.command.identity().find(handle) else {
        return null(no_handle(handle));
    };
    PdObject::export(ibv_pd { context: context.public_context(), handle }, PdTail { shared, is_import: true })
}

/// The refusal to import an object that does not exist.
#[cold]
pub(super) fn no_handle(handle: u32) -> VerbsError {
    refuse!(ENOENT, "context", "handle"; handle;
        "no object of this kind has the handle {handle} in a context with this command descriptor")
}

pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: ibv_import_pd(3).
    let pd: Option<GivenUp<PdObject>> = unsafe { typed(pd) };
    if let Some(pd) = pd.filter(|pd| pd.tail.is_import) {
        pd.free();
    }
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: ibv_dealloc_pd(3).
    let pd: Option<GivenUp<PdObject>> = unsafe { typed(pd) };
    given!(code; pd);
    if pd.tail.in_use() {
        return code(busy!("protection domain";
            "the protection domain has queue pairs, SRQs, regions, windows or address handles"));
    }
    dealloc(pd);
    0
}

/// Frees a domain that no object uses.
pub(crate) fn dealloc(pd: GivenUp<PdObject>) {
    if !pd.tail.is_import {
        handles::remove(pd.handle().get());
    }
    pd.free();
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_mr(3).
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as u32) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_mr_iova(3).
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as u32) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_mr(3).
    let pd: Option<&PdObject> = unsafe { typed(pd) };
    given!(null; pd);
    let checked = rights(access).and_then(|access| {
        check_memory(addr, length, access)?;
        Ok(access)
    });
    let access = done!(null; checked);
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    // SAFETY: the application keeps the range mapped until it deregisters it (ibv_reg_mr(3)).
    let mr = done!(null; unsafe { pd.tail.reg_mr(addr.cast(), length, iova, access) });
    let rkey = mr.rkey().0;
    export(pd, addr, length, mr, rkey)
}

/// Implements `ibv_alloc_null_mr`. Its `rkey` is 0, which is no key: peers cannot reach the region.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: ibv_alloc_null_mr(3).
    let pd: Option<&PdObject> = unsafe { typed(pd) };
    given!(null; pd);
    let mr = done!(null; pd.tail.alloc_null_mr());
    export(pd, ptr::null_mut(), size_t::MAX, mr, 0)
}

/// Makes the C object of a region.
pub(super) fn export(pd: &PdObject, addr: *mut c_void, length: size_t, mr: Mr, rkey: u32) -> *mut ibv_mr {
    let (context, lkey) = (pd.context().get(), mr.lkey().0);
    let tail = MrTail { shared: Arc::new(Mutex::new(Some(mr))), is_import: false };
    let owner = pd.owner().map(|owner| owner.tail.command.identity());
    let handle = owner.map_or_else(new_handle, |file| file.add(Shared::Mr(Arc::clone(&tail.shared))));
    MrObject::export(ibv_mr { context, pd: pd.public(), addr, length, handle, lkey, rkey }, tail)
}

/// Gives the region of `handle` another C object. Its address is NULL, as the manual page says.
pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: ibv_import_mr(3).
    let pd: Option<&PdObject> = unsafe { typed(pd) };
    given!(null; pd);
    let found = pd.owner().and_then(|owner| owner.tail.command.identity().find(handle));
    let Some(Shared::Mr(shared)) = found else { return null(no_handle(handle)) };
    let tail = MrTail { shared, is_import: true };
    let Some((lkey, rkey, len)) = tail.lock().as_ref().map(|mr| (mr.lkey().0, mr.rkey().0, mr.len())) else {
        return null(no_handle(handle));
    };
    let (context, addr, length) = (pd.context().get(), ptr::null_mut(), len as size_t);
    MrObject::export(ibv_mr { context, pd: pd.public(), addr, length, handle, lkey, rkey }, tail)
}

/// Frees the C object; the region stays.
pub(crate) unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: ibv_import_mr(3).
    let mr: Option<GivenUp<MrObject>> = unsafe { typed(mr) };
    if let Some(mr) = mr.filter(|mr| mr.tail.is_import) {
        mr.free();
    }
}

/// Returns the access rights that an application asks for, without the hints that make no difference here,
/// such as relaxed ordering and huge pages.
pub(super) fn rights(access: u32) -> Result<Access, VerbsError> {
    let hints = IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB;
    // The device cannot tell which memory survives a power failure.
    let known = Access::all() - Access::FLUSH_PERSISTENT;
    known_bits!(Err; EOPNOTSUPP, "memory region", "access"; access & !hints, known.bits());
    Ok(Access::from_bits_truncate(access & !hints))
}

/// Checks that there is memory to register with these rights.
///
/// With on-demand paging any range may be registered: each transfer checks what is mapped then. NULL with the
/// largest length is the whole address space (an implicit region).
fn check_memory(addr: *mut c_void, length: size_t, access: Access) -> Result<(), VerbsError> {
    let (on_demand, null) = (access.contains(Access::ON_DEMAND), 0);
    if addr.is_null() && length != 0 && !(on_demand && length == size_t::MAX) {
        return Err(refuse!(EINVAL, "memory region", "addr"; null, length;
            "{length} bytes at NULL; NULL with SIZE_MAX and IBV_ACCESS_ON_DEMAND is the whole address \
             space"));
    }
    if on_demand {
        return Ok(());
    }
    pages::check(addr, length, access.contains(Access::LOCAL_WRITE))
}

/// Implements `ibv_advise_mr`: faults the pages of on-demand regions in ahead of the transfers.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_int,
    flags: u32,
    list: *mut Sge,
    count: u32,
) -> c_int {
    // SAFETY: ibv_advise_mr(3).
    let (pd, list): (Option<&PdObject>, Option<&[Sge]>) =
        unsafe { typed((pd, (list.cast_const(), count as usize))) };
    given!(code; pd);
    // FLUSH asks the call to return when the pages are there, as it always does.
    known_bits!(code; EINVAL, "memory region", "flags"; flags, IBV_ADVISE_MR_FLAG_FLUSH);
    if count == 0 || c_int::try_from(count).is_err() {
        return code(refuse!(EINVAL, "memory region", "num_sge"; count; is "{count}: a number of elements"));
    }
    if !(IBV_ADVISE_MR_ADVICE_PREFETCH..=IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT).contains(&advice) {
        return code(refuse!(EOPNOTSUPP, "memory region", "advice"; advice as i32;
            is "{advice}, the device knows IBV_ADVISE_MR_ADVICE_PREFETCH*"));
    }
    given!(code; list as "sg_list");
    let write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    let access = if write { Access::LOCAL_WRITE } else { Access::empty() };
    for sge in list {
        let at = done!(code; pd.tail.locate(sge, access));
        if advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT
            && let Err(errno) = pages::populate(at as *mut c_void, sge.length as size_t, write)
        {
            return code(errno);
        }
    }
    0
}

/// The changes that ibv_rereg_mr makes to a region. Arguments that no flag names are ignored.
struct Change {
    pd: Option<*mut ibv_pd>,
    range: Option<(*mut c_void, size_t)>,
    access: Option<Access>,
}

impl Change {
    fn new(
        flags: c_int,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        access: c_int,
    ) -> Result<Self, VerbsError> {
        let known = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        known_bits!(Err; EINVAL, "memory region", "flags"; flags, known);
        if flags == 0 {
            return Err(refuse!(EINVAL, "memory region", "flags"; flags as i32; is "0: nothing to change"));
        }
        let range = (flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0).then_some((addr, length));
        let pd = (flags & IBV_REREG_MR_CHANGE_PD != 0).then_some(pd);
        if range.is_some_and(|(addr, length)| addr.is_null() || length == 0) {
            let addr = addr.addr();
            return Err(refuse!(EINVAL, "memory region", "addr"; addr, length;
                "{length} bytes at {addr:#x}: there is no memory"));
        }
        if pd.is_some_and(<*mut ibv_pd>::is_null) {
            return Err(no_argument!("pd"));
        }
        let changes_access = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
        let access = if changes_access { Some(rights(access as u32)?) } else { None };
        Ok(Self { pd, range, access })
    }
}

/// Changes a region completely or not at all; its keys stay. Returns 0 or an IBV_REREG_MR_ERR_*.
///
/// After IBV_REREG_MR_ERR_CMD the region is as it was, unlike with rdma-core.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    let failed = |result, refused: VerbsError| {
        code(refused);
        result
    };
    let input = |refused| failed(IBV_REREG_MR_ERR_INPUT, refused);
    let command = |refused| failed(IBV_REREG_MR_ERR_CMD, refused);
    // SAFETY: ibv_rereg_mr(3).
    let mr: Option<&MrObject> = unsafe { typed(mr) };
    given!(input; mr);
    let asked = done!(input; Change::new(flags, pd, addr, length, access));
    // SAFETY: ibv_rereg_mr(3): the domain counts only if a flag names it.
    let domain: Option<&PdObject> = unsafe { typed(asked.pd.unwrap_or(ptr::null_mut())) };
    let mut guard = mr.tail.lock();
    let Some(region) = guard.as_mut() else { return input(deregistered(mr)) };
    let mut access = asked.access.unwrap_or(region.access());
    let (addr, length) = asked.range.unwrap_or_else(|| (mr.addr().get(), mr.length().get()));
    done!(command; check_memory(addr, length, access));
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { addr as u64 };
    let range = asked.range.map(|_| (addr.cast(), length, iova));
    if range.is_none() {
        // The first address of a region is part of its translation.
        access.set(Access::ZERO_BASED, region.access().contains(Access::ZERO_BASED));
    }
    let change = MrChange { pd: domain.map(|d| &*d.tail), range, access: Some(access) };
    // SAFETY: the application keeps the range mapped until it deregisters it or changes it again.
    let changed = unsafe { region.change(&change) };
    let pd = domain.map_or(0, Object::address);
    done!(command; changed.between(&[("mr", mr.address()), ("pd", pd)]));
    if let Some(domain) = domain {
        mr.pd().set(domain.public());
    }
    mr.addr().set(addr);
    mr.length().set(length);
    drop(guard);
    if let Some(observer) = observer() {
        (observer.changed)(mr.address());
    }
    0
}

/// The refusal of a region that was deregistered through another C object.
#[cold]
fn deregistered(mr: &MrObject) -> VerbsError {
    let key = mr.lkey().get();
    refuse!(EINVAL, "memory region", "lkey"; key; "the region {key:#010x} was deregistered by another handle")
}

pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: ibv_dereg_mr(3).
    let mr: Option<GivenUp<MrObject>> = unsafe { typed(mr) };
    given!(code; mr);
    let mut region = mr.tail.lock();
    match &*region {
        None => return code(deregistered(&mr)),
        Some(region) if region.has_windows() => {
            return code(busy!("memory region"; "memory windows are bound to the region"));
        }
        Some(_) => {}
    }
    // Dropping the region ends all access to the memory.
    *region = None;
    drop(region);
    handles::remove(mr.handle().get());
    mr.free();
    0
}
