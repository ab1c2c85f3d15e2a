//! Whether the peers of established connections still exist.
//!
//! For each pair of addresses with established connections one probe leaves per interval, for one connection
//! after the other. A probe is a DREQ with the ids of the connection and QPN 0, which no connection has. A CM
//! that has the connection ignores it (Linux cm_dreq_handler compares the QPN). A CM that does not have it
//! replies with a DREP: then the connection is reported as disconnected. If no process of the host has the
//! UDP port, the host's kernel says so by ICMP; see [`Cm::handle_refused`].
//!
//! Silence means nothing, so neither loss nor a stopped process ends a connection. Neither does a host that
//! does not see our packets: a DREP must repeat the transaction id, of which such a host does not know 64
//! bits, and an ICMP message must quote it. After an ICMP message the host gets some DREQs with an id that no
//! process has: a host with a CM replies to one of them. Only if none is answered, the connections end.

use core::hash::{Hash, Hasher};
use core::mem;
use core::time::Duration;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::DefaultHasher;

use wire::cm::{CmMessage, Drep, Dreq};
use wire::{Gid, Qpn};

use super::conn::{Arrival, MadBytes};
use super::{Cm, CmEventKind, CmId, ConnState, message};
use crate::Instant;

/// Interval of a request to a host that has said that no process there has the port. Half: more requests than
/// the 6 ICMP messages that Linux sends at once. Double: a server that starts late is found later.
const REFUSED_INTERVAL: Duration = Duration::from_millis(250);
/// Host probes that a host must leave unanswered after it has refused a probe, and their interval. Half of
/// either: a host that is busy or far away may be late. Double: a death is reported half a second later.
const HOST_PROBES: u8 = 4;
const HOST_PROBE_INTERVAL: Duration = Duration::from_millis(150);
/// The receiver's id in a host probe. Its slot is none, so any process of a roxie host replies.
pub(super) const NO_PROCESS_ID: u32 = u32::MAX;
/// A request fails if the host refuses it for this long: a server may be about to start. Half: a server that
/// starts 1 s late is missed. Double: a client hears of an absent one after 2 s.
const REQUEST_CONFIRM: Duration = Duration::from_secs(1);
/// A request goes back to its own interval if the host has refused one, and no more of them for this long.
const REFUSED_MAX: Duration = Duration::from_secs(4);

/// Our address and the peer's.
type Pair = (Gid, Gid);

/// The hosts that are probed.
#[derive(Debug, Default)]
pub(super) struct Keepalive {
    hosts: HashMap<Pair, Host>,
    /// When the next probe of each host leaves.
    due: BTreeSet<(Instant, Pair)>,
    /// Probes so far.
    probes: u64,
}

/// What is known of one host.
#[derive(Debug)]
struct Host {
    /// Established connections, and some that are no longer established.
    members: VecDeque<CmId>,
    at: Instant,
    /// The last probe, and the connection that it was for.
    probe: Option<(CmId, Box<MadBytes>)>,
    /// Host probes since it refused a probe, if nothing has arrived from it since.
    unanswered: Option<u8>,
}

impl Keepalive {
    /// When the next probe leaves.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// A message arrived: its sender lives.
    pub(super) fn heard(&mut self, from: Arrival) {
        if let Some(host) = self.hosts.get_mut(&(from.dst, from.src)) {
            host.unanswered = None;
        }
    }

    fn schedule(&mut self, pair: Pair, at: Instant) {
        if let Some(host) = self.hosts.get_mut(&pair) {
            self.due.remove(&(host.at, pair));
            host.at = at;
            self.due.insert((at, pair));
        }
    }
}

impl Cm {
    /// A connection was established.
    pub(super) fn keep_alive(&mut self, id: CmId) {
        let Some(conn) = self.conns.get(&id) else { return };
        // A probe names QPN 0. Connections without a queue pair have that number, too.
        if self.config.keepalive.is_zero() || conn.remote_qpn == Qpn::new(0) {
            return;
        }
        let (pair, at) = ((conn.src, conn.dst), self.latest + self.config.keepalive);
        let keepalive = &mut self.keepalive;
        let host = keepalive.hosts.entry(pair).or_insert_with(|| {
            keepalive.due.insert((at, pair));
            Host { members: VecDeque::new(), at, probe: None, unanswered: None }
        });
        host.members.push_back(id);
    }

    /// Sends the probes that are due.
    pub(super) fn send_due_probes(&mut self, now: Instant) {
        while let Some(&(at, pair)) = self.keepalive.due.first() {
            if at > now {
                return;
            }
            self.keepalive.due.pop_first();
            self.send_probe(now, pair);
        }
    }

