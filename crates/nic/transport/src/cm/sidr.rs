//! UD services: one SIDR_REQ, one SIDR_REP, no connection (IBA 12.11; Linux cm.c cm_sidr_req_handler).

use core::time::Duration;

use wire::cm::{ServiceId, SidrRep, SidrReq};
use wire::{Gid, QKey, Qpn};

use super::event::{CmResult, MadOutcome, SidrRequest, SidrResponse};
use super::keepalive::{Refused, refused, repetition};
use super::mads::{Arrival, MadBytes};
use super::params::{ListenerId, SIDR_REP_PRIVATE_MAX, SIDR_REQ_PRIVATE_MAX, SidrAnswer, SidrParams};
use super::table::check_private_data;
use super::{Cm, CmEventKind, CmId, SidrStatus, message, timing, validate};
use crate::{Instant, refuse};

/// One SIDR exchange.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) state: ExchangeState,
    tid: u64,
    /// The id on the wire: ours (active) or the peer's (passive).
    request_id: u32,
    service_id: ServiceId,
    src: Gid,
    dst: Gid,
    pub(super) backlog_of: Option<ListenerId>,
    /// Active: the SIDR_REQ, how often it may still be repeated, and when.
    question: Option<(Box<MadBytes>, u8)>,
    deadline: Option<Instant>,
    /// Active: when the peer's host first refused the SIDR_REQ, by ICMP.
    refused_since: Option<Instant>,
}

/// Which side we are on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ExchangeState {
    /// Active: waits for the SIDR_REP.
    Asking,
    /// Passive: the owner must reply.
    Asked,
    /// Replied or given up.
    Done,
}

/// How long a SIDR_REQ waits before it is repeated.
const INTERVAL: Duration = timing::wait(timing::RESPONSE_TIMEOUT);

impl Cm {
    /// Sends a SIDR_REQ for the QP behind a UD service.
    ///
    /// # Errors
    /// `EINVAL` for too much private data; `ENOMEM` when there are too many exchanges.
    pub fn sidr_connect(&mut self, now: Instant, params: &SidrParams<'_>) -> CmResult<CmId> {
        check_private_data(params.private_data, SIDR_REQ_PRIVATE_MAX)?;
        let id = self.allocate_id()?;
        let tid = self.fresh_tid(id);
        let mad = message::sidr_req(tid, id, params);
        let (src, dst) = (params.path.src, params.path.dst);
        let at = now + INTERVAL;
        let exchange = Exchange {
            state: ExchangeState::Asking,
            tid,
            request_id: id.0,
            service_id: params.service_id,
            src,
            dst,
            backlog_of: None,
            question: Some((mad.clone(), timing::MAX_CM_RETRIES)),
            deadline: Some(at),
            refused_since: None,
        };
        self.exchanges.insert(id, exchange);
        self.timers.insert((at, id));
        self.send(src, dst, mad);
        Ok(id)
    }

