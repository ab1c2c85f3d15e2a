//! System calls for callers that hold locks: with the arguments and results of the functions of that name in
//! libc, but no cancellation points (pthreads(7)). A thread that is cancelled there would end and leave the
//! lock of an engine locked. syscall(2) is no cancellation point. The safety requirements are those of the
//! libc functions.

use libc::{c_char, c_int, c_uint, c_void, epoll_event, mmsghdr, mode_t, msghdr, sockaddr, socklen_t};

pub(crate) unsafe fn openat(dir: c_int, name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_openat, dir, name, flags, mode) as c_int }
}

pub(crate) unsafe fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_write, fd, bytes, len) as isize }
}

pub(crate) unsafe fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> isize {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_sendto, fd, bytes, len, flags, to, to_len) as isize }
}

pub(crate) unsafe fn recvfrom(
    fd: c_int,
    bytes: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> isize {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_recvfrom, fd, bytes, len, flags, from, from_len) as isize }
}

pub(crate) unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, flags) as isize }
}

pub(crate) unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, flags) as isize }
}

/// Calls sendmsg(2) if `count` is 1, where it is cheaper; the message's `msg_len` is not set then.
pub(crate) unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if count == 1 {
        // SAFETY: the caller's: there is one message.
        let sent = unsafe { sendmsg(fd, &raw const (*messages).msg_hdr, flags) };
        return if sent < 0 { -1 } else { 1 };
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_sendmmsg, fd, messages, count, flags) as c_int }
}

/// Without a time limit. Calls recvmsg(2) if `count` is 1, where it is cheaper.
pub(crate) unsafe fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if count == 1 {
        // SAFETY: the caller's: there is one message.
        let len = unsafe { recvmsg(fd, &raw mut (*messages).msg_hdr, flags) };
        let Ok(len) = c_uint::try_from(len) else { return -1 };
        // SAFETY: as above.
        unsafe { (*messages).msg_len = len };
        return 1;
    }
    let no_limit: *mut libc::timespec = std::ptr::null_mut();
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_recvmmsg, fd, messages, count, flags, no_limit) as c_int }
}

pub(crate) unsafe fn connect(fd: c_int, to: *const sockaddr, to_len: socklen_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_connect, fd, to, to_len) as c_int }
}

/// Without the peer's address.
pub(crate) unsafe fn accept4(fd: c_int, flags: c_int) -> c_int {
    let (none, no_len): (*mut sockaddr, *mut socklen_t) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_accept4, fd, none, no_len, flags) as c_int }
}

/// Without waiting.
pub(crate) unsafe fn epoll_wait_now(set: c_int, events: *mut epoll_event, room: c_int) -> c_int {
    let no_mask: *const libc::sigset_t = std::ptr::null();
    // SAFETY: the caller's. The size of the kernel's signal mask is 8.
    unsafe { libc::syscall(libc::SYS_epoll_pwait, set, events, room, 0, no_mask, 8_usize) as c_int }
}

/// Overwrites `limit`, as the system call does.
pub(crate) unsafe fn ppoll(fds: *mut libc::pollfd, count: usize, limit: *mut libc::timespec) -> c_int {
    let no_mask: *const libc::sigset_t = std::ptr::null();
    // SAFETY: the caller's. The size of the kernel's signal mask is 8.
    unsafe { libc::syscall(libc::SYS_ppoll, fds, count, limit, no_mask, 8_usize) as c_int }
}

pub(crate) unsafe fn getrandom(bytes: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's. No flags.
    unsafe { libc::syscall(libc::SYS_getrandom, bytes, len, 0) as isize }
}
