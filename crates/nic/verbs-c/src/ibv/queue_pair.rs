//! What is behind the C object of a queue pair: the two kinds, and what each of them can do.

use roxie::raw::RawQp;
use roxie::transport::{QpAttr, QpAttrMask, QpCap, QpState, SendWr, VerbsError, refuse};
use roxie::verbs::Qp;
use roxie::wire::Qpn;

use crate::abi::work::ibv_send_wr;
use crate::errno::busy;
use crate::handle::Wr;

use super::work::{raw_send_wr, send_wr};

/// A queue pair of the device.
pub(crate) enum QueuePair {
    /// RC, UC, UD or XRC: messages to a peer.
    Transport(Qp),
    /// RAW_PACKET: Ethernet frames of the netdev.
    Raw(RawQp),
}

impl QueuePair {
    /// Returns the queue pair, if it has a transport. Groups, windows, completion counters and connection
    /// identifiers are for those.
    pub(crate) fn transport(&self) -> Result<&Qp, VerbsError> {
        match self {
            Self::Transport(qp) => Ok(qp),
            Self::Raw(raw) => {
                let number = raw.qpn();
                Err(refuse!(EINVAL, "queue pair", "qp_type"; number as Qpn;
                    "the queue pair {number} is of type RAW_PACKET, which this call is not for"))
            }
        }
    }

    pub(crate) fn number(&self) -> Qpn {
        match self {
            Self::Transport(qp) => qp.qpn(),
            Self::Raw(raw) => raw.qpn(),
        }
    }

    pub(crate) fn cap(&self) -> QpCap {
        match self {
            Self::Transport(qp) => qp.cap(),
            Self::Raw(raw) => raw.cap(),
        }
    }

    pub(crate) fn state(&self) -> QpState {
        match self {
            Self::Transport(qp) => qp.state(),
            Self::Raw(raw) => raw.state(),
        }
    }

    pub(super) fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        match self {
            Self::Transport(qp) => qp.modify(attr, mask),
            Self::Raw(raw) => raw.modify(attr, mask),
        }
    }

    pub(crate) fn query(&self) -> Result<QpAttr, VerbsError> {
        match self {
            Self::Transport(qp) => qp.query(),
            Self::Raw(raw) => raw.query(),
        }
    }

    /// Returns a send in the terms of the transport.
    pub(crate) fn send_wr<'a>(&self, wr: &Wr<'a, ibv_send_wr>) -> Result<SendWr<'a>, VerbsError> {
        match self {
            Self::Transport(qp) => send_wr(qp, wr),
            Self::Raw(_) => raw_send_wr(wr),
        }
    }

    /// Checks that it can be destroyed.
    pub(super) fn check_unused(&self) -> Result<(), VerbsError> {
        match self {
            Self::Transport(qp) if qp.in_group() => Err(busy!("queue pair";
                "the queue pair is attached to a multicast group (ibv_detach_mcast)")),
            Self::Raw(raw) if raw.has_flows() => Err(busy!("queue pair";
                "flow rules send packets to the queue pair (ibv_destroy_flow)")),
            Self::Transport(_) | Self::Raw(_) => Ok(()),
        }
    }
}
