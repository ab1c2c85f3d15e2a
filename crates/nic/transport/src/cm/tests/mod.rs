//! Scripts: two [`Cm`]s on a virtual link that loses what it is told to lose. Time moves only from deadline
//! to deadline. Each state and message that can meet has a test here.

mod active;
mod counters;
mod disconnect;
mod journal;
mod keepalive;
mod loss;
mod passive;
mod qp;
mod refuse;
mod sidr;
mod stale;
mod trust;
mod vectors;
mod window;

use std::collections::VecDeque;

use wire::cm::CmMessage;
use wire::{Psn, Qpn};

use super::*;
use crate::{Instant, PathMtu};

/// The active side.
pub(super) const A: usize = 0;
/// The passive side.
pub(super) const B: usize = 1;
pub(super) const PORT: u16 = 7174;

/// Two hosts and the link between them.
pub(super) struct Net {
    pub(super) now: Instant,
    pub(super) cm: [Cm; 2],
    pub(super) gid: [Gid; 2],
    /// Messages sent: time (ms), sender, name.
    pub(super) log: Vec<(u64, usize, &'static str)>,
    /// Messages to lose: sender, name, how many of them.
    pub(super) lose: Vec<(usize, &'static str, u32)>,
    /// Datagrams sent, for tests that look inside or repeat one.
    pub(super) sent: Vec<(usize, CmMessage, MadBytes)>,
    events: [VecDeque<CmEvent>; 2],
}

impl Net {
    pub(super) fn new() -> Self {
        let gid = [
            Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)),
            Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 2)),
        ];
        let cm = [A, B].map(|side| {
            let config = CmConfig::new(
                side as u16 + 1,
                0x00ab_cdef,
                0x0200_0aff_fe00_0001 + side as u64,
                PathMtu::M4096,
            );
            let mut cm = Cm::new(config);
            cm.set_gids(&[gid[side]]);
            cm
        });
        let none = || VecDeque::new();
        Self { now: Instant(0), cm, gid, log: vec![], lose: vec![], sent: vec![], events: [none(), none()] }
    }

    /// B listens at [`PORT`], on every address.
    pub(super) fn listening() -> Self {
        let mut net = Self::new();
        net.listen(0);
        net
    }

    pub(super) fn listen(&mut self, backlog: u32) -> ListenerId {
        let service_id = ServiceId::from_port(ServiceId::TCP, PORT);
        let params =
            ListenParams { service_id, address: ListenAddress::AnyV4, backlog, transport: Transport::Rc };
        self.cm[B].listen(params).unwrap()
    }

    pub(super) fn params(&self) -> ConnectParams<'static> {
        ConnectParams {
            service_id: ServiceId::from_port(ServiceId::TCP, PORT),
            path: self.path(),
            transport: Transport::Rc,
            qp: LocalQp { qpn: Qpn::new(0x10123), starting_psn: Psn::new(0xabcdef), srq: false },
            responder_resources: 3,
            initiator_depth: 2,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 6,
            path_mtu: PathMtu::M1024,
            ack_timeout: None,
            private_data: b"hello",
        }
    }

    pub(super) fn path(&self) -> Path {
        let (src, dst) = (self.gid[A], self.gid[B]);
        Path { src, dst, src_port: 45678, hop_limit: 64, traffic_class: 0, flow_label: 0x2beef, sl: 0 }
    }

    pub(super) fn connect(&mut self) -> CmId {
        let params = self.params();
        self.cm[A].connect(self.now, &params).unwrap()
    }

    pub(super) fn accept_params() -> AcceptParams<'static> {
        AcceptParams {
            qp: LocalQp { qpn: Qpn::new(0x20456), starting_psn: Psn::new(0x123456), srq: true },
            responder_resources: 2,
            initiator_depth: 3,
            flow_control: true,
            rnr_retry_count: 5,
            private_data: b"welcome",
        }
    }

    pub(super) fn accept(&mut self, id: CmId) {
        self.cm[B].accept(self.now, id, &Self::accept_params()).unwrap();
    }

    /// Up to the application's decision at B: both ids.
    pub(super) fn requested() -> (Self, CmId, CmId) {
        let mut net = Self::listening();
        let a = net.connect();
        net.run();
        let request = net.event(B).expect("a request");
        assert!(matches!(request.kind, CmEventKind::ConnectRequest(_)));
        (net, a, request.id)
    }

    /// Until A has the REP and has sent no RTU.
    pub(super) fn responded() -> (Self, CmId, CmId) {
        let (mut net, a, b) = Self::requested();
        net.accept(b);
        net.run();
        assert!(matches!(net.event(A).unwrap().kind, CmEventKind::ConnectResponse(_)));
        (net, a, b)
    }

    /// Both sides established.
    pub(super) fn established() -> (Self, CmId, CmId) {
        let (mut net, a, b) = Self::responded();
        net.cm[A].rtu(a, b"go").unwrap();
        net.run();
        assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Established));
        net.log.clear();
        (net, a, b)
    }

    /// Carries datagrams until none is left.
    pub(super) fn run(&mut self) {
        loop {
            let mut quiet = true;
            for side in [A, B] {
                while let Some((src, dst, mad)) = self.cm[side].poll_transmit() {
                    quiet = false;
                    assert_eq!((src, dst), (self.gid[side], self.gid[1 - side]));
                    let message = CmMessage::parse(&mad).unwrap();
                    let name = name(&message);
                    self.log.push((self.now.0 / 1_000_000, side, name));
                    self.sent.push((side, message, mad));
                    if !self.is_lost(side, name) {
                        self.deliver(side, &mad);
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }

    fn deliver(&mut self, from: usize, mad: &MadBytes) {
        let (src, dst) = (self.gid[from], self.gid[1 - from]);
        let cm = &mut self.cm[1 - from];
        if let MadOutcome::NotOurs { .. } = cm.handle_mad(self.now, mad, src, dst) {
            cm.reject_no_listener(self.now, mad, src, dst);
        }
    }

    fn is_lost(&mut self, side: usize, name: &str) -> bool {
        let rule = self.lose.iter_mut().find(|(s, n, left)| (*s, *n) == (side, name) && *left > 0);
        rule.is_some_and(|(_, _, left)| {
            *left -= 1;
            true
        })
    }

    /// Jumps to the next deadline of either side and lets it act; false if there is none.
    pub(super) fn step(&mut self) -> bool {
        let next = self.cm.iter().filter_map(Cm::poll_timeout).min();
        let Some(at) = next else { return false };
        assert!(at >= self.now);
        self.now = at;
        for cm in &mut self.cm {
            cm.handle_timeout(at);
        }
        self.run();
        true
    }

    /// Steps until `side` has something to say; panics after 100 steps.
    pub(super) fn wait_event(&mut self, side: usize) -> CmEvent {
        for _ in 0..100 {
            if let Some(event) = self.event(side) {
                return event;
            }
            assert!(self.step(), "nothing is going to happen");
        }
        panic!("no event");
    }

    pub(super) fn event(&mut self, side: usize) -> Option<CmEvent> {
        while let Some(event) = self.cm[side].poll_event() {
            self.events[side].push_back(event);
        }
        self.events[side].pop_front()
    }

    /// The last datagram `side` sent arrives once more.
    pub(super) fn repeat_last(&mut self, side: usize, name_wanted: &str) {
        let found = self.sent.iter().rev().find(|(s, m, _)| *s == side && name(m) == name_wanted);
        let mad = found.expect("was sent").2;
        self.deliver(side, &mad);
        self.run();
    }

    pub(super) fn states(&self, a: CmId, b: CmId) -> (ConnState, ConnState) {
        (self.cm[A].state(a).unwrap(), self.cm[B].state(b).unwrap())
    }

    /// Names sent since the log was cleared.
    pub(super) fn names(&self) -> Vec<(usize, &'static str)> {
        self.log.iter().map(|(_, side, name)| (*side, *name)).collect()
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now.0 / 1_000_000
    }

    /// No deadline, no event, nothing to send.
    pub(super) fn assert_quiet(&mut self) {
        for side in [A, B] {
            assert!(self.event(side).is_none());
            while self.cm[side].poll_journal().is_some() {}
            assert!(!self.cm[side].has_output());
            assert!(self.cm[side].poll_transmit().is_none());
            assert_eq!(self.cm[side].poll_timeout(), None);
        }
    }
}

pub(super) fn name(message: &CmMessage) -> &'static str {
    match message {
        CmMessage::Req(_) => "REQ",
        CmMessage::Mra(_) => "MRA",
        CmMessage::Rej(_) => "REJ",
        CmMessage::Rep(_) => "REP",
        CmMessage::Rtu(_) => "RTU",
        CmMessage::Dreq(_) => "DREQ",
        CmMessage::Drep(_) => "DREP",
        CmMessage::SidrReq(_) => "SIDR_REQ",
        CmMessage::SidrRep(_) => "SIDR_REP",
        CmMessage::Lap(_) => "LAP",
        CmMessage::Apr(_) => "APR",
    }
}
