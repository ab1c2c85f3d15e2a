//! Options (rdma_set_option(3)) and the options of enhanced connection establishment (rdma_set_local_ece(3)),
//! of which there are none.

use std::ffi::{c_int, c_void};

use libc::size_t;

use crate::abi::cm::rdma_cm_id;
use crate::abi::objects::ibv_ece;
use crate::errno::minus1;
use crate::handle::{Out, typed};

use super::addr::call;
use super::id::IdObject;

pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: size_t,
) -> c_int {
    if value.is_null() {
        return minus1(libc::EINVAL);
    }
    // SAFETY: rdma_set_option(3).
    let (id, value): (Option<&IdObject>, &[u8]) = unsafe { typed((id, (value.cast_const(), len))) };
    set_option(id, level, name, value)
}

/// As rdma_set_option(3).
pub(crate) fn set_option(id: Option<&IdObject>, level: c_int, name: c_int, value: &[u8]) -> c_int {
    call(id, false, |tail| tail.id.set_option(level, name, value))
}

/// Returns whether options of enhanced connection establishment may be set: only for identifiers without a
/// QP.
fn takes_ece(id: Option<&IdObject>) -> bool {
    id.is_some_and(|id| id.qp().get().is_null())
}

pub(crate) unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: rdma_set_local_ece(3).
    let (id, ece): (Option<&IdObject>, Option<&ibv_ece>) = unsafe { typed((id, ece.cast_const())) };
    if ece.is_none() || !takes_ece(id) {
        return minus1(libc::EINVAL);
    }
    0
}

pub(crate) unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: rdma_get_remote_ece(3).
    let (id, ece): (Option<&IdObject>, Option<Out<ibv_ece>>) = unsafe { typed((id, ece)) };
    let Some(ece) = ece.filter(|_| takes_ece(id)) else { return minus1(libc::EINVAL) };
    ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 });
    0
}
