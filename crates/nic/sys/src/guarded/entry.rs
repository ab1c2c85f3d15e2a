//! What the instructions of every machine (`aarch64.rs`, `x86_64.rs`) have in common: the atomics, and where
//! a thread continues after a fault.

unsafe extern "C" {
    fn roxie_guard_begin();
    fn roxie_guard_fetch_add(at: *mut u64, add: u64, original: *mut u64) -> u32;
    fn roxie_guard_compare_swap(at: *mut u64, compare: u64, swap: u64, original: *mut u64) -> u32;
    fn roxie_guard_refused();
}

/// Returns where to continue after the instruction at `pc` faulted; `None` if it is not one of these.
pub(super) fn resume_at(pc: usize) -> Option<usize> {
    let (begin, end) = (roxie_guard_begin as *const () as usize, roxie_guard_refused as *const () as usize);
    (begin..end).contains(&pc).then_some(end)
}

/// # Safety
/// As [`super::fetch_add`].
pub(super) unsafe fn fetch_add(at: *mut u64, add: u64, original: *mut u64) -> u32 {
    // SAFETY: upheld by the caller.
    unsafe { roxie_guard_fetch_add(at, add, original) }
}

/// # Safety
/// As [`super::compare_swap`].
pub(super) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64, original: *mut u64) -> u32 {
    // SAFETY: upheld by the caller.
    unsafe { roxie_guard_compare_swap(at, compare, swap, original) }
}
