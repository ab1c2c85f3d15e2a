//! Counting and logging the uses of a few bytes of memory by threads of this process: debug registers of the
//! CPU, by perf_event_open(2). A CPU has four; some machines, kernels and containers give none.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::perf_event::{self, EventAttr, RECORD_SAMPLE, Ring};

// `linux/perf_event.h` and `linux/hw_breakpoint.h`.
const TYPE_BREAKPOINT: u32 = 5;
const SAMPLE_IP: u64 = 1 << 0;
const SAMPLE_TIME: u64 = 1 << 2;
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

fn breakpoint(counted: Counted, at: u64, length: u64, flags: u64) -> EventAttr {
    EventAttr {
        kind: TYPE_BREAKPOINT,
        flags: EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR | flags,
        breakpoint_type: counted as u32,
        config1: at,
        config2: length,
        ..EventAttr::default()
    }
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
        let attr = breakpoint(counted, at, length, INHERIT);
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

/// When a thread used some bytes, and by which instructions.
#[derive(Debug)]
pub struct UseLog(Ring);

/// One use.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The address behind the instruction.
    pub after: u64,
    /// When, by a clock of the kernel.
    pub at_ns: u64,
}

impl UseLog {
    /// Notes the uses of bytes as those of [`Watchpoint::new`] by this thread: at most 170 until
    /// [`uses`](Self::uses) is called.
    ///
    /// # Errors
    /// As for [`Watchpoint::new`], and `EPERM`: no more memory may be locked (`kernel.perf_event_mlock_kb`).
    pub fn new(counted: Counted, at: u64, length: u64) -> io::Result<Self> {
        let attr = breakpoint(counted, at, length, 0);
        let attr = EventAttr { sample_period: 1, sample_type: SAMPLE_IP | SAMPLE_TIME, ..attr };
        perf_event::open(attr, 0, -1).and_then(|event| Ring::new(event, 1)).map(Self)
    }

    /// Notes no uses from now on. Those that were noted remain.
    pub fn stop(&self) {
        // SAFETY: PERF_EVENT_IOC_DISABLE takes no pointer; it has no errors for an open event.
        let _result = unsafe { libc::ioctl(self.0.as_fd().as_raw_fd(), 0x2401, 0) };
    }

    /// The first 100 uses, earliest first; each is returned once. Taking one may use the bytes, if they are
    /// on the stack, unless the log was stopped.
    pub fn uses(&self) -> impl Iterator<Item = Use> {
        let samples = std::iter::from_fn(|| self.0.next()).take(100);
        samples.filter(|(kind, _)| *kind == RECORD_SAMPLE).filter_map(|(_, bytes)| {
            let ([after, at_ns], []) = bytes.as_chunks::<8>() else { return None };
            Some(Use { after: u64::from_ne_bytes(*after), at_ns: u64::from_ne_bytes(*at_ns) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_watched_bytes_are_logged_in_order() {
        let word = std::sync::atomic::AtomicU64::new(1);
        let at = (&raw const word).expose_provenance() as u64;
        let logs = [Counted::All, Counted::Writes].map(|counted| UseLog::new(counted, at, 8));
        let [Ok(all), Ok(writes)] = logs else {
            println!("skipped: needs debug registers (kernel.perf_event_paranoid)");
            return;
        };
        assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), 1);
        word.store(2, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), 2);
        [&all, &writes].into_iter().for_each(UseLog::stop);
        word.store(3, std::sync::atomic::Ordering::Relaxed);
        let (all, writes): (Vec<Use>, Vec<Use>) = (all.uses().collect(), writes.uses().collect());
        let [first, second, third] = all[..] else { panic!("{all:?}") };
        let [write] = writes[..] else { panic!("{writes:?}") };
        assert!(first.at_ns < write.at_ns && write.at_ns < third.at_ns, "{all:?} {write:?}");
        assert!(first.after != write.after && second.after == write.after && third.after != write.after);
    }

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
