//! Endpoints: identifiers that are set up in one call and used synchronously (rdma_create_ep(3), rdma_get_request(3)).

use std::ffi::c_int;
use std::{ptr, slice};

use roxie::cm::CmEventKind;

use crate::abi::cm::{rdma_addrinfo, rdma_cm_event, rdma_cm_id};
use crate::abi::objects::{ibv_pd, ibv_qp_init_attr};
use crate::errno::minus1;

use super::addr::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use super::addrinfo::RAI_PASSIVE;
use super::event::{complete, drop_own_event, rdma_get_cm_event};
use super::id::{self, InitAttr, find, rdma_destroy_id};
use super::option::rdma_set_option;
use super::qp::{rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq};

/// Milliseconds that resolving may take.
const RESOLVE_TIMEOUT_MS: c_int = 2000;
/// RDMA_OPTION_IB, RDMA_OPTION_IB_PATH.
const OPTION_IB: c_int = 1;
const OPTION_IB_PATH: c_int = 1;

pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: NULL or what rdma_getaddrinfo returned.
    let Some(res) = (unsafe { res.as_ref() }) else { return minus1(libc::EINVAL) };
    if id.is_null() {
        return minus1(libc::EINVAL);
    }
    // SAFETY: NULL makes a channel of its own.
    let created = unsafe { id::create(ptr::null_mut(), ptr::null_mut(), res.ai_port_space, res.ai_qp_type) };
    let created = match created {
        Ok(created) => created,
        Err(errno) => return minus1(errno),
    };
    // SAFETY: as the caller's.
    unsafe {
        let set_up = if res.ai_flags & RAI_PASSIVE != 0 {
            passive(created, res, pd, qp_init_attr)
        } else {
            active(created, res, pd, qp_init_attr)
        };
        if set_up != 0 {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            rdma_destroy_ep(created);
            return minus1(errno);
        }
        id.write(created);
    }
    0
}

/// Binds, and remembers what the QPs of requests shall be.
///
/// # Safety
/// `id` is live, the other pointers are the caller's.
unsafe fn passive(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *const ibv_qp_init_attr,
) -> c_int {
    // SAFETY: upheld by the caller.
    unsafe {
        let bound = rdma_bind_addr(id, res.ai_src_addr);
        if bound != 0 {
            return bound;
        }
        if !pd.is_null() {
            (*id).pd = pd;
        }
        if let (Some(object), Some(init)) = (find(id), qp_init_attr.as_ref()) {
            let init = ibv_qp_init_attr { qp_type: res.ai_qp_type, ..*init };
            object.tail.extra().qp_init_attr = Some(InitAttr(init));
        }
        0
    }
}

/// Resolves the destination and creates the QP.
///
/// # Safety
/// `id` is live, the other pointers are the caller's.
unsafe fn active(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: upheld by the caller.
    unsafe {
        let resolved = rdma_resolve_addr(id, res.ai_src_addr, res.ai_dst_addr, RESOLVE_TIMEOUT_MS);
        if resolved != 0 {
            return resolved;
        }
        let routed = if res.ai_route_len != 0 {
            match rdma_set_option(id, OPTION_IB, OPTION_IB_PATH, res.ai_route, res.ai_route_len) {
                0 => complete(id),
                failed => failed,
            }
        } else {
            rdma_resolve_route(id, RESOLVE_TIMEOUT_MS)
        };
        if routed != 0 {
            return routed;
        }
        if let Some(init) = qp_init_attr.as_mut() {
            init.qp_type = res.ai_qp_type;
            let created = rdma_create_qp(id, pd, init);
            if created != 0 {
                return created;
            }
        }
        if let Some(object) = find(id)
            && res.ai_connect_len != 0
            && !res.ai_connect.is_null()
        {
            let prefix = slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len);
            object.tail.extra().connect = prefix.to_vec();
        }
        0
    }
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: a live identifier that the caller gives up.
    unsafe {
        if find(id).is_none() {
            return;
        }
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        rdma_destroy_id(id);
    }
}

/// The next request at a synchronous listener, with a QP if the listener was created with attributes for it.
pub(crate) unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: ours or NULL.
    let Some(object) = (unsafe { find(listen) }) else { return minus1(libc::EINVAL) };
    if id.is_null() || !object.tail.is_sync() {
        return minus1(libc::EINVAL);
    }
    // SAFETY: a live listener.
    unsafe {
        drop_own_event(listen);
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        if rdma_get_cm_event((*listen).channel, &raw mut event) != 0 {
            return -1;
        }
        let failed = if (*event).status != 0 {
            Some((*event).status.abs())
        } else if (*event).event != CmEventKind::ConnectRequest as c_int {
            Some(libc::EINVAL)
        } else {
            None
        };
        if let Some(errno) = failed {
            (*listen).event = event;
            return minus1(errno);
        }
        let child = (*event).id;
        let init = object.tail.extra().qp_init_attr.as_ref().map(|init| init.0);
        if let Some(mut init) = init
            && rdma_create_qp(child, (*listen).pd, &raw mut init) != 0
        {
            (*listen).event = event;
            return -1;
        }
        (*child).event = event;
        id.write(child);
        0
    }
}
