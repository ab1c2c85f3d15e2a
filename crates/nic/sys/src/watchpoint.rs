//! Counting the uses of a few bytes of memory by threads of this process: debug registers of the CPU, by
//! perf_event_open(2). A CPU has four; some machines, kernels and containers give none.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::perf_event::{self, EventAttr};

// `linux/perf_event.h` and `linux/hw_breakpoint.h`.
const TYPE_BREAKPOINT: u32 = 5;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;

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
        let attr = EventAttr {
            kind: TYPE_BREAKPOINT,
            flags: INHERIT | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
            breakpoint_type: counted as u32,
            config1: at,
            config2: length,
            ..EventAttr::default()
        };
        let events = threads.iter().map(|thread| perf_event::open(attr, *thread, -1));
        events.collect::<io::Result<_>>().map(Self)
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
        let thread = crate::thread_id();
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
