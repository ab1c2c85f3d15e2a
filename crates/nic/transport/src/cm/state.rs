//! The states of one connection (IBA 12.9.5; Linux ib_cm.h `enum ib_cm_state`).

/// Where one connection is in the exchange.
///
/// As in Linux's rdma_cm, the MRA is delayed: a request that was reported to the owner is in `MraReqSent`,
/// which only means that a duplicate gets an MRA.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ConnState {
    /// No exchange: refused, given up, or TIMEWAIT is over.
    #[default]
    Idle,
    /// Active: the REQ was sent, or waits for a place (`window.rs`).
    ReqSent,
    /// Active: the peer asked for more time before its REP.
    MraReqRcvd,
    /// Passive: REQ received, the owner has not seen it.
    ReqRcvd,
    /// Passive: the owner is deciding.
    MraReqSent,
    /// Active: REP received, the owner has not seen it.
    RepRcvd,
    /// Active: the owner is preparing its QP.
    MraRepSent,
    /// Passive: REP sent.
    RepSent,
    /// Passive: the peer asked for more time before its RTU.
    MraRepRcvd,
    /// Both sides agree.
    Established,
    /// DREQ sent.
    DreqSent,
    /// DREQ received; the DREP waits for the owner.
    DreqRcvd,
    /// Disconnected; late packets may still be in the network.
    Timewait,
}

impl ConnState {
    /// Whether probes find out that the peer no longer has the connection (`keepalive.rs`).
    pub(super) fn is_probed(self) -> bool {
        matches!(self, Self::Established | Self::DreqSent)
    }

    /// Whether `rdma_init_qp_attr` for INIT makes sense (Linux cm.c cm_init_qp_init_attr).
    #[must_use]
    pub fn allows_init(self) -> bool {
        use ConnState::*;
        matches!(self, ReqSent | MraReqRcvd) || self.allows_ready()
    }

    /// Whether the peer's QP is known, so that RTR and RTS can be reached (Linux cm.c cm_init_qp_rtr_attr).
    #[must_use]
    pub fn allows_ready(self) -> bool {
        use ConnState::*;
        matches!(self, ReqRcvd | MraReqSent | RepRcvd | MraRepSent | RepSent | MraRepRcvd | Established)
    }
}

crate::enum_value! {
    ConnState: Idle ReqSent MraReqRcvd ReqRcvd MraReqSent RepRcvd MraRepSent RepSent MraRepRcvd Established
        DreqSent DreqRcvd Timewait;
}

#[cfg(test)]
mod tests {
    use super::ConnState::*;

    #[test]
    fn a_connection_that_ends_makes_no_queue_pair_ready() {
        for state in [Idle, DreqSent, DreqRcvd, Timewait] {
            assert!(!state.allows_init() && !state.allows_ready(), "{state:?}");
        }
        for state in [ReqSent, MraReqRcvd] {
            assert!(
                state.allows_init() && !state.allows_ready(),
                "{state:?}: the peer's queue pair is not known"
            );
        }
    }
}
