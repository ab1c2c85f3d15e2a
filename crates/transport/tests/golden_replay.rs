//! What a kernel's requester sent is fed to our responder, and what it answers is compared with what the kernel's responder
//! answered, byte for byte from the BTH to the pad. The captures are described in `tests/golden/`.

#[path = "../../../tests/golden/capture.rs"]
mod capture;
#[path = "golden_replay/memory.rs"]
mod memory;

use std::net::IpAddr;

use memory::{MR_ADDR, MR_LEN, Region};
use roxie_transport::{
    Access, AddressVector, Instant, MAX_PACKET, PacketSource, PathMtu, Qp, QpAttr, QpAttrMask, QpCap, QpConfig, QpEvent,
    QpState, QpType, RecvWr, Sge,
};
use wire::{Gid, Lkey, NakCode, Opcode, Packet, Qpn, Rkey, Service, Syndrome};

/// How the responding end was set up, where that is not the rule.
#[derive(Clone, Copy)]
struct Setup {
    /// Lost on the way to the responder: of the packets with this opcode those with these numbers, counted from 0.
    lost: Option<(Opcode, usize, usize)>,
    mr_access: Access,
    qp_access: Access,
    /// Bytes of each receive work request.
    recv_len: u32,
    /// Receive work requests are posted once this many RNR NAKs were sent.
    recv_after: usize,
    min_rnr_timer: u8,
    /// R_Keys other than the first one seen do not exist.
    one_key: bool,
    /// First word of the memory, if it is not the pattern.
    word: Option<u64>,
    differs: fn(&mut Vec<Vec<u8>>),
}

const NEVER: usize = usize::MAX;

fn rule() -> Setup {
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    Setup {
        lost: None,
        mr_access: all,
        qp_access: all,
        recv_len: 4096 * 4,
        recv_after: 0,
        min_rnr_timer: 12,
        one_key: false,
        word: None,
        differs: |_| {},
    }
}

/// The captures that are not by the rule.
fn setup(name: &str) -> Setup {
    let mut s = rule();
    match name.trim_end_matches("-v4").trim_end_matches("-v6") {
        "loss-all" => s.lost = Some((Opcode::RC_SEND_ONLY, 0, NEVER)),
        "loss-atomic-request" => s.lost = Some((Opcode::RC_FETCH_ADD, 0, 1)),
        "loss-read-request" => s.lost = Some((Opcode::RC_READ_REQUEST, 0, 1)),
        "loss-send-first" => s.lost = Some((Opcode::RC_SEND_FIRST, 0, 1)),
        "loss-send-middle" => s.lost = Some((Opcode::RC_SEND_MIDDLE, 1, 2)),
        "loss-send-last" => s.lost = Some((Opcode::RC_SEND_LAST, 0, 1)),
        "loss-write-middle" => s.lost = Some((Opcode::RC_WRITE_MIDDLE, 2, 3)),
        "loss-write-last" => s.lost = Some((Opcode::RC_WRITE_LAST, 0, 1)),
        "nak-atomic-bad-rkey" | "nak-read-bad-rkey" | "nak-write-bad-rkey" => s.one_key = true,
        "nak-mr-no-atomic" => s.mr_access.remove(Access::REMOTE_ATOMIC),
        "nak-mr-no-read" => s.mr_access.remove(Access::REMOTE_READ),
        "nak-mr-no-write" => s.mr_access.remove(Access::REMOTE_WRITE),
        "nak-qp-no-read" => s.qp_access.remove(Access::REMOTE_READ),
        "nak-qp-no-write" => s.qp_access.remove(Access::REMOTE_WRITE),
        "nak-send-too-long" => s.recv_len = 64,
        "rc-atomic" => s.word = Some(5),
        "rnr-exhausted" => (s.recv_after, s.min_rnr_timer) = (NEVER, 14),
        "rnr-then-ok" => (s.recv_after, s.min_rnr_timer) = (3, 20),
        _ => {}
    }
    s
}

/// The two halves of a connection as one end sees them: requests that arrive and responses that leave.
#[derive(Default)]
struct Half {
    requests: Vec<Vec<u8>>,
    responses: Vec<Vec<u8>>,
}

/// The connections of a capture, seen from the end with address `at`.
fn halves(name: &str, at: IpAddr) -> Vec<Half> {
    let (mut theirs, mut ours): (Vec<(Qpn, Vec<Vec<u8>>)>, Vec<(Qpn, Vec<Vec<u8>>)>) = Default::default();
    for frame in capture::frames(name) {
        let Some((ip, _, payload)) = capture::datagram(&frame) else { continue };
        let packet = Packet::parse(payload).expect("decodes");
        if packet.row().service != Service::Rc {
            continue;
        }
        let list = match (packet.row().is_response(), ip.dst() == at) {
            (false, true) => &mut theirs,
            (true, false) => &mut ours,
            _ => continue,
        };
        let index = list.iter().position(|(qpn, _)| *qpn == packet.bth.dest_qp).unwrap_or_else(|| {
            list.push((packet.bth.dest_qp, vec![]));
            list.len() - 1
        });
        list[index].1.push(payload.to_vec());
    }
    ours.resize_with(theirs.len(), Default::default);
    theirs.into_iter().zip(ours).map(|((_, requests), (_, responses))| Half { requests, responses }).collect()
}

struct Responder {
    qp: Qp,
    region: Region,
    setup: Setup,
    from: PacketSource,
    recvs: usize,
    rnr_naks: usize,
    sent: Vec<Vec<u8>>,
}

