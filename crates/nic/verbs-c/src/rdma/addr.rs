//! Addresses and routes (rdma_bind_addr(3), rdma_resolve_addr(3), rdma_resolve_route(3), rdma_listen(3)).

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::time::Duration;

use libc::{in_addr, in6_addr, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6};

use crate::abi::Zeroed;
use crate::abi::cm::{SockAddr, rdma_cm_id};
use crate::errno::{done, given, minus1};
use crate::handle::{FromC, typed};
use roxie::transport::{VerbsError, refuse};

use super::event::complete;
use super::id::{IdObject, IdTail, refresh};

/// An address as long as its family says; `None` for NULL and for families other than IPv4 and IPv6.
impl FromC<*const sockaddr> for Option<SocketAddr> {
    unsafe fn from_c(addr: *const sockaddr) -> Self {
        // SAFETY: an address has a family, and is as long as the family says.
        unsafe {
            match c_int::from(addr.as_ref()?.sa_family) {
                libc::AF_INET => {
                    let sin = addr.cast::<sockaddr_in>().read_unaligned();
                    let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
                    Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
                }
                libc::AF_INET6 => {
                    let sin6 = addr.cast::<sockaddr_in6>().read_unaligned();
                    let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
                    let (port, flow) = (u16::from_be(sin6.sin6_port), u32::from_be(sin6.sin6_flowinfo));
                    Some(SocketAddrV6::new(ip, port, flow, sin6.sin6_scope_id).into())
                }
                _ => None,
            }
        }
    }
}

impl FromC<*mut sockaddr> for Option<SocketAddr> {
    unsafe fn from_c(addr: *mut sockaddr) -> Self {
        // SAFETY: the contract is the same.
        unsafe { typed(addr.cast_const()) }
    }
}

/// Returns the C form of an address, with zeros after its end.
pub(crate) fn to_c(addr: SocketAddr) -> SockAddr {
    let mut to = SockAddr::zeroed();
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

/// Calls `f` with an identifier and updates its public addresses; if `wait` is set, with the event that the
/// call causes, for which a synchronous identifier waits. Returns 0, or -1 with `errno` set.
#[track_caller]
pub(crate) fn call(
    id: Option<&IdObject>,
    wait: bool,
    f: impl FnOnce(&IdTail) -> Result<(), VerbsError>,
) -> c_int {
    call_object(id, wait, |id| f(&id.tail))
}

/// As [`call`], with the QP that `id->qp` names.
#[track_caller]
pub(crate) fn call_with_qp(
    id: Option<&IdObject>,
    wait: bool,
    f: impl FnOnce(&IdTail) -> Result<(), VerbsError>,
) -> c_int {
    call_object(id, wait, |id| id.with_qp(f))
}

#[track_caller]
fn call_object(
    id: Option<&IdObject>,
    wait: bool,
    f: impl FnOnce(&IdObject) -> Result<(), VerbsError>,
) -> c_int {
    given!(minus1; id);
    done!(minus1; f(id));
    if wait {
        return complete(id);
    }
    refresh(id);
    0
}

pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: rdma_bind_addr(3).
    let (id, addr): (Option<&IdObject>, Option<SocketAddr>) = unsafe { typed((id, addr)) };
    bind(id, addr)
}

/// The refusal of an address that is NULL or of an unknown family.
#[cold]
pub(super) fn no_family(name: &str) -> VerbsError {
    let family = 0;
    match name {
        "src_addr" => refuse!(EINVAL, "argument", "src_addr"; family; is "not of IPv4 or IPv6"),
        "dst_addr" => refuse!(EINVAL, "argument", "dst_addr"; family; is "NULL, or not of IPv4 or IPv6"),
        _ => refuse!(EINVAL, "argument", "addr"; family; is "NULL, or not of IPv4 or IPv6"),
    }
}

/// As rdma_bind_addr(3).
#[track_caller]
pub(crate) fn bind(id: Option<&IdObject>, addr: Option<SocketAddr>) -> c_int {
    let Some(addr) = addr else { return minus1(no_family("addr")) };
    call(id, false, |tail| tail.id.bind_addr(addr))
}

pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: rdma_resolve_addr(3).
    let (id, from, to): (Option<&IdObject>, Option<SocketAddr>, Option<SocketAddr>) =
        unsafe { typed((id, src, dst)) };
    if from.is_none() && !src.is_null() {
        return minus1(no_family("src_addr"));
    }
    resolve(id, from, to, timeout_ms)
}

/// As rdma_resolve_addr(3).
#[track_caller]
pub(crate) fn resolve(
    id: Option<&IdObject>,
    from: Option<SocketAddr>,
    to: Option<SocketAddr>,
    timeout_ms: c_int,
) -> c_int {
    let Some(to) = to else { return minus1(no_family("dst_addr")) };
    // The kernel takes a negative time for an endless one.
    let timeout = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
    call(id, true, |tail| tail.id.resolve_addr(from, to, timeout))
}

pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: rdma_resolve_route(3).
    resolve_route(unsafe { typed(id) })
}

/// As rdma_resolve_route(3).
#[track_caller]
pub(crate) fn resolve_route(id: Option<&IdObject>) -> c_int {
    call(id, true, |tail| tail.id.resolve_route())
}

pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: rdma_listen(3).
    call(unsafe { typed(id) }, false, |tail| tail.id.listen(backlog))
}

/// Returns the port in network byte order; 0 without an address.
fn port(addr: Option<SocketAddr>) -> u16 {
    addr.map_or(0, |addr| addr.port()).to_be()
}

pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: rdma_get_src_port(3).
    let id: Option<&IdObject> = unsafe { typed(id) };
    port(id.and_then(|id| id.tail.id.local_addr()))
}

pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: rdma_get_dst_port(3).
    let id: Option<&IdObject> = unsafe { typed(id) };
    port(id.and_then(|id| id.tail.id.peer_addr()))
}
