//! Fuzzes the connection manager between a hostile peer and a hasty application.
//!
//! Checked: no panic; a received MAD causes at most two messages; every sent message parses to itself; only
//! requests for a listener of this device are accepted; events refer to connections that the application
//! knows and has not destroyed; a handled timeout has not expired; after everything is destroyed only
//! disconnect messages remain, and they end.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use transport::cm::{
    AcceptParams, Cm, CmConfig, CmEventKind, CmId, ConnState, ConnectParams, ListenAddress, ListenParams,
    ListenerId, LocalQp, MadBytes, MadOutcome, Path, SidrAnswer, SidrParams, Transport,
};
use transport::{Instant, PathMtu, QpState};
use wire::cm::{
    Answered, CmMessage, Drep, Dreq, IpCmHeader, Mra, Path as WirePath, Rej, RejReason, Rep, Req, Rtu,
    ServiceId, SidrRep, SidrReq, SidrStatus,
};
use wire::{Gid, MAD_LEN, PKey, Psn, QKey, Qpn};

use crate::draw::Draw;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OWN6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const STEPS: usize = 300;
/// Maximum number of timeouts of destroyed connections: two each.
const DISCONNECTS_MAX: usize = 2 * STEPS;
/// Number of received messages that the peer remembers.
const SEEN_MAX: usize = 16;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut world = World::new(Draw::new(data));
    for _ in 0..STEPS {
        if world.draw.is_empty() {
            break;
        }
        world.step();
        // The peer receives messages at once; events wait for the application.
        world.transmitted(usize::MAX);
    }
    world.finish();
}

struct World<'a> {
    draw: Draw<'a>,
    cm: Cm,
    now: Instant,
    listeners: Vec<(ListenerId, ListenParams)>,
    /// Connections and exchanges that the application knows.
    known: Vec<CmId>,
    destroyed: HashSet<CmId>,
    /// Messages that the peer has received.
    seen: Vec<CmMessage>,
}

fn service(draw: &mut Draw<'_>) -> ServiceId {
    let space = draw.pick(&[ServiceId::TCP, ServiceId::UDP]);
    ServiceId::from_port(space, 1 + draw.below(3) as u16)
}

/// Returns one of few ids, so that ids collide.
fn name(draw: &mut Draw<'_>) -> u32 {
    draw.below(6)
}

fn private<const N: usize>(draw: &mut Draw<'_>) -> [u8; N] {
    [draw.any(); N]
}

/// Returns a REQ with the given connection id and QPN, and otherwise drawn fields.
fn connect_request(
    draw: &mut Draw<'_>,
    header: &IpCmHeader,
    tid: u64,
    [local_comm_id, qpn]: [u32; 2],
    local_ca_guid: u64,
) -> Req {
    let mut private_data = [0; 92];
    private_data[36..].fill(draw.any());
    header.emit(private_data.first_chunk_mut().expect("longer than the header"));
    Req {
        tid,
        local_comm_id,
        service_id: service(draw),
        local_ca_guid,
        local_qpn: Qpn::new(qpn),
        responder_resources: draw.any(),
        initiator_depth: draw.any(),
        transport: draw.pick(&[0, 1, 2, 3]),
        local_cm_response_timeout: draw.pick(&[20, 0, 31]),
        starting_psn: Psn::new(draw.any()),
        p_key: draw.pick(&[PKey::DEFAULT, PKey(0)]),
        path_mtu: draw.pick(&[3, 1, 5, 0, 15]),
        max_cm_retries: draw.pick(&[15, 0, 1]),
        primary: WirePath {
            local_gid: PEER.into(),
            remote_gid: draw.pick(&[OWN.into(), OWN6.into(), Gid::ZERO]),
            hop_limit: 64,
            ack_timeout: draw.pick(&[19, 0, 31]),
            ..WirePath::default()
        },
        private_data,
        ..Req::default()
    }
}

