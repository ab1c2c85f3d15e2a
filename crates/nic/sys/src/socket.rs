//! UDP sockets: creation, options, steering programs.

use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::{SockAddr, address, call, check};

/// A socket option with an integer value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Opt(libc::c_int, libc::c_int);

impl Opt {
    /// Several sockets may be bound to one port.
    pub const REUSE_PORT: Opt = Opt(libc::SOL_SOCKET, libc::SO_REUSEPORT);
    /// IPv6 sockets do not receive IPv4.
    pub const V6_ONLY: Opt = Opt(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    /// Receive bursts of one sender as one datagram.
    pub const GRO: Opt = Opt(libc::SOL_UDP, libc::UDP_GRO);
    /// Accept IPv6 datagrams without a checksum, which is what NICs send.
    pub const NO_CHECK6_RX: Opt = Opt(libc::SOL_UDP, UDP_NO_CHECK6_RX);
    /// Report the destination address.
    pub const RECV_PKTINFO: Opt = Opt(libc::IPPROTO_IP, libc::IP_PKTINFO);
    /// Report the destination address, IPv6.
    pub const RECV_PKTINFO6: Opt = Opt(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO);
    /// Report the TOS.
    pub const RECV_TOS: Opt = Opt(libc::IPPROTO_IP, libc::IP_RECVTOS);
    /// Report the traffic class.
    pub const RECV_TCLASS: Opt = Opt(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS);
    /// Report the TTL.
    pub const RECV_TTL: Opt = Opt(libc::IPPROTO_IP, libc::IP_RECVTTL);
    /// Report the hop limit.
    pub const RECV_HOP_LIMIT: Opt = Opt(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT);
    /// The TOS of sent datagrams.
    pub const TOS: Opt = Opt(libc::IPPROTO_IP, libc::IP_TOS);
    /// The traffic class of sent datagrams.
    pub const TCLASS: Opt = Opt(libc::IPPROTO_IPV6, libc::IPV6_TCLASS);
    /// The TTL of sent datagrams.
    pub const TTL: Opt = Opt(libc::IPPROTO_IP, libc::IP_TTL);
    /// The hop limit of sent datagrams.
    pub const HOP_LIMIT: Opt = Opt(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS);
    /// Fragmentation and path MTU policy; value [`PMTU_PROBE`](Opt::PMTU_PROBE).
    pub const MTU_DISCOVER: Opt = Opt(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
    /// The same for IPv6.
    pub const MTU_DISCOVER6: Opt = Opt(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER);
    /// The interface that IPv6 multicast leaves through; for IPv4 the source address decides.
    pub const MULTICAST_IF6: Opt = Opt(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF);
    /// Keep the ICMP messages about sent datagrams.
    pub const RECV_ERR: Opt = Opt(libc::IPPROTO_IP, libc::IP_RECVERR);
    /// The same for IPv6.
    pub const RECV_ERR6: Opt = Opt(libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
    /// What the next peek skips.
    pub(super) const PEEK_OFFSET: Opt = Opt(libc::SOL_SOCKET, libc::SO_PEEK_OFF);
    /// Receive buffer size.
    pub const RECEIVE_BUFFER: Opt = Opt(libc::SOL_SOCKET, libc::SO_RCVBUF);

    /// Never fragment, and ignore ICMP messages that lower the MTU. The IPv4 identification of sent
    /// packets is then predictable.
    pub const PMTU_PROBE: i32 = libc::IP_PMTUDISC_PROBE;
}

/// linux/udp.h; libc has no name for it on all targets.
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// Creates a UDP socket, IPv6 or IPv4. It is a kernel socket also in a program under librspreload, which
/// turns only sockets made by the C library's socket(2) into rsockets.
///
/// # Errors
/// `EAFNOSUPPORT` without IPv6; `EMFILE`.
pub fn udp_socket(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes three integers and no pointer.
    let fd = check(unsafe { libc::syscall(libc::SYS_socket, family, kind, 0) } as libc::c_int)?;
    // SAFETY: `fd` is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an integer option.
///
/// # Errors
/// What setsockopt(2) says.
pub fn set_opt(fd: BorrowedFd<'_>, opt: Opt, value: i32) -> io::Result<()> {
    set_bytes(fd, opt, &value)
}

/// Requests a receive buffer of `bytes`: beyond the system's limit if privileged, else up to it.
///
/// # Errors
/// Only for a descriptor that is no socket.
pub fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    set_bytes(fd, Opt(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE), &bytes)
        .or_else(|_| set_bytes(fd, Opt(libc::SOL_SOCKET, libc::SO_RCVBUF), &bytes))
}

/// Requests a send buffer of `bytes`: beyond the system's limit if privileged, else up to it.
///
/// # Errors
/// Only for a descriptor that is no socket.
pub fn set_send_buffer(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    set_bytes(fd, Opt(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE), &bytes)
        .or_else(|_| set_bytes(fd, Opt(libc::SOL_SOCKET, libc::SO_SNDBUF), &bytes))
}

/// Binds the socket to an address.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`.
pub fn bind(fd: BorrowedFd<'_>, addr: &SockAddr) -> io::Result<()> {
    let (ptr, len) = addr.raw();
    // SAFETY: `ptr` points to `len` bytes of `addr`, which outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), ptr, len) }).map(drop)
}

/// Whether it is an IPv6 socket.
///
/// # Errors
/// `ENOTSOCK`.
pub fn is_ipv6(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut domain: libc::c_int = 0;
    let mut len = mem::size_of::<libc::c_int>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_DOMAIN);
    // SAFETY: the kernel writes at most `len` bytes to `domain`.
    let ret =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut domain).cast(), &raw mut len) };
    check(ret)?;
    Ok(domain == libc::AF_INET6)
}

