//! librdmacm.so.1: every function is one jump into libibverbs.so.1, which has the code and the engine of the
//! process.
//!
//! `build.rs` generates the jumps from `symbols/rdmacm.txt`. Rust's runtime is not linked in.

#![cfg_attr(not(test), no_std)]

#[cfg(not(test))]
include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
