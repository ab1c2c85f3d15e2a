//! Prefetch hints for a cache line.
//!
//! `_mm_prefetch` is not used: it always emits a read hint unless the build targets CPUs with
//! `prefetchw`.

/// The line will be read.
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

/// The line will be written. CPUs without this instruction execute it as a no-op.
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
