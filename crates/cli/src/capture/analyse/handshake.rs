//! Connections as the connection manager sets them up and takes them down.

use std::collections::HashMap;
use std::net::IpAddr;

use wire::capture::Seen;
use wire::cm::{Rej, RejReason, Req, SidrStatus};
use wire::{CmMessage, Packet, Qpn};

use super::PARTITION;
use super::finding::{At, Finding, Findings, Kind, whose};
use crate::capture::clock;

/// Handshakes remembered.
const HANDSHAKES_MAX: usize = 1 << 16;

/// A connection that was asked for.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// Who asked.
    pub active: IpAddr,
    /// Whom.
    pub passive: IpAddr,
    /// The asking side's queue pair.
    pub active_qp: Qpn,
    /// The other's, once it agreed.
    pub passive_qp: Option<Qpn>,
    /// Which listener was wanted.
    pub service: String,
    /// Bytes of a full packet.
    pub path_mtu: Option<u32>,
    /// The partition, a P_Key without its highest bit.
    p_key: u16,
    /// The first request.
    pub asked: At,
    /// The answer, whatever it was.
    pub answered: Option<At>,
    /// Ready to use.
    pub ready: Option<At>,
    /// The request to disconnect.
    pub ended: Option<At>,
    /// Why it was refused.
    pub refused: Option<RejReason>,
    active_id: u32,
    passive_id: u32,
    sent: Sent,
}

/// The latest message of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    req: Option<At>,
    rep: Option<At>,
    rtu: Option<At>,
    /// Of the asking side and of the other: both may want to end it.
    dreq: [Option<At>; 2],
    /// Which answers the other one's.
    drep: [Option<At>; 2],
    /// The peer asked for patience.
    mra: bool,
}

/// What is known of a queue pair's connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The other end's queue pair.
    pub peer_qp: Qpn,
    /// Bytes of a full packet.
    pub path_mtu: Option<u32>,
    /// The partition and where that was said.
    pub p_key: Option<(u16, At)>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Handshakes {
    list: Vec<Handshake>,
    /// By the asking side's address and name for it.
    by_active: HashMap<(IpAddr, u32), usize>,
    by_passive: HashMap<(IpAddr, u32), usize>,
    by_qp: HashMap<(IpAddr, Qpn), Connection>,
    /// Questions for a service, by the asking side's address and name for it.
    questions: HashMap<(IpAddr, u32), (At, String)>,
}

impl Handshakes {
    /// The connections asked for, in their order.
    #[must_use]
    pub fn list(&self) -> &[Handshake] {
        &self.list
    }

    /// The connection of a queue pair.
    #[must_use]
    pub fn connection(&self, host: IpAddr, qp: Qpn) -> Option<Connection> {
        self.by_qp.get(&(host, qp)).cloned()
    }

