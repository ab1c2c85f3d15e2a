//! Machines without guarded instructions: a fault kills the process, as it would anywhere else.

use std::sync::atomic::{AtomicU64, Ordering};

/// No instruction is guarded.
pub(super) fn resume_at(_pc: usize) -> Option<usize> {
    None
}

/// # Safety
/// As [`super::read`] and [`super::write`], and the memory is mapped.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> u32 {
    // SAFETY: upheld by the caller.
    unsafe {
        if len == 8 && to.addr().is_multiple_of(8) {
            let word = from.cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(to.cast()).store(word, Ordering::Release);
        } else {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
    }
    0
}

/// # Safety
/// As [`super::fetch_add`], and the memory is mapped.
pub(super) unsafe fn fetch_add(at: *mut u64, add: u64, original: *mut u64) -> u32 {
    // SAFETY: upheld by the caller.
    unsafe { *original = AtomicU64::from_ptr(at).fetch_add(add, Ordering::SeqCst) };
    0
}

/// # Safety
/// As [`super::compare_swap`], and the memory is mapped.
pub(super) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64, original: *mut u64) -> u32 {
    // SAFETY: upheld by the caller.
    unsafe {
        let cell = AtomicU64::from_ptr(at);
        let (Ok(was) | Err(was)) = cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        *original = was;
    }
    0
}
