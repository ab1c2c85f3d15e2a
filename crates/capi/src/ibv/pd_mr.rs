//! Protection domains and memory regions (ibv_alloc_pd(3), ibv_reg_mr(3)).

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{io, ptr};

use libc::size_t;
use roxie::transport::{Access, Sge};
use roxie::verbs::{Mr, MrChange, Pd};

use crate::abi::context::ibv_context;
use crate::abi::objects::{ibv_mr, ibv_pd};
use crate::errno::{code, null, of_io, set_errno};
use crate::object::Object;
use crate::refusal;

use super::device::ContextObject;
use super::post::sg_list;

pub(crate) type PdObject = Object<ibv_pd, Pd>;
pub(crate) type MrObject = Object<ibv_mr, MrTail>;

/// The region, which ibv_rereg_mr changes.
pub(crate) struct MrTail(Mutex<Mr>);

impl MrTail {
    fn lock(&self) -> MutexGuard<'_, Mr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// IBV_ACCESS_HUGETLB: huge pages make no difference here.
const ACCESS_HUGETLB: u32 = 1 << 7;
/// IBV_ACCESS_OPTIONAL_RANGE: hints, such as relaxed ordering.
const ACCESS_OPTIONAL: u32 = 0x3ff0_0000;

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: a context of ours or NULL.
    let Some(object) = (unsafe { ContextObject::from_ptr(context) }) else { return null(libc::EINVAL) };
    match object.tail.context.alloc_pd() {
        Ok(pd) => PdObject::export(ibv_pd { context, handle: 0 }, pd),
        // The engine does not start.
        Err(error) => {
            refusal::explain(&error);
            null(of_io(&error))
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a domain of ours or NULL.
    let Some(object) = (unsafe { PdObject::from_ptr(pd) }) else { return code(libc::EINVAL) };
    if object.tail.in_use() {
        return code(libc::EBUSY);
    }
    // SAFETY: the caller gives it up, and nothing uses it.
    drop(unsafe { PdObject::retire(pd) });
    0
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller's.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as u32) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller's.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as u32) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: a domain of ours or NULL.
    let Some(object) = (unsafe { PdObject::from_ptr(pd) }) else { return null(libc::EINVAL) };
    let checked = rights(access).and_then(|access| {
        check_memory(addr, length, access)?;
        Ok(access)
    });
    let access = match checked {
        Ok(access) => access,
        Err(errno) => return null(errno),
    };
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    // SAFETY: the program keeps the range mapped until it deregisters it (ibv_reg_mr(3)).
    match unsafe { object.tail.reg_mr(addr.cast(), length, iova, access) } {
        Ok(mr) => {
            // SAFETY: `pd` is one of ours.
            let context = unsafe { (*pd).context };
            let (lkey, rkey) = (mr.lkey().0, mr.rkey().0);
            let public = ibv_mr { context, pd, addr, length, handle: lkey >> 8, lkey, rkey };
            MrObject::export(public, MrTail(Mutex::new(mr)))
        }
        Err(error) => null(error.errno()),
    }
}

/// The operation behind `ibv_alloc_null_mr`. Its `rkey` is no key: peers do not reach it.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the inline function reads a member first, so it is one of ours.
    let Some(object) = (unsafe { PdObject::from_ptr(pd) }) else { return null(libc::EINVAL) };
    match object.tail.alloc_null_mr() {
        Ok(mr) => {
            // SAFETY: `pd` is one of ours.
            let context = unsafe { (*pd).context };
            let (addr, length, lkey) = (ptr::null_mut(), size_t::MAX, mr.lkey().0);
            let public = ibv_mr { context, pd, addr, length, handle: lkey >> 8, lkey, rkey: 0 };
            MrObject::export(public, MrTail(Mutex::new(mr)))
        }
        Err(error) => null(error.errno()),
    }
}

/// The rights that a program asked for, without the hints that make no difference here.
fn rights(access: u32) -> Result<Access, c_int> {
    let access = Access::from_bits(access & !(ACCESS_OPTIONAL | ACCESS_HUGETLB)).ok_or(libc::EOPNOTSUPP)?;
    // What a power failure leaves is not known of any memory here.
    if access.contains(Access::FLUSH_PERSISTENT) { Err(libc::EOPNOTSUPP) } else { Ok(access) }
}

/// Whether there is memory to register with these rights. On demand anything may be registered: what is there when a
/// transfer comes decides. From NULL to the end is the whole address space (an implicit region).
fn check_memory(addr: *mut c_void, length: size_t, access: Access) -> Result<(), c_int> {
    let on_demand = access.contains(Access::ON_DEMAND);
    if addr.is_null() && length != 0 && !(on_demand && length == size_t::MAX) {
        return Err(libc::EINVAL);
    }
    if on_demand {
        return Ok(());
    }
    populate(addr, length, access.contains(Access::LOCAL_WRITE))
}

/// Faults the pages in, as pinning would: memory that is not there, or not writable although it must be, is refused
/// now instead of crashing a transfer later.
fn populate(addr: *mut c_void, length: size_t, write: bool) -> Result<(), c_int> {
    // SAFETY: a constant of the C library.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let before = addr as usize % page;
    let Some(length) = length.checked_add(before) else { return Err(libc::EINVAL) };
    if length == before {
        return Ok(());
    }
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: an empty range; the kernel only checks whether it knows the advice (since 5.14).
    if unsafe { libc::madvise(ptr::null_mut(), 0, advice) } != 0 {
        return Ok(());
    }
    loop {
        // SAFETY: populating changes no memory content, and an unmapped range is an error, not a fault.
        if unsafe { libc::madvise(addr.wrapping_byte_sub(before), length, advice) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            _ => return Err(libc::EFAULT),
        }
    }
}