    /// Sends the SIDR_REP.
    ///
    /// # Errors
    /// `EINVAL` if a SIDR_REP was sent already, or for too much private data.
    pub fn sidr_reply(&mut self, id: CmId, reply: &SidrAnswer<'_>) -> CmResult<()> {
        check_private_data(reply.private_data, SIDR_REP_PRIVATE_MAX)?;
        if !self.exchanges.get(&id).is_some_and(|e| e.state == ExchangeState::Asked) {
            let id = id.0;
            return Err(refuse!(EINVAL, "request", "state"; id;
                "no SIDR request {id:#x} waits for a reply: it ended, or has one"));
        }
        self.request_taken(id);
        if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.state = ExchangeState::Done;
            let mad = message::sidr_rep(exchange.tid, exchange.request_id, exchange.service_id, reply);
            let (src, dst) = (exchange.src, exchange.dst);
            self.send(src, dst, mad);
        }
        Ok(())
    }

    pub(super) fn handle_sidr_req(&mut self, now: Instant, req: &SidrReq, from: Arrival) -> MadOutcome {
        let Arrival { src, dst } = from;
        let pending =
            |e: &Exchange| e.state == ExchangeState::Asked && e.request_id == req.request_id && e.dst == src;
        if self.exchanges.values().any(pending) {
            self.counters.rx_duplicates += 1;
            return MadOutcome::Handled;
        }
        let asked = message::destination(req.ip_header(), dst);
        let Some((listener, _)) = self.find_listener(req.service_id, asked, from) else {
            return MadOutcome::NotOurs { service_id: req.service_id, dst_gid: asked };
        };
        let Some(addresses) = validate::addresses(req.ip_header(), src, self.gids.as_deref()) else {
            self.refuse_sidr_with(now, req, SidrStatus::REJECT, from);
            return MadOutcome::Handled;
        };
        let Some(id) = self.admit(listener) else { return MadOutcome::BacklogFull };
        let exchange = Exchange {
            state: ExchangeState::Asked,
            tid: req.tid,
            request_id: req.request_id,
            service_id: req.service_id,
            src: dst,
            dst: src,
            backlog_of: Some(listener),
            question: None,
            deadline: None,
            refused_since: None,
        };
        self.exchanges.insert(id, exchange);
        let mut request = SidrRequest {
            listener,
            service_id: req.service_id,
            local: addresses.local,
            peer: addresses.peer,
            peer_port: addresses.peer_port,
            private_data: [0; SIDR_REQ_PRIVATE_MAX],
        };
        message::fill(&mut request.private_data, req.user_data());
        self.report(id, CmEventKind::SidrRequest(Box::new(request)));
        MadOutcome::Handled
    }

    pub(super) fn handle_sidr_rep(&mut self, rep: &SidrRep, from: Arrival) {
        let id = CmId(rep.request_id);
        let is_reply = |e: &&mut Exchange| {
            let peer = Arrival { src: e.dst, dst: e.src };
            e.state == ExchangeState::Asking && e.tid == rep.tid && peer == from
        };
        let Some(exchange) = self.exchanges.get_mut(&id).filter(is_reply) else {
            self.counters.rx_unexpected += 1;
            return;
        };
        exchange.state = ExchangeState::Done;
        exchange.question = None;
        if let Some(at) = exchange.deadline.take() {
            self.timers.remove(&(at, id));
        }
        let response = SidrResponse {
            status: rep.status,
            qpn: rep.qpn,
            q_key: rep.q_key,
            private_data: rep.private_data,
        };
        self.report(id, CmEventKind::SidrResponse(Box::new(response)));
    }

    pub(super) fn exchange_timed_out(&mut self, now: Instant, id: CmId) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        exchange.deadline = None;
        let (src, dst) = (exchange.src, exchange.dst);
        match &mut exchange.question {
            Some((mad, retries_left)) if *retries_left > 0 => {
                let (interval, is_retry) = repetition(now, &mut exchange.refused_since, INTERVAL);
                *retries_left -= u8::from(is_retry);
                let mad = mad.clone();
                let at = now + interval;
                exchange.deadline = Some(at);
                self.timers.insert((at, id));
                self.counters.tx_retries += 1;
                self.send(src, dst, mad);
            }
            _ => {
                exchange.state = ExchangeState::Done;
                exchange.question = None;
                self.report(id, CmEventKind::Unreachable { is_refused: false });
            }
        }
    }

    /// The host of a SIDR_REQ has refused it by ICMP.
    pub(super) fn sidr_refused(&mut self, now: Instant, id: CmId, mad: &MadBytes, dst: Gid) {
        let Some(exchange) = self.exchanges.get_mut(&id).filter(|exchange| exchange.dst == dst) else {
            return;
        };
        if exchange.question.as_ref().is_none_or(|(sent, _)| **sent != *mad) {
            return;
        }
        let at = match refused(now, &mut exchange.refused_since) {
            Refused::Repeat(interval) => Some(now + interval),
            Refused::Fail => None,
            Refused::Wait => return,
        };
        if let Some(old) = std::mem::replace(&mut exchange.deadline, at) {
            self.timers.remove(&(old, id));
        }
        match at {
            Some(at) => drop(self.timers.insert((at, id))),
            None => {
                (exchange.state, exchange.question) = (ExchangeState::Done, None);
                self.report(id, CmEventKind::Unreachable { is_refused: true });
            }
        }
    }

    /// No process listens for the service.
    pub(super) fn refuse_sidr(&mut self, now: Instant, req: &SidrReq, from: Arrival) {
        self.refuse_sidr_with(now, req, SidrStatus::UNSUPPORTED, from);
    }

    pub(super) fn reply_sidr(&mut self, id: CmId, status: SidrStatus) {
        let sent = self.sidr_reply(id, &without_qp(status));
        debug_assert!(sent.is_ok());
    }

    pub(super) fn remove_exchange(&mut self, id: CmId) {
        self.request_taken(id);
        if let Some(exchange) = self.exchanges.remove(&id)
            && let Some(at) = exchange.deadline
        {
            self.timers.remove(&(at, id));
        }
        self.events.retain(|event| event.id != id);
    }

    fn refuse_sidr_with(&mut self, now: Instant, req: &SidrReq, status: SidrStatus, from: Arrival) {
        let tid = req.tid;
        let mad = message::sidr_rep(tid, req.request_id, req.service_id, &without_qp(status));
        self.reply_to_stranger(now, from, mad);
    }
}

const fn without_qp(status: SidrStatus) -> SidrAnswer<'static> {
    SidrAnswer { status, qpn: Qpn::new(0), q_key: QKey(0), private_data: &[] }
}
