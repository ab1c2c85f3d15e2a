//! Options (rdma_set_option(3)) and the options of enhanced connection establishment (rdma_set_local_ece(3)),
//! of which there are none.

use std::ffi::{c_int, c_void};

use libc::size_t;

use crate::abi::cm::rdma_cm_id;
use crate::abi::objects::ibv_ece;
use crate::errno::{done, given, minus1, no_argument, status_minus1};
use crate::handle::{Out, typed};
use roxie::transport::{VerbsError, refuse};

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
        return minus1(no_argument!("optval"));
    }
    // SAFETY: rdma_set_option(3).
    let (id, value): (Option<&IdObject>, &[u8]) = unsafe { typed((id, (value.cast_const(), len))) };
    set_option(id, level, name, value)
}

/// As rdma_set_option(3).
#[track_caller]
pub(crate) fn set_option(id: Option<&IdObject>, level: c_int, name: c_int, value: &[u8]) -> c_int {
    call(id, false, |tail| tail.id.set_option(level, name, value))
}

/// Checks that options of enhanced connection establishment may be set: only for identifiers without a QP.
fn check_ece(id: Option<&IdObject>) -> Result<(), VerbsError> {
    given!(Err; id);
    let qp = id.qp().get().addr();
    if qp == 0 {
        return Ok(());
    }
    Err(refuse!(EINVAL, "identifier", "qp"; qp; "the identifier has a queue pair: set the options of it"))
}

pub(crate) unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: rdma_set_local_ece(3).
    let (id, ece): (Option<&IdObject>, Option<&ibv_ece>) = unsafe { typed((id, ece.cast_const())) };
    given!(minus1; ece);
    status_minus1(check_ece(id))
}

pub(crate) unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: rdma_get_remote_ece(3).
    let (id, ece): (Option<&IdObject>, Option<Out<ibv_ece>>) = unsafe { typed((id, ece)) };
    given!(minus1; ece);
    done!(minus1; check_ece(id));
    ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 });
    0
}
