//! Follows connection setup and teardown by the messages of the connection manager.

use std::collections::HashMap;
use std::net::IpAddr;

use wire::capture::Seen;
use wire::cm::{Rej, RejReason, Rep, Req, SidrStatus};
use wire::{CmMessage, Packet, Qpn};

use super::PARTITION;
use super::finding::{At, Finding, Findings, Kind, subject};
use crate::clock;

/// Most handshakes followed.
const HANDSHAKES_MAX: usize = 1 << 16;
/// A reply this far from the request behind it answers another one: communication ids repeat. The interfaces
/// of a file are written less than a second apart.
const EARLY_NS: u64 = 5_000_000_000;

/// The setup of a connection.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// Address of the active side, which sent the ConnectRequest.
    pub active: IpAddr,
    /// Address of the passive side.
    pub passive: IpAddr,
    /// Queue pair of the active side.
    pub active_qp: Qpn,
    /// Queue pair of the passive side, from its ConnectReply.
    pub passive_qp: Option<Qpn>,
    /// The requested service.
    pub service: String,
    /// Path MTU: payload bytes of a full packet.
    pub path_mtu: Option<u32>,
    /// The partition: the P_Key without its highest bit.
    p_key: u16,
    /// The first ConnectRequest.
    pub requested: At,
    /// The first answer, of any kind.
    pub answered: Option<At>,
    /// The ReadyToUse message.
    pub ready: Option<At>,
    /// The first DisconnectRequest.
    pub ended: Option<At>,
    /// Reason of the reject, if there was one.
    pub refused: Option<RejReason>,
    active_id: u32,
    passive_id: u32,
    sent: Sent,
}

/// The latest messages of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    req: Option<At>,
    rep: Option<At>,
    rtu: Option<At>,
    /// DisconnectRequests of the active and of the passive side: both may send one.
    dreq: [Option<At>; 2],
    /// DisconnectReplies of the active and of the passive side.
    drep: [Option<At>; 2],
    /// The passive side asked for more time (MRA).
    mra: bool,
}

/// The connection of a queue pair, from its setup messages.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Queue pair of the other end.
    pub peer_qp: Qpn,
    /// Path MTU: payload bytes of a full packet.
    pub path_mtu: Option<u32>,
    /// The partition, and the packet with it.
    pub p_key: Option<(u16, At)>,
    /// Index of its setup.
    setup: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Early {
    /// The ConnectReply, and the passive side.
    rep: Option<(At, IpAddr, Rep)>,
    rtu: Option<At>,
}

/// All connection setups of a capture.
#[derive(Clone, Debug, Default)]
pub struct Handshakes {
    list: Vec<Handshake>,
    /// Indices by address and communication id of the active side.
    by_active: HashMap<(IpAddr, u32), usize>,
    /// Indices by address and communication id of the passive side.
    by_passive: HashMap<(IpAddr, u32), usize>,
    by_qp: HashMap<(IpAddr, Qpn), Connection>,
    /// Replies and ReadyToUse messages in front of their request, by the active side: a file of several
    /// interfaces may not be in the order of time.
    early: HashMap<(IpAddr, u32), Early>,
    /// Service id requests (SIDR) without a reply so far, by address and request id of the sender.
    sidr_requests: HashMap<(IpAddr, u32), (At, String)>,
}

impl Handshakes {
    /// The connection setups, in order.
    #[must_use]
    pub fn list(&self) -> &[Handshake] {
        &self.list
    }

    /// The connection of a queue pair, if its setup was captured.
    #[must_use]
    pub fn connection(&self, host: IpAddr, qp: Qpn) -> Option<Connection> {
        self.by_qp.get(&(host, qp)).cloned()
    }

    /// Whether the connection of a queue pair was ended by a DisconnectRequest.
    #[must_use]
    pub fn is_ended(&self, host: IpAddr, qp: Qpn) -> bool {
        let setup = self.by_qp.get(&(host, qp)).and_then(|connection| self.list.get(connection.setup));
        setup.is_some_and(|handshake| handshake.ended.is_some())
    }

