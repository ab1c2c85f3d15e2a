//! Record sockets between processes (AF_UNIX SOCK_SEQPACKET), which can carry descriptors: unix(7).

use std::fs::OpenOptions;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{SockAddr, call, check};

/// Identity of the process at the other end, as the kernel recorded it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Credentials {
    /// Process id; 0 if the process is in a pid namespace that is not visible here.
    pub pid: i32,
    /// Effective user id at connect or listen.
    pub uid: u32,
}

/// Result of one receive call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Received {
    /// Length of the record, cut to the buffer.
    pub len: usize,
    /// True if bytes or descriptors were cut off.
    pub truncated: bool,
}

/// Most descriptors one record can carry (SCM_MAX_FD of the kernel).
const FDS_MAX: usize = 253;

/// A control buffer for [`FDS_MAX`] descriptors, with the alignment of cmsghdr.
#[repr(C, align(8))]
struct FdControl([u8; 16 + FDS_MAX * 4 + 4]);

/// Creates a record socket bound to the abstract `name`; it still has to [`listen`].
///
/// # Errors
/// `EADDRINUSE` if the name is taken.
pub fn bind_seqpacket(name: &str) -> io::Result<OwnedFd> {
    bind_to(SockAddr::abstract_name(name))
}

/// Creates a record socket bound to the new file `path`; it still has to [`listen`].
///
/// # Errors
/// `EADDRINUSE` if the file exists, `EINVAL` if the name of the file is longer than about 80 bytes.
pub fn bind_seqpacket_file(path: &Path) -> io::Result<OwnedFd> {
    with_short_path(path, |path| bind_to(SockAddr::file(path)))
}

/// Calls `f` with a path for the same file that fits in an address. An address has room for 107 bytes, so a
/// longer path is replaced by one through a descriptor of its directory.
fn with_short_path<T>(path: &Path, f: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let (Some(dir), Some(name), None) = (path.parent(), path.file_name(), SockAddr::file(path)) else {
        return f(path);
    };
    let dir = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(dir)?;
    f(&Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name))
}

fn bind_to(addr: Option<SockAddr>) -> io::Result<OwnedFd> {
    let fd = seqpacket_socket()?;
    let addr = addr.ok_or(io::ErrorKind::InvalidInput)?;
    let (ptr, len) = addr.raw();
    // SAFETY: `ptr` points to `len` bytes of `addr`, which outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), ptr, len) })?;
    Ok(fd)
}

/// Accepts connections; at most `backlog` may wait.
///
/// # Errors
/// `ENOTSOCK` and the like only.
pub fn listen(fd: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    // SAFETY: listen takes no pointer.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// Returns the next waiting connection, non-blocking.
///
/// # Errors
/// `EAGAIN` if no connection waits; `EMFILE`.
pub fn accept(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointer.
    let fd = check(unsafe { call::accept4(fd.as_raw_fd(), flags) })?;
    // SAFETY: `fd` is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates a non-blocking record socket connected to the abstract `name`.
///
/// # Errors
/// `ECONNREFUSED` without a listener of that name, `EAGAIN` if its backlog is full.
pub fn connect_seqpacket(name: &str) -> io::Result<OwnedFd> {
    connect_to(SockAddr::abstract_name(name))
}

/// Creates a non-blocking record socket connected to the file `path`.
///
/// # Errors
/// As [`connect_seqpacket`], and `ENOENT`, `EACCES`.
pub fn connect_seqpacket_file(path: &Path) -> io::Result<OwnedFd> {
    with_short_path(path, |path| connect_to(SockAddr::file(path)))
}

fn connect_to(addr: Option<SockAddr>) -> io::Result<OwnedFd> {
    let fd = seqpacket_socket()?;
    let addr = addr.ok_or(io::ErrorKind::InvalidInput)?;
    let (ptr, len) = addr.raw();
    // SAFETY: `ptr` points to `len` bytes of `addr`, which outlives the call.
    check(unsafe { call::connect(fd.as_raw_fd(), ptr, len) })?;
    Ok(fd)
}

/// Creates two connected, non-blocking record sockets.
///
/// # Errors
/// `EMFILE`.
pub fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `fds` has room for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: both are new and have no other owner.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Sets how many bytes of the queued records the next peek skips (SO_PEEK_OFF). The offset belongs to
/// the socket, which other processes may share; a peek adds the length of the record that it returned.
///
/// # Errors
/// `ENOTSOCK`.
pub fn set_peek_offset(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    super::socket::set_opt(fd, super::socket::Opt::PEEK_OFFSET, bytes)
}

/// Returns the number of bytes of all records that are queued (SIOCINQ).
///
/// # Errors
/// `EINVAL` for a listening socket.
pub fn queued_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Returns the identity of the process that connected to this socket, or that listens at the other end.
///
/// # Errors
/// `ENOTCONN`.
pub fn peer_credentials(fd: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = mem::size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the kernel writes at most `len` bytes to `cred`.
    let ret = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut cred).cast(), &raw mut len) };
    check(ret)?;
    Ok(Credentials { pid: cred.pid, uid: cred.uid })
}