    fn send_probe(&mut self, now: Instant, pair: Pair) {
        let Self { keepalive, conns, config, .. } = self;
        let Some(host) = keepalive.hosts.get_mut(&pair) else { return };
        if host.unanswered.is_some_and(|unanswered| unanswered >= HOST_PROBES) {
            let members = mem::take(&mut host.members);
            keepalive.hosts.remove(&pair);
            return members.into_iter().for_each(|id| self.peer_lost(now, id));
        }
        let found = loop {
            let Some(id) = host.members.pop_front() else { break None };
            if let Some(conn) = conns.get(&id).filter(|conn| conn.state == ConnState::Established) {
                break Some((id, conn.remote_id));
            }
        };
        let Some((id, remote_id)) = found else {
            keepalive.hosts.remove(&pair);
            return;
        };
        host.members.push_back(id);
        keepalive.probes += 1;
        let mut hasher = DefaultHasher::new();
        (config.tid_key, id.0, keepalive.probes).hash(&mut hasher);
        let tid = hasher.finish();
        let ids = Dreq { tid, local_comm_id: id.0, remote_comm_id: remote_id, ..Dreq::default() };
        let mad = message::emit(|mad| Dreq { remote_qpn: Qpn::new(0), ..ids }.emit(mad));
        host.probe = Some((id, mad.clone()));
        let interval = if host.unanswered.is_some() { HOST_PROBE_INTERVAL } else { config.keepalive };
        (host.at, _) = (now + interval, keepalive.due.insert((now + interval, pair)));
        let host_probe = host.unanswered.as_mut().map(|unanswered| {
            *unanswered += 1;
            message::emit(|mad| Dreq { remote_comm_id: NO_PROCESS_ID, ..ids }.emit(mad))
        });
        self.send(pair.0, pair.1, mad);
        if let Some(mad) = host_probe {
            self.send(pair.0, pair.1, mad);
        }
    }

    /// Whether a DREP replies to a probe. Then the peer does not have the connection, which ends.
    pub(super) fn is_reply_to_probe(&mut self, now: Instant, drep: &Drep, from: Arrival) -> bool {
        let pair = (from.dst, from.src);
        let Some(host) = self.keepalive.hosts.get_mut(&pair) else { return false };
        let Some((id, mad)) = &host.probe else { return false };
        let probe = Dreq::parse(mad);
        let ids = (probe.tid, probe.local_comm_id, probe.remote_comm_id);
        if ids != (drep.tid, drep.remote_comm_id, drep.local_comm_id) {
            return false;
        }
        let id = *id;
        host.probe = None;
        self.peer_lost(now, id);
        // The process of the peer has probably ended: ask for the other connections at once.
        self.keepalive.schedule(pair, now);
        true
    }

    /// The kernel of host `dst` has said by ICMP that no process there has the port to which `mad` went, a
    /// MAD that it quotes. Anyone can send ICMP messages, but only a host that sees our packets can quote
    /// them. Nothing follows from the first one: a server may be about to start.
    pub fn handle_refused(&mut self, now: Instant, mad: &MadBytes, dst: Gid) {
        self.latest = now;
        let id = match CmMessage::parse(mad) {
            Ok(CmMessage::Req(req)) => CmId(req.local_comm_id),
            Ok(CmMessage::Dreq(dreq)) if dreq.remote_qpn == Qpn::new(0) => {
                return self.probe_refused(now, mad, dst);
            }
            Ok(CmMessage::Dreq(dreq)) => CmId(dreq.local_comm_id),
            Ok(CmMessage::SidrReq(req)) => return self.sidr_refused(now, CmId(req.request_id), mad, dst),
            _ => return,
        };
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.dst == dst) else { return };
        if conn.awaiting.as_ref().is_none_or(|message| *message.mad != *mad) {
            return;
        }
        if conn.state == ConnState::DreqSent {
            self.enter_timewait(now, id);
            return self.report(id, CmEventKind::Disconnected { timed_out: true });
        }
        match refused(now, &mut conn.refused_since) {
            Refused::Repeat(interval) => self.arm(id, now + interval),
            Refused::Fail => {
                self.reset_to_idle(id);
                self.report(id, CmEventKind::Unreachable { is_refused: true });
            }
            Refused::Wait => {}
        }
    }

    fn probe_refused(&mut self, now: Instant, mad: &MadBytes, dst: Gid) {
        let id = CmId(Dreq::parse(mad).local_comm_id);
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.dst == dst) else { return };
        let pair = (conn.src, conn.dst);
        let Some(host) = self.keepalive.hosts.get_mut(&pair) else { return };
        if host.probe.take_if(|(_, sent)| **sent == *mad).is_none() {
            return;
        }
        if host.unanswered.is_none() {
            host.unanswered = Some(0);
            self.keepalive.schedule(pair, now + HOST_PROBE_INTERVAL);
        }
    }

    /// The peer does not have this connection any more.
    fn peer_lost(&mut self, now: Instant, id: CmId) {
        if self.state(id) == Some(ConnState::Established) {
            self.enter_timewait(now, id);
            self.report(id, CmEventKind::Disconnected { timed_out: true });
        }
    }
}

/// After which time a message without response is repeated, and whether that uses up a retry: not while its
/// host refuses it.
pub(super) fn repetition(
    now: Instant,
    refused_since: &mut Option<Instant>,
    interval: Duration,
) -> (Duration, bool) {
    *refused_since = refused_since.filter(|since| now < *since + REFUSED_MAX);
    if refused_since.is_some() { (REFUSED_INTERVAL, false) } else { (interval, true) }
}

/// What follows from a refused request.
pub(super) enum Refused {
    /// It is repeated after this time.
    Repeat(Duration),
    /// It fails.
    Fail,
    /// Nothing.
    Wait,
}

/// Handles one refusal of a request.
pub(super) fn refused(now: Instant, refused_since: &mut Option<Instant>) -> Refused {
    match *refused_since {
        None => {
            *refused_since = Some(now);
            Refused::Repeat(REFUSED_INTERVAL)
        }
        Some(since) if now >= since + REQUEST_CONFIRM => Refused::Fail,
        Some(_) => Refused::Wait,
    }
}