/// The operation behind `ibv_advise_mr`: faults the pages of on-demand regions in ahead of the transfers.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_int,
    flags: u32,
    list: *mut Sge,
    count: u32,
) -> c_int {
    /// IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, PREFETCH_NO_FAULT (the largest).
    const WRITE: c_int = 1;
    const NO_FAULT: c_int = 2;
    /// IB_UVERBS_ADVISE_MR_FLAG_FLUSH: return when it is done, as is always the case here.
    const FLUSH: u32 = 1;
    // SAFETY: a domain of ours or NULL.
    let Some(object) = (unsafe { PdObject::from_ptr(pd) }) else { return code(libc::EINVAL) };
    if flags & !FLUSH != 0 || count == 0 {
        return code(libc::EINVAL);
    }
    if !(0..=NO_FAULT).contains(&advice) {
        return code(libc::EOPNOTSUPP);
    }
    // SAFETY: the program's list.
    let list = match unsafe { sg_list(list, count as c_int) } {
        Ok(list) => list,
        Err(error) => return code(error.errno()),
    };
    let access = if advice == WRITE { Access::LOCAL_WRITE } else { Access::empty() };
    for sge in list {
        let Ok(at) = object.tail.locate(sge, access) else { return code(libc::EFAULT) };
        if advice != NO_FAULT
            && let Err(errno) = populate(at as *mut c_void, sge.length as size_t, advice == WRITE)
        {
            return code(errno);
        }
    }
    0
}

/// What of a region `ibv_rereg_mr` changes; members that are not named by a flag are not looked at.
struct Wanted {
    pd: Option<*mut ibv_pd>,
    range: Option<(*mut c_void, size_t)>,
    access: Option<Access>,
}

impl Wanted {
    fn new(
        flags: c_int,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        access: c_int,
    ) -> Result<Self, c_int> {
        /// IBV_REREG_MR_CHANGE_TRANSLATION, PD, ACCESS.
        const TRANSLATION: c_int = 1;
        const PD: c_int = 1 << 1;
        const ACCESS: c_int = 1 << 2;
        if flags == 0 || flags & !(TRANSLATION | PD | ACCESS) != 0 {
            return Err(libc::EINVAL);
        }
        let range = (flags & TRANSLATION != 0).then_some((addr, length));
        let pd = (flags & PD != 0).then_some(pd);
        if range.is_some_and(|(addr, length)| addr.is_null() || length == 0)
            || pd.is_some_and(<*mut ibv_pd>::is_null)
        {
            return Err(libc::EINVAL);
        }
        let access = if flags & ACCESS != 0 { Some(rights(access as u32)?) } else { None };
        Ok(Self { pd, range, access })
    }
}

/// Changes a region all or nothing; its keys stay. Returns 0 or an IBV_REREG_MR_ERR_*.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    /// The call was wrong; the region is as it was.
    const ERR_INPUT: c_int = -1;
    /// It could not be done; the region is as it was, unlike after rdma-core's error of this name.
    const ERR_CMD: c_int = -4;
    let failed = |code, errno| {
        set_errno(errno);
        code
    };
    // SAFETY: a region of ours or NULL.
    let Some(object) = (unsafe { MrObject::from_ptr(mr) }) else { return failed(ERR_INPUT, libc::EINVAL) };
    let wanted = match Wanted::new(flags, pd, addr, length, access) {
        Ok(wanted) => wanted,
        Err(errno) => return failed(ERR_INPUT, errno),
    };
    // SAFETY: members of a live object, which the program does not use during this call.
    let (was_addr, was_length) = unsafe { ((*mr).addr, (*mr).length) };
    // SAFETY: NULL or a domain of ours.
    let domain = wanted.pd.and_then(|pd| unsafe { PdObject::from_ptr(pd) });
    let mut region = object.tail.lock();
    let mut access = wanted.access.unwrap_or(region.access());
    let (addr, length) = wanted.range.unwrap_or((was_addr, was_length));
    if let Err(errno) = check_memory(addr, length, access) {
        return failed(ERR_CMD, errno);
    }
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { addr as u64 };
    let range = wanted.range.map(|_| (addr.cast(), length, iova));
    if range.is_none() {
        // Where addresses start is part of the translation.
        access.set(Access::ZERO_BASED, region.access().contains(Access::ZERO_BASED));
    }
    let change = MrChange { pd: domain.map(|d| &d.tail), range, access: Some(access) };
    // SAFETY: the program keeps the range mapped until it deregisters it or changes it again.
    if let Err(error) = unsafe { region.change(&change) } {
        return failed(ERR_CMD, error.errno());
    }
    // SAFETY: as above.
    unsafe {
        (*mr).pd = wanted.pd.unwrap_or((*mr).pd);
        (*mr).addr = addr;
        (*mr).length = length;
    }
    0
}

pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: a region of ours or NULL.
    let Some(object) = (unsafe { MrObject::from_ptr(mr) }) else { return code(libc::EINVAL) };
    if object.tail.lock().has_windows() {
        return code(libc::EBUSY);
    }
    // SAFETY: the caller gives it up; dropping the handle ends all access to the memory.
    drop(unsafe { MrObject::retire(mr) });
    0
}
