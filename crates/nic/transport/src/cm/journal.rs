//! The disconnect journal: which disconnect notices must be sent if this process dies.
//!
//! A kernel disconnects for a process that was killed; roxie has no kernel part. So a process reports while
//! it lives which disconnect notices its death requires ([`Cm::poll_journal`]). The owner stores them where
//! other processes of the host find them, and one of these sends them ([`Cm::send_notice`]). Invariant: the
//! journal has a connection while its peer may count it as established, from our REP or RTU until TIMEWAIT.
//! It has a request from the REQ on: the peer would respond, and wait a minute for the RTU. Notices also go
//! to peers of connections that their owner destroyed before the DREP arrived.

use core::mem;
use core::time::Duration;
use std::collections::VecDeque;

use wire::cm::{Answered, Dreq, RejReason};
use wire::{Gid, Qpn};

use super::conn::Conn;
use super::mads::{Arrival, MadBytes};
use super::{Cm, CmId, ConnState, message};
use crate::Instant;

/// A disconnect notice: what a DREQ for a connection of another process needs, or a REJ that withdraws its
/// request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DisconnectNotice {
    /// The communication id in the process that died.
    pub id: CmId,
    /// Its address.
    pub src: Gid,
    /// The peer.
    pub dst: Gid,
    /// The peer's communication id; 0 for a request.
    pub remote_id: u32,
    /// The peer's QP.
    pub remote_qpn: Qpn,
}

/// A change of the disconnect journal of this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JournalChange {
    /// A connection was added.
    Add(DisconnectNotice),
    /// A connection was removed.
    Remove(CmId),
}

/// A notice that is still to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    at: Instant,
    notice: DisconnectNotice,
    left: u8,
    /// It is in our journal until it was sent.
    in_journal: bool,
}

/// How often a notice is sent. Its loss goes unnoticed when the process that the DREP goes to has died.
const TIMES: u8 = 3;
/// Time between two of them.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often a process that is about to end sends its notices.
const SHUTDOWN_TIMES: u8 = 5;
/// Time between two of these.
const SHUTDOWN_INTERVAL: Duration = Duration::from_millis(5);
/// Notices for destroyed connections that are repeated; further ones are sent once.
const REPEATED_MAX: usize = 4096;
/// A notice is added only while fewer MADs than this wait: thousands of notices must not delay other
/// messages.
const WAITING_MAX: usize = 256;

impl DisconnectNotice {
    fn of(id: CmId, conn: &Conn) -> Self {
        let Conn { src, dst, remote_id, remote_qpn, .. } = *conn;
        Self { id, src, dst, remote_id, remote_qpn }
    }

    /// The MAD of the notice. `guid` is the node GUID, which all processes of the host share.
    fn mad(&self, guid: u64) -> Box<MadBytes> {
        if self.remote_id == 0 {
            let (tid, ids) = (u64::from(self.id.0), (self.id.0, 0));
            let rej = message::rej(tid, ids, Answered::OTHER, RejReason::TIMEOUT, &guid.to_be_bytes());
            return message::emit(|mad| rej.emit(mad));
        }
        let dreq = Dreq {
            tid: u64::from(self.id.0),
            local_comm_id: self.id.0,
            remote_comm_id: self.remote_id,
            remote_qpn: self.remote_qpn,
            ..Dreq::default()
        };
        message::emit(|mad| dreq.emit(mad))
    }
}

impl Cm {
    /// The next change of the journal. The owner must store it before it sends what
    /// [`poll_transmit`](Self::poll_transmit) returns.
    pub fn poll_journal(&mut self) -> Option<JournalChange> {
        self.journal.pop_front()
    }

    /// Sends a notice in the name of a process that died. The caller has copied it to our own journal; it is
    /// removed from there when it was sent, so another process takes over if this one dies before.
    pub fn send_notice(&mut self, now: Instant, notice: DisconnectNotice) {
        // Before those that wait for their repetition.
        self.notices.push_front(Pending { at: now, notice, left: TIMES, in_journal: true });
    }