    /// Adds a management datagram.
    pub fn feed(&mut self, at: At, seen: &Seen<'_>, packet: &Packet<'_>, findings: &mut Findings) {
        let Some(Ok(message)) = packet.payload().first_chunk().map(CmMessage::parse) else { return };
        let (src, dst) = (seen.ip.src(), seen.ip.dst());
        let mut context = Context { at, subject: subject(seen), findings };
        match message {
            CmMessage::Req(req) => self.req(&mut context, src, dst, &req),
            CmMessage::Rep(rep) => self.rep(&mut context, src, dst, &rep),
            CmMessage::Rtu(rtu) => {
                if let Some(handshake) = self.find(src, rtu.local_comm_id) {
                    handshake.ready = handshake.ready.or(Some(at));
                    handshake.sent.rtu = Some(at);
                } else if let Some(early) = self.early.get_mut(&(src, rtu.local_comm_id)) {
                    early.rtu = Some(at);
                }
            }
            CmMessage::Mra(mra) => {
                if let Some(handshake) = self.find(dst, mra.remote_comm_id) {
                    handshake.sent.mra = true;
                }
            }
            CmMessage::Rej(rej) => self.rej(&mut context, dst, &rej),
            // A keepalive probe of roxie: it names no queue pair, so it ends no connection.
            CmMessage::Dreq(dreq) if dreq.remote_qpn == Qpn::new(0) => {}
            CmMessage::Dreq(dreq) => {
                let Some(handshake) = self.find(src, dreq.local_comm_id) else { return };
                let side = handshake.side(src, dreq.local_comm_id);
                handshake.ended = handshake.ended.or(Some(at));
                if let Some(before) = handshake.sent.dreq[side].replace(at) {
                    let answer = handshake.sent.drep[1 - side].map(|drep| ("DisconnectReply", drep));
                    let otherwise = format!(
                        "had no answer and is retransmitted in packet {}: it did not arrive, or the peer has \
                         ended.",
                        at.number
                    );
                    context.repeated("DisconnectRequest", before, answer, &otherwise);
                }
            }
            CmMessage::Drep(drep) => {
                if let Some(handshake) = self.find(src, drep.local_comm_id) {
                    handshake.sent.drep[handshake.side(src, drep.local_comm_id)] = Some(at);
                }
            }
            CmMessage::SidrReq(req) => {
                let request = (at, req.service_id.to_string());
                if self.sidr_requests.len() < HANDSHAKES_MAX
                    && let Some((before, service)) = self.sidr_requests.insert((src, req.request_id), request)
                {
                    let waited = clock::span(at.ns.saturating_sub(before.ns));
                    let text = format!(
                        "The service id request for service {service} in packet {} had no answer within \
                         {waited} and is retransmitted.",
                        before.number
                    );
                    context.report(Kind::LostCm, before, text);
                }
            }
            CmMessage::SidrRep(rep) => {
                let request = self.sidr_requests.remove(&(dst, rep.request_id));
                if rep.status != SidrStatus::SUCCESS {
                    let requested = request.map_or(at, |request| request.0);
                    let why = match rep.status {
                        SidrStatus::UNSUPPORTED => "no program listens there".to_owned(),
                        status => status.to_string(),
                    };
                    let text = format!(
                        "{src} has no queue pair for datagrams of service {}: {why} (packet {}).",
                        rep.service_id, at.number
                    );
                    context.report(Kind::Rejected, requested, text);
                }
            }
            CmMessage::Lap(_) | CmMessage::Apr(_) => {}
        }
    }

    fn rep(&mut self, context: &mut Context<'_>, src: IpAddr, dst: IpAddr, rep: &Rep) {
        let at = context.at;
        let active = (dst, rep.remote_comm_id);
        let Some(index) = self.by_active.get(&active).copied() else {
            if self.early.len() < HANDSHAKES_MAX {
                self.early.entry(active).or_default().rep = Some((at, src, *rep));
            }
            return;
        };
        self.by_passive.insert((src, rep.local_comm_id), index);
        let handshake = &mut self.list[index];
        handshake.passive_id = rep.local_comm_id;
        handshake.passive_qp = Some(rep.local_qpn);
        handshake.answered = handshake.answered.or(Some(at));
        if let Some(before) = handshake.sent.rep.replace(at) {
            let answer = handshake.sent.rtu.map(|rtu| ("ReadyToUse", rtu));
            let otherwise = format!(
                "did not arrive in time: no ReadyToUse was seen, and it is retransmitted in \
                 packet {}.",
                at.number
            );
            context.repeated("ConnectReply", before, answer, &otherwise);
        }
        let (active, passive) = ((dst, handshake.active_qp), (src, rep.local_qpn));
        let path_mtu = handshake.path_mtu;
        let p_key = Some((handshake.p_key, handshake.requested));
        self.by_qp.insert(active, Connection { peer_qp: passive.1, path_mtu, p_key, setup: index });
        self.by_qp.insert(passive, Connection { peer_qp: active.1, path_mtu, p_key, setup: index });
    }

