//! Address translation (rdma_getaddrinfo(3)): getaddrinfo(3) in other clothes.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};

use roxie::cm::CmEventKind;

use crate::abi::cm::{rdma_addrinfo, rdma_cm_id};
use crate::errno::minus1;
use crate::ibv::qp::{QPT_RC, QPT_UC, QPT_UD, QPT_XRC_RECV, QPT_XRC_SEND};

use super::addr::call;
use super::id::{PS_IPOIB, PS_TCP, PS_UDP, find};

/// RAI_PASSIVE, RAI_NUMERICHOST, RAI_FAMILY.
pub(crate) const RAI_PASSIVE: c_int = 1;
const RAI_NUMERICHOST: c_int = 2;
const RAI_FAMILY: c_int = 8;
/// RAI_SA: from the subnet administrator of InfiniBand.
const RAI_SA: c_int = 0x10;

pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    if result.is_null() || (node.is_null() && service.is_null() && hints.is_null()) {
        return minus1(libc::EINVAL);
    }
    // SAFETY: all zero is the empty list node; the program frees it with rdma_freeaddrinfo.
    let rai: *mut rdma_addrinfo = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast();
    // SAFETY: NULL or zeroed memory; the program's hints or NULL.
    let (Some(to), hints) = (unsafe { (rai.as_mut(), hints.as_ref()) }) else { return minus1(libc::ENOMEM) };
    // SAFETY: as the caller's.
    let answer = unsafe { fill(to, node, service, hints) };
    if answer != 0 {
        // SAFETY: allocated above and not given away.
        unsafe { rdma_freeaddrinfo(rai) };
        return answer;
    }
    // SAFETY: the caller passes room for a pointer.
    unsafe { result.write(rai) };
    0
}

/// # Safety
/// `node` and `service` are strings or NULL; the addresses in `hints` are as long as it says.
unsafe fn fill(
    to: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> c_int {
    if node.is_null() && service.is_null() {
        let Some(hints) = hints else { return minus1(libc::EINVAL) };
        to.ai_flags = hints.ai_flags;
        to.ai_family = hints.ai_family;
        to.ai_qp_type = hints.ai_qp_type;
        to.ai_port_space = hints.ai_port_space;
        // SAFETY: upheld by the caller.
        (to.ai_dst_addr, to.ai_dst_len) = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len) };
    } else {
        let asked = hints.map(to_addrinfo);
        let asked = asked.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mut found: *mut addrinfo = ptr::null_mut();
        // SAFETY: upheld by the caller.
        let answer = unsafe { libc::getaddrinfo(node, service, asked, &raw mut found) };
        if answer != 0 {
            return answer;
        }
        // SAFETY: getaddrinfo succeeded, so there is a first entry.
        unsafe {
            from_addrinfo(to, hints, &*found);
            libc::freeaddrinfo(found);
        }
    }
    if let Some(hints) = hints
        && to.ai_src_len == 0
    {
        // SAFETY: upheld by the caller.
        (to.ai_src_addr, to.ai_src_len) = unsafe { copy(hints.ai_src_addr, hints.ai_src_len) };
    }
    0
}

