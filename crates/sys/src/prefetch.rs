//! Hints to the CPU that a line of memory will be used soon.
//!
//! Not `_mm_prefetch`: that is a read hint whatever is asked for, unless the program is built for CPUs that have the other instruction.

/// It will be read.
#[inline]
pub(super) fn to_read(at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes neither memory nor registers nor flags, and does not fault, whatever the address.
    unsafe {
        std::arch::asm!("prefetcht0 [{0}]", in(reg) at, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _unused = at;
}

/// It will be written. (CPUs without this instruction take it for none.)
#[inline]
pub(super) fn to_write(at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes neither memory nor registers nor flags, and does not fault, whatever the address.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) at, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _unused = at;
}
