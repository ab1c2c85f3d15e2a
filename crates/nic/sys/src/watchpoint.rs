//! Counting the uses of a few bytes of memory by threads of this process: debug registers of the CPU, by
//! perf_event_open(2). A CPU has four; some machines, kernels and containers give none.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::check;

/// `struct perf_event_attr`, PERF_ATTR_SIZE_VER1.
#[derive(Default)]
#[repr(C)]
struct BreakpointAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    address: u64,
    length: u64,
}

// `linux/perf_event.h` and `linux/hw_breakpoint.h`.
const TYPE_BREAKPOINT: u32 = 5;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// What is counted.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Counted {
    /// Writes.
    Writes = 2,
    /// Reads and writes: no CPU counts reads only.
    All = 3,
}

/// Counts how often some bytes are used, by instructions of threads and of threads that they start.
#[derive(Debug)]
pub struct Watchpoint(Vec<OwnedFd>);

impl Watchpoint {
    /// Counts the uses of `length` bytes (4 or 8) at an address that is a multiple of it.
    ///
    /// # Errors
    /// `EACCES` and `EPERM`: not permitted (`kernel.perf_event_paranoid`); `ENOSPC`: no debug register is
    /// free; `EINVAL`: not these bytes.
    pub fn new(counted: Counted, at: u64, length: u64, threads: &[i32]) -> io::Result<Self> {
        let attr = BreakpointAttr {
            kind: TYPE_BREAKPOINT,
            size: size_of::<BreakpointAttr>() as u32,
            flags: INHERIT | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
            breakpoint_type: counted as u32,
            address: at,
            length,
            ..BreakpointAttr::default()
        };
        let open = |thread: &i32| {
            // SAFETY: `attr` is valid for the size that it states, and the kernel only reads it.
            let fd = unsafe {
                libc::syscall(
                    libc::SYS_perf_event_open,
                    std::ptr::from_ref(&attr),
                    *thread,
                    -1 as libc::c_int,
                    -1 as libc::c_int,
                    FLAG_FD_CLOEXEC,
                )
            };
            let fd = check(fd as libc::c_int)?;
            // SAFETY: the kernel has just installed it for this process, and it has no other owner.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        threads.iter().map(open).collect::<io::Result<_>>().map(Self)
    }

    /// The uses so far; `None` if they cannot be read.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        self.0.iter().try_fold(0, |sum, event| {
            let mut value = [0_u8; 8];
            // SAFETY: the buffer has room for so many bytes.
            let read = unsafe { libc::read(event.as_raw_fd(), value.as_mut_ptr().cast(), value.len()) };
            (read == 8).then_some(sum + u64::from_ne_bytes(value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_watched_bytes_by_a_thread_are_counted() {
        let word = std::sync::atomic::AtomicU64::new(1);
        let at = (&raw const word).expose_provenance() as u64;
        // SAFETY: no arguments; cannot fail.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        let Ok(watched) = Watchpoint::new(Counted::All, at, 8, &[thread]) else {
            println!("skipped: needs debug registers (kernel.perf_event_paranoid)");
            return;
        };
        let writes = Watchpoint::new(Counted::Writes, at, 8, &[thread]).expect("another register");
        assert_eq!(watched.count(), Some(0));
        word.store(2, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), 2);
        assert_eq!([watched.count(), writes.count()], [Some(2), Some(1)]);
    }
}