/// Our hints in getaddrinfo's words.
fn to_addrinfo(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: all zero is the neutral hint.
    let mut to: addrinfo = unsafe { MaybeUninit::zeroed().assume_init() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        to.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        to.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_flags & RAI_FAMILY != 0 || hints.ai_family != 0 {
        to.ai_family = hints.ai_family;
    }
    to.ai_socktype = match hints.ai_qp_type {
        QPT_RC | QPT_UC | QPT_XRC_SEND | QPT_XRC_RECV => libc::SOCK_STREAM,
        QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    to.ai_protocol = match hints.ai_port_space {
        PS_TCP => libc::IPPROTO_TCP,
        PS_UDP | PS_IPOIB => libc::IPPROTO_UDP,
        _ => 0,
    };
    to
}

/// # Safety
/// `found` is an entry that getaddrinfo returned.
unsafe fn from_addrinfo(to: &mut rdma_addrinfo, hints: Option<&rdma_addrinfo>, found: &addrinfo) {
    let hinted = |get: fn(&rdma_addrinfo) -> c_int| hints.map(get).filter(|value| *value != 0);
    let datagram = found.ai_socktype == libc::SOCK_DGRAM;
    to.ai_family = found.ai_family;
    to.ai_qp_type = hinted(|h| h.ai_qp_type).unwrap_or(if datagram { QPT_UD } else { QPT_RC });
    to.ai_port_space = hinted(|h| h.ai_port_space).unwrap_or(if datagram { PS_UDP } else { PS_TCP });
    // SAFETY: upheld by the caller.
    let (addr, len) = unsafe { copy(found.ai_addr, found.ai_addrlen) };
    if hints.is_some_and(|h| h.ai_flags & RAI_PASSIVE != 0) {
        to.ai_flags = RAI_PASSIVE;
        (to.ai_src_addr, to.ai_src_len) = (addr, len);
    } else {
        (to.ai_dst_addr, to.ai_dst_len) = (addr, len);
    }
}

/// What rdma_getaddrinfo returned, until somebody takes it.
pub(crate) struct AddrInfo(*mut rdma_addrinfo);

// SAFETY: plain memory of the C heap with one owner.
unsafe impl Send for AddrInfo {}

impl Drop for AddrInfo {
    fn drop(&mut self) {
        // SAFETY: it came from rdma_getaddrinfo, and nobody has taken it.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

/// Looks up at once, as rdma-core does, and reports it as an event.
pub(crate) unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: ours or NULL.
    let Some(object) = (unsafe { find(id) }) else { return minus1(libc::EINVAL) };
    // SAFETY: the program's hints or NULL.
    if unsafe { hints.as_ref() }.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
        return minus1(libc::EOPNOTSUPP);
    }
    if std::mem::replace(&mut object.tail.extra().resolving, true) {
        return minus1(libc::EBUSY);
    }
    let mut found = ptr::null_mut();
    // SAFETY: as the caller's.
    let answer = unsafe { rdma_getaddrinfo(node, service, hints, &raw mut found) };
    if answer != 0 {
        object.tail.extra().resolving = false;
        // -1 with errno, or what getaddrinfo(3) says of the name.
        return if answer == -1 { -1 } else { minus1(libc::ENODATA) };
    }
    object.tail.extra().resolved = Some(AddrInfo(found));
    // SAFETY: as the caller's.
    unsafe { call(id, true, |tail| tail.id.report(CmEventKind::AddrInfoResolved, 0, 0)) }
}

/// Gives away what was found; the program frees it.
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: ours or NULL.
    let Some(object) = (unsafe { find(id) }) else { return minus1(libc::EINVAL) };
    if info.is_null() {
        return minus1(libc::EINVAL);
    }
    let mut extra = object.tail.extra();
    let Some(found) = extra.resolved.take() else { return minus1(libc::ENOENT) };
    extra.resolving = false;
    // SAFETY: the caller passes room for a pointer.
    unsafe { info.write(found.0) };
    std::mem::forget(found);
    0
}

/// A copy of an address on the C heap; NULL for none, or when memory is short.
///
/// # Safety
/// `addr` is NULL or has `len` bytes.
unsafe fn copy(addr: *const sockaddr, len: socklen_t) -> (*mut sockaddr, socklen_t) {
    if addr.is_null() || len == 0 {
        return (ptr::null_mut(), 0);
    }
    // SAFETY: upheld by the caller; the copy is freed by rdma_freeaddrinfo.
    unsafe {
        let to = libc::malloc(len as usize);
        if to.is_null() {
            return (ptr::null_mut(), 0);
        }
        to.copy_from_nonoverlapping(addr.cast(), len as usize);
        (to.cast(), len)
    }
}

pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(mut rai: *mut rdma_addrinfo) {
    while !rai.is_null() {
        // SAFETY: the caller passes what rdma_getaddrinfo returned; free(3) ignores NULL.
        unsafe {
            let next = (*rai).ai_next;
            libc::free((*rai).ai_connect);
            libc::free((*rai).ai_route);
            libc::free((*rai).ai_src_canonname.cast());
            libc::free((*rai).ai_dst_canonname.cast());
            libc::free((*rai).ai_src_addr.cast());
            libc::free((*rai).ai_dst_addr.cast());
            libc::free(rai.cast());
            rai = next;
        }
    }
}