    fn req(&mut self, context: &mut Context<'_>, src: IpAddr, dst: IpAddr, req: &Req) {
        let at = context.at;
        if let Some(index) = self.by_active.get(&(src, req.local_comm_id)).copied() {
            let handshake = &mut self.list[index];
            let Some(before) = handshake.sent.req.replace(at) else { return };
            let waited = clock::span(at.ns.saturating_sub(before.ns));
            let text = if let Some(rep) = handshake.sent.rep {
                format!(
                    "The ConnectReply in packet {} did not arrive in time: the ConnectRequest is \
                     retransmitted in packet {}.",
                    rep.number, at.number
                )
            } else {
                format!(
                    "The ConnectRequest in packet {} had no answer within {waited} and is retransmitted in \
                     packet {}: the request or its answer did not arrive, or {dst} is slow to answer.",
                    before.number, at.number
                )
            };
            context.report(Kind::LostCm, before, text);
            return;
        }
        if self.list.len() >= HANDSHAKES_MAX {
            return;
        }
        self.by_active.insert((src, req.local_comm_id), self.list.len());
        self.list.push(Handshake {
            active: src,
            passive: dst,
            active_qp: req.local_qpn,
            passive_qp: None,
            service: req.service_id.to_string(),
            path_mtu: matches!(req.path_mtu, 1..=5).then(|| 128 << req.path_mtu),
            p_key: req.p_key.0 & PARTITION,
            requested: at,
            answered: None,
            ready: None,
            ended: None,
            refused: None,
            active_id: req.local_comm_id,
            passive_id: 0,
            sent: Sent { req: Some(at), ..Sent::default() },
        });
        let is_near = |early: &At| early.ns.abs_diff(at.ns) < EARLY_NS;
        let early = self.early.remove(&(src, req.local_comm_id)).unwrap_or_default();
        let Some((at, passive, rep)) = early.rep.filter(|(rep, ..)| is_near(rep)) else { return };
        let rtu = early.rtu.filter(is_near);
        context.at = at;
        self.rep(context, passive, src, &rep);
        if let Some(handshake) = self.list.last_mut() {
            (handshake.ready, handshake.sent.rtu) = (rtu, rtu);
        }
    }

    fn rej(&mut self, context: &mut Context<'_>, dst: IpAddr, rej: &Rej) {
        let at = context.at;
        let mut requested = at;
        let mut wanted = String::new();
        if let Some(handshake) = self.find(dst, rej.remote_comm_id) {
            requested = handshake.requested;
            wanted = format!(" to {} at {}", handshake.service, handshake.passive);
            handshake.answered = handshake.answered.or(Some(at));
            handshake.refused = Some(rej.reason);
        }
        let why = rej.reason.usual_cause().unwrap_or("see the reason code");
        let text =
            format!("The connection{wanted} was rejected in packet {}: {} - {why}.", at.number, rej.reason);
        context.report(Kind::Rejected, requested, text);
    }

    /// The setup with this communication id at `host`.
    fn find(&mut self, host: IpAddr, id: u32) -> Option<&mut Handshake> {
        let index = self.by_active.get(&(host, id)).or_else(|| self.by_passive.get(&(host, id)))?;
        self.list.get_mut(*index)
    }

    /// Adds the findings that show only at the end of the capture.
    pub fn finish(&self, findings: &mut Findings) {
        for handshake in &self.list {
            let (first, last) = (handshake.requested, handshake.sent.req.unwrap_or_default());
            if handshake.answered.is_none() && !handshake.sent.mra && first != last {
                let text = format!(
                    "No answer of {} to the ConnectRequest in packet {} was seen in this capture; it was \
                     retransmitted until packet {}. Check that the host is up and that UDP port 4791 is \
                     open in both directions.",
                    handshake.passive, first.number, last.number
                );
                let subject = format!("{} > {}", handshake.active, handshake.passive);
                findings.add(Finding::new(Kind::NoCmAnswer, first, last.number, subject, text));
            }
        }
    }
}

impl Handshake {
    /// 0 if `host`, with this communication id, is the active side, 1 if it is the passive side.
    fn side(&self, host: IpAddr, id: u32) -> usize {
        usize::from((self.active, self.active_id) != (host, id))
    }

    /// Communication ids of the active and the passive side.
    #[must_use]
    pub fn ids(&self) -> (u32, u32) {
        (self.active_id, self.passive_id)
    }
}

/// The packet being handled, and the list for findings about it.
struct Context<'a> {
    at: At,
    subject: String,
    findings: &'a mut Findings,
}

impl Context<'_> {
    /// Reports that this packet repeats the message of packet `before`. Either its answer was lost, or the
    /// message was, of which `otherwise` says more.
    fn repeated(&mut self, message: &str, before: At, answer: Option<(&str, At)>, otherwise: &str) {
        let Some((name, lost)) = answer else {
            let text = format!("The {message} in packet {} {otherwise}", before.number);
            return self.report(Kind::LostCm, before, text);
        };
        let text = format!(
            "The {name} in packet {} did not arrive in time: the {message} of packet {} is retransmitted in \
             packet {}.",
            lost.number, before.number, self.at.number
        );
        self.report(Kind::LostCm, lost, text);
    }

    fn report(&mut self, kind: Kind, at: At, text: String) {
        let (shown_by, subject) = (self.at.number, self.subject.clone());
        self.findings.add(Finding::new(kind, at, shown_by, subject, text));
    }
}
