//! Events of the kernel's performance counters: perf_event_open(2).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Mmap, check, page_size};

/// Start of `struct perf_event_attr`, PERF_ATTR_SIZE_VER1; `size` is set by [`open`].
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct EventAttr {
    pub(crate) kind: u32,
    pub(crate) size: u32,
    pub(crate) config: u64,
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    pub(crate) wakeup_events: u32,
    pub(crate) breakpoint_type: u32,
    /// Of a breakpoint, its address.
    pub(crate) config1: u64,
    /// Of a breakpoint, its length.
    pub(crate) config2: u64,
}

/// Opens an event of one thread, or of all of them (-1), on one CPU, or on all of them (-1).
///
/// # Errors
/// See perf_event_open(2).
pub(crate) fn open(attr: EventAttr, thread: libc::pid_t, cpu: libc::c_int) -> io::Result<OwnedFd> {
    // `linux/perf_event.h`.
    const FLAG_FD_CLOEXEC: libc::c_ulong = 8;
    let attr = EventAttr { size: size_of::<EventAttr>() as u32, ..attr };
    let (attr, group) = (&raw const attr, -1 as libc::c_int);
    // SAFETY: `attr` is valid for the size that it states, and the kernel only reads it.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr, thread, cpu, group, FLAG_FD_CLOEXEC) };
    let fd = check(fd as libc::c_int)?;
    // SAFETY: the kernel has just installed it for this process, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The records of an event, in order: a page with positions, then the storage. The kernel overwrites nothing
/// that was not read.
#[derive(Debug)]
pub(crate) struct Ring {
    event: OwnedFd,
    memory: Mmap,
}

pub(crate) const RECORD_SAMPLE: u32 = 9;
/// Offsets of the positions in the first page.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
/// Length of `struct perf_event_header`.
const HEADER_LEN: u64 = 8;

impl Ring {
    /// Maps the records of an event, with so many pages of storage, a power of two.
    pub(crate) fn new(event: OwnedFd, pages: usize) -> io::Result<Self> {
        let memory = Mmap::shared(event.as_fd(), page_size() * (1 + pages), 0)?;
        Ok(Self { event, memory })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the first page, eight-byte aligned; the kernel accesses it atomically.
        unsafe { self.memory.start().add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// The next record: its type and what follows the header.
    pub(crate) fn next(&self) -> Option<(u32, Vec<u8>)> {
        let (head, tail) = (self.position(DATA_HEAD), self.position(DATA_TAIL));
        let at = tail.load(Ordering::Relaxed);
        // Acquire: the records below the position are written.
        let available = head.load(Ordering::Acquire).wrapping_sub(at);
        if available < HEADER_LEN {
            return None;
        }
        let header = self.bytes(at, HEADER_LEN);
        let kind = u32::from_ne_bytes(*header.first_chunk()?);
        let len = u64::from(u16::from_ne_bytes(*header.last_chunk()?)).clamp(HEADER_LEN, available);
        let rest = self.bytes(at.wrapping_add(HEADER_LEN), len - HEADER_LEN);
        // Release: the record was read.
        tail.store(at.wrapping_add(len), Ordering::Release);
        Some((kind, rest))
    }

    fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let storage = self.memory.len() - page_size();
        let mut bytes = Vec::with_capacity(len as usize);
        for offset in 0..len {
            let offset = (at.wrapping_add(offset) as usize & (storage - 1)) + page_size();
            // SAFETY: within the storage behind the first page; the kernel does not write what was not read.
            bytes.push(unsafe { self.memory.start().add(offset).read() });
        }
        bytes
    }
}
