//! Address translation (rdma_getaddrinfo(3)), by getaddrinfo(3).

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};

use roxie::cm::CmEventKind;

use crate::abi::cm::{
    RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, RAI_SA, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_addrinfo,
    rdma_cm_id,
};
use crate::abi::objects::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND};
use crate::errno::{busy, given, minus1, no_argument, no_memory};
use crate::handle::{Out, typed};
use roxie::transport::refuse;

use super::addr::call;
use super::id::IdObject;

/// A list of one result on the C heap, until the application gets it.
pub(crate) struct AddrInfo(*mut rdma_addrinfo);

// SAFETY: memory of the C heap with one owner.
unsafe impl Send for AddrInfo {}

impl AddrInfo {
    /// Allocates an empty result; `None` if memory is short.
    fn new() -> Option<Self> {
        // SAFETY: zero bytes are an empty result.
        let info: *mut rdma_addrinfo = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast();
        (!info.is_null()).then_some(Self(info))
    }

    /// Gives the result to the application, which frees it with rdma_freeaddrinfo.
    fn give(self) -> *mut rdma_addrinfo {
        let info = self.0;
        std::mem::forget(self);
        info
    }
}

impl Deref for AddrInfo {
    type Target = rdma_addrinfo;

    fn deref(&self) -> &rdma_addrinfo {
        // SAFETY: allocated by `new`, freed by `drop`.
        unsafe { &*self.0 }
    }
}

impl DerefMut for AddrInfo {
    fn deref_mut(&mut self) -> &mut rdma_addrinfo {
        // SAFETY: allocated by `new`, freed by `drop`.
        unsafe { &mut *self.0 }
    }
}

