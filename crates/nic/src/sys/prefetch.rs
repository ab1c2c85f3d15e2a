//! Hints to the CPU that a line of memory will be used soon. They change nothing and cannot fail, whatever the address.

/// It will be read.
#[inline]
pub(super) fn to_read(at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint.
    unsafe {
        std::arch::asm!("prefetcht0 [{0}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _no_stable_hint = at;
}

/// It will be written. (CPUs without this instruction take it for none.)
#[inline]
pub(super) fn to_write(at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _no_stable_hint = at;
}
