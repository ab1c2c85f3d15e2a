//! Connection management: REQ, REP, RTU and their relatives over QP1 (IBA 12; Annex A11 for IP addressing).
//!
//! [`Cm`] holds every connection of a process and touches nothing but values: MADs, calls and the time come
//! in; MADs, events and a deadline go out. States, timers and quirks are those of Linux's ib_cm and rdma_cm,
//! because those are the peers. Read `state.rs` first, then `active.rs` and `passive.rs`.

mod active;
mod conn;
mod disconnect;
mod event;
mod journal;
mod keepalive;
mod limit;
mod mads;
mod message;
mod params;
mod passive;
mod qp_attr;
mod reject;
mod sidr;
mod stale;
mod state;
mod table;
mod timer;
pub mod timing;
mod validate;
mod window;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};

use wire::Gid;
use wire::cm::CmMessage;

pub use event::{
    CmEvent, CmEventKind, CmResult, ConnectRequest, ConnectResponse, MadOutcome, PeerParams, Rejection,
    SidrRequest, SidrResponse,
};
pub use journal::{DisconnectNotice, JournalChange};
pub use keepalive::may_be_refused;
pub use limit::RateLimit;
pub use mads::MadBytes;
pub use params::{
    AcceptParams, BACKLOG_DEFAULT, CmConfig, CmId, ConnectParams, DREQ_PRIVATE_MAX, HALF_OPEN_MAX,
    HALF_OPEN_PEER_MAX, ListenAddress, ListenParams, ListenerId, LocalQp, Path, REJ_PRIVATE_MAX,
    REP_PRIVATE_MAX, REQ_PRIVATE_MAX, RTU_PRIVATE_MAX, SIDR_REP_PRIVATE_MAX, SIDR_REQ_PRIVATE_MAX,
    SidrAnswer, SidrParams, Transport,
};
pub use passive::{is_for_one_process, requested_service};
pub use qp_attr::{QpStep, UDP_QKEY};
pub use reject::is_for_every_process;
pub use state::ConnState;
pub use wire::cm::{RejReason, ServiceId, SidrStatus};

use conn::Conn;
use journal::Pending;
use keepalive::Keepalive;
use limit::HalfOpen;
use mads::Arrival;
use sidr::Exchange;
use table::{Listeners, Peers};
use window::Requests;

use crate::{Instant, PathMtu};

/// MADs that may wait to be sent; further ones are dropped and left to the retransmission timers.
const TRANSMIT_MAX: usize = 4096;

/// A MAD to send from one address to another.
#[derive(Debug)]
pub(crate) struct Outgoing {
    src: Gid,
    dst: Gid,
    mad: Box<MadBytes>,
}

/// Counters, named as in Linux's `cm_*_counters`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CmCounters {
    /// Messages received.
    pub rx_msgs: u64,
    /// Messages received again.
    pub rx_duplicates: u64,
    /// MADs that are not a supported CM message.
    pub rx_malformed: u64,
    /// Messages that match no connection, or not its state.
    pub rx_unexpected: u64,
    /// Requests not taken when they arrived, because a backlog was full or too many connections were half
    /// open.
    pub rx_backlog_full: u64,
    /// Messages about a connection that did not come from its peer's address, and requests in the name of
    /// another address.
    pub rx_foreign: u64,
    /// Requests with the queue pair of an established connection, which wait until its peer was probed.
    pub rx_stale: u64,
    /// Messages sent.
    pub tx_msgs: u64,
    /// Messages retransmitted by the timer.
    pub tx_retries: u64,
    /// Messages not sent because the queue was full.
    pub tx_dropped: u64,
    /// Messages that belong to no connection and got no reply, because there were too many.
    pub tx_limited: u64,
}

impl CmCounters {
    /// Names and values.
    #[must_use]
    pub fn rows(&self) -> [(&'static str, u64); 11] {
        [
            ("cm_rx_msgs", self.rx_msgs),
            ("cm_rx_duplicates", self.rx_duplicates),
            ("cm_rx_malformed", self.rx_malformed),
            ("cm_rx_unexpected", self.rx_unexpected),
            ("cm_rx_backlog_full", self.rx_backlog_full),
            ("cm_rx_foreign", self.rx_foreign),
            ("cm_rx_stale", self.rx_stale),
            ("cm_tx_msgs", self.tx_msgs),
            ("cm_tx_retries", self.tx_retries),
            ("cm_tx_dropped", self.tx_dropped),
            ("cm_tx_limited", self.tx_limited),
        ]
    }
}

/// All connections of one process.
///
/// Input: [`handle_mad`](Self::handle_mad), [`handle_timeout`](Self::handle_timeout) and the calls. After any
/// of them drain [`poll_journal`](Self::poll_journal), [`poll_transmit`](Self::poll_transmit) and
/// [`poll_event`](Self::poll_event) to `None`, then ask [`poll_timeout`](Self::poll_timeout).
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    conns: HashMap<CmId, Conn>,
    exchanges: HashMap<CmId, Exchange>,
    listeners: Listeners,
    peers: Peers,
    half_open: HalfOpen,
    requests: Requests,
    keepalive: Keepalive,
    /// The time of the last MAD, timeout or ICMP refusal.
    latest: Instant,
    stranger_replies: RateLimit,
    timers: BTreeSet<(Instant, CmId)>,
    transmit: VecDeque<Outgoing>,
    events: VecDeque<CmEvent>,
    journal: VecDeque<JournalChange>,
    notices: VecDeque<Pending>,
    shutdown: VecDeque<Pending>,
    gids: Option<Vec<Gid>>,
    next_id: u32,
    counters: CmCounters,
}

