//! libroxie_preload.so, which `libroxie_audit.so` gives to the program `rdma` of iproute2, and to no other.
//!
//! Three functions of the C library become calls of libibverbs.so.1, which answers the netlink family
//! NETLINK_RDMA and passes everything else to the kernel. Rust's runtime is not linked in.

#![cfg_attr(not(test), no_std)]

use core::ffi::{c_int, c_void};

// The version node ROXIE_1 of libibverbs.so.1; `build.rs` has the names for the linker.
unsafe extern "C" {
    fn roxie_nl_socket(domain: c_int, ty: c_int, protocol: c_int) -> c_int;
    fn roxie_nl_sendto(
        fd: c_int,
        bytes: *const c_void,
        len: usize,
        flags: c_int,
        address: *const c_void,
        address_len: u32,
    ) -> isize;
    fn roxie_nl_recvmsg(fd: c_int, message: *mut c_void, flags: c_int) -> isize;
}

/// socket(2).
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, ty: c_int, protocol: c_int) -> c_int {
    // SAFETY: numbers.
    unsafe { roxie_nl_socket(domain, ty, protocol) }
}

/// sendto(2).
///
/// # Safety
/// That of sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
    address: *const c_void,
    address_len: u32,
) -> isize {
    // SAFETY: the caller's.
    unsafe { roxie_nl_sendto(fd, bytes, len, flags, address, address_len) }
}

/// recvmsg(2).
///
/// # Safety
/// That of recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut c_void, flags: c_int) -> isize {
    // SAFETY: the caller's.
    unsafe { roxie_nl_recvmsg(fd, message, flags) }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
