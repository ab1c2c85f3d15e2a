//! Protection domains and memory regions (ibv_alloc_pd(3), ibv_reg_mr(3)).

use std::ffi::{c_int, c_void};
use std::{io, ptr};

use libc::size_t;
use roxie::transport::Access;
use roxie::verbs::{Mr, Pd};

use crate::abi::context::ibv_context;
use crate::abi::objects::{ibv_mr, ibv_pd};
use crate::errno::{code, null, of_io};
use crate::object::Object;
use crate::refusal;

use super::device::ContextObject;

pub(crate) type PdObject = Object<ibv_pd, Pd>;
pub(crate) type MrObject = Object<ibv_mr, Mr>;

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
    let Some(access) = Access::from_bits(access & !(ACCESS_OPTIONAL | ACCESS_HUGETLB)) else {
        return null(libc::EOPNOTSUPP);
    };
    if access.contains(Access::ON_DEMAND) {
        return null(libc::EOPNOTSUPP);
    }
    if addr.is_null() && length != 0 {
        return null(libc::EINVAL);
    }
    if let Err(errno) = populate(addr, length, access.contains(Access::LOCAL_WRITE)) {
        return null(errno);
    }
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    // SAFETY: the program keeps the range mapped until it deregisters it (ibv_reg_mr(3)).
    match unsafe { object.tail.reg_mr(addr.cast(), length, iova, access) } {
        Ok(mr) => {
            // SAFETY: `pd` is one of ours.
            let context = unsafe { (*pd).context };
            let (lkey, rkey) = (mr.lkey().0, mr.rkey().0);
            MrObject::export(ibv_mr { context, pd, addr, length, handle: lkey >> 8, lkey, rkey }, mr)
        }
        Err(error) => null(error.errno()),
    }
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

pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    if mr.is_null() {
        return code(libc::EINVAL);
    }
    // SAFETY: a region of ours that the caller gives up; dropping the handle ends all access to the memory.
    drop(unsafe { MrObject::retire(mr) });
    0
}
