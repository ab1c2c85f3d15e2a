//! The end of a connection: DREQ, DREP, TIMEWAIT, and destruction by the owner (IBA 12.9.8; Linux cm.c
//! cm_dreq_handler).

use wire::cm::{CmMessage, Drep, Dreq, RejReason};
use wire::{Gid, Qpn};

use super::event::CmResult;
use super::keepalive::NO_PROCESS_ID;
use super::mads::{Arrival, MadBytes};
use super::params::{DREQ_PRIVATE_MAX, RTU_PRIVATE_MAX};
use super::sidr::ExchangeState;
use super::table::{check_private_data, in_state};
use super::{Cm, CmEventKind, CmId, ConnState, MadOutcome, SidrStatus, message};
use crate::Instant;

impl Cm {
    /// Sends a DREQ to the peer. `Disconnected` follows when the peer replies, sends a DREQ too, or does not
    /// respond.
    ///
    /// # Errors
    /// `EINVAL` if the connection is not established (see [`drep`](Self::drep)), or for too much private
    /// data.
    pub fn disconnect(&mut self, now: Instant, id: CmId, private_data: &[u8]) -> CmResult<()> {
        check_private_data(private_data, DREQ_PRIVATE_MAX)?;
        let tid = self.fresh_tid(id);
        let conn = in_state(&mut self.conns, id, |state| state == ConnState::Established)?;
        conn.tid = tid;
        conn.reply = None;
        let mad = message::dreq(id, conn, private_data);
        let (interval, retries) = (conn.timeout, conn.max_cm_retries);
        self.leave_established(id, ConnState::DreqSent);
        self.send_and_arm(now, id, mad, interval, retries);
        Ok(())
    }

    /// Agrees to the peer's DREQ. As on Linux, the application does this.
    ///
    /// # Errors
    /// `EINVAL` if no DREQ waits, or for too much private data.
    pub fn drep(&mut self, now: Instant, id: CmId, private_data: &[u8]) -> CmResult<()> {
        check_private_data(private_data, RTU_PRIVATE_MAX)?;
        let conn = in_state(&mut self.conns, id, |state| state == ConnState::DreqRcvd)?;
        let mad = message::drep(conn.tid, (id.0, conn.remote_id), private_data);
        conn.reply = Some(mad.clone());
        let (src, dst) = (conn.src, conn.dst);
        self.enter_timewait(now, id);
        self.send(src, dst, mad);
        Ok(())
    }

    /// Destroys the connection or exchange, after telling the peer what fits its state. A DREQ is repeated a
    /// few times until the peer responds.
    pub fn destroy(&mut self, now: Instant, id: CmId) {
        if let Some(exchange) = self.exchanges.get(&id) {
            if exchange.state == ExchangeState::Asked {
                self.reply_sidr(id, SidrStatus::REJECT);
            }
            return self.remove_exchange(id);
        }
        match self.state(id) {
            None => return,
            Some(ConnState::ReqSent | ConnState::MraReqRcvd) => {
                let guid = self.config.ca_guid.to_be_bytes();
                self.send_rej(id, RejReason::TIMEOUT, &guid, &[]);
            }
            Some(
                ConnState::ReqRcvd
                | ConnState::MraReqSent
                | ConnState::RepRcvd
                | ConnState::MraRepSent
                | ConnState::RepSent
                | ConnState::MraRepRcvd,
            ) => self.send_rej(id, RejReason::CONSUMER_DEFINED, &[], &[]),
            Some(ConnState::Established) => {
                let sent = self.disconnect(now, id, &[]);
                debug_assert!(sent.is_ok());
                self.repeat_dreq(now, id);
            }
            Some(ConnState::DreqSent) => self.repeat_dreq(now, id),
            Some(ConnState::DreqRcvd) => {
                let sent = self.drep(now, id, &[]);
                debug_assert!(sent.is_ok());
            }
            Some(ConnState::Idle | ConnState::Timewait) => {}
        }
        self.remove(id);
    }

    /// The peer has accepted a request of ours with the QP of this connection: it must have lost this one.
    /// The REP repeats a transaction id that only the peer sees.
    pub(super) fn disconnect_stale(&mut self, now: Instant, id: CmId) {
        if self.state(id) == Some(ConnState::Established) {
            let sent = self.disconnect(now, id, &[]);
            debug_assert!(sent.is_ok());
        }
    }

