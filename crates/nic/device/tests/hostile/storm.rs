//! Random and mutated packets: to queue pairs of all services that are connected to the peer, to queue pairs
//! of others, to QPNs that do not exist, and to QP1.

use std::collections::VecDeque;
use std::time::Instant;

use roxie::transport::numbering::slot_of;
use roxie::transport::{Access, AsyncEventKind, QpAttr, QpType, WcStatus, WrOp};
use roxie::wire::{Opcode, Operation, PKey, Packet, QKey, Qpn, Rkey, Syndrome};

use crate::arena::{INBOX, SOURCE, Target};
use crate::bystander::Bystanders;
use crate::lab::{Lab, psn};
use crate::listener::Listener;
use crate::packets::Fields;
use crate::victim::{Failure, MTU, Q_KEY, Victim, connected};
use roxie_tests::random::Rng;

const M: usize = MTU.bytes();
/// Packets between two barriers; most batches fit the smallest socket buffer.
const BATCH: usize = 64;
/// Packets that are sent.
const PACKETS: usize = 200_000;
/// Barriers between two checks of all memory and rounds of the bystanders.
const ROUND: usize = 16;
/// Number of packets kept for mutation.
const KEPT_MAX: usize = 64;
/// Number of a victim's requests that the peer remembers.
const SEEN_MAX: usize = 16;

/// A request of a victim.
#[derive(Clone, Copy, Debug)]
struct SeenRequest {
    fields: Fields,
    operation: Operation,
    len: usize,
}

/// A victim, as the peer sees it.
struct Mark {
    victim: Victim,
    seen: VecDeque<SeenRequest>,
    /// Remaining bytes of the WRITE in progress.
    left: usize,
}

struct Storm {
    lab: Lab,
    marks: Vec<Mark>,
    bystanders: Bystanders,
    listener: Listener,
    rng: Rng,
    targets: Vec<Target>,
    kept: Vec<Vec<u8>>,
    failures: u64,
    reasons: Vec<(String, u64)>,
}

