//! What an identifier knows, behind its lock.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use transport::Instant;
use transport::cm::{CmId, ListenParams, ListenerId};
use wire::{Gid, Psn};

use super::host::Host;
use super::listen::RequestTarget;
use super::multicast::Join;
use super::port::Bound;
use crate::verbs::Qp;

/// State of an identifier (Linux cma_priv.h `enum rdma_cm_state`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    Idle,
    Bound,
    AddrQuery,
    AddrResolved,
    RouteResolved,
    Listen,
    Connect,
    Disconnect,
    DeviceRemoval,
    Destroyed,
}

transport::enum_value! {
    Phase: Idle Bound AddrQuery AddrResolved RouteResolved Listen Connect Disconnect DeviceRemoval Destroyed;
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "has no address yet",
            Self::Bound => "is bound",
            Self::AddrQuery => "is resolving its address",
            Self::AddrResolved => "has a resolved address and no route",
            Self::RouteResolved => "has a resolved route",
            Self::Listen => "listens",
            Self::Connect => "is connecting or connected",
            Self::Disconnect => "is disconnected",
            Self::DeviceRemoval => "has lost its device and can only be destroyed",
            Self::Destroyed => "is destroyed",
        })
    }
}

/// A device where an identifier listens, and the number of the listener there.
pub(super) type Listener = (Arc<dyn Host>, ListenerId);

/// Protected by an identifier's lock.
pub(super) struct IdState {
    pub(super) phase: Phase,
    pub(super) cm_id: Option<CmId>,
    /// On each device where the identifier listens.
    pub(super) listeners: Vec<Listener>,
    pub(super) listening: Option<ListenParams>,
    /// A thread opens a further device for the identifier.
    pub(super) is_opening: bool,
    /// Addresses to which requests came and that no device has: until when no device is looked for.
    pub(super) no_device: Vec<(RequestTarget, Instant)>,
    pub(super) bound: Option<Bound>,
    pub(super) src: Option<SocketAddr>,
    pub(super) dst: Option<SocketAddr>,
    /// Set when the device is known: the local address and, once resolved, the peer's.
    pub(super) local: Option<Gid>,
    pub(super) peer: Option<Gid>,
    /// The MAC that the bond with the local address had then.
    pub(super) bond_mac: Option<[u8; 6]>,
    pub(super) qp: Option<Qp>,
    pub(super) groups: Vec<Join>,
    /// The PSN that the peer starts with.
    pub(super) starting_psn: Psn,
    /// A child gets no events until it is accepted.
    pub(super) silent: bool,
    /// The application has called `reject`.
    pub(super) is_rejected: bool,
    /// The QP could not change its state: further events of the peer are dropped.
    pub(super) failed: bool,
    /// Negotiated depths: READs and atomics to serve, and to have in flight.
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) tos: u8,
    pub(super) reuse: bool,
    pub(super) af_only: Option<bool>,
    pub(super) ack_timeout: Option<u8>,
}

impl IdState {
    pub(super) fn new(random: u64) -> Self {
        Self {
            phase: Phase::Idle,
            cm_id: None,
            listeners: Vec::new(),
            listening: None,
            is_opening: false,
            no_device: Vec::new(),
            bound: None,
            src: None,
            dst: None,
            local: None,
            peer: None,
            bond_mac: None,
            qp: None,
            groups: Vec::new(),
            starting_psn: Psn::new(random as u32),
            silent: false,
            is_rejected: false,
            failed: false,
            responder_resources: 0,
            initiator_depth: 0,
            tos: 0,
            reuse: false,
            af_only: None,
            ack_timeout: None,
        }
    }

    pub(super) fn src_port(&self) -> u16 {
        self.src.map_or(0, |addr| addr.port())
    }
}
