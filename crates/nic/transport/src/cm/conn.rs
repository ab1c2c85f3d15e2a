//! One connection: its state, what was negotiated, and the message it may have to repeat.

use core::time::Duration;

use wire::cm::Req;
use wire::{Gid, Psn, Qpn};

use super::mads::{Arrival, AwaitingResponse, MadBytes};
use super::params::{ListenerId, Transport};
use super::stale::StaleCheck;
use super::state::ConnState;
use super::timing;
use super::window::Request;
use crate::{Instant, PathMtu};

/// One connection.
#[derive(Debug, Default)]
pub(super) struct Conn {
    pub(super) state: ConnState,
    /// Transaction id of the exchange in progress.
    pub(super) tid: u64,
    /// The peer's communication id, 0 until it is known.
    pub(super) remote_id: u32,
    /// The peer's node GUID.
    pub(super) remote_guid: u64,
    pub(super) transport: Transport,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    /// Addresses of MADs and packets.
    pub(super) src: Gid,
    pub(super) dst: Gid,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) flow_label: u32,
    pub(super) sl: u8,
    pub(super) path_mtu: PathMtu,
    pub(super) rq_psn: Psn,
    pub(super) sq_psn: Psn,
    /// READs and atomics that our QP serves.
    pub(super) responder_resources: u8,
    /// READs and atomics that our QP may have outstanding.
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    /// ACK timeout of our QP; also the length of TIMEWAIT.
    pub(super) ack_timeout: u8,
    /// Interval and number of repetitions of our own messages.
    pub(super) timeout: Duration,
    pub(super) max_cm_retries: u8,
    /// Passive: counted against this listener's backlog.
    pub(super) backlog_of: Option<ListenerId>,
    /// The message under the retransmission timer.
    pub(super) awaiting: Option<AwaitingResponse>,
    /// Active, until the first refusal for want of a listener: when the REQ is repeated after such a refusal.
    pub(super) ask_again_at: Option<Instant>,
    /// When the peer's host first refused the message under the timer, by ICMP.
    pub(super) refused_since: Option<Instant>,
    /// RTU or DREP, retransmitted whenever its cause is repeated.
    pub(super) reply: Option<Box<MadBytes>>,
    /// The last REQ with the peer's queue pair, while this connection is established.
    pub(super) stale: Option<Box<StaleCheck>>,
    /// It is in the disconnect journal of this process.
    pub(super) in_journal: bool,
    /// Passive: it counts against the limits of half-open connections.
    pub(super) is_half_open: bool,
    /// Active: whether its REQ waits for a place or has one.
    pub(super) request: Request,
    /// When [`Cm::handle_timeout`](super::Cm::handle_timeout) must handle it: its key in the timer set.
    pub(super) deadline: Option<Instant>,
}

impl Conn {
    /// The passive end that a REQ asks for. MADs and packets go to its primary local GID, not to the address
    /// in the IP header.
    pub(super) fn from_req(req: &Req, transport: Transport, path_mtu: PathMtu) -> Self {
        let path = &req.primary;
        Self {
            state: ConnState::ReqRcvd,
            tid: req.tid,
            remote_id: req.local_comm_id,
            remote_guid: req.local_ca_guid,
            transport,
            remote_qpn: req.local_qpn,
            src: path.remote_gid,
            dst: path.local_gid,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            sl: path.sl,
            path_mtu,
            sq_psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ack_timeout: path.ack_timeout,
            timeout: timing::wait(req.local_cm_response_timeout),
            max_cm_retries: req.max_cm_retries,
            ..Self::default()
        }
    }

    /// Whether the MAD came from the peer's address, to the address that the connection has here.
    pub(super) fn is_peer(&self, from: Arrival) -> bool {
        from == Arrival { src: self.dst, dst: self.src }
    }

    /// How long the peer asks to wait by an MRA for a REQ (active) or a REP (passive).
    pub(super) fn mra_wait(&self, service_timeout: u8) -> Duration {
        timing::wait(service_timeout) + timing::wait(self.ack_timeout)
    }
}