    /// A management datagram.
    pub fn feed(&mut self, at: At, seen: &Seen<'_>, packet: &Packet<'_>, findings: &mut Findings) {
        let Some(Ok(message)) = packet.payload().first_chunk().map(CmMessage::parse) else { return };
        let (src, dst) = (seen.ip.src(), seen.ip.dst());
        let mut scene = Scene { at, whose: whose(seen), findings };
        match message {
            CmMessage::Req(req) => self.req(&mut scene, src, dst, &req),
            CmMessage::Rep(rep) => {
                let Some(index) = self.by_active.get(&(dst, rep.remote_comm_id)).copied() else { return };
                self.by_passive.insert((src, rep.local_comm_id), index);
                let handshake = &mut self.list[index];
                handshake.passive_id = rep.local_comm_id;
                handshake.passive_qp = Some(rep.local_qpn);
                handshake.answered = handshake.answered.or(Some(at));
                if let Some(before) = handshake.sent.rep.replace(at) {
                    handshake.repeated_rep(&mut scene, before);
                }
                let (active, passive) = ((dst, handshake.active_qp), (src, rep.local_qpn));
                let path_mtu = handshake.path_mtu;
                let p_key = Some((handshake.p_key, handshake.asked));
                self.by_qp.insert(active, Connection { peer_qp: passive.1, path_mtu, p_key });
                self.by_qp.insert(passive, Connection { peer_qp: active.1, path_mtu, p_key });
            }
            CmMessage::Rtu(rtu) => {
                let Some(handshake) = self.find(src, rtu.local_comm_id) else { return };
                handshake.ready = handshake.ready.or(Some(at));
                handshake.sent.rtu = Some(at);
            }
            CmMessage::Mra(mra) => {
                if let Some(handshake) = self.find(dst, mra.remote_comm_id) {
                    handshake.sent.mra = true;
                }
            }
            CmMessage::Rej(rej) => self.rej(&mut scene, dst, &rej),
            CmMessage::Dreq(dreq) => {
                let Some(handshake) = self.find(src, dreq.local_comm_id) else { return };
                let side = handshake.side(src, dreq.local_comm_id);
                handshake.ended = handshake.ended.or(Some(at));
                if let Some(before) = handshake.sent.dreq[side].replace(at) {
                    handshake.repeated_dreq(&mut scene, side, before);
                }
            }
            CmMessage::Drep(drep) => {
                if let Some(handshake) = self.find(src, drep.local_comm_id) {
                    handshake.sent.drep[handshake.side(src, drep.local_comm_id)] = Some(at);
                }
            }
            CmMessage::SidrReq(req) => {
                let question = (at, req.service_id.to_string());
                if self.questions.len() < HANDSHAKES_MAX
                    && let Some((before, service)) = self.questions.insert((src, req.request_id), question)
                {
                    let waited = clock::span(at.ns.saturating_sub(before.ns));
                    let text = format!(
                        "The question for service {service} in packet {} was not answered within {waited} and comes again.",
                        before.number
                    );
                    scene.find(Kind::LostCm, before, text);
                }
            }
            CmMessage::SidrRep(rep) => {
                let question = self.questions.remove(&(dst, rep.request_id));
                if rep.status != SidrStatus::SUCCESS {
                    let asked = question.map_or(at, |question| question.0);
                    let why = match rep.status {
                        SidrStatus::UNSUPPORTED => "nobody listens there".to_owned(),
                        status => status.to_string(),
                    };
                    let text = format!(
                        "{src} has no queue pair for datagrams of service {}: {why} (packet {}).",
                        rep.service_id, at.number
                    );
                    scene.find(Kind::Rejected, asked, text);
                }
            }
            CmMessage::Lap(_) | CmMessage::Apr(_) => {}
        }
    }