    /// The process is about to end: agrees to every DREQ of a peer, and repeats its own unacknowledged ones
    /// at short intervals, until [`is_shutting_down`](Self::is_shutting_down) returns false. That takes
    /// [`SHUTDOWN_MAX`](Self::SHUTDOWN_MAX) at most. Connections that are not established, and requests
    /// without an answer, are destroyed, which tells the peer. Connection requests that have not left do not
    /// leave any more, and their connections report nothing.
    pub fn begin_shutdown(&mut self, now: Instant) {
        self.requests.forget_waiting();
        let unanswered = self.conns.iter().filter(|(_, conn)| conn.state.may_reject());
        let unanswered = unanswered.map(|(id, _)| *id).chain(self.exchanges.keys().copied());
        for id in unanswered.collect::<Vec<_>>() {
            self.destroy(now, id);
        }
        let waiting = self.conns.iter().filter(|(_, conn)| conn.state == ConnState::DreqRcvd);
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            let sent = self.drep(now, id, &[]);
            debug_assert!(sent.is_ok());
        }
        let slot = self.config.slot;
        let is_foreign = |pending: &Pending| pending.notice.id.slot() != slot;
        let at = now + SHUTDOWN_INTERVAL;
        let destroyed = self.notices.iter().filter(|pending| !is_foreign(pending));
        let destroyed = destroyed.map(|pending| Pending { at, left: SHUTDOWN_TIMES, ..*pending });
        let asked = self.conns.iter().filter(|(_, conn)| conn.state == ConnState::DreqSent);
        let asked = asked.map(|(id, conn)| {
            let notice = DisconnectNotice::of(*id, conn);
            Pending { at, notice, left: SHUTDOWN_TIMES, in_journal: false }
        });
        self.shutdown = destroyed.chain(asked).collect();
        self.notices.retain(is_foreign);
    }

    /// Whether DREQs are still being repeated after [`begin_shutdown`](Self::begin_shutdown).
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        !self.shutdown.is_empty()
    }

    /// The longest time that DREQs are repeated after [`begin_shutdown`](Self::begin_shutdown).
    pub const SHUTDOWN_MAX: Duration = SHUTDOWN_INTERVAL.saturating_mul(SHUTDOWN_TIMES as u32);

    /// The owner destroyed a connection before the DREP arrived: repeats the DREQ, which may have been lost.
    pub(super) fn repeat_dreq(&mut self, now: Instant, id: CmId) {
        if let Some(conn) = self.conns.get(&id)
            && self.notices.len() < REPEATED_MAX
        {
            let notice = DisconnectNotice::of(id, conn);
            self.notices.push_back(Pending {
                at: now + INTERVAL,
                notice,
                left: TIMES - 1,
                in_journal: false,
            });
        }
    }

    /// Whether a notice for this id is still to be sent.
    pub(super) fn has_notice_of(&self, id: CmId) -> bool {
        self.notices.iter().any(|pending| pending.notice.id == id)
    }

    /// The peer sent DREP, or a DREQ of its own.
    pub(super) fn notice_acknowledged(&mut self, id: CmId, remote_id: u32, from: Arrival) {
        let heard = |Pending { notice, .. }: &Pending| {
            let peer = Arrival { src: notice.dst, dst: notice.src };
            notice.id == id && notice.remote_id == remote_id && peer == from
        };
        for queue in [&mut self.notices, &mut self.shutdown] {
            let index = queue.iter().position(heard);
            if index.and_then(|index| queue.remove(index)).is_some_and(|pending| pending.in_journal) {
                self.journal.push_back(JournalChange::Remove(id));
            }
        }
    }

    /// From now on the peer may count the connection as established, or respond to the request.
    pub(super) fn enter_in_journal(&mut self, id: CmId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !mem::replace(&mut conn.in_journal, true)
        {
            self.journal.push_back(JournalChange::Add(DisconnectNotice::of(id, conn)));
        }
    }

    /// The peer no longer counts the connection as established.
    pub(super) fn remove_from_journal(&mut self, id: CmId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && mem::replace(&mut conn.in_journal, false)
        {
            self.journal.push_back(JournalChange::Remove(id));
        }
    }

    /// When the next notice is due.
    pub(super) fn next_notice(&self) -> Option<Instant> {
        [&self.shutdown, &self.notices].into_iter().filter_map(|queue| Some(queue.front()?.at)).min()
    }

    /// Sends the notices that are due, as far as the transmit queue has room.
    pub(super) fn send_due_notices(&mut self, now: Instant) {
        let (mut shutdown, mut notices) = (mem::take(&mut self.shutdown), mem::take(&mut self.notices));
        self.send_due(now, &mut shutdown, SHUTDOWN_INTERVAL);
        self.send_due(now, &mut notices, INTERVAL);
        (self.shutdown, self.notices) = (shutdown, notices);
    }

    fn send_due(&mut self, now: Instant, queue: &mut VecDeque<Pending>, interval: Duration) {
        while queue.front().is_some_and(|pending| pending.at <= now) && self.transmit.len() < WAITING_MAX {
            let Some(Pending { notice, left, in_journal, .. }) = queue.pop_front() else { return };
            let mad = notice.mad(self.config.ca_guid);
            self.send(notice.src, notice.dst, mad);
            if left > 1 {
                queue.push_back(Pending { at: now + interval, notice, left: left - 1, in_journal });
            } else if in_journal {
                self.journal.push_back(JournalChange::Remove(notice.id));
            }
        }
    }
}