/// Returns the user that made a socket: sockets of one user only can share a port (SO_REUSEPORT).
///
/// # Errors
/// `EBADF`.
pub fn socket_owner(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: stat is plain data, for which zeros are valid.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one stat.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
    Ok(stat.st_uid)
}

/// Returns the local port of an internet socket.
///
/// # Errors
/// `ENOTSOCK`; `EAFNOSUPPORT` for other kinds of sockets.
pub fn local_port(fd: BorrowedFd<'_>) -> io::Result<u16> {
    // SAFETY: sockaddr_in6 is plain data, for which zeros are valid.
    let mut addr: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `addr`.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut addr).cast(), &raw mut len) })?;
    match address::parse(&addr, len) {
        Some(addr) => Ok(addr.port()),
        None => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
    }
}

/// Number of packets that the kernel has dropped since the socket was made because its receive buffer was
/// full.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 4.12.
pub fn receive_buffer_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [0_u32; SK_MEMINFO_DROPS + 1];
    let mut len = mem::size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`.
    let ret = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(ret)?;
    Ok(info[SK_MEMINFO_DROPS])
}

/// linux/sock_diag.h: the index of `sk_drops` in the `SO_MEMINFO` array.
const SK_MEMINFO_DROPS: usize = 8;

/// Joins a multicast group on an interface, as long as the socket lives.
///
/// # Errors
/// `ENODEV` without such an interface, `EINVAL` for an address that is no group, `ENOBUFS`.
pub fn join_group(fd: BorrowedFd<'_>, group: IpAddr, ifindex: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            let request = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: ifindex as libc::c_int,
            };
            set_bytes(fd, Opt(libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP), &request)
        }
        IpAddr::V6(group) => {
            let request = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                ipv6mr_interface: ifindex,
            };
            set_bytes(fd, Opt(libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP), &request)
        }
    }
}

/// Sets whether a socket without memberships of its own receives every group that the host is a member
/// of, as sockets do by default.
///
/// # Errors
/// Only for a descriptor that is no socket.
pub fn hear_all_groups(fd: BorrowedFd<'_>, hear: bool) -> io::Result<()> {
    set_opt(fd, Opt(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL), i32::from(hear))?;
    match set_opt(fd, Opt(libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL), i32::from(hear)) {
        // The socket is IPv4.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        done => done,
    }
}

/// linux/in6.h, since 4.20; libc has no name for it on all targets.
const IPV6_MULTICAST_ALL: libc::c_int = 29;

/// One instruction of classic BPF (linux/filter.h).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct FilterInsn {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if a comparison holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

const _: () = assert!(mem::size_of::<FilterInsn>() == mem::size_of::<libc::sock_filter>());

/// Attaches `program`, which selects a socket of a reuseport group by its index; the program sees the UDP
/// payload.
///
/// # Errors
/// `EINVAL` for a bad program.
pub fn attach_reuseport_filter(fd: BorrowedFd<'_>, program: &[FilterInsn]) -> io::Result<()> {
    attach_filter(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Makes a socket keep only the messages that `program` accepts.
pub(super) fn filter_messages(fd: BorrowedFd<'_>, program: &[FilterInsn]) -> io::Result<()> {
    attach_filter(fd, libc::SO_ATTACH_FILTER, program)
}

fn attach_filter(fd: BorrowedFd<'_>, option: libc::c_int, program: &[FilterInsn]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    set_bytes(fd, Opt(libc::SOL_SOCKET, option), &program)
}

fn set_bytes<T>(fd: BorrowedFd<'_>, opt: Opt, value: &T) -> io::Result<()> {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`; a sock_fprog's pointer is valid for the call, and the
    // kernel copies the program.
    let ret =
        unsafe { libc::setsockopt(fd.as_raw_fd(), opt.0, opt.1, std::ptr::from_ref(value).cast(), len) };
    check(ret).map(drop)
}

/// Returns the bytes of memory of sent packets that a queueing discipline or a driver still holds (SIOCOUTQ).
/// Some queueing disciplines (netem) and drivers take packets off the account of their socket before.
///
/// # Errors
/// `EINVAL` for a socket of another kind.
pub fn unsent_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Makes a socket drop every datagram that it gets, before it takes room in the receive buffer. ICMP messages
/// are kept as before.
///
/// # Errors
/// What the kernel says.
pub fn refuse_datagrams(fd: BorrowedFd<'_>) -> io::Result<()> {
    let keep_no_bytes = FilterInsn { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    filter_messages(fd, &[keep_no_bytes])
}

/// Discards the datagrams in a socket's receive buffer; returns how many.
pub fn discard_waiting(fd: BorrowedFd<'_>) -> usize {
    let mut count = 0;
    // Bounded, in case they arrive faster than they can be discarded.
    while count < 1 << 20 {
        let (fd, none) = (fd.as_raw_fd(), ptr::null_mut());
        // SAFETY: a buffer of length zero is never written; the datagram is cut to it.
        let len =
            unsafe { call::recvfrom(fd, none, 0, libc::MSG_DONTWAIT, ptr::null_mut(), ptr::null_mut()) };
        if len < 0 {
            break;
        }
        count += 1;
    }
    count
}
