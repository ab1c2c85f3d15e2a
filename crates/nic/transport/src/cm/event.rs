//! Events for the owner of a [`Cm`](super::Cm).

use wire::cm::{RejReason, ServiceId, SidrStatus};
use wire::{Gid, QKey, Qpn};

use super::params::{CmId, ListenerId, REJ_PRIVATE_MAX, REP_PRIVATE_MAX, REQ_PRIVATE_MAX};
use super::params::{SIDR_REP_PRIVATE_MAX, SIDR_REQ_PRIVATE_MAX, Transport};
use crate::{PathMtu, VerbsError};

/// An event of a connection.
#[derive(Clone, Debug)]
pub struct CmEvent {
    /// The connection.
    pub id: CmId,
    /// The event.
    pub kind: CmEventKind,
}

/// Kind of an event.
#[derive(Clone, Debug)]
pub enum CmEventKind {
    /// Passive: a REQ arrived. The owner calls accept, reject or destroy.
    ConnectRequest(Box<ConnectRequest>),
    /// Active: the peer accepted. The owner brings the QP to RTS and calls rtu, or calls reject.
    ConnectResponse(Box<ConnectResponse>),
    /// Passive: the RTU or the first packet arrived.
    Established,
    /// The peer refused, or withdrew its acceptance.
    Rejected(Box<Rejection>),
    /// The peer did not respond.
    Unreachable {
        /// No process of its host has the port; else there was no response to any retry.
        is_refused: bool,
    },
    /// DREQ or DREP arrived, or neither did, or the peer has lost the connection (`timed_out`).
    Disconnected {
        /// The peer did not respond to any DREQ, or does not have the connection any more.
        timed_out: bool,
    },
    /// The QP number may be reused.
    TimewaitExit,
    /// Passive: a SIDR_REQ arrived. The owner calls sidr_reply or destroy.
    SidrRequest(Box<SidrRequest>),
    /// Active: the SIDR_REP.
    SidrResponse(Box<SidrResponse>),
}

/// The peer's half of the negotiation, from the view of this side: `responder_resources` is what this side
/// may have to serve, `initiator_depth` what it may have outstanding.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerParams {
    /// READs and atomics the peer wants outstanding.
    pub responder_resources: u8,
    /// READs and atomics the peer can serve.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries of both QPs; 0 in a response, which does not carry it.
    pub retry_count: u8,
    /// RNR retries of our QP.
    pub rnr_retry_count: u8,
    /// The peer's QP uses an SRQ.
    pub srq: bool,
    /// The peer's QP.
    pub qpn: Qpn,
}

/// A REQ.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    /// The listener that it matched.
    pub listener: ListenerId,
    /// The service that it asked for.
    pub service_id: ServiceId,
    /// Our address (IP-CM header).
    pub local: Gid,
    /// The peer's address (IP-CM header).
    pub peer: Gid,
    /// The peer's RDMA port.
    pub peer_port: u16,
    /// Addresses packets will use.
    pub path: (Gid, Gid),
    /// Service.
    pub transport: Transport,
    /// MTU of both QPs.
    pub path_mtu: PathMtu,
    /// The peer's half.
    pub params: PeerParams,
    /// Zero padded.
    pub private_data: [u8; REQ_PRIVATE_MAX],
}

/// A REP.
#[derive(Clone, Debug)]
pub struct ConnectResponse {
    /// The peer's half.
    pub params: PeerParams,
    /// Zero padded.
    pub private_data: [u8; REP_PRIVATE_MAX],
}

/// A REJ.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Why.
    pub reason: RejReason,
    /// Additional reject information, as long as the peer said.
    pub ari: Vec<u8>,
    /// Zero padded.
    pub private_data: [u8; REJ_PRIVATE_MAX],
}

/// A SIDR_REQ.
#[derive(Clone, Debug)]
pub struct SidrRequest {
    /// The listener that it matched.
    pub listener: ListenerId,
    /// The service that it asked for.
    pub service_id: ServiceId,
    /// Our address (IP-CM header).
    pub local: Gid,
    /// The peer's address (IP-CM header).
    pub peer: Gid,
    /// The peer's RDMA port.
    pub peer_port: u16,
    /// Zero padded.
    pub private_data: [u8; SIDR_REQ_PRIVATE_MAX],
}

/// A SIDR_REP.
#[derive(Clone, Debug)]
pub struct SidrResponse {
    /// Whether the QP may be used.
    pub status: SidrStatus,
    /// The QP.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub q_key: QKey,
    /// Zero padded.
    pub private_data: [u8; SIDR_REP_PRIVATE_MAX],
}

/// Result of [`Cm::handle_mad`](super::Cm::handle_mad).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MadOutcome {
    /// The MAD was used or dropped.
    Handled,
    /// No listener of this process matches the request; another process may have one. If none has, the owner
    /// calls [`Cm::reject_no_listener`](super::Cm::reject_no_listener).
    NotOurs {
        /// The service that it asks for.
        service_id: ServiceId,
        /// The address that it was sent to.
        dst_gid: Gid,
    },
    /// It ends or probes a connection of the process with this slot. If the host has no such process, the
    /// owner calls [`Cm::reply_without_process`](super::Cm::reply_without_process).
    OfSlot(u16),
    /// The request was dropped because the backlog of its listener is full. The owner may pass it again a
    /// little later; the peer repeats it only after seconds.
    BacklogFull,
}

/// Errors of [`Cm`](super::Cm) calls: `EINVAL` in the wrong state or for too much private data, `ENOMEM` at a
/// limit.
pub type CmResult<T> = Result<T, VerbsError>;
