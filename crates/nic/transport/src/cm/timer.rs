//! Timers: repeat a message, give up, or leave TIMEWAIT.

use core::time::Duration;

use super::keepalive::repetition;
use super::mads::{AwaitingResponse, MadBytes};
use super::{Cm, CmEventKind, CmId, ConnState, timing};
use crate::Instant;

impl Cm {
    /// The earliest moment at which [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        [timer, self.next_notice(), self.keepalive.next(), self.requests.next()].into_iter().flatten().min()
    }

    /// Repeats messages without response, and gives up after enough repetitions.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.latest = now;
        self.send_due_notices(now);
        self.send_due_probes(now);
        self.free_withdrawn(now);
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.remove(&(at, id));
            if self.exchanges.contains_key(&id) {
                self.exchange_timed_out(now, id);
            } else {
                self.timed_out(now, id);
            }
        }
    }

    /// Sends a message and repeats it every `interval`, `retries` times, until [`disarm`](Self::disarm).
    pub(super) fn send_and_arm(
        &mut self,
        now: Instant,
        id: CmId,
        mad: Box<MadBytes>,
        interval: Duration,
        retries: u8,
    ) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (src, dst) = (conn.src, conn.dst);
        conn.refused_since = None;
        conn.awaiting = Some(AwaitingResponse { mad: mad.clone(), interval, retries_left: retries });
        self.arm(id, now + interval);
        self.send(src, dst, mad);
    }

    /// Moves the deadline of a connection.
    pub(super) fn arm(&mut self, id: CmId, at: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(old) = conn.deadline.replace(at) {
            self.timers.remove(&(old, id));
        }
        self.timers.insert((at, id));
    }

    /// Stops the timer: no message is expected.
    pub(super) fn disarm(&mut self, id: CmId) {
        self.withdraw_request(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.awaiting = None;
        if let Some(old) = conn.deadline.take() {
            self.timers.remove(&(old, id));
        }
    }

    /// Enters TIMEWAIT, until no packet of the connection can be in the network.
    pub(super) fn enter_timewait(&mut self, now: Instant, id: CmId) {
        self.leave(id, ConnState::Timewait);
        if let Some(conn) = self.conns.get(&id) {
            let wait = timing::wait(conn.ack_timeout);
            self.arm(id, now + wait);
        }
    }

    fn timed_out(&mut self, now: Instant, id: CmId) {
        self.request_repeated(now, id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.deadline = None;
        let (src, dst) = (conn.src, conn.dst);
        if let Some(message) = &mut conn.awaiting
            && message.retries_left > 0
        {
            let (interval, is_retry) = repetition(now, &mut conn.refused_since, message.interval);
            message.retries_left -= u8::from(is_retry);
            let mad = message.mad.clone();
            self.counters.tx_retries += 1;
            self.arm(id, now + interval);
            return self.send(src, dst, mad);
        }
        match conn.state {
            ConnState::ReqSent | ConnState::MraReqRcvd | ConnState::RepSent | ConnState::MraRepRcvd => {
                self.reset_to_idle(id);
                self.report(id, CmEventKind::Unreachable { is_refused: false });
            }
            ConnState::DreqSent => {
                self.enter_timewait(now, id);
                self.report(id, CmEventKind::Disconnected { timed_out: true });
            }
            ConnState::Timewait => {
                conn.state = ConnState::Idle;
                self.report(id, CmEventKind::TimewaitExit);
            }
            ConnState::Idle
            | ConnState::ReqRcvd
            | ConnState::MraReqSent
            | ConnState::RepRcvd
            | ConnState::MraRepSent
            | ConnState::Established
            | ConnState::DreqRcvd => debug_assert!(false, "a deadline in {:?}", conn.state),
        }
    }
}
