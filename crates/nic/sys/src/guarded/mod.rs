//! Copies and atomics on memory that the application may have unmapped: a fault becomes an error instead
//! of killing the process.
//!
//! Nothing is checked before a copy, because a check would be a system call, and outdated at once. The
//! instructions that touch application memory are in one place (`x86_64.rs`, `aarch64.rs`). When one of them
//! faults, `handler.rs` continues where the function returns an error, so the usual case costs nothing. The
//! alternatives cost a system call per packet (process_vm_writev(2), preadv2(2) from a memfd), stop the
//! application in its munmap(2) (userfaultfd(2) events), or pin memory (io_uring), of which an ordinary
//! user may have next to none.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod entry;
mod handler;
pub mod pages;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as machine;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use plain as machine;
#[cfg(target_arch = "x86_64")]
use x86_64 as machine;

pub use handler::watch;

/// Whether this machine has guarded instructions. Without them a fault kills the process.
pub const AVAILABLE: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The memory is not mapped, or not writable. Bytes before the fault may have been copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unmapped;

/// Copies `dst.len()` bytes from `from`.
///
/// # Safety
/// The memory at `from` may be read at any time, and is no part of `dst`.
#[inline]
pub unsafe fn read(from: u64, dst: &mut [u8]) -> Result<(), Unmapped> {
    let (to, length) = (dst.as_mut_ptr(), dst.len());
    // SAFETY: `dst` is ours; the caller upholds the rest.
    let copied = attempt((from, length, false), || unsafe { machine::copy(to, from as *const u8, length) });
    // SAFETY: upheld by the caller.
    copied.or_else(|Unmapped| unsafe { pages::read(from, dst) })
}

/// Copies `src` to `to`, in increasing order of addresses. Eight aligned bytes are stored at once.
///
/// # Safety
/// The memory at `to` may be written at any time, and is no part of `src`.
#[inline]
pub unsafe fn write(src: &[u8], to: u64) -> Result<(), Unmapped> {
    // SAFETY: `src` is ours; the caller upholds the rest.
    let copy = || unsafe { machine::copy(to as *mut u8, src.as_ptr(), src.len()) };
    let copied = attempt((to, src.len(), true), copy);
    // SAFETY: upheld by the caller.
    copied.or_else(|Unmapped| unsafe { pages::write(src, to) })
}

/// Adds to the eight bytes at `at` and returns their previous value.
///
/// # Safety
/// The memory at `at`, which is a multiple of 8, may be changed at any time.
pub unsafe fn fetch_add(at: u64, add: u64) -> Result<u64, Unmapped> {
    let mut original = 0;
    // SAFETY: upheld by the caller.
    let mut access = || unsafe { machine::fetch_add(at as *mut u64, add, &raw mut original) };
    let first = attempt((at, 8, true), &mut access);
    // SAFETY: `access` is a guarded access of this memory.
    first.or_else(|Unmapped| unsafe { pages::again((at, 8, true), None, access) })?;
    Ok(original)
}

/// Stores `swap` in the eight bytes at `at` if they equal `compare`, and returns their previous value.
///
/// # Safety
/// The memory at `at`, which is a multiple of 8, may be changed at any time.
pub unsafe fn compare_swap(at: u64, compare: u64, swap: u64) -> Result<u64, Unmapped> {
    let mut original = 0;
    // SAFETY: upheld by the caller.
    let mut access = || unsafe { machine::compare_swap(at as *mut u64, compare, swap, &raw mut original) };
    let first = attempt((at, 8, true), &mut access);
    // SAFETY: `access` is a guarded access of this memory.
    first.or_else(|Unmapped| unsafe { pages::again((at, 8, true), None, access) })?;
    Ok(original)
}

/// Makes a guarded access of `length` bytes at `at`, unless a checker has protected some of them.
#[inline]
fn attempt((at, length, writes): (u64, usize, bool), access: impl FnOnce() -> u32) -> Result<(), Unmapped> {
    if pages::may_fault(at, length, writes) || access() != 0 { Err(Unmapped) } else { Ok(()) }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod fault_tests;
#[cfg(test)]
mod tests;
