//! The user-space machine: XDP programs on packets that never see the kernel.
//!
//! There is no verifier. Instead every access is checked when it happens: guest addresses are 32-bit, the context,
//! the stack, the packet and each map have a window (`space`) of them, and what lies in no window ends the program
//! with [`Aborted`](crate::XdpAction::Aborted). A budget bounds its time. So any bytes may be loaded, and the kernel's layout of
//! `struct xdp_md`, with its 32-bit pointers, needs no rewriting.
//!
//! Most packets of a flow make a program do the same; [`Replay`] knows, and spares the run.
//!
//! An [`Image`] is a checked program with its maps and is shared between threads; a [`Machine`] belongs to one thread.

mod buff;
mod call;
mod check;
mod exec;
mod fuse;
mod image;
mod memory;
mod op;
mod outcome;
mod output;
mod record;
mod replay;
mod space;
mod trace;

pub use buff::XdpBuff;
pub use exec::Machine;
pub use image::{Image, LoadError, LoadErrorKind};
pub use outcome::{Fault, FaultKind, Outcome, Redirect};
pub use replay::Replay;

/// What a program can ask of the world.
pub trait Env {
    /// Nanoseconds since some fixed moment (CLOCK_MONOTONIC in the kernel).
    fn ktime_ns(&mut self) -> u64;

    /// Any 32 bits.
    fn random(&mut self) -> u32;

    /// Answers `struct bpf_fib_lookup` in place, and returns `BPF_FIB_LKUP_RET_*` or a negative error number. Without
    /// routes of its own, a machine does as a host that does not forward.
    fn fib_lookup(&mut self, query: &mut [u8; 64]) -> i64 {
        let _ = query;
        FIB_FWD_DISABLED
    }

    /// A line of `bpf_trace_printk`.
    fn trace(&mut self, line: &str) {
        let _ = line;
    }
}

/// `BPF_FIB_LKUP_RET_FWD_DISABLED`
const FIB_FWD_DISABLED: i64 = 5;

#[cfg(test)]
mod tests;