impl Cm {
    /// Makes a connection manager without connections and listeners.
    #[must_use]
    pub fn new(config: CmConfig) -> Self {
        let next_id = config.first_id;
        Self {
            config,
            conns: HashMap::new(),
            exchanges: HashMap::new(),
            listeners: Listeners::default(),
            peers: Peers::default(),
            half_open: HalfOpen::default(),
            requests: Requests::default(),
            keepalive: Keepalive::default(),
            latest: Instant::ZERO,
            stranger_replies: RateLimit::new(limit::STRANGER_REPLIES_PER_S),
            timers: BTreeSet::new(),
            transmit: VecDeque::new(),
            events: VecDeque::new(),
            journal: VecDeque::new(),
            notices: VecDeque::new(),
            shutdown: VecDeque::new(),
            gids: None,
            next_id,
            counters: CmCounters::default(),
        }
    }

    /// Sets the local addresses. A REQ to another address is rejected with the first one as the proposal.
    /// Before the first call every address counts as local.
    pub fn set_gids(&mut self, gids: &[Gid]) {
        self.gids = Some(gids.to_vec());
    }

    /// Sets the largest path MTU. A REQ with a larger one is refused from now on.
    pub fn set_max_path_mtu(&mut self, mtu: PathMtu) {
        self.config.max_path_mtu = mtu;
    }

    /// Handles one MAD that arrived on QP1 from `src` at `dst`. Never panics.
    pub fn handle_mad(&mut self, now: Instant, mad: &MadBytes, src: Gid, dst: Gid) -> MadOutcome {
        let Ok(message) = CmMessage::parse(mad) else {
            self.counters.rx_malformed += 1;
            return MadOutcome::Handled;
        };
        self.counters.rx_msgs += 1;
        let from = Arrival { src, dst };
        self.latest = now;
        match message {
            CmMessage::Req(req) => return self.handle_req(now, &req, from),
            CmMessage::SidrReq(req) => return self.handle_sidr_req(now, &req, from),
            CmMessage::Rep(rep) => self.handle_rep(now, &rep, from),
            CmMessage::Rtu(rtu) => self.handle_rtu(&rtu, from),
            CmMessage::Rej(rej) => self.handle_rej(now, &rej, from),
            CmMessage::Mra(mra) => self.handle_mra(now, &mra, from),
            CmMessage::Dreq(dreq) => return self.handle_dreq(now, &dreq, from),
            CmMessage::Drep(drep) => self.handle_drep(now, &drep, from),
            CmMessage::SidrRep(rep) => self.handle_sidr_rep(&rep, from),
            // Alternate paths do not exist on RoCE; Linux drops both as well.
            CmMessage::Lap(_) | CmMessage::Apr(_) => self.counters.rx_unexpected += 1,
        }
        MadOutcome::Handled
    }

    /// As [`handle_mad`](Self::handle_mad), for a request that waits and is counted.
    pub fn handle_again(&mut self, now: Instant, mad: &MadBytes, src: Gid, dst: Gid) -> MadOutcome {
        let CmCounters { rx_msgs, rx_backlog_full, .. } = self.counters;
        let outcome = self.handle_mad(now, mad, src, dst);
        self.counters = CmCounters { rx_msgs, rx_backlog_full, ..self.counters };
        outcome
    }

    /// The next MAD to send: from, to, bytes.
    pub fn poll_transmit(&mut self) -> Option<(Gid, Gid, MadBytes)> {
        let out = self.transmit.pop_front()?;
        self.counters.tx_msgs += 1;
        Some((out.src, out.dst, *out.mad))
    }

    /// The next event. From then on duplicates of the REQ or REP that it reports get an MRA.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        let event = self.events.pop_front()?;
        if let Some(conn) = self.conns.get_mut(&event.id) {
            match (&event.kind, conn.state) {
                (CmEventKind::ConnectRequest(_), ConnState::ReqRcvd) => conn.state = ConnState::MraReqSent,
                (CmEventKind::ConnectResponse(_), ConnState::RepRcvd) => conn.state = ConnState::MraRepSent,
                _ => {}
            }
        }
        Some(event)
    }

    /// Whether [`poll_transmit`](Self::poll_transmit), [`poll_event`](Self::poll_event),
    /// [`poll_journal`](Self::poll_journal) or [`poll_silent_host`](Self::poll_silent_host) has something.
    #[must_use]
    pub fn has_output(&self) -> bool {
        let has_news = !self.journal.is_empty() || self.keepalive.has_silent_host();
        has_news || !self.transmit.is_empty() || !self.events.is_empty()
    }

    /// State of a connection; `None` if there is no such id.
    #[must_use]
    pub fn state(&self, id: CmId) -> Option<ConnState> {
        self.conns.get(&id).map(|conn| conn.state)
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> CmCounters {
        self.counters
    }

    /// Connections, in any state.
    #[must_use]
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// No connection exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    fn send(&mut self, src: Gid, dst: Gid, mad: Box<MadBytes>) {
        if self.transmit.len() >= TRANSMIT_MAX {
            self.counters.tx_dropped += 1;
            return;
        }
        self.transmit.push_back(Outgoing { src, dst, mad });
    }

    /// Replies to a message that belongs to no connection, unless there are too many of them.
    fn reply_to_stranger(&mut self, now: Instant, from: Arrival, mad: Box<MadBytes>) {
        if self.may_reply_to_stranger(now) {
            self.send(from.dst, from.src, mad);
        }
    }

    /// Whether one more message may leave that any host can cause; counts it, or that it was too many.
    fn may_reply_to_stranger(&mut self, now: Instant) -> bool {
        let may_reply = self.stranger_replies.take(now);
        self.counters.tx_limited += u64::from(!may_reply);
        may_reply
    }

    fn report(&mut self, id: CmId, kind: CmEventKind) {
        self.events.push_back(CmEvent { id, kind });
    }
}