impl Responder {
    fn new(name: &str, half: &Half, setup: Setup, peer: IpAddr, me: IpAddr, seed: u64) -> Self {
        let first = Packet::parse(&half.requests[0]).expect("decodes");
        let dest_qp = half.responses.first().map_or(Qpn::new(0x99), |r| Packet::parse(r).expect("decodes").bth.dest_qp);
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let config = QpConfig {
            qpn: first.bth.dest_qp,
            ty: QpType::Rc,
            pd: memory::PD,
            cap,
            sq_sig_all: false,
            srq: false,
            max_path_mtu: PathMtu::M4096,
        };
        let path_mtu = match name {
            _ if name.contains("mtu1024") => PathMtu::M1024,
            _ if name.contains("mtu4096") => PathMtu::M4096,
            _ => PathMtu::M256,
        };
        let attr = QpAttr {
            path_mtu,
            rq_psn: first.bth.psn,
            dest_qp,
            access: setup.qp_access,
            av: AddressVector { dgid: gid(peer), ..AddressVector::default() },
            port_num: 1,
            max_dest_rd_atomic: 16,
            min_rnr_timer: setup.min_rnr_timer,
            ..QpAttr::default()
        };
        use QpAttrMask as M;
        let mut qp = Qp::new(config).expect("within limits");
        for (state, mask) in [
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
            (
                QpState::Rtr,
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            ),
        ] {
            qp.modify(Instant::ZERO, &QpAttr { state, ..attr.clone() }, mask | M::STATE).expect("allowed");
        }
        let keys = half.requests.iter().filter_map(|bytes| {
            let packet = Packet::parse(bytes).expect("decodes");
            packet.reth().map(|h| h.r_key).or(packet.atomic_eth().map(|h| h.r_key)).or(packet.ieth())
        });
        let keys: Vec<Rkey> = keys.take(if setup.one_key { 1 } else { usize::MAX }).collect();
        Self {
            qp,
            region: Region::new(keys, setup.mr_access, seed, setup.word),
            setup,
            from: PacketSource { src: gid(peer), dst: gid(me), tos: 0, ttl: 64 },
            recvs: 0,
            rnr_naks: 0,
            sent: vec![],
        }
    }

    fn receive(&mut self, request: &[u8]) {
        if self.recvs == 0 && self.rnr_naks >= self.setup.recv_after && self.qp.state() != QpState::Err {
            let sge = Sge { addr: MR_ADDR + MR_LEN / 2, length: self.setup.recv_len, lkey: Lkey(1) };
            self.qp.post_recv(&RecvWr { wr_id: 0, sg_list: &[sge] }).expect("room");
            self.recvs += 1;
        }
        let packet = Packet::parse(request).expect("decodes");
        // What is refused shows in the answer.
        let _refusal = self.qp.handle_packet(Instant::ZERO, &packet, &self.from, &self.region, None);
        self.qp.end_of_batch(Instant::ZERO);
        let mut buf = vec![0; MAX_PACKET];
        while let Some(transmit) = self.qp.poll_transmit(Instant::ZERO, &self.region, usize::MAX, &mut buf) {
            let bytes = [&buf[..transmit.len], &[0; 4]].concat();
            let is_rnr = matches!(syndrome(&bytes), Some(Syndrome::RnrNak(_)));
            self.rnr_naks += usize::from(is_rnr);
            self.sent.push(bytes);
        }
        while let Some(event) = self.qp.poll_event() {
            self.recvs -= usize::from(matches!(event, QpEvent::RecvWc { .. }));
        }
    }
}

fn syndrome(bytes: &[u8]) -> Option<Syndrome> {
    Some(Packet::parse(bytes).expect("decodes").aeth()?.syndrome)
}

fn gid(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

fn texts(packets: &[Vec<u8>]) -> String {
    packets.iter().map(|bytes| format!("  {}\n", Packet::parse(bytes).expect("decodes"))).collect()
}

fn replay(name: &str, peer: &str, me: &str, seed: u64) -> usize {
    let (peer, me): (IpAddr, IpAddr) = (peer.parse().expect("an address"), me.parse().expect("an address"));
    let mut answers = 0;
    for (index, mut half) in halves(name, me).into_iter().enumerate() {
        let mut setup = setup(name);
        if name.starts_with("rnr-timers") {
            (setup.recv_after, setup.min_rnr_timer) = (NEVER, [1, 5, 12, 18, 24, 26][index]);
        }
        let mut responder = Responder::new(name, &half, setup, peer, me, seed);
        let mut seen = 0;
        for request in &half.requests {
            let opcode = Packet::parse(request).expect("decodes").bth.opcode;
            if let Some((lost, from, to)) = setup.lost.filter(|(lost, ..)| *lost == opcode) {
                let _ = lost;
                seen += 1;
                if (from..to).contains(&(seen - 1)) {
                    continue;
                }
            }
            responder.receive(request);
        }
        let without_icrc = |list: &[Vec<u8>]| -> Vec<Vec<u8>> { list.iter().map(|b| b[..b.len() - 4].to_vec()).collect() };
        (setup.differs)(&mut half.responses);
        if without_icrc(&responder.sent) != without_icrc(&half.responses) {
            println!("{name} {me} DIFFERS\nkernel\n{}ours\n{}", texts(&half.responses), texts(&responder.sent));
        } else {
            answers += half.responses.len();
        }
    }
    answers
}

#[test]
fn our_responder_answers_as_the_kernel_did() {
    let mut answers = 0;
    for name in capture::names() {
        if ["cm-", "uc-", "ud-", "rc-flush"].iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let [a, b] = if name.ends_with("-v6") { ["fd99::2", "fd99::3"] } else { ["10.99.0.2", "10.99.0.3"] };
        answers += replay(&name, a, b, 2) + replay(&name, b, a, 1);
    }
    println!("{answers} answers");
    let _ = NakCode::InvalidRequest;
    panic!("{answers}");
}
