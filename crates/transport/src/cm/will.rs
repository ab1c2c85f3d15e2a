//! The last will: what peers are told when a process dies without a word.
//!
//! A kernel disconnects for a process that was killed. We have no kernel part, so a process says while it lives what is
//! to be sent should it die ([`Cm::poll_will`]), its owner keeps that where others of the host find it, and one of them
//! sends it ([`Cm::say_farewell`]). Invariant: a connection is in the will while its peer may believe in it, from our
//! REP or RTU until TIMEWAIT. A request is in it from the REQ on: its peer would answer, and wait for our RTU for a minute.
//! The same words are for the peers of connections whose owner has destroyed them before the DREQ was answered.

use core::mem;
use core::time::Duration;
use std::collections::VecDeque;

use wire::cm::{Answered, Dreq, RejReason};
use wire::{Gid, Qpn};

use super::conn::{Conn, MadBytes};
use super::{Cm, CmId, ConnState, message};
use crate::Instant;

/// Everything a DREQ for somebody else's connection needs, or a REJ that withdraws its request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Farewell {
    /// The communication id of the process that died.
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

/// A change of this process's will.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WillChange {
    /// A connection has come.
    Add(Farewell),
    /// A connection has gone.
    Remove(CmId),
}

/// A farewell that is not said often enough yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    at: Instant,
    farewell: Farewell,
    left: u8,
    /// It stands in our will until it is said.
    in_will: bool,
}

/// Three get through almost any network. That one is lost is not noticed where the process has died to which the DREP goes.
const TIMES: u8 = 3;
/// Between two of them.
const INTERVAL: Duration = Duration::from_secs(1);
/// Those of a process that is about to end, which cannot be waited for any longer.
const LEAVING_TIMES: u8 = 5;
const LEAVING_INTERVAL: Duration = Duration::from_millis(5);
/// Farewells of connections that were destroyed; further ones are said once.
const UNANSWERED_MAX: usize = 4096;
/// Datagrams that may wait when one is added: farewells to thousands shall not crowd out what is going on.
const WAITING_MAX: usize = 256;

impl Farewell {
    fn of(id: CmId, conn: &Conn) -> Self {
        let Conn { src, dst, remote_id, remote_qpn, .. } = *conn;
        Self { id, src, dst, remote_id, remote_qpn }
    }

    /// `guid` is that of the host, which all its processes have.
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
    /// What changed in this process's will; to be written down before what [`poll_transmit`](Self::poll_transmit) has
    /// is sent.
    pub fn poll_will(&mut self) -> Option<WillChange> {
        self.will.pop_front()
    }

    /// Tells the peer of a process that died, in its name. The caller has written that down in our will, from which it is removed
    /// when it was said: whoever dies before leaves it to others.
    pub fn say_farewell(&mut self, now: Instant, farewell: Farewell) {
        // Before those that wait for their next time.
        self.farewells.push_front(Pending { at: now, farewell, left: TIMES, in_will: true });
    }

    /// The process is about to end: whoever was asked to disconnect and has not answered is asked again, more often than
    /// otherwise, until [`is_leaving`](Self::is_leaving) says no. That takes [`LEAVING_MAX`](Self::LEAVING_MAX) at most.
    pub fn take_leave(&mut self, now: Instant) {
        let slot = self.config.slot;
        let of_others = |pending: &Pending| (pending.farewell.id.0 >> 24) as u8 != slot;
        let at = now + LEAVING_INTERVAL;
        let destroyed = self.farewells.iter().filter(|pending| !of_others(pending));
        let destroyed = destroyed.map(|pending| Pending { at, left: LEAVING_TIMES, ..*pending });
        let asked = self.conns.iter().filter(|(_, conn)| conn.state == ConnState::DreqSent);
        let asked = asked.map(|(id, conn)| {
            let farewell = Farewell::of(*id, conn);
            Pending { at, farewell, left: LEAVING_TIMES, in_will: false }
        });
        self.leaving = destroyed.chain(asked).collect();
        self.farewells.retain(of_others);
    }

    /// Whether [`take_leave`](Self::take_leave) has not come to its end.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// How long a process takes to leave when nobody answers.
    pub const LEAVING_MAX: Duration = LEAVING_INTERVAL.saturating_mul(LEAVING_TIMES as u32);

    /// The owner of a connection goes without waiting for the answer to its DREQ, which may be lost.
    pub(super) fn leave_unanswered(&mut self, now: Instant, id: CmId) {
        if let Some(conn) = self.conns.get(&id)
            && self.farewells.len() < UNANSWERED_MAX
        {
            let farewell = Farewell::of(id, conn);
            self.farewells.push_back(Pending {
                at: now + INTERVAL,
                farewell,
                left: TIMES - 1,
                in_will: false,
            });
        }
    }

    /// Whether something is still to be said in this name.
    pub(super) fn has_farewell_of(&self, id: CmId) -> bool {
        self.farewells.iter().any(|pending| pending.farewell.id == id)
    }

    /// The peer has answered, or asks to disconnect as well.
    pub(super) fn farewell_heard(&mut self, id: CmId, remote_id: u32) {
        let heard = |pending: &Pending| pending.farewell.id == id && pending.farewell.remote_id == remote_id;
        for queue in [&mut self.farewells, &mut self.leaving] {
            let index = queue.iter().position(heard);
            if index.and_then(|index| queue.remove(index)).is_some_and(|pending| pending.in_will) {
                self.will.push_back(WillChange::Remove(id));
            }
        }
    }

    /// The peer may believe in the connection, or in the request, from now on.
    pub(super) fn enter_in_will(&mut self, id: CmId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !mem::replace(&mut conn.in_will, true)
        {
            self.will.push_back(WillChange::Add(Farewell::of(id, conn)));
        }
    }

    /// It no longer does.
    pub(super) fn strike_from_will(&mut self, id: CmId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && mem::replace(&mut conn.in_will, false)
        {
            self.will.push_back(WillChange::Remove(id));
        }
    }

    pub(super) fn next_farewell(&self) -> Option<Instant> {
        [&self.leaving, &self.farewells].into_iter().filter_map(|queue| Some(queue.front()?.at)).min()
    }

    /// Sends the farewells that are due, as far as there is room.
    pub(super) fn send_farewells(&mut self, now: Instant) {
        let (mut leaving, mut farewells) = (mem::take(&mut self.leaving), mem::take(&mut self.farewells));
        self.send_due(now, &mut leaving, LEAVING_INTERVAL);
        self.send_due(now, &mut farewells, INTERVAL);
        (self.leaving, self.farewells) = (leaving, farewells);
    }

    fn send_due(&mut self, now: Instant, queue: &mut VecDeque<Pending>, interval: Duration) {
        while queue.front().is_some_and(|pending| pending.at <= now) && self.transmit.len() < WAITING_MAX {
            let Some(Pending { farewell, left, in_will, .. }) = queue.pop_front() else { return };
            let mad = farewell.mad(self.config.ca_guid);
            self.send(farewell.src, farewell.dst, mad);
            if left > 1 {
                queue.push_back(Pending { at: now + interval, farewell, left: left - 1, in_will });
            } else if in_will {
                self.will.push_back(WillChange::Remove(farewell.id));
            }
        }
    }
}
