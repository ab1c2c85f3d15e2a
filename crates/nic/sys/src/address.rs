//! Socket addresses in the kernel's layout.

use std::mem;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An IPv4, IPv6 or Unix address in the kernel's layout.
#[derive(Clone, Copy)]
pub struct SockAddr {
    storage: Storage,
    len: libc::socklen_t,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Storage {
    bytes: [u8; mem::size_of::<libc::sockaddr_un>()],
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
    unix: libc::sockaddr_un,
}

impl SockAddr {
    /// An internet address; `scope` is the interface index and used for link-local IPv6 only.
    #[must_use]
    pub fn ip(ip: IpAddr, port: u16, scope: u32) -> SockAddr {
        let mut storage = Storage { bytes: [0; _] };
        let len = match ip {
            IpAddr::V4(ip) => {
                storage.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: port.to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
                    sin_zero: [0; 8],
                };
                mem::size_of::<libc::sockaddr_in>()
            }
            IpAddr::V6(ip) => {
                storage.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: port.to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                    sin6_scope_id: if is_link_local(&ip) { scope } else { 0 },
                };
                mem::size_of::<libc::sockaddr_in6>()
            }
        };
        SockAddr { storage, len: len as libc::socklen_t }
    }

    /// An abstract Unix name; `None` if it is longer than 107 bytes.
    #[must_use]
    pub fn abstract_name(name: &str) -> Option<SockAddr> {
        // sockaddr_un: family (2 bytes), then a zero byte, then the name, not terminated: unix(7).
        let mut bytes = [0; mem::size_of::<libc::sockaddr_un>()];
        bytes[..2].copy_from_slice(&(libc::AF_UNIX as libc::sa_family_t).to_ne_bytes());
        bytes.get_mut(3..3 + name.len())?.copy_from_slice(name.as_bytes());
        Some(SockAddr { storage: Storage { bytes }, len: (3 + name.len()) as libc::socklen_t })
    }

    /// The Unix address of a file; `None` if the path is longer than 107 bytes or contains a zero byte.
    #[must_use]
    pub fn file(path: &Path) -> Option<SockAddr> {
        let path = path.as_os_str().as_bytes();
        let mut bytes = [0; mem::size_of::<libc::sockaddr_un>()];
        let room = bytes.len() - 1;
        if path.is_empty() || path.contains(&0) {
            return None;
        }
        bytes[..2].copy_from_slice(&(libc::AF_UNIX as libc::sa_family_t).to_ne_bytes());
        bytes[..room].get_mut(2..2 + path.len())?.copy_from_slice(path);
        // With the zero byte that ends the path.
        Some(SockAddr { storage: Storage { bytes }, len: (3 + path.len()) as libc::socklen_t })
    }

    /// Pointer and length for a system call; valid while `self` is.
    pub(super) fn raw(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.storage).cast(), self.len)
    }
}

impl std::fmt::Debug for SockAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SockAddr").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Reads an internet address that the kernel wrote; an IPv4-mapped one becomes IPv4.
pub(super) fn parse(addr: &libc::sockaddr_in6, len: libc::socklen_t) -> Option<SocketAddr> {
    let len = len as usize;
    if i32::from(addr.sin6_family) == libc::AF_INET6 && len >= mem::size_of::<libc::sockaddr_in6>() {
        let (ip, port) = (Ipv6Addr::from(addr.sin6_addr.s6_addr), u16::from_be(addr.sin6_port));
        return Some(match ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), port),
            None => SocketAddrV6::new(ip, port, 0, addr.sin6_scope_id).into(),
        });
    }
    if i32::from(addr.sin6_family) == libc::AF_INET && len >= mem::size_of::<libc::sockaddr_in>() {
        // sockaddr_in has its port at the offset of sockaddr_in6's port, and its address at that of
        // flowinfo.
        let ip = IpAddr::from(addr.sin6_flowinfo.to_ne_bytes());
        return Some(SocketAddr::new(ip, u16::from_be(addr.sin6_port)));
    }
    None
}

fn is_link_local(ip: &Ipv6Addr) -> bool {
    // fe80::/10, and link-scope multicast, which needs an interface too.
    ip.segments()[0] & 0xffc0 == 0xfe80 || ip.segments()[0] & 0xff0f == 0xff02
}