pub(crate) fn run() {
    let start = Instant::now();
    let mut storm = Storm::new(1);
    let (mut sent, mut batches) = (0, 0);
    while sent < PACKETS {
        let batch = BATCH.min(PACKETS - sent);
        for _ in 0..batch {
            storm.attack();
        }
        sent += batch;
        batches += 1;
        // Most batches are handled by the polling application, some by the background thread.
        storm.lab.barrier(batches % 8 != 0);
        storm.after_batch();
        if batches % ROUND == 0 {
            storm.lab.arena.check();
            storm.bystanders.exchange();
        }
    }
    storm.final_checks(sent as u64);
    let seconds = start.elapsed().as_secs_f64();
    let Storm { lab, listener, failures, .. } = &storm;
    let (answers, requests) = (lab.peer.received, listener.requests);
    println!(
        "{sent} packets, {answers} answers, {requests} connection requests, {failures} failures in \
         {seconds:.1} s"
    );
    for (reason, count) in &storm.reasons {
        println!("{count:8} {reason}");
    }
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut lab = Lab::new();
        let mut rng = Rng(seed);
        let kinds = [(QpType::Rc, false); 8].into_iter().chain([
            (QpType::Rc, true),
            (QpType::Uc, false),
            (QpType::Uc, true),
            (QpType::Ud, false),
            (QpType::Ud, true),
        ]);
        let marks = kinds
            .map(|(ty, shared)| {
                let victim = Victim::new(&mut lab, ty, shared, attributes(&mut rng));
                Mark { victim, seen: VecDeque::new(), left: 0 }
            })
            .collect();
        let (bystanders, listener) = (Bystanders::new(&lab), Listener::new(&lab));
        let arena = &lab.arena;
        let targets =
            vec![arena.readable, arena.edge, arena.stale, arena.foreign, arena.private, bystanders.target()];
        let kept = vec![Fields::new(Qpn::new(1), psn(0)).packet(Opcode::RC_WRITE_ONLY, &[0; 64])];
        let mut storm =
            Self { lab, marks, bystanders, listener, rng, targets, kept, failures: 0, reasons: Vec::new() };
        storm.after_batch();
        storm
    }

    /// Sends one packet.
    fn attack(&mut self) {
        match self.rng.below(100) {
            0..=54 => self.request(),
            55..=69 => self.response(),
            70..=81 => self.mutation(),
            82..=85 => self.garbage(),
            86..=88 => self.management(),
            89..=92 => self.unknown_qpn(),
            93..=96 => self.wrong_sender(),
            _ => {
                let fields = self.fields(0);
                self.lab.peer.send_damaged(&fields.packet(Opcode::RC_WRITE_ONLY, &[1; 32]));
            }
        }
    }

    /// Returns random bytes that cannot be mistaken for a secret.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend((self.rng.next() & 0x7f7f_7f7f_7f7f_7f7f).to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    fn mark(&mut self) -> usize {
        self.rng.below(self.marks.len())
    }

    /// Returns fields of a request to a victim: usually with values that are accepted next.
    fn fields(&mut self, mark: usize) -> Fields {
        let rng = &mut self.rng;
        let victim = &self.marks[mark].victim;
        let psn = match rng.below(16) {
            0 => victim.expected.advance(rng.below(8) as u32),
            1 => victim.expected.advance(rng.below(64) as u32 + 0xff_ffc0),
            2 => psn(rng.next()),
            _ => victim.expected,
        };
        let mut fields = Fields::new(victim.qp.qpn(), psn);
        fields.ack_req = rng.one_in(2);
        fields.solicited = rng.one_in(4);
        fields.deth.q_key = if rng.one_in(16) { QKey(rng.next() as u32) } else { Q_KEY };
        if rng.one_in(128) {
            fields.p_key = PKey(rng.next() as u16);
            fields.tver = rng.below(16) as u8;
            fields.pad_error = rng.below(4) as u8;
        }
        let target = if rng.one_in(4) { rng.pick(&self.targets) } else { self.lab.arena.open };
        let len = match rng.below(16) {
            0 => 0,
            1 => rng.next() as u32,
            6 => rng.pick(&[target.len as u32, target.len as u32 + 1, 1 << 31, u32::MAX]),
            2..=4 => rng.below(4 * M) as u32,
            5 => 2 * M as u32,
            _ => 1 + rng.below(64) as u32,
        };
        let va = match rng.below(60) {
            0 => target.va.wrapping_add(target.len).wrapping_sub(len.into()).wrapping_add(1),
            1 => target.va.wrapping_sub(1),
            2 => 0_u64.wrapping_sub(u64::from(len) / 2),
            3 => rng.next(),
            4 => self.lab.arena.private.va.wrapping_add(rng.below(0x1_4000) as u64),
            5..=30 => target.va,
            _ => target.va.wrapping_add((target.len.saturating_sub(len.into())) & rng.next() & !7),
        };
        let key = match rng.below(64) {
            0 => Rkey(rng.next() as u32),
            1 => Rkey(target.key.0 ^ 1 << rng.below(32)),
            _ => target.key,
        };
        fields.reth = roxie::wire::Reth { va, r_key: key, dma_len: len };
        fields.atomic.va = if rng.one_in(16) { va } else { va & !7 };
        fields.atomic.r_key = key;
        fields.atomic.swap_or_add = rng.next() & 0x7f7f_7f7f_7f7f_7f7f;
        fields.atomic.compare = rng.next() & 1;
        fields.invalidate = key;
        fields.original = rng.next() & 0x7f7f_7f7f_7f7f_7f7f;
        fields
    }

    /// Sends a request, usually of the victim's service and with a length that the opcode permits.
    fn request(&mut self) {
        let mark = self.mark();
        let fields = self.fields(mark);
        let (base, left) = match self.marks[mark].victim.ty {
            QpType::Rc => (0x00, self.marks[mark].left),
            QpType::Uc => (0x20, self.marks[mark].left),
            QpType::Ud | QpType::Gsi => (0x60, 0),
            QpType::XrcIni | QpType::XrcTgt => (0xa0, 0),
        };
        let rng = &mut self.rng;
        let low = match (base, rng.below(32)) {
            (_, 0) => rng.next() as u8 & 0x1f,
            (0x60, _) => rng.pick(&[4, 4, 5]),
            // Inside a WRITE only its continuation is valid.
            (_, 1..=28) if left > M => 0x07,
            (_, 1..=28) if left > 0 => rng.pick(&[0x08, 0x08, 0x09]),
            (0x00, 1..=10) => rng.pick(&[0x0c, 0x0c, 0x13, 0x14]),
            (_, 1..=24) => rng.pick(&[0x0a, 0x0a, 0x0a, 0x0b, 0x06, 0x04, 0x05]),
            _ => rng.pick(&[0, 1, 2, 3, 7, 8, 9, 0x16, 0x17, 0x1c, 0x1d]),
        };
        let opcode = if rng.one_in(64) { Opcode(rng.next() as u8) } else { Opcode(base | low) };
        let whole = fields.reth.dma_len as usize;
        let len = match (opcode.0 & 0x1f, rng.below(48)) {
            (_, 0) => rng.below(6000),
            (_, 1) => M,
            (0x06, _) => M,
            (0x07, _) => M,
            (0x08 | 0x09, _) => left.clamp(1, M),
            (0x0a | 0x0b, _) => whole.min(M),
            (0x0c | 0x13 | 0x14, _) => 0,
            _ => rng.below(200),
        };
        let expected = fields.psn == self.marks[mark].victim.expected;
        let mut payload = self.bytes(len);
        if self.rng.one_in(200) {
            payload = self.bytes(20_000);
        }
        self.send(&fields.packet(opcode, &payload));
        if !expected {
            return;
        }
        // Update what the peer assumes; a NAK or the next connection corrects a wrong assumption.
        let mark = &mut self.marks[mark];
        let packets = if opcode == Opcode::RC_READ_REQUEST { whole.div_ceil(M).max(1) as u32 } else { 1 };
        mark.victim.expected = mark.victim.expected.advance(packets & 0xff_ffff);
        mark.left = match opcode.0 & 0x1f {
            0x06 => whole.saturating_sub(M),
            0x07 => left.saturating_sub(M),
            _ => 0,
        };
    }

    /// Sends a packet and keeps some for mutation.
    fn send(&mut self, packet: &[u8]) {
        self.lab.peer.send(packet);
        if packet.len() > 2000 || self.rng.one_in(2) {
            return;
        }
        if self.kept.len() < KEPT_MAX {
            self.kept.push(packet.to_vec());
        } else {
            let at = self.rng.below(KEPT_MAX);
            self.kept[at] = packet.to_vec();
        }
    }

    /// Sends a response to a request of a victim, often the right one.
    fn response(&mut self) {
        let mark = self.mark();
        let seen = &self.marks[mark].seen;
        let Some(&seen) = seen.get(self.rng.below(seen.len().max(1))) else { return self.request() };
        let rng = &mut self.rng;
        let (right, len) = match seen.operation {
            Operation::ReadRequest => (Opcode::RC_READ_RESPONSE_ONLY, seen.len),
            Operation::CompareSwap | Operation::FetchAdd => (Opcode::RC_ATOMIC_ACKNOWLEDGE, 0),
            _ => (Opcode::RC_ACKNOWLEDGE, 0),
        };
        let opcode = if rng.one_in(8) { Opcode(0x0d + rng.below(6) as u8) } else { right };
        let len = if rng.one_in(16) { rng.below(2 * M) } else { len };
        let syndrome = match rng.below(24) {
            0 => rng.next() as u8,
            1 => 0x60 + rng.below(5) as u8,
            2 => 0x20 + rng.below(32) as u8,
            _ => 0x1f,
        };
        let mut fields = seen.fields.with_syndrome(Syndrome::from_byte(syndrome));
        if rng.one_in(8) {
            fields.psn = fields.psn.advance(rng.next() as u32 & 7);
        }
        fields.qpn = self.marks[mark].victim.qp.qpn();
        let payload = self.bytes(len);
        self.send(&fields.packet(opcode, &payload));
    }

    /// Sends an earlier packet with flipped bits, truncated or extended, with a valid ICRC.
    fn mutation(&mut self) {
        let rng = &mut self.rng;
        let mut packet = self.kept[rng.below(self.kept.len())].clone();
        match rng.below(8) {
            0 => packet.truncate(rng.below(packet.len() + 1)),
            1 => packet.resize(packet.len() + rng.below(40), 0x33),
            2 => {}
            // For a queue pair with a similar QPN.
            3 if packet.len() >= 8 => packet[7] ^= 1 << rng.below(8),
            _ => {
                for _ in 0..1 + rng.below(4) {
                    // Mostly in the headers.
                    let most = if rng.one_in(4) { packet.len() } else { packet.len().min(48) };
                    if most > 0 {
                        packet[rng.below(most)] ^= 1 << rng.below(8);
                    }
                }
            }
        }
        self.lab.peer.send(&packet);
    }

    /// Sends random bytes to an existing queue pair.
    fn garbage(&mut self) {
        let qpn = self.marks[self.rng.below(self.marks.len())].victim.qp.qpn();
        let len = self.rng.below(300);
        let mut packet = self.bytes(len);
        if packet.len() >= 8 {
            packet[4..8].copy_from_slice(&qpn.value().to_be_bytes());
            packet[1] &= 0xf0;
        }
        if self.rng.one_in(4) {
            self.lab.peer.send_raw(&packet);
        } else {
            self.lab.peer.send(&packet);
        }
    }

    /// Sends CM messages to QP1, valid and invalid, and bytes that are not a MAD.
    fn management(&mut self) {
        let mut fields = Fields::new(Qpn::new(1), psn(self.rng.next()));
        fields.deth.q_key = if self.rng.one_in(8) { Q_KEY } else { QKey::GSI };
        let slot = slot_of(self.marks[0].victim.qp.qpn());
        let mad = match self.rng.below(8) {
            0 => {
                let len = self.rng.below(400);
                self.bytes(len)
            }
            1 => self.bytes(256),
            _ => self.listener.mad(&mut self.rng, slot).to_vec(),
        };
        let opcode = if self.rng.one_in(16) { Opcode(self.rng.next() as u8) } else { Opcode::UD_SEND_ONLY };
        self.lab.peer.send(&fields.packet(opcode, &mad));
    }

    /// Sends to QPNs that do not exist, in this process and in others.
    fn unknown_qpn(&mut self) {
        let own = self.marks[0].victim.qp.qpn().value() & 0xff_f000;
        let random = self.rng.next() as u32;
        let qpn = match self.rng.below(4) {
            0 => random & 0xff_ffff,
            1 => self.rng.pick(&[0, 2, 0xff_ffff]),
            _ => own | random & 0xfff,
        };
        if self.marks.iter().any(|mark| mark.victim.qp.qpn().value() == qpn) || self.bystanders.has(qpn) {
            return;
        }
        let mut fields = self.fields(0);
        fields.qpn = Qpn::new(qpn);
        self.lab.peer.send(&fields.packet(Opcode::RC_WRITE_ONLY, &[7; 8]));
    }

    /// Sends packets that only another sender may send.
    fn wrong_sender(&mut self) {
        let mark = self.mark();
        let mut fields = self.fields(mark);
        if self.rng.one_in(2) {
            if self.marks[mark].victim.ty != QpType::Ud {
                self.lab.peer.send_as_neighbour(&fields.packet(Opcode::RC_WRITE_ONLY, &[7; 8]));
            }
            return;
        }
        let (qpn, next) = self.bystanders.aim(&mut self.rng);
        fields.qpn = qpn;
        fields.psn = next;
        let opcode = Opcode(self.rng.next() as u8 & 0x1f);
        let payload = self.bytes(64);
        self.lab.peer.send(&fields.packet(opcode, &payload));
    }

    /// Work of the peer and the applications after each batch.
    fn after_batch(&mut self) {
        for index in 0..self.marks.len() {
            let replies = self.lab.replies(self.marks[index].victim.peer_qpn);
            self.marks[index].listen(&replies);
            if !self.marks[index].victim.is_alive() {
                self.reconnect(index);
            }
            self.work(index);
        }
        self.lab.forget_replies();
        self.listener.serve(&mut self.rng);
    }

    /// Checks that a victim has failed for one reason, reported once; connects it again.
    fn reconnect(&mut self, index: usize) {
        let Self { lab, marks, rng, .. } = self;
        let mark = &mut marks[index];
        let failure = mark.victim.take_failure(lab);
        let reason = cause(&failure, mark.victim.srq.is_some());
        assert_eq!(mark.victim.ty, QpType::Rc, "{reason}");
        mark.victim.reset();
        mark.victim.connect(lab, attributes(rng));
        mark.seen.clear();
        mark.left = 0;
        self.failures += 1;
        match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.reasons.push((reason, 1)),
        }
    }

    /// Keeps receives and requests posted.
    fn work(&mut self, index: usize) {
        let Self { lab, marks, rng, .. } = self;
        let victim = &mut marks[index].victim;
        let buffer = &lab.arena.buffer;
        while victim.has_recv_room() {
            let len = rng.pick(&[0, 64, 2048, 4096]);
            victim.post_recv(&[buffer.sge(INBOX.at + rng.below(INBOX.len - 4096), len)]);
        }
        while victim.ty == QpType::Rc && victim.has_send_room() {
            let (remote_addr, r_key) = (rng.next(), Rkey(rng.next() as u32));
            let (op, part) = match rng.below(6) {
                0 => (WrOp::Send, SOURCE),
                1 => (WrOp::Write { remote_addr, r_key }, SOURCE),
                2 => (WrOp::FetchAdd { remote_addr, r_key, add: 1 }, INBOX),
                3 => (WrOp::CompareSwap { remote_addr, r_key, compare: 0, swap: 1 }, INBOX),
                _ => (WrOp::Read { remote_addr, r_key }, INBOX),
            };
            let len = 8 + rng.below(M - 8);
            victim.post_send(op, &[buffer.sge(part.at + rng.below(part.len - M), len)]);
        }
    }

    /// After the storm: checks that the attacks were counted, and that all connections work.
    fn final_checks(&mut self, sent: u64) {
        self.lab.arena.check();
        self.bystanders.exchange();
        for name in [
            "rx_too_short",
            "rx_unknown_opcode",
            "rx_bad_tver",
            "rx_bad_icrc",
            "rx_unknown_qp",
            "rx_wrong_service",
            "rx_wrong_peer",
            "bad_pkey_cntr",
            "qkey_viol_cntr",
            "rx_stale_response",
            "out_of_seq_request",
            "duplicate_request",
            "rx_bad_length",
            "rx_access_fault",
        ] {
            let count = self.lab.counter(name);
            println!("{count:8} {name}");
            assert!(count > 0 || sent < 100_000, "counter {name} is 0");
        }
        // A reconnected victim serves its peer; check every byte.
        for index in 0..self.marks.len() {
            let Self { lab, marks, rng, .. } = self;
            let mark = &mut marks[index];
            if mark.victim.ty != QpType::Rc {
                continue;
            }
            mark.victim.reset();
            mark.victim.connect(lab, QpAttr { access: Access::REMOTE_WRITE, ..attributes(rng) });
            let (open, data) = (lab.arena.open, self.bytes(M));
            let Self { lab, marks, .. } = self;
            let victim = &marks[index].victim;
            let fields = Fields::new(victim.qp.qpn(), victim.expected).at(open.va, open.key, M as u32);
            lab.peer.send(&fields.packet(Opcode::RC_WRITE_ONLY, &data));
            lab.barrier(true);
            assert_eq!(lab.arena.open_bytes(0, M), data);
        }
        self.lab.arena.check();
    }
}

