//! Multicast groups (rdma_join_multicast(3), rdma_leave_multicast(3)).

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;

use libc::sockaddr;

use crate::abi::cm::{
    RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_MC_JOIN_FLAG_FULLMEMBER,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, rdma_cm_id, rdma_cm_join_mc_attr_ex,
};
use crate::errno::{given, known_bits, minus1, needed_bits};
use crate::handle::typed;
use roxie::transport::refuse;

use super::addr::{call, call_with_qp, no_family};
use super::id::IdObject;

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: rdma_join_multicast(3).
    let (id, group): (Option<&IdObject>, Option<SocketAddr>) = unsafe { typed((id, addr)) };
    join(id, group, false, context)
}

pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const NEEDED: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    // SAFETY: rdma_join_multicast_ex(3).
    let (id, attr): (Option<&IdObject>, Option<&rdma_cm_join_mc_attr_ex>) =
        unsafe { typed((id, attr.cast_const())) };
    given!(minus1; attr);
    known_bits!(minus1; EINVAL, "multicast group", "comp_mask"; attr.comp_mask, NEEDED);
    needed_bits!(minus1; "multicast group", "comp_mask"; attr.comp_mask, NEEDED);
    let send_only = match attr.join_flags {
        RDMA_MC_JOIN_FLAG_FULLMEMBER => false,
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => true,
        flags => {
            return minus1(refuse!(EINVAL, "multicast group", "join_flags"; flags;
                is "{flags}: full member, or full member that only sends"));
        }
    };
    // SAFETY: rdma_join_multicast_ex(3): the attributes have an address.
    join(id, unsafe { typed(attr.addr) }, send_only, context)
}

#[track_caller]
fn join(id: Option<&IdObject>, group: Option<SocketAddr>, send_only: bool, context: *mut c_void) -> c_int {
    let Some(group) = group else { return minus1(no_family("addr")) };
    call(id, true, |tail| tail.id.join_multicast(group.ip(), send_only, context as u64))
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: rdma_leave_multicast(3).
    let (id, group): (Option<&IdObject>, Option<SocketAddr>) = unsafe { typed((id, addr)) };
    let Some(group) = group else { return minus1(no_family("addr")) };
    call_with_qp(id, false, |tail| tail.id.leave_multicast(group.ip()))
}
