//! Addresses and routes (rdma_bind_addr(3), rdma_resolve_addr(3), rdma_resolve_route(3), rdma_listen(3)).

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::time::Duration;

use libc::{in_addr, in6_addr, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6};

use crate::abi::cm::{SockAddr, rdma_cm_id};
use crate::errno::{minus1, of_io};

use super::event::complete;
use super::id::{IdTail, find, refresh};

/// An address of C; `None` for NULL and for families other than IPv4 and IPv6.
///
/// # Safety
/// `addr` is NULL or as long as its family says.
pub(crate) unsafe fn from_c(addr: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: upheld by the caller.
    let family = c_int::from(unsafe { addr.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: upheld by the caller.
            let sin = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: upheld by the caller.
            let sin6 = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
            let (port, flow) = (u16::from_be(sin6.sin6_port), u32::from_be(sin6.sin6_flowinfo));
            Some(SocketAddrV6::new(ip, port, flow, sin6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The C form of an address, zero beyond its end.
pub(crate) fn to_c(addr: SocketAddr) -> SockAddr {
    // SAFETY: zero bytes are a valid address of no family.
    let mut to: SockAddr = unsafe { MaybeUninit::zeroed().assume_init() };
    match addr {
        SocketAddr::V4(v4) => {
            to.sin = sockaddr_in {
                sin_family: libc::AF_INET as sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
        }
        SocketAddr::V6(v6) => {
            to.sin6 = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo().to_be(),
                sin6_addr: in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
        }
    }
    to
}

/// Does something with an identifier, then shows its addresses and, on a synchronous one, waits for the event.
///
/// # Safety
/// `id` is ours or NULL.
pub(crate) unsafe fn call(
    id: *mut rdma_cm_id,
    wait: bool,
    f: impl FnOnce(&IdTail) -> io::Result<()>,
) -> c_int {
    // SAFETY: upheld by the caller.
    let Some(object) = (unsafe { find(id) }) else { return minus1(libc::EINVAL) };
    if let Err(error) = f(&object.tail) {
        return minus1(of_io(&error));
    }
    // SAFETY: a live identifier.
    unsafe {
        refresh(id);
        if wait { complete(id) } else { 0 }
    }
}

pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the caller's address.
    let Some(addr) = (unsafe { from_c(addr) }) else { return minus1(libc::EINVAL) };
    // SAFETY: as the caller's.
    unsafe { call(id, false, |tail| tail.id.bind_addr(addr)) }
}

pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's addresses.
    let (from, to) = unsafe { (from_c(src), from_c(dst)) };
    let Some(to) = to else { return minus1(libc::EINVAL) };
    if from.is_none() && !src.is_null() {
        return minus1(libc::EINVAL);
    }
    // The kernel takes a negative time for an endless one.
    let timeout = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
    // SAFETY: as the caller's.
    unsafe { call(id, true, |tail| tail.id.resolve_addr(from, to, timeout)) }
}

pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: as the caller's.
    unsafe { call(id, true, |tail| tail.id.resolve_route()) }
}

pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: as the caller's.
    unsafe { call(id, false, |tail| tail.id.listen(backlog)) }
}

/// Network byte order; 0 without an address.
fn port(addr: Option<SocketAddr>) -> u16 {
    addr.map_or(0, |addr| addr.port()).to_be()
}

pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: ours or NULL.
    port(unsafe { find(id) }.and_then(|object| object.tail.id.local_addr()))
}

pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: ours or NULL.
    port(unsafe { find(id) }.and_then(|object| object.tail.id.peer_addr()))
}