/// Returns the attributes of a new connection.
fn attributes(rng: &mut Rng) -> QpAttr {
    let mut attr = QpAttr { rq_psn: psn(rng.next()), sq_psn: psn(rng.next()), ..connected() };
    if rng.one_in(8) {
        attr.access = Access::from_bits_truncate(rng.next() as u32) & attr.access;
        attr.max_dest_rd_atomic = 1;
    }
    attr
}

/// Returns the cause of a failure. There is one cause, reported in one place (IBA C9-222).
fn cause(failure: &Failure, shared: bool) -> String {
    let mut events = failure.events.clone();
    // A queue pair on an SRQ also reports that it takes no more receives.
    if shared {
        assert_eq!(events.pop(), Some(AsyncEventKind::QpLastWqeReached), "{failure:?}");
    }
    match (failure.send, failure.recv, &events[..]) {
        (Some(status), None, []) => {
            let possible = [
                WcStatus::LocLenErr,
                WcStatus::BadRespErr,
                WcStatus::RemInvReqErr,
                WcStatus::RemAccessErr,
                WcStatus::RemOpErr,
                WcStatus::RemInvRdReqErr,
                WcStatus::RetryExcErr,
            ];
            assert!(possible.contains(&status), "{failure:?}");
            format!("send {status:?}")
        }
        (None, Some(status), []) => {
            let possible =
                [WcStatus::LocLenErr, WcStatus::LocQpOpErr, WcStatus::LocAccessErr, WcStatus::RemInvReqErr];
            assert!(possible.contains(&status), "{failure:?}");
            format!("receive {status:?}")
        }
        (None, None, [kind @ (AsyncEventKind::QpReqErr | AsyncEventKind::QpAccessErr)]) => {
            format!("event {kind:?}")
        }
        _ => panic!("not exactly one cause: {failure:?}"),
    }
}

impl Mark {
    /// Updates the peer's assumptions from the packets of the victim.
    fn listen(&mut self, replies: &[Vec<u8>]) {
        for bytes in replies {
            let packet = Packet::parse(bytes).expect("checked when it arrived");
            let operation = packet.row().operation;
            match packet.aeth().map(|aeth| aeth.syndrome) {
                Some(Syndrome::Nak(_) | Syndrome::RnrNak(_)) => self.victim.expected = packet.bth.psn,
                Some(_) => {}
                None if packet.row().is_request() => {
                    let fields = Fields::new(self.victim.qp.qpn(), packet.bth.psn);
                    let len = packet.reth().map_or(0, |reth| reth.dma_len as usize);
                    self.seen.push_back(SeenRequest { fields, operation, len });
                    if self.seen.len() > SEEN_MAX {
                        self.seen.pop_front();
                    }
                }
                None => {}
            }
        }
    }
}
