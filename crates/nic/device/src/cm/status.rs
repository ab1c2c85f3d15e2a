//! What `rdma resource show cm_id` shows of an identifier.

use std::sync::Arc;

use super::id::IdInner;
use super::state::Phase;
use crate::status::ObjectStatus;
use crate::verbs::Qp;

impl IdInner {
    /// Its status; `None` while another thread uses it.
    pub(super) fn status(self: &Arc<Self>) -> Option<ObjectStatus> {
        let state = self.state.try_lock().ok()?;
        Some(ObjectStatus::CmId {
            id: self.number(),
            state: state.phase.of_linux(),
            port_space: self.port_space as u16,
            qpn: state.qp.as_ref().map(Qp::qpn),
            local: state.src,
            remote: state.dst,
        })
    }
}

impl Phase {
    /// The value of `enum rdma_cm_state` (Linux drivers/infiniband/core/cma_priv.h).
    fn of_linux(self) -> u8 {
        match self {
            Self::Idle => 0,
            Self::AddrQuery => 1,
            Self::AddrResolved => 2,
            Self::RouteResolved => 4,
            Self::Connect => 5,
            Self::Disconnect => 6,
            Self::Bound => 7,
            Self::Listen => 8,
            Self::DeviceRemoval => 9,
            Self::Destroyed => 10,
        }
    }
}
