//! Events of the kernel's performance counters: perf_event_open(2).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::check;

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
