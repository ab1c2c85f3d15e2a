//! The users of TCP sockets in a network namespace (sock_diag(7), linux/inet_diag.h).

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::message::{u16_at, u32_at};
use super::{Netlink, SOCK_DIAG_BY_FAMILY};

/// Finds the users of local TCP sockets. Each request is about one socket, so its cost does not depend on the
/// number of sockets.
#[derive(Debug)]
pub struct TcpUsers(Netlink);

/// Bytes of `struct inet_diag_msg`.
const MSG_LEN: usize = 72;
/// Every state of a socket, as a mask.
const ALL_STATES: u32 = u32::MAX;
/// linux/inet_diag.h: the cookie of a socket is not known.
const INET_DIAG_NOCOOKIE: u32 = u32::MAX;
/// Index of the loopback interface in each network namespace.
const LOOPBACK: u32 = 1;

impl TcpUsers {
    /// Opens a netlink socket.
    ///
    /// # Errors
    /// `EMFILE`; `EACCES`, `EPERM` or `EPROTONOSUPPORT` where netlink is forbidden or missing.
    pub fn new() -> io::Result<TcpUsers> {
        Netlink::open(libc::NETLINK_SOCK_DIAG).map(TcpUsers)
    }

    /// Returns the id of the user that made the socket with these addresses, as the caller's user namespace
    /// shows it. `None` if there is none in this network namespace, the kernel does not report TCP sockets
    /// (CONFIG_INET_DIAG), or no process has the socket any more. A socket that listens has port 0 of any
    /// address as `remote`.
    ///
    /// # Errors
    /// Those of the netlink socket.
    pub fn user(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<Option<u32>> {
        // The kernel finds a socket that is bound to an interface only with the index of this interface.
        for interface in [scope(local), LOOPBACK] {
            let mut user = None;
            let found =
                self.0.ask(SOCK_DIAG_BY_FAMILY, 0, &request(local, remote, interface), &mut |_, bytes| {
                    user = parse(bytes, local, remote);
                });
            match found {
                Ok(_) if user.is_some() => return Ok(user),
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// The interface of a link-local address, otherwise 0.
fn scope(address: SocketAddr) -> u32 {
    if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 }
}

/// `struct inet_diag_req_v2`: family, protocol, extensions, padding, states, then `struct inet_diag_sockid`.
fn request(local: SocketAddr, remote: SocketAddr, interface: u32) -> Vec<u8> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(ALL_STATES.to_ne_bytes());
    for address in [local, remote] {
        body.extend(address.port().to_be_bytes());
    }
    for address in [local, remote] {
        let mut bytes = [0; 16];
        match address.ip() {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes = ip.octets(),
        }
        body.extend(bytes);
    }
    for word in [interface, INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE] {
        body.extend(word.to_ne_bytes());
    }
    body
}

/// Reads the user from a `struct inet_diag_msg`.
fn parse(bytes: &[u8], local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let message = bytes.get(..MSG_LEN)?;
    // Without a connected socket the kernel reports one that listens on the local port.
    let ports = [u16_at(message, 4)?, u16_at(message, 6)?].map(u16::from_be);
    if ports != [local.port(), remote.port()] {
        return None;
    }
    let (uid, inode) = (u32_at(message, 64)?, u32_at(message, 68)?);
    // A closed socket has no inode, and the kernel reports it as a socket of root.
    (inode != 0).then_some(uid)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::FromRawFd;

    use super::*;
    use crate::SockAddr;

    #[test]
    fn a_connection_has_a_user_until_its_process_closes_it() {
        let mut users = TcpUsers::new().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let own = Some(crate::effective_uid());
            let there = listener.local_addr().unwrap();
            let client = TcpStream::connect(there).unwrap();
            let here = client.local_addr().unwrap();
            let (mut server, _) = listener.accept().unwrap();
            assert_eq!(users.user(here, there).unwrap(), own);
            assert_eq!(users.user(there, here).unwrap(), own);
            drop(client);
            assert_eq!(server.read(&mut [0]).unwrap(), 0);
            assert_eq!(users.user(here, there).unwrap(), None, "closed, although the server has not closed");
            let any = SocketAddr::new(if here.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() }, 0);
            assert_eq!(users.user(there, any).unwrap(), own, "it listens");
            assert_eq!(users.user(there, SocketAddr::new(here.ip(), 1)).unwrap(), None, "only the listener");
        }
    }

    #[test]
    fn a_socket_that_is_bound_to_the_loopback_interface_has_its_user() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        // SAFETY: socket takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        // SAFETY: `fd` is new and has no other owner.
        let client = unsafe { TcpStream::from_raw_fd(fd) };
        let address = SockAddr::ip(there.ip(), there.port(), 0);
        // SAFETY: the name and the address are valid for their lengths.
        let bound = unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
            let bound = libc::setsockopt(fd, level, name, c"lo".as_ptr().cast(), 3);
            assert_eq!(libc::connect(fd, address.raw().0, address.raw().1), 0);
            bound
        };
        if bound != 0 {
            eprintln!("skipped: needs root or Linux 5.7");
            return;
        }
        let here = client.local_addr().unwrap();
        assert_eq!(TcpUsers::new().unwrap().user(here, there).unwrap(), Some(crate::effective_uid()));
    }

    #[test]
    fn closed_and_cut_answers_name_no_user() {
        let [local, remote]: [SocketAddr; 2] =
            ["127.0.0.1:1000", "127.0.0.1:9791"].map(|a| a.parse().unwrap());
        let mut bytes = vec![0; MSG_LEN];
        bytes[4..6].copy_from_slice(&1000_u16.to_be_bytes());
        bytes[6..8].copy_from_slice(&9791_u16.to_be_bytes());
        bytes[64..68].copy_from_slice(&7_u32.to_ne_bytes());
        assert_eq!(parse(&bytes, local, remote), None, "without an inode");
        bytes[68] = 1;
        assert_eq!(parse(&bytes, local, remote), Some(7));
        assert_eq!(parse(&bytes, remote, local), None, "another socket");
        assert_eq!(parse(&bytes[..71], local, remote), None);
    }
}
