//! Connections (rdma_connect(3), rdma_accept(3), rdma_reject(3), rdma_disconnect(3), rdma_establish(3)).

use std::ffi::{c_int, c_void};
use std::slice;

use roxie::cm::ConnParam;
use roxie::transport::AsyncEventKind;
use roxie::wire::Qpn;

use crate::abi::cm::{rdma_cm_id, rdma_conn_param};
use crate::errno::minus1;
use crate::ibv::qp::QPT_UD;

use super::addr::call;
use super::id::{IdTail, PS_TCP, find};

/// The bytes of C's private data.
///
/// # Safety
/// `data` is NULL or has `len` bytes for the time of `'a`.
unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: upheld by the caller.
    unsafe { slice::from_raw_parts(data.cast(), usize::from(len)) }
}

/// The Rust form of a parameter, and its private data.
///
/// # Safety
/// `param` is NULL or the caller's, for the time of `'a`.
unsafe fn from_c<'a>(param: *const rdma_conn_param) -> (Option<ConnParam>, &'a [u8]) {
    // SAFETY: upheld by the caller.
    let Some(param) = (unsafe { param.as_ref() }) else { return (None, &[]) };
    let conn = ConnParam {
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq != 0,
        qp_num: Qpn::new(param.qp_num),
    };
    // SAFETY: upheld by the caller.
    (Some(conn), unsafe { bytes(param.private_data, param.private_data_len) })
}

/// A connected service needs a QP, of the identifier or named in the parameters.
///
/// # Safety
/// `id` is live or NULL.
unsafe fn lacks_qp(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> bool {
    // SAFETY: upheld by the caller.
    unsafe { find(id).is_some() && (*id).ps == PS_TCP && (*id).qp.is_null() && param.is_null() }
}

pub(crate) unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: as the caller's.
    let (conn, data) = unsafe {
        if lacks_qp(id, param) {
            return minus1(libc::EINVAL);
        }
        from_c(param)
    };
    let connect = |tail: &IdTail| {
        let prefix = std::mem::take(&mut tail.extra().connect);
        if prefix.is_empty() {
            tail.id.connect(conn.as_ref(), data)
        } else {
            tail.id.connect(conn.as_ref(), &[&prefix, data].concat())
        }
    };
    // SAFETY: as the caller's.
    unsafe { call(id, true, connect) }
}

pub(crate) unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: as the caller's.
    let (conn, data, datagram) = unsafe {
        if lacks_qp(id, param) {
            return minus1(libc::EINVAL);
        }
        let (conn, data) = from_c(param);
        (conn, data, find(id).is_some() && (*id).qp_type == QPT_UD)
    };
    // A datagram service hears nothing more about a request it accepted.
    // SAFETY: as the caller's.
    unsafe { call(id, !datagram, |tail| tail.id.accept(conn.as_ref(), data)) }
}

pub(crate) unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: as the caller's.
    unsafe { call(id, false, |tail| tail.id.reject(bytes(data, len))) }
}

/// There are no enhanced connection options to complain about.
pub(crate) unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: as the caller's.
    unsafe { rdma_reject(id, data, len) }
}

pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller's.
    unsafe { call(id, false, |tail| tail.id.establish()) }
}

pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as the caller's.
    unsafe { call(id, true, |tail| tail.id.disconnect()) }
}

pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_int) -> c_int {
    if event != AsyncEventKind::CommEst as c_int {
        return minus1(libc::EINVAL);
    }
    // SAFETY: as the caller's.
    unsafe { call(id, false, |tail| tail.id.notify(AsyncEventKind::CommEst)) }
}
