//! Options (rdma_set_option(3)) and enhanced connection options (rdma_set_local_ece(3)), of which there are none.

use std::ffi::{c_int, c_void};
use std::slice;

use libc::size_t;

use crate::abi::cm::rdma_cm_id;
use crate::abi::objects::ibv_ece;
use crate::errno::minus1;

use super::addr::call;
use super::id::find;

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
    // SAFETY: the caller passes `len` bytes.
    let value = unsafe { slice::from_raw_parts(value.cast::<u8>(), len) };
    // SAFETY: as the caller's.
    unsafe { call(id, false, |tail| tail.id.set_option(level, name, value)) }
}

/// Only for identifiers without a QP of their own.
///
/// # Safety
/// `id` is live or NULL.
unsafe fn takes_ece(id: *mut rdma_cm_id) -> bool {
    // SAFETY: upheld by the caller.
    unsafe { find(id).is_some() && (*id).qp.is_null() }
}

pub(crate) unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: as the caller's.
    if ece.is_null() || !unsafe { takes_ece(id) } {
        return minus1(libc::EINVAL);
    }
    0
}

pub(crate) unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: as the caller's.
    if ece.is_null() || !unsafe { takes_ece(id) } {
        return minus1(libc::EINVAL);
    }
    // SAFETY: the caller passes room for the structure.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}
