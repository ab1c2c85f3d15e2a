//! ICMP messages about datagrams that a UDP socket has sent: the error queue (ip(7), IP_RECVERR).

use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::udp::next_cmsg;
use super::{Opt, address, call, refuse_datagrams, set_opt};

/// `struct sock_extended_err` (linux/errqueue.h): errno, then origin, type and code of the ICMP message.
const ERROR_LEN: usize = 16;
/// Control data: a cmsghdr of 16 bytes, the error, and the address of the host that sent it; in words of 8
/// bytes, with room for one more message.
const CONTROL_WORDS: usize = 16;
/// linux/errqueue.h: SO_EE_ORIGIN_ICMP and SO_EE_ORIGIN_ICMP6.
const ORIGIN_ICMP: u8 = 2;
const ORIGIN_ICMP6: u8 = 3;
/// RFC 792: destination unreachable, port unreachable.
const PORT_UNREACHABLE: [u8; 3] = [ORIGIN_ICMP, 3, 3];
/// RFC 4443: the same.
const PORT_UNREACHABLE_6: [u8; 3] = [ORIGIN_ICMP6, 1, 4];
/// Receive buffer (bytes): so many ICMP messages of at most 1.3 KB wait to be read.
const ERROR_BUFFER: i32 = 64 << 10;

/// Makes the kernel keep the ICMP messages about a socket's datagrams, and drop the datagrams that strangers
/// send to it. From then on a send may fail with the error of an earlier datagram; it succeeds the second
/// time. It also fails with ENOBUFS if the network device drops the packet.
///
/// # Errors
/// What the kernel says.
pub fn keep_errors(fd: BorrowedFd<'_>, is_v6: bool) -> io::Result<()> {
    refuse_datagrams(fd)?;
    set_opt(fd, Opt::RECEIVE_BUFFER, ERROR_BUFFER)?;
    set_opt(fd, if is_v6 { Opt::RECV_ERR6 } else { Opt::RECV_ERR }, 1)
}

/// An ICMP message that was kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SendError {
    /// Where the datagram went to.
    pub to: IpAddr,
    /// The destination host says that no socket has the port.
    pub is_port_unreachable: bool,
    /// The bytes of the datagram's payload that the message quotes.
    pub len: usize,
}

/// Takes the oldest ICMP message of a socket, and writes the quoted payload to `quoted`. `None` if there is
/// none, or its destination is unknown.
///
/// # Errors
/// `EAGAIN` if there is none.
pub fn receive_error(fd: BorrowedFd<'_>, quoted: &mut [u8]) -> io::Result<Option<SendError>> {
    // SAFETY: sockaddr_in6 and msghdr are plain data, for which zeros are valid.
    let (mut name, mut header): (libc::sockaddr_in6, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut control = [0_u64; CONTROL_WORDS];
    let mut piece = libc::iovec { iov_base: quoted.as_mut_ptr().cast(), iov_len: quoted.len() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = mem::size_of_val(&name) as libc::socklen_t;
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = mem::size_of_val(&control) as _;
    // SAFETY: the header points to a name, a buffer and control data of the stated lengths, which live longer
    // than the call.
    let got =
        unsafe { call::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    let len = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    let Some(to) = address::parse(&name, header.msg_namelen) else { return Ok(None) };
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut rest = &bytes[..header.msg_controllen.min(bytes.len())];
    let mut is_port_unreachable = false;
    while let Some((level, kind, data, next)) = next_cmsg(rest) {
        rest = next;
        let expected = match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_RECVERR) => PORT_UNREACHABLE,
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => PORT_UNREACHABLE_6,
            _ => continue,
        };
        is_port_unreachable |= data.get(..ERROR_LEN).and_then(|error| error.get(4..7)) == Some(&expected);
    }
    Ok(Some(SendError { to: to.ip(), is_port_unreachable, len: len.min(quoted.len()) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, UdpSocket};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    /// Loopback addresses work in every network namespace.
    #[test]
    fn a_datagram_to_a_port_without_socket_is_quoted() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let any: SocketAddr = any.parse().unwrap();
            let (Ok(socket), Ok(absent)) = (UdpSocket::bind(any), UdpSocket::bind(any)) else { continue };
            keep_errors(socket.as_fd(), any.is_ipv6()).unwrap();
            let to = absent.local_addr().unwrap();
            drop(absent);
            socket.send_to(b"is anyone there", to).unwrap();
            let until = Instant::now() + Duration::from_secs(5);
            let mut quoted = [0; 64];
            let error = loop {
                match receive_error(socket.as_fd(), &mut quoted) {
                    Ok(error) => break error.expect("a destination"),
                    Err(_) => assert!(Instant::now() < until, "no ICMP message"),
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!((error.to, error.is_port_unreachable), (to.ip(), true));
            assert_eq!(&quoted[..error.len], b"is anyone there");
            // Reading the message has taken the error from the socket.
            socket.send_to(b"again", to).unwrap();
        }
    }
}
