//! Multicast groups (rdma_join_multicast(3), rdma_leave_multicast(3)).

use std::ffi::{c_int, c_void};

use libc::sockaddr;

use crate::abi::cm::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::errno::minus1;

use super::addr::{call, from_c};

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as the caller's.
    unsafe { join(id, addr, false, context) }
}

pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    /// RDMA_CM_JOIN_MC_ATTR_ADDRESS, JOIN_FLAGS.
    const ADDRESS: u32 = 1;
    const JOIN_FLAGS: u32 = 1 << 1;
    /// RDMA_MC_JOIN_FLAG_FULLMEMBER, SENDONLY_FULLMEMBER.
    const FULL_MEMBER: u32 = 0;
    const SEND_ONLY: u32 = 1;
    // SAFETY: NULL or the program's attributes.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return minus1(libc::EINVAL) };
    let complete = attr.comp_mask == ADDRESS | JOIN_FLAGS;
    if !complete || ![FULL_MEMBER, SEND_ONLY].contains(&attr.join_flags) {
        return minus1(libc::EINVAL);
    }
    // SAFETY: as the caller's.
    unsafe { join(id, attr.addr, attr.join_flags == SEND_ONLY, context) }
}

/// # Safety
/// `id` is ours or NULL, `addr` the program's or NULL.
unsafe fn join(id: *mut rdma_cm_id, addr: *mut sockaddr, send_only: bool, context: *mut c_void) -> c_int {
    // SAFETY: upheld by the caller.
    unsafe {
        let Some(group) = from_c(addr) else { return minus1(libc::EINVAL) };
        call(id, true, |tail| tail.id.join_multicast(group.ip(), send_only, context as u64))
    }
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: as the caller's.
    unsafe {
        let Some(group) = from_c(addr) else { return minus1(libc::EINVAL) };
        call(id, false, |tail| tail.id.leave_multicast(group.ip()))
    }
}