    fn req(&mut self, scene: &mut Scene<'_>, src: IpAddr, dst: IpAddr, req: &Req) {
        let at = scene.at;
        if let Some(index) = self.by_active.get(&(src, req.local_comm_id)).copied() {
            let handshake = &mut self.list[index];
            let Some(before) = handshake.sent.req.replace(at) else { return };
            let waited = clock::span(at.ns.saturating_sub(before.ns));
            let text = if let Some(rep) = handshake.sent.rep {
                format!(
                    "The ConnectReply in packet {} did not arrive: the ConnectRequest comes again in packet {}.",
                    rep.number, at.number
                )
            } else {
                format!(
                    "The ConnectRequest in packet {} was not answered within {waited} and is sent again in packet {}: it was lost, \
                     or {dst} is slow to answer.",
                    before.number, at.number
                )
            };
            scene.find(Kind::LostCm, before, text);
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
            asked: at,
            answered: None,
            ready: None,
            ended: None,
            refused: None,
            active_id: req.local_comm_id,
            passive_id: 0,
            sent: Sent { req: Some(at), ..Sent::default() },
        });
    }

    fn rej(&mut self, scene: &mut Scene<'_>, dst: IpAddr, rej: &Rej) {
        let at = scene.at;
        let mut asked = at;
        let mut wanted = String::new();
        if let Some(handshake) = self.find(dst, rej.remote_comm_id) {
            asked = handshake.asked;
            wanted = format!(" to {} at {}", handshake.service, handshake.passive);
            handshake.answered = handshake.answered.or(Some(at));
            handshake.refused = Some(rej.reason);
        }
        let why = match rej.reason {
            RejReason::INVALID_SERVICE_ID => "nobody listens on that port",
            RejReason::CONSUMER_DEFINED => "the program said no, or ended",
            RejReason::STALE_CONNECTION => {
                "it still holds a connection with that queue pair, of an earlier life"
            }
            RejReason::TIMEOUT => "it waited too long for an answer",
            RejReason::INVALID_GID => "the address in the request is none of its own",
            RejReason::INVALID_MTU => "the path MTU is larger than it can take",
            RejReason::INSUFFICIENT_RESPONDER_RESOURCES => {
                "too many READs and atomics at a time were asked for"
            }
            RejReason::NO_QP | RejReason::NO_RESOURCES => "it has no more queue pairs or memory",
            _ => "see the reason",
        };
        let text =
            format!("The connection{wanted} was refused in packet {}: {} - {why}.", at.number, rej.reason);
        scene.find(Kind::Rejected, asked, text);
    }

    /// The handshake that `host` knows by this name.
    fn find(&mut self, host: IpAddr, id: u32) -> Option<&mut Handshake> {
        let index = self.by_active.get(&(host, id)).or_else(|| self.by_passive.get(&(host, id)))?;
        self.list.get_mut(*index)
    }

    /// The end of the capture.
    pub fn finish(&self, findings: &mut Findings) {
        for handshake in &self.list {
            let (first, last) = (handshake.asked, handshake.sent.req.unwrap_or_default());
            if handshake.answered.is_none() && !handshake.sent.mra && first != last {
                let text = format!(
                    "{} never answers the ConnectRequest in packet {}, sent again until packet {}: the host is not there, or \
                     nothing gets through.",
                    handshake.passive, first.number, last.number
                );
                let whose = format!("{} > {}", handshake.active, handshake.passive);
                findings.add(Finding {
                    kind: Kind::NoCmAnswer,
                    at: first,
                    shown_by: last.number,
                    whose,
                    text,
                    count: 1,
                });
            }
        }
    }
}

impl Handshake {
    /// 0 if `host`, which knows it by this name, is the side that asked, 1 if it is the other.
    fn side(&self, host: IpAddr, id: u32) -> usize {
        usize::from((self.active, self.active_id) != (host, id))
    }

    /// A reply comes again: either it was lost, or what answers it.
    fn repeated_rep(&self, scene: &mut Scene<'_>, before: At) {
        let again = scene.at.number;
        let (lost, text) = match self.sent.rtu {
            Some(rtu) => (
                rtu,
                format!(
                    "The ReadyToUse in packet {} did not arrive: the ConnectReply of packet {} comes again in packet {again}.",
                    rtu.number, before.number
                ),
            ),
            None => (
                before,
                format!(
                    "The ConnectReply in packet {} did not arrive: no ReadyToUse follows, and it comes again in packet {again}.",
                    before.number
                ),
            ),
        };
        scene.find(Kind::LostCm, lost, text);
    }

    fn repeated_dreq(&self, scene: &mut Scene<'_>, side: usize, before: At) {
        let again = scene.at.number;
        let (lost, text) = match self.sent.drep[1 - side] {
            Some(drep) => (
                drep,
                format!(
                    "The DisconnectReply in packet {} did not arrive: the DisconnectRequest of packet {} comes again in packet {again}.",
                    drep.number, before.number
                ),
            ),
            None => (
                before,
                format!(
                    "The DisconnectRequest in packet {} was not answered and comes again in packet {again}: it was lost, or the peer \
                     is gone.",
                    before.number
                ),
            ),
        };
        scene.find(Kind::LostCm, lost, text);
    }

    /// The name the asking side and the other side have for it.
    #[must_use]
    pub fn ids(&self) -> (u32, u32) {
        (self.active_id, self.passive_id)
    }
}

/// Where a message is, and where findings go.
struct Scene<'a> {
    at: At,
    whose: String,
    findings: &'a mut Findings,
}

impl Scene<'_> {
    fn find(&mut self, kind: Kind, at: At, text: String) {
        let (shown_by, whose) = (self.at.number, self.whose.clone());
        self.findings.add(Finding { kind, at, shown_by, whose, text, count: 1 });
    }
}
