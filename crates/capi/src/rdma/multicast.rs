//! Multicast groups (rdma_join_multicast(3)): the device has none yet.

use std::ffi::{c_int, c_void};

use libc::sockaddr;

use crate::abi::cm::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::errno::minus1;

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    _id: *mut rdma_cm_id,
    _addr: *mut sockaddr,
    _context: *mut c_void,
) -> c_int {
    minus1(libc::EOPNOTSUPP)
}

pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    _id: *mut rdma_cm_id,
    _attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    minus1(libc::EOPNOTSUPP)
}

/// No group was joined, so none can be left.
pub(crate) unsafe extern "C" fn rdma_leave_multicast(_id: *mut rdma_cm_id, _addr: *mut sockaddr) -> c_int {
    minus1(libc::EADDRNOTAVAIL)
}