impl Drop for AddrInfo {
    fn drop(&mut self) {
        // SAFETY: a list of this module, which the application did not get.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: rdma_getaddrinfo(3).
    let result: Option<Out<*mut rdma_addrinfo>> = unsafe { typed(result) };
    given!(minus1; result);
    // SAFETY: rdma_getaddrinfo(3).
    match unsafe { look_up(node, service, hints) } {
        Ok(found) => {
            result.write(found.give());
            0
        }
        Err(failed) => failed,
    }
}

/// Translates a name or, without a name, the addresses in `hints`. Returns as error what rdma_getaddrinfo(3)
/// returns: -1 with `errno` set, or a code of getaddrinfo(3).
///
/// # Safety
/// The arguments are those of a C function and keep the contract of rdma_getaddrinfo(3).
#[track_caller]
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<AddrInfo, c_int> {
    // SAFETY: an argument of a C function.
    let hints: Option<&rdma_addrinfo> = unsafe { typed(hints) };
    let is_named = !node.is_null() || !service.is_null();
    if !is_named && hints.is_none() {
        return Err(minus1(no_argument!("node")));
    }
    let mut to = AddrInfo::new().ok_or_else(|| minus1(no_memory!("rdma_addrinfo")))?;
    if is_named {
        let asked = hints.map(to_addrinfo);
        let asked = asked.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mut found: *mut addrinfo = ptr::null_mut();
        // SAFETY: strings or NULL, and initialised hints or NULL.
        let failed = unsafe { libc::getaddrinfo(node, service, asked, &raw mut found) };
        if failed != 0 {
            return Err(failed);
        }
        // SAFETY: getaddrinfo succeeded, so there is a first entry; the list is freed once.
        unsafe {
            from_addrinfo(&mut to, hints, &*found);
            libc::freeaddrinfo(found);
        }
    } else if let Some(hints) = hints {
        to.ai_flags = hints.ai_flags;
        to.ai_family = hints.ai_family;
        to.ai_qp_type = hints.ai_qp_type;
        to.ai_port_space = hints.ai_port_space;
        // SAFETY: the hints say how long their address is (rdma_getaddrinfo(3)).
        let addr: &[u8] =
            unsafe { typed((hints.ai_dst_addr.cast_const().cast(), hints.ai_dst_len as usize)) };
        (to.ai_dst_addr, to.ai_dst_len) = copy(addr);
    }
    if let Some(hints) = hints
        && to.ai_src_len == 0
    {
        // SAFETY: the hints say how long their address is (rdma_getaddrinfo(3)).
        let addr: &[u8] =
            unsafe { typed((hints.ai_src_addr.cast_const().cast(), hints.ai_src_len as usize)) };
        (to.ai_src_addr, to.ai_src_len) = copy(addr);
    }
    Ok(to)
}

/// Returns the hints in the terms of getaddrinfo(3).
fn to_addrinfo(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: zero bytes are the neutral hint.
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
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    to.ai_protocol = match hints.ai_port_space {
        RDMA_PS_TCP => libc::IPPROTO_TCP,
        RDMA_PS_UDP | RDMA_PS_IPOIB => libc::IPPROTO_UDP,
        _ => 0,
    };
    to
}

/// Fills a result with an entry of getaddrinfo(3).
///
/// # Safety
/// getaddrinfo(3) returned `found`.
unsafe fn from_addrinfo(to: &mut rdma_addrinfo, hints: Option<&rdma_addrinfo>, found: &addrinfo) {
    let hinted = |get: fn(&rdma_addrinfo) -> c_int| hints.map(get).filter(|value| *value != 0);
    let datagram = found.ai_socktype == libc::SOCK_DGRAM;
    to.ai_family = found.ai_family;
    to.ai_qp_type = hinted(|h| h.ai_qp_type).unwrap_or(if datagram { IBV_QPT_UD } else { IBV_QPT_RC });
    to.ai_port_space =
        hinted(|h| h.ai_port_space).unwrap_or(if datagram { RDMA_PS_UDP } else { RDMA_PS_TCP });
    // SAFETY: getaddrinfo says how long its address is.
    let addr: &[u8] = unsafe { typed((found.ai_addr.cast_const().cast(), found.ai_addrlen as usize)) };
    let (addr, len) = copy(addr);
    if hints.is_some_and(|h| h.ai_flags & RAI_PASSIVE != 0) {
        to.ai_flags = RAI_PASSIVE;
        (to.ai_src_addr, to.ai_src_len) = (addr, len);
    } else {
        (to.ai_dst_addr, to.ai_dst_len) = (addr, len);
    }
}

/// Translates an address and reports it as an event. The translation runs inside the call, as in rdma-core.
pub(crate) unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: rdma_resolve_addrinfo(3).
    let (id, asked): (Option<&IdObject>, Option<&rdma_addrinfo>) = unsafe { typed((id, hints)) };
    given!(minus1; id);
    let flags = asked.map_or(0, |hints| hints.ai_flags);
    if flags & RAI_SA != 0 {
        return minus1(refuse!(EOPNOTSUPP, "argument", "ai_flags"; flags as i32;
            is "{flags:#x}: there is no subnet administrator (RAI_SA)"));
    }
    if std::mem::replace(&mut id.tail.extra().resolving, true) {
        return minus1(busy!("identifier"; "rdma_resolve_addrinfo has a result that was not queried"));
    }
    // SAFETY: rdma_resolve_addrinfo(3).
    match unsafe { look_up(node, service, hints) } {
        Ok(found) => {
            id.tail.extra().resolved = Some(found);
            call(Some(id), true, |tail| tail.id.report(CmEventKind::AddrInfoResolved, 0, 0))
        }
        Err(failed) => {
            id.tail.extra().resolving = false;
            // -1 has set errno; other codes are those of getaddrinfo(3).
            if failed == -1 {
                return -1;
            }
            minus1(refuse!(ENODATA, "argument", "node"; failed as i32;
                "getaddrinfo found no address, and returned {failed} (EAI_* of netdb.h)"))
        }
    }
}

/// Gives the result of rdma_resolve_addrinfo to the application, which frees it.
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: rdma_query_addrinfo(3).
    let (id, info): (Option<&IdObject>, Option<Out<*mut rdma_addrinfo>>) = unsafe { typed((id, info)) };
    given!(minus1; id, info);
    let mut extra = id.tail.extra();
    let Some(found) = extra.resolved.take() else {
        let results = 0;
        return minus1(refuse!(ENOENT, "identifier", "results"; results;
            "no result of rdma_resolve_addrinfo waits"));
    };
    extra.resolving = false;
    info.write(found.give());
    0
}

/// Returns a copy of an address on the C heap and its length; NULL for no bytes, and if memory is short.
fn copy(addr: &[u8]) -> (*mut sockaddr, socklen_t) {
    if addr.is_empty() {
        return (ptr::null_mut(), 0);
    }
    // SAFETY: the new memory is as long as the address; rdma_freeaddrinfo frees it.
    unsafe {
        let to = libc::malloc(addr.len());
        if to.is_null() {
            return (ptr::null_mut(), 0);
        }
        to.cast::<u8>().copy_from_nonoverlapping(addr.as_ptr(), addr.len());
        (to.cast(), addr.len() as socklen_t)
    }
}

pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(mut rai: *mut rdma_addrinfo) {
    while !rai.is_null() {
        // SAFETY: rdma_freeaddrinfo(3): a list that rdma_getaddrinfo returned; free(3) ignores NULL.
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
