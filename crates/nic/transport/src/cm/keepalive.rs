//! Whether the peers of established connections still exist.
//!
//! For each pair of addresses with established connections one probe leaves per interval, for one connection
//! after the other. A probe is a DREQ with the ids of the connection and QPN 0, which no connection has. A CM
//! that has the connection ignores it (Linux cm_dreq_handler compares the QPN). A CM that does not have it
//! replies with a DREP: then the connection is reported as disconnected. On a roxie host any process receives
//! the probe, and replies if the process of the connection no longer exists. If no process of the host has
//! the UDP port, the host's kernel says so by ICMP; see [`Cm::handle_refused`].
//!
//! Silence means nothing, so neither loss nor a stopped process ends a connection. Neither does a host that
//! does not see our packets: a DREP must repeat the transaction id, of which such a host does not know 64
//! bits, and an ICMP message must quote it. After an ICMP message the host gets some host probes: DREQs with
//! an id that no process has. A host with a CM replies to one of them. Only if none is answered, the
//! connections end. No other message counts as a reply, because its source may be forged.
//!
//! A kernel sends few ICMP messages (Linux: 6 at once to one host, then one per second). If a connection has
//! data in flight, the kernel spends them on packets of that connection. So an ICMP message about such a
//! packet starts the host probes, too; see [`Cm::handle_refused_packet`]. The processes of one host share
//! these messages. So a process without a reply to its host probes tells the others, which then send their
//! own; see [`Cm::handle_silent_host`].

use core::hash::{Hash, Hasher};
use core::mem;
use core::ops::Bound;
use core::time::Duration;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::DefaultHasher;

use wire::cm::{CmMessage, Drep, Dreq};
use wire::{Gid, Qpn};

use super::mads::{Arrival, MadBytes};
use super::{Cm, CmEventKind, CmId, ConnState, message};
use crate::Instant;

/// Interval of a request to a host that has said that no process there has the port. Half: more requests than
/// the 6 ICMP messages that Linux sends at once. Double: a server that starts late is found later.
const REFUSED_INTERVAL: Duration = Duration::from_millis(250);
/// Host probes that a host must leave unanswered after it has refused a probe or packet, and their interval.
/// Half of either: a host that is busy or far away may be late. Double: a death is reported half a second
/// later.
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
    pub(super) hosts: HashMap<Pair, Host>,
    /// When the next probe of each host leaves.
    due: BTreeSet<(Instant, Pair)>,
    /// Hosts that have answered no host probes, until the owner takes them.
    silent: VecDeque<Pair>,
    /// Probes so far.
    probes: u64,
}

/// What is known of one host.
#[derive(Debug)]
pub(super) struct Host {
    /// Its established connections.
    pub(super) members: BTreeSet<CmId>,
    at: Instant,
    /// The last probe, and the connection that it was for.
    probe: Option<(CmId, Box<MadBytes>)>,
    /// The connection that was probed last.
    last: CmId,
    /// It has refused a probe or a packet, and replied to none of its host probes since.
    check: Option<HostCheck>,
}

/// Host probes to a host that has refused a probe or a packet.
#[derive(Debug)]
struct HostCheck {
    /// Another process of this host caused it, and has told all others.
    is_told: bool,
    /// Transaction id of all of them, so that each reply counts.
    tid: u64,
    sent: u8,
}

impl Keepalive {
    /// Whether [`Cm::poll_silent_host`] has something.
    pub(super) fn has_silent_host(&self) -> bool {
        !self.silent.is_empty()
    }

    /// When the next probe leaves.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Makes a probe for the connection `id`, and its transaction id.
    pub(super) fn probe(&mut self, tid_key: u64, id: CmId, remote_id: u32) -> (u64, Box<MadBytes>) {
        let tid = self.fresh_tid(tid_key, id);
        let dreq = Dreq { tid, local_comm_id: id.0, remote_comm_id: remote_id, ..Dreq::default() };
        (tid, message::emit(|mad| Dreq { remote_qpn: Qpn::new(0), ..dreq }.emit(mad)))
    }

    /// A transaction id that no host knows before it sees the message.
    fn fresh_tid(&mut self, tid_key: u64, id: CmId) -> u64 {
        self.probes += 1;
        let mut hasher = DefaultHasher::new();
        (tid_key, id.0, self.probes).hash(&mut hasher);
        hasher.finish()
    }

    /// A connection is no longer established.
    pub(super) fn remove(&mut self, pair: Pair, id: CmId) {
        let Some(host) = self.hosts.get_mut(&pair) else { return };
        host.members.remove(&id);
        // A reply to it has no meaning any more.
        let _dropped = host.probe.take_if(|(of, _)| *of == id);
        if host.members.is_empty() {
            self.due.remove(&(host.at, pair));
            self.hosts.remove(&pair);
        }
    }

    /// Returns the connection that was probed, if the DREP replies to that probe.
    fn refuted(&self, pair: Pair, drep: &Drep) -> Option<CmId> {
        let (id, mad) = self.hosts.get(&pair)?.probe.as_ref()?;
        let probe = Dreq::parse(mad);
        let ids = (probe.tid, probe.local_comm_id, probe.remote_comm_id);
        (ids == (drep.tid, drep.remote_comm_id, drep.local_comm_id)).then_some(*id)
    }