/// Sends `head` and `body` as one record, with descriptors. Does not wait.
///
/// # Errors
/// `EAGAIN` if the peer does not read, `EPIPE` or `ECONNRESET` if it closed its end, `ETOOMANYREFS` if
/// too many descriptors are in flight, `EINVAL` for more than 253 descriptors.
pub fn send_record(
    fd: BorrowedFd<'_>,
    head: &[u8],
    body: &[u8],
    passed: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if passed.len() > FDS_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut iov = [head, body]
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    let mut control = FdControl([0; _]);
    // SAFETY: msghdr is plain data, for which zeros are valid.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = 2;
    if !passed.is_empty() {
        // cmsghdr: length 8 (native), level 4, type 4, then the descriptors.
        let len = 16 + 4 * passed.len();
        control.0[..8].copy_from_slice(&len.to_ne_bytes());
        control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
        control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
        for (slot, fd) in control.0[16..].chunks_exact_mut(4).zip(passed) {
            slot.copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
        }
        msg.msg_control = control.0.as_mut_ptr().cast();
        msg.msg_controllen = len.next_multiple_of(8) as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: all pointers in `msg` are valid for their lengths during the call, and only read.
    let sent = unsafe { call::sendmsg(fd.as_raw_fd(), &raw const msg, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one record into `buf` and its descriptors into `fds`, without waiting; with `peek` the record
/// stays (and its descriptors are duplicated). Length 0: the peer closed its end.
///
/// # Errors
/// `EAGAIN` if there is none.
pub fn recv_record(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    peek: bool,
) -> io::Result<Received> {
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut control = FdControl([0; _]);
    // SAFETY: msghdr is plain data, for which zeros are valid.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    msg.msg_controllen = control.0.len() as _;
    let peek = if peek { libc::MSG_PEEK } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | peek;
    // SAFETY: all pointers in `msg` are valid for their lengths during the call.
    let len = unsafe { call::recvmsg(fd.as_raw_fd(), &raw mut msg, flags) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    let filled = msg.msg_controllen.min(control.0.len());
    let mut rest = &control.0[..filled];
    while let Some((level, kind, data, next)) = super::udp::next_cmsg(rest) {
        rest = next;
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for raw in data.chunks_exact(4) {
                let raw = RawFd::from_ne_bytes([raw[0], raw[1], raw[2], raw[3]]);
                // SAFETY: the kernel has just installed this descriptor for us, and has no other owner.
                fds.push(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
    }
    let truncated = msg.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    Ok(Received { len: len as usize, truncated })
}

/// Returns the abstract names in this network namespace that start with `prefix` (from /proc).
#[must_use]
pub fn abstract_names(prefix: &str) -> Vec<String> {
    let Ok(table) = std::fs::read("/proc/thread-self/net/unix") else { return Vec::new() };
    String::from_utf8_lossy(&table)
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix('@'))
        .filter(|name| name.starts_with(prefix))
        .map(str::to_owned)
        .collect()
}

fn seqpacket_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes no pointer.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: `fd` is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// As below a long XDG_RUNTIME_DIR.
    #[test]
    fn a_socket_may_have_a_path_that_is_longer_than_an_address() {
        let base = std::env::temp_dir().join(format!("roxie-unix-{}", std::process::id()));
        let dir = base.join("d".repeat(200));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("socket");
        let listener = bind_seqpacket_file(&path).unwrap();
        listen(listener.as_fd(), 1).unwrap();
        connect_seqpacket_file(&path).unwrap();
        accept(listener.as_fd()).unwrap();
        let missing = connect_seqpacket_file(&dir.join("other")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn each_peek_at_a_record_duplicates_its_descriptors() {
        let (tx, rx) = seqpacket_pair().unwrap();
        let passed = crate::udp_socket(false).unwrap();
        send_record(tx.as_fd(), b"hel", b"lo", &[passed.as_fd(), tx.as_fd()]).unwrap();
        drop(tx);
        for _ in 0..3 {
            let (mut buf, mut fds) = ([0; 16], Vec::new());
            let got = recv_record(rx.as_fd(), &mut buf, &mut fds, true).unwrap();
            assert_eq!((&buf[..got.len], got.truncated, fds.len()), (&b"hello"[..], false, 2));
        }
    }

    #[test]
    fn an_abstract_name_is_exclusive_and_released_on_drop() {
        let name = format!("roxie-test-{:x}", crate::random_u64());
        let first = bind_seqpacket(&name).unwrap();
        assert_eq!(bind_seqpacket(&name).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        assert_eq!(abstract_names(&name), std::slice::from_ref(&name));
        assert_eq!(connect_seqpacket(&name).unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
        listen(first.as_fd(), 1).unwrap();
        let there = connect_seqpacket(&name).unwrap();
        assert_eq!(peer_credentials(there.as_fd()).unwrap().uid, crate::effective_uid());
        drop((first, there));
        bind_seqpacket(&name).unwrap();
    }
}
