//! The user-space machine: runs XDP programs on packets outside the kernel.
//!
//! There is no verifier. Every access is checked at run time. Guest addresses have 32 bits; the context, the
//! stack, the packet and each map have a window in this address space (`space`). An access outside all
//! windows ends the program with [`Aborted`](crate::XdpAction::Aborted). A budget limits the run time. So
//! arbitrary bytes can be loaded safely, and the kernel's layout of `struct xdp_md` with its 32-bit pointers
//! needs no rewriting.
//!
//! Most packets of a flow have the same result; [`Replay`] records it and skips the run.
//!
//! An [`Image`] is a checked program with its maps, shared between threads. A [`Machine`] belongs to one
//! thread.

mod buff;
mod call;
mod check;
mod control;
mod exec;
mod extra;
mod fuse;
mod image;
mod load;
mod memory;
mod op;
mod outcome;
mod output;
mod record;
mod replay;
mod run;
mod space;
mod trace;

pub use buff::XdpBuff;
pub use exec::Machine;
pub use image::{Image, LoadError, LoadErrorKind};
pub(crate) use op::holds;
pub use outcome::{Fault, FaultKind, Outcome, Redirect};
pub use replay::Replay;

/// Services of the host that a program can call.
pub trait Env {
    /// Returns the time in nanoseconds since some fixed moment (CLOCK_MONOTONIC in the kernel).
    fn ktime_ns(&mut self) -> u64;

    /// Returns 32 random bits.
    fn random(&mut self) -> u32;

    /// Answers `struct bpf_fib_lookup` in place. Returns `BPF_FIB_LKUP_RET_*` or a negative error number. The
    /// default is the answer of a host that does not forward.
    fn fib_lookup(&mut self, query: &mut [u8; 64]) -> i64 {
        let _ = query;
        FIB_FWD_DISABLED
    }

    /// Returns the MTU of the interface with this index for `bpf_check_mtu`. The default is that there is no
    /// such interface.
    fn mtu(&mut self, ifindex: u32) -> Option<u32> {
        let _ = ifindex;
        None
    }

    /// Returns what is known about the packet besides its bytes, for `bpf_xdp_metadata_rx_*`. The default is
    /// nothing.
    fn rx_hints(&mut self) -> RxHints {
        RxHints::default()
    }

    /// Receives a line of `bpf_trace_printk`.
    fn trace(&mut self, line: &str) {
        let _ = line;
    }
}

/// What a host knows about a received packet besides its bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RxHints {
    /// Receive time in nanoseconds, on the clock of the NIC or of the kernel.
    pub timestamp_ns: Option<u64>,
    /// Hash of the flow, and what it covers (`enum xdp_rss_hash_type`).
    pub hash: Option<(u32, u16)>,
    /// The VLAN tag that is not in the packet any more: protocol and TCI.
    pub vlan: Option<(u16, u16)>,
}

/// `BPF_FIB_LKUP_RET_FWD_DISABLED`
const FIB_FWD_DISABLED: i64 = 5;

#[cfg(test)]
mod tests;