    /// Whether the DREP replies to a host probe.
    fn is_reply_of_host(&self, pair: Pair, drep: &Drep) -> bool {
        let check = self.hosts.get(&pair).and_then(|host| host.check.as_ref());
        check.is_some_and(|check| check.tid == drep.tid)
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
            Host { members: BTreeSet::new(), at, probe: None, last: id, check: None }
        });
        host.members.insert(id);
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
        if let Some(HostCheck { is_told, .. }) = host.check.take_if(|check| check.sent >= HOST_PROBES) {
            let members = mem::take(&mut host.members);
            keepalive.hosts.remove(&pair);
            keepalive.silent.extend((!is_told).then_some(pair));
            return members.into_iter().for_each(|id| self.peer_lost(now, id));
        }
        let after = (Bound::Excluded(host.last), Bound::Unbounded);
        let next = host.members.range(after).next().or_else(|| host.members.first()).copied();
        let Some((id, conn)) = next.and_then(|id| Some((id, conns.get(&id)?))) else { return };
        debug_assert!(conn.state.is_probed());
        host.last = id;
        let at = now + if host.check.is_some() { HOST_PROBE_INTERVAL } else { config.keepalive };
        (host.at, _) = (at, keepalive.due.insert((at, pair)));
        let host_probe = host.check.as_mut().map(|HostCheck { tid, sent, .. }| {
            *sent += 1;
            let ids = Dreq { tid: *tid, local_comm_id: id.0, ..Dreq::default() };
            message::emit(|mad| Dreq { remote_comm_id: NO_PROCESS_ID, ..ids }.emit(mad))
        });
        let (_, mad) = keepalive.probe(config.tid_key, id, conn.remote_id);
        if let Some(host) = keepalive.hosts.get_mut(&pair) {
            host.probe = Some((id, mad.clone()));
        }
        self.send(pair.0, pair.1, mad);
        if let Some(mad) = host_probe {
            self.send(pair.0, pair.1, mad);
        }
    }

    /// Whether a DREP replies to a probe. After one for a connection, which the peer does not have, the
    /// connection ends. After a host probe, the host has a CM.
    pub(super) fn is_reply_to_probe(&mut self, now: Instant, drep: &Drep, from: Arrival) -> bool {
        let pair = (from.dst, from.src);
        let lost = self.refuted_connection(drep, from).or_else(|| self.keepalive.refuted(pair, drep));
        let is_of_host = self.keepalive.is_reply_of_host(pair, drep);
        if !is_of_host && lost.is_none() {
            return false;
        }
        if let Some(host) = self.keepalive.hosts.get_mut(&pair) {
            host.check = None;
        }
        if let Some(id) = lost {
            self.peer_lost(now, id);
            // The process of the peer has probably ended: ask for the other connections at once.
            self.keepalive.schedule(pair, now);
        }
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
                self.request_answered(now, id);
                self.reset_to_idle(id);
                self.report(id, CmEventKind::Unreachable { is_refused: true });
            }
            Refused::Wait => {}
        }
    }

    /// The kernel of host `dst` has said by ICMP that no process there has the port to which a packet of a
    /// queue pair went, which is in flight from `src`. It quotes the number of the queue pair and the PSN.
    pub fn handle_refused_packet(&mut self, now: Instant, src: Gid, dst: Gid) {
        self.latest = now;
        self.check_host(now, (src, dst), false);
    }

    /// Another process of this host got no answer to its host probes from the host `dst`; see
    /// [`poll_silent_host`](Self::poll_silent_host).
    pub fn handle_silent_host(&mut self, now: Instant, src: Gid, dst: Gid) {
        self.latest = now;
        self.check_host(now, (src, dst), true);
    }

    /// The next host that has answered no host probes: our address and its own. The other processes of this
    /// host should hear of it.
    pub fn poll_silent_host(&mut self) -> Option<(Gid, Gid)> {
        self.keepalive.silent.pop_front()
    }

    /// Begins to send host probes, unless it has begun already.
    fn check_host(&mut self, now: Instant, pair: Pair, is_told: bool) {
        let Some(id) =
            self.keepalive.hosts.get(&pair).filter(|host| host.check.is_none()).map(|host| host.last)
        else {
            return;
        };
        let tid = self.keepalive.fresh_tid(self.config.tid_key, id);
        if let Some(host) = self.keepalive.hosts.get_mut(&pair) {
            host.check = Some(HostCheck { is_told, tid, sent: 0 });
        }
        self.keepalive.schedule(pair, now + HOST_PROBE_INTERVAL);
    }

    fn probe_refused(&mut self, now: Instant, mad: &MadBytes, dst: Gid) {
        let id = CmId(Dreq::parse(mad).local_comm_id);
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.dst == dst) else { return };
        let pair = (conn.src, conn.dst);
        let Some(host) = self.keepalive.hosts.get_mut(&pair) else { return };
        if host.probe.take_if(|(_, sent)| **sent == *mad).is_some() {
            self.check_host(now, pair, false);
        }
    }

    /// The peer does not have this connection any more.
    fn peer_lost(&mut self, now: Instant, id: CmId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.state.is_probed() {
            return;
        }
        let waiting = conn.stale.take();
        self.enter_timewait(now, id);
        self.report(id, CmEventKind::Disconnected { timed_out: true });
        if let Some(check) = waiting {
            self.handle_waiting_req(now, &check);
        }
    }
}

/// Whether [`Cm::handle_refused`] can have an effect for a MAD: it is a REQ, a SIDR_REQ, a DREQ or a probe.
#[must_use]
pub fn may_be_refused(mad: &MadBytes) -> bool {
    matches!(CmMessage::parse(mad), Ok(CmMessage::Req(_) | CmMessage::SidrReq(_) | CmMessage::Dreq(_)))
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