/// Returns transaction id, sender's id and receiver's id of a message.
fn ids_of(message: &CmMessage) -> (u64, u32, u32) {
    match message {
        CmMessage::Req(m) => (m.tid, m.local_comm_id, 0),
        CmMessage::Rep(m) => (m.tid, m.local_comm_id, m.remote_comm_id),
        CmMessage::Rtu(m) => (m.tid, m.local_comm_id, m.remote_comm_id),
        CmMessage::Rej(m) => (m.tid, m.local_comm_id, m.remote_comm_id),
        CmMessage::Mra(m) => (m.tid, m.local_comm_id, m.remote_comm_id),
        CmMessage::Dreq(m) => (m.tid, m.local_comm_id, m.remote_comm_id),
        CmMessage::Drep(m) => (m.tid, m.local_comm_id, m.remote_comm_id),
        CmMessage::SidrReq(m) => (m.tid, m.request_id, 0),
        CmMessage::SidrRep(m) => (m.tid, m.request_id, 0),
        CmMessage::Lap(_) | CmMessage::Apr(_) => panic!("sent {message}"),
    }
}

impl<'a> World<'a> {
    fn new(mut draw: Draw<'a>) -> Self {
        let slot = draw.pick(&[0, 3, 4094]);
        let first_id = draw.pick(&[1, 0, 0xff_fffe]);
        let max_path_mtu = draw.pick(&PathMtu::ALL);
        let mut config = CmConfig::new(slot, first_id, 0x77, max_path_mtu);
        config.ack_delay = draw.pick(&[15, 31, 255]);
        config.packet_life_time = draw.pick(&[18, 31, 0]);
        let mut cm = Cm::new(config);
        if draw.one_in(2) {
            cm.set_gids(&[OWN.into(), OWN6.into()]);
        }
        Self {
            draw,
            cm,
            now: Instant(1),
            listeners: Vec::new(),
            known: Vec::new(),
            destroyed: HashSet::new(),
            seen: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.draw.below(20) {
            0..=2 => self.request(),
            3..=8 => self.reply(),
            9 => {
                let mut mad = [0; MAD_LEN];
                for (to, from) in mad.iter_mut().zip(self.draw.bytes(255)) {
                    *to = *from;
                }
                self.handle(&mad);
            }
            10..=12 => {
                let most = self.draw.pick(&[1, 2, 100]);
                self.events(most);
            }
            13 => self.timeout(),
            14 => self.listen(),
            15..=16 => self.connect(),
            _ => self.call(),
        }
    }

    /// Delivers a message that does not answer any message.
    fn request(&mut self) {
        let draw = &mut self.draw;
        let (local, remote) = (name(draw), self.known.len() as u32);
        let remote = self.known.get(draw.below(remote.max(1)) as usize).map_or(local, |id| id.0);
        let guid = u64::from(draw.below(3));
        let qpn = Qpn::new(draw.below(4));
        let header = IpCmHeader {
            src_port: draw.any::<u8>().into(),
            src: PEER.into(),
            dst: draw.pick(&[OWN.into(), OWN6.into(), Ipv4Addr::LOCALHOST.into()]),
        };
        let tid = draw.any::<u8>().into();
        let message = match draw.below(8) {
            0..=3 => CmMessage::Req(connect_request(draw, &header, tid, [local, qpn.value()], guid)),
            4 => {
                let mut private_data = [0; 216];
                header.emit(private_data.first_chunk_mut().expect("longer than the header"));
                let request_id = local;
                let (p_key, service_id) = (PKey::DEFAULT, service(draw));
                CmMessage::SidrReq(SidrReq {
                    tid,
                    request_id,
                    p_key,
                    service_id,
                    private_data,
                    ..SidrReq::default()
                })
            }
            5 => CmMessage::Dreq(Dreq {
                local_comm_id: local,
                remote_comm_id: remote,
                remote_qpn: qpn,
                ..Dreq::default()
            }),
            6 => {
                let mut ari = [0; 72];
                ari[..8].copy_from_slice(&guid.to_be_bytes());
                CmMessage::Rej(Rej {
                    local_comm_id: local,
                    remote_comm_id: remote,
                    message: Answered(draw.below(4) as u8),
                    ari_len: draw.pick(&[8, 0, 72, 127]),
                    reason: draw.pick(&[
                        RejReason::TIMEOUT,
                        RejReason::STALE_CONNECTION,
                        RejReason::CONSUMER_DEFINED,
                    ]),
                    ari,
                    ..Rej::default()
                })
            }
            _ => CmMessage::Rtu(Rtu { local_comm_id: local, remote_comm_id: remote, ..Rtu::default() }),
        };
        self.deliver(&message);
    }

    /// Delivers a message that answers a message of this device, or nearly.
    fn reply(&mut self) {
        let draw = &mut self.draw;
        let Some(&message) = self.seen.get(draw.below(self.seen.len().max(1) as u32) as usize) else {
            return;
        };
        let (tid, to, from) = ids_of(&message);
        // The peer's id: the one that this device used, or one of the few.
        let from = if from == 0 || draw.one_in(8) { name(draw) } else { from };
        let remote_qpn = match message {
            CmMessage::Rep(rep) => rep.local_qpn,
            _ => Qpn::new(draw.below(4)),
        };
        let answered = match message {
            CmMessage::Req(_) => Answered::REQ,
            CmMessage::Rep(_) => Answered::REP,
            _ => Answered::OTHER,
        };
        let reply = match draw.below(9) {
            0..=1 => CmMessage::Rep(Rep {
                tid,
                local_comm_id: from,
                remote_comm_id: to,
                local_qpn: Qpn::new(draw.below(4)),
                local_ca_guid: u64::from(draw.below(3)),
                starting_psn: Psn::new(draw.any()),
                target_ack_delay: draw.pick(&[15, 0, 31]),
                responder_resources: draw.any(),
                initiator_depth: draw.any(),
                rnr_retry_count: draw.any(),
                private_data: private(draw),
                ..Rep::default()
            }),
            2 => CmMessage::Rtu(Rtu { tid, local_comm_id: from, remote_comm_id: to, ..Rtu::default() }),
            3 => CmMessage::Mra(Mra {
                tid,
                local_comm_id: from,
                remote_comm_id: to,
                message: answered,
                service_timeout: draw.pick(&[31, 0, 20]),
                ..Mra::default()
            }),
            4 => CmMessage::Rej(Rej {
                tid,
                local_comm_id: from,
                remote_comm_id: to,
                message: answered,
                reason: draw.pick(&[
                    RejReason::CONSUMER_DEFINED,
                    RejReason::STALE_CONNECTION,
                    RejReason(0xffff),
                ]),
                ari_len: draw.any(),
                ..Rej::default()
            }),
            5 => CmMessage::Dreq(Dreq {
                tid,
                local_comm_id: from,
                remote_comm_id: to,
                remote_qpn,
                ..Dreq::default()
            }),
            6 => CmMessage::Drep(Drep { tid, local_comm_id: from, remote_comm_id: to, ..Drep::default() }),
            7 => CmMessage::SidrRep(SidrRep {
                tid,
                request_id: to,
                status: SidrStatus(draw.any()),
                info_len: draw.any(),
                qpn: remote_qpn,
                ..SidrRep::default()
            }),
            // Send the message back unchanged.
            _ => message,
        };
        self.deliver(&reply);
    }

    /// Delivers a message of the peer, sometimes with a few bytes changed.
    fn deliver(&mut self, message: &CmMessage) {
        let mut mad = [0; MAD_LEN];
        message.emit(&mut mad);
        if self.draw.one_in(4) {
            for _ in 0..1 + self.draw.below(4) {
                mad[self.draw.any::<u8>() as usize] = self.draw.any();
            }
        }
        self.handle(&mad);
    }

    fn handle(&mut self, mad: &MadBytes) {
        let (src, dst) = (Gid::from(PEER), self.draw.pick(&[Gid::from(OWN), Gid::from(OWN6)]));
        if let MadOutcome::NotOurs { service_id, dst_gid } = self.cm.handle_mad(self.now, mad, src, dst) {
            let meant = |(_, params): &(ListenerId, ListenParams)| {
                params.service_id == service_id && params.address.covers(dst_gid)
            };
            assert!(!self.listeners.iter().any(meant), "{service_id} has a listener");
            assert!(matches!(CmMessage::parse(mad), Ok(CmMessage::Req(_) | CmMessage::SidrReq(_))));
            self.cm.reject_no_listener(self.now, mad, src, dst);
        }
        self.transmitted(2);
    }

    /// Checks that each sent message parses to itself, and that there are at most `most`.
    fn transmitted(&mut self, most: usize) {
        let mut count = 0;
        while let Some((_, _, mad)) = self.cm.poll_transmit() {
            count += 1;
            let message = CmMessage::parse(&mad).expect("what is sent is a message");
            let mut again = [0; MAD_LEN];
            message.emit(&mut again);
            assert_eq!(again, mad);
            self.seen.push(message);
            if self.seen.len() > SEEN_MAX {
                self.seen.remove(0);
            }
        }
        assert!(count <= most, "{count} messages sent, at most {most} expected");
    }

    fn events(&mut self, most: usize) {
        for _ in 0..most {
            let Some(event) = self.cm.poll_event() else { return };
            assert!(!self.destroyed.contains(&event.id), "{:?} of a destroyed {:?}", event.kind, event.id);
            match event.kind {
                CmEventKind::ConnectRequest(request) => {
                    assert!(!self.known.contains(&event.id));
                    self.listener_of(request.listener, request.service_id);
                    self.known.push(event.id);
                }
                CmEventKind::SidrRequest(request) => {
                    assert!(!self.known.contains(&event.id));
                    self.listener_of(request.listener, request.service_id);
                    self.known.push(event.id);
                }
                CmEventKind::TimewaitExit => assert_eq!(self.cm.state(event.id), Some(ConnState::Idle)),
                _ => assert!(self.known.contains(&event.id) || self.cm.state(event.id).is_some()),
            }
        }
    }

    /// Checks the matched listener. The application may have destroyed it since.
    fn listener_of(&self, id: ListenerId, service_id: ServiceId) {
        if let Some((_, params)) = self.listeners.iter().find(|(listener, _)| *listener == id) {
            assert_eq!(params.service_id, service_id);
        }
    }

    fn timeout(&mut self) {
        if let Some(at) = self.cm.poll_timeout()
            && !self.draw.one_in(4)
        {
            self.now = self.now.max(at);
        } else {
            self.now = self.now.plus_ns(u64::from(self.draw.any::<u16>()) << self.draw.below(24));
        }
        self.cm.handle_timeout(self.now);
        assert!(self.cm.poll_timeout().is_none_or(|at| at > self.now), "a handled timeout has expired again");
    }

    fn listen(&mut self) {
        if self.listeners.len() > 4 || self.draw.one_in(6) {
            if let Some((id, _)) = self.listeners.pop() {
                self.cm.unlisten(id);
            }
            return;
        }
        let draw = &mut self.draw;
        let params = ListenParams {
            service_id: service(draw),
            address: draw.pick(&[
                ListenAddress::Any,
                ListenAddress::AnyV4,
                ListenAddress::AnyV6,
                ListenAddress::Gid(Gid(OWN6.octets())),
            ]),
            backlog: draw.pick(&[0, 1, 2, u32::MAX]),
            transport: draw.pick(&[Transport::Rc, Transport::Uc]),
        };
        let twice = self
            .listeners
            .iter()
            .any(|(_, l)| (l.service_id, l.address) == (params.service_id, params.address));
        match self.cm.listen(params) {
            Ok(id) => {
                assert!(!twice);
                self.listeners.push((id, params));
            }
            Err(_) => assert!(twice),
        }
    }

    fn local_qp(&mut self) -> LocalQp {
        LocalQp { qpn: Qpn::new(0x10 + self.draw.below(4)), starting_psn: Psn::new(1), srq: false }
    }

    fn connect(&mut self) {
        let qp = self.local_qp();
        let draw = &mut self.draw;
        let data = [7; 256];
        let path = Path {
            src: OWN.into(),
            dst: draw.pick(&[Gid::from(PEER), Gid::from(OWN)]),
            src_port: 9,
            hop_limit: 1,
            traffic_class: 0,
            flow_label: 0,
            sl: 0,
        };
        let service_id = service(draw);
        let private_data = &data[..usize::from(draw.any::<u8>())];
        let asked = if draw.one_in(4) {
            self.cm.sidr_connect(self.now, &SidrParams { service_id, path, private_data })
        } else {
            let params = ConnectParams {
                service_id,
                path,
                transport: Transport::Rc,
                qp,
                responder_resources: draw.any(),
                initiator_depth: draw.any(),
                flow_control: true,
                retry_count: draw.any(),
                rnr_retry_count: draw.any(),
                path_mtu: PathMtu::M1024,
                ack_timeout: draw.pick(&[None, Some(0), Some(255)]),
                private_data,
            };
            self.cm.connect(self.now, &params)
        };
        if let Ok(id) = asked {
            assert!(id.0 & 0xff_ffff != 0);
            self.destroyed.remove(&id);
            self.known.push(id);
        }
    }

    /// Makes an arbitrary call on an arbitrary connection; most calls fail.
    fn call(&mut self) {
        let index = self.draw.below(self.known.len().max(1) as u32) as usize;
        let Some(&id) = self.known.get(index) else { return };
        let data = [5; 256];
        let private_data = &data[..usize::from(self.draw.any::<u8>())];
        let qp = self.local_qp();
        let draw = &mut self.draw;
        match draw.below(14) {
            0..=2 => {
                let params = AcceptParams {
                    qp,
                    responder_resources: draw.any(),
                    initiator_depth: draw.any(),
                    flow_control: false,
                    rnr_retry_count: draw.any(),
                    private_data: &[],
                };
                let _refused_or_not = self.cm.accept(self.now, id, &params);
            }
            3..=4 => drop(self.cm.rtu(id, &[])),
            5 => drop(self.cm.rtu(id, private_data)),
            6 => drop(self.cm.reject(id, RejReason::CONSUMER_DEFINED, private_data)),
            7 => drop(self.cm.disconnect(self.now, id, private_data)),
            8 => drop(self.cm.drep(self.now, id, private_data)),
            9 => drop(self.cm.establish(id)),
            10 => self.cm.establish_qp(qp.qpn),
            11 => {
                let answer =
                    SidrAnswer { status: SidrStatus::SUCCESS, qpn: qp.qpn, q_key: QKey(1), private_data };
                let _refused_or_not = self.cm.sidr_reply(id, &answer);
            }
            12 => {
                for state in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err] {
                    let step = self.cm.qp_attr(id, state);
                    assert!(step.is_err() || self.cm.state(id).is_some_and(ConnState::allows_init));
                }
                self.cm.request_taken(id);
            }
            _ => {
                self.cm.destroy(self.now, id);
                assert_eq!(self.cm.state(id), None);
                self.known.swap_remove(index);
                self.destroyed.insert(id);
            }
        }
    }

    fn finish(&mut self) {
        self.events(usize::MAX);
        while self.cm.poll_journal().is_some() {}
        assert!(!self.cm.has_output());
        for id in std::mem::take(&mut self.known) {
            self.cm.destroy(self.now, id);
        }
        self.transmitted(usize::MAX);
        assert!(self.cm.poll_event().is_none());
        assert!(
            self.cm.is_empty(),
            "{} connections remain that the application does not know",
            self.cm.len()
        );
        // Destroyed connections may send a few more messages to peers that have not answered.
        for _ in 0..DISCONNECTS_MAX {
            let Some(at) = self.cm.poll_timeout() else { return };
            self.now = self.now.max(at);
            self.cm.handle_timeout(self.now);
            self.transmitted(usize::MAX);
        }
        panic!("the connection manager never stops retransmitting");
    }
}
