//! Connections (rdma_connect(3), rdma_accept(3), rdma_reject(3), rdma_disconnect(3), rdma_establish(3)).

use std::ffi::{c_int, c_void};

use roxie::cm::ConnParam;
use roxie::transport::{AsyncEventKind, VerbsError, refuse};
use roxie::wire::Qpn;

use crate::abi::cm::{RDMA_PS_TCP, rdma_cm_id, rdma_conn_param};
use crate::abi::objects::IBV_QPT_UD;
use crate::errno::{done, minus1};
use crate::handle::{FromC, typed};

use super::addr::{call, call_with_qp};
use super::id::{IdObject, IdTail};

/// Parameters of a connection and their private data.
struct Params<'a> {
    conn: ConnParam,
    data: &'a [u8],
}

impl FromC<*mut rdma_conn_param> for Option<Params<'_>> {
    unsafe fn from_c(param: *mut rdma_conn_param) -> Self {
        // SAFETY: NULL or initialised, and the structure says how long its private data are.
        let (param, data): (&rdma_conn_param, &[u8]) = unsafe {
            let param = param.as_ref()?;
            (param, typed((param.private_data, usize::from(param.private_data_len))))
        };
        let conn = ConnParam {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq != 0,
            qp_num: Qpn::new(param.qp_num),
        };
        Some(Params { conn, data })
    }
}

/// Returns the parameters in two parts.
fn split(params: Option<Params<'_>>) -> (Option<ConnParam>, &[u8]) {
    params.map_or((None, &[]), |params| (Some(params.conn), params.data))
}

/// Checks that a connected service has a QP, its identifier or the parameters.
fn check_qp(id: Option<&IdObject>, params: &Option<Params>) -> Result<(), VerbsError> {
    let lacks = |id: &IdObject| id.ps().get() == RDMA_PS_TCP && id.qp().get().is_null();
    if params.is_some() || !id.is_some_and(lacks) {
        return Ok(());
    }
    let null = 0;
    Err(refuse!(EINVAL, "argument", "conn_param"; null;
        is "NULL, and the identifier has no queue pair: conn_param names one"))
}

pub(crate) unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: rdma_connect(3).
    let (id, params): (Option<&IdObject>, Option<Params>) = unsafe { typed((id, param)) };
    done!(minus1; check_qp(id, &params));
    let (conn, data) = split(params);
    let connect = |tail: &IdTail| {
        let prefix = std::mem::take(&mut tail.extra().connect);
        if prefix.is_empty() {
            tail.id.connect(conn.as_ref(), data)
        } else {
            tail.id.connect(conn.as_ref(), &[&prefix, data].concat())
        }
    };
    call_with_qp(id, true, connect)
}

pub(crate) unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: rdma_accept(3).
    let (id, params): (Option<&IdObject>, Option<Params>) = unsafe { typed((id, param)) };
    done!(minus1; check_qp(id, &params));
    let (conn, data) = split(params);
    // A datagram service gets no further event about a request that it accepted.
    let datagram = id.is_some_and(|id| id.qp_type().get() == IBV_QPT_UD);
    call_with_qp(id, !datagram, |tail| tail.id.accept(conn.as_ref(), data))
}

pub(crate) unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: rdma_reject(3).
    let (id, data): (Option<&IdObject>, &[u8]) = unsafe { typed((id, (data, usize::from(len)))) };
    call(id, false, |tail| tail.id.reject(data))
}

/// As `rdma_reject`: peers send no options for enhanced connection establishment to reject.
pub(crate) unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: rdma_reject(3).
    unsafe { rdma_reject(id, data, len) }
}

pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: rdma_establish(3).
    call_with_qp(unsafe { typed(id) }, false, |tail| tail.id.establish())
}

pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    crate::exiting::note_use();
    // SAFETY: rdma_disconnect(3).
    call_with_qp(unsafe { typed(id) }, true, |tail| tail.id.disconnect())
}

pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_int) -> c_int {
    if event != AsyncEventKind::CommEst as c_int {
        return minus1(refuse!(EINVAL, "identifier", "event"; event as i32;
            is "{event}; rdma_notify takes IBV_EVENT_COMM_EST"));
    }
    // SAFETY: rdma_notify(3).
    call(unsafe { typed(id) }, false, |tail| tail.id.notify(AsyncEventKind::CommEst))
}