    /// A DREQ or probe from `src` to `dst` is for a slot that no process of this host has: its sender need
    /// not wait for that process.
    pub fn reply_without_process(&mut self, now: Instant, mad: &MadBytes, src: Gid, dst: Gid) {
        if let Ok(CmMessage::Dreq(dreq)) = CmMessage::parse(mad) {
            self.reply_to_lost_dreq(now, &dreq, Arrival { src, dst });
        }
    }

    fn reply_to_lost_dreq(&mut self, now: Instant, dreq: &Dreq, from: Arrival) {
        let mad = message::drep(dreq.tid, (dreq.remote_comm_id, dreq.local_comm_id), &[]);
        self.reply_to_stranger(now, from, mad);
    }

    pub(super) fn handle_dreq(&mut self, now: Instant, dreq: &Dreq, from: Arrival) -> MadOutcome {
        let Some((id, conn)) = self.lookup(dreq.remote_comm_id, dreq.local_comm_id, from) else {
            // The connection no longer exists here: neither end needs to wait.
            self.notice_acknowledged(CmId(dreq.remote_comm_id), dreq.local_comm_id, from);
            let slot = CmId(dreq.remote_comm_id).slot();
            if slot != self.config.slot && dreq.remote_comm_id != NO_PROCESS_ID {
                // Another process may have it: any process receives a probe, and a GRO batch goes to the
                // process of its first packet.
                self.counters.rx_unexpected += 1;
                return MadOutcome::OfSlot(slot);
            }
            self.reply_to_lost_dreq(now, dreq, from);
            return MadOutcome::Handled;
        };
        let is_over = matches!(conn.state, ConnState::Timewait | ConnState::Idle);
        let is_probe_of_ended = is_over && dreq.remote_qpn == Qpn::new(0);
        if conn.local_qpn != dreq.remote_qpn && !is_probe_of_ended {
            self.counters.rx_unexpected += 1;
            return MadOutcome::Handled;
        }
        if matches!(conn.state, ConnState::RepSent | ConnState::MraRepRcvd) {
            // The peer disconnects only an established connection: the RTU was lost or overtaken.
            self.established(id);
        }
        let Some(conn) = self.conns.get_mut(&id) else { return MadOutcome::Handled };
        match conn.state {
            ConnState::DreqSent | ConnState::Established => {
                conn.tid = dreq.tid;
                conn.reply = None;
                let waiting = conn.stale.take();
                self.leave_established(id, ConnState::DreqRcvd);
                self.disarm(id);
                self.report(id, CmEventKind::Disconnected { timed_out: false });
                if self.is_shutting_down() {
                    // The application will not agree any more.
                    self.notice_acknowledged(id, dreq.local_comm_id, from);
                    let sent = self.drep(now, id, &[]);
                    debug_assert!(sent.is_ok());
                }
                if let Some(check) = waiting {
                    self.handle_waiting_req(now, &check);
                }
            }
            // Linux does not respond in IDLE, and the peer repeats its DREQ for a minute. A DREP does no harm
            // by then.
            ConnState::Timewait | ConnState::Idle => {
                let sent = conn.reply.as_deref().map(Drep::parse).unwrap_or_default();
                let mad = message::drep(dreq.tid, (id.0, conn.remote_id), &sent.private_data);
                let (to, from) = (conn.dst, conn.src);
                self.counters.rx_duplicates += 1;
                self.send(from, to, mad);
            }
            ConnState::DreqRcvd => self.counters.rx_duplicates += 1,
            _ => self.counters.rx_unexpected += 1,
        }
        MadOutcome::Handled
    }

    pub(super) fn handle_drep(&mut self, now: Instant, drep: &Drep, from: Arrival) {
        if self.is_reply_to_probe(now, drep, from) {
            return;
        }
        self.notice_acknowledged(CmId(drep.remote_comm_id), drep.local_comm_id, from);
        let Some((id, conn)) = self.lookup(drep.remote_comm_id, drep.local_comm_id, from) else {
            self.counters.rx_unexpected += 1;
            return;
        };
        if !matches!(conn.state, ConnState::DreqSent | ConnState::DreqRcvd) {
            self.counters.rx_duplicates += 1;
            return;
        }
        self.enter_timewait(now, id);
        self.report(id, CmEventKind::Disconnected { timed_out: false });
    }
}
