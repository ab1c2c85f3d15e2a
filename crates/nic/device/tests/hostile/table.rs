//! The fault tables, row by row, as seen on the wire: answer, completion, event, state, counter.

use roxie::transport::{Access, AsyncEventKind, QpAttr, QpState, QpType, Sge, WcStatus, WrOp};
use roxie::wire::{DropReason, Lkey, NakCode, Opcode, Operation, PKey, Packet, QKey, Rkey, Syndrome};

use crate::arena::{INBOX, SOURCE, Target};
use crate::lab::Lab;
use crate::packets::Fields;
use crate::victim::{MTU, RNR_TIMER, Victim, connected};

const ROOM: usize = 256;
const M: usize = MTU.bytes();

/// The posted receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Recv {
    None,
    /// With room for [`ROOM`] bytes.
    Posted,
    /// With room for a message of several packets.
    Large,
    /// With a key that does not exist.
    BadKey,
}

/// One packet; its PSN is `ahead` of the expected one.
#[derive(Clone, Debug)]
struct Shot {
    opcode: Opcode,
    ahead: u32,
    fields: Fields,
    payload: usize,
    /// Number of bytes of it that are sent.
    keep: usize,
    /// With a wrong ICRC.
    damaged: bool,
}

/// How the application learns of the fault.
#[derive(Clone, Copy, Debug)]
enum Report {
    Recv(WcStatus),
    Event(AsyncEventKind),
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// The queue pair continues; this is the answer to the last packet.
    Alive(Option<Syndrome>),
    /// The queue pair is in ERR, after this NAK.
    Dead(Option<NakCode>, Report),
}

struct Case {
    name: &'static str,
    recv: Recv,
    attr: QpAttr,
    shots: Vec<Shot>,
    end: End,
    reason: Option<DropReason>,
}

fn shot(opcode: Opcode, payload: usize) -> Shot {
    let fields = Fields::new(roxie::wire::Qpn::new(0), roxie::wire::Psn::new(0));
    Shot { opcode, ahead: 0, fields, payload, keep: usize::MAX, damaged: false }
}

impl Shot {
    fn at(mut self, target: Target, offset: u64, len: usize) -> Self {
        self.fields = self.fields.at(target.va.wrapping_add(offset), target.key, len as u32);
        self
    }

    fn va(mut self, va: u64, key: Rkey, len: u32) -> Self {
        self.fields = self.fields.at(va, key, len);
        self
    }

    fn atomic(mut self, target: Target, offset: u64) -> Self {
        self.fields = self.fields.atomic_at(target.va.wrapping_add(offset), target.key);
        self
    }

    fn ahead(self, ahead: u32) -> Self {
        Self { ahead, ..self }
    }

    fn cut(self, keep: usize) -> Self {
        Self { keep, ..self }
    }

    fn with(mut self, change: impl FnOnce(&mut Fields)) -> Self {
        change(&mut self.fields);
        self
    }
}

fn case(name: &'static str, shots: Vec<Shot>, end: End) -> Case {
    Case { name, recv: Recv::None, attr: connected(), shots, end, reason: None }
}

impl Case {
    fn recv(self, recv: Recv) -> Self {
        Self { recv, ..self }
    }

    fn attr(self, change: impl FnOnce(&mut QpAttr)) -> Self {
        let mut attr = self.attr.clone();
        change(&mut attr);
        Self { attr, ..self }
    }

    fn counted(self, reason: DropReason) -> Self {
        Self { reason: Some(reason), ..self }
    }
}

/// Faulty requests to the responder (IBA 9.9.3).
pub(crate) fn requests() {
    let mut lab = Lab::new();
    let cases: Vec<Case> =
        [orders(&lab), lengths(&lab), keys(&lab), receives(), silent(&lab), harmless(&lab)]
            .into_iter()
            .flatten()
            .collect();
    for case in &cases {
        check(&mut lab, case);
        lab.arena.check();
    }
    println!("{} cases", cases.len());
}

const INVALID: Option<NakCode> = Some(NakCode::InvalidRequest);
const ACCESS: Option<NakCode> = Some(NakCode::RemoteAccessError);
const REQ_ERR: Report = Report::Event(AsyncEventKind::QpReqErr);
const ACCESS_ERR: Report = Report::Event(AsyncEventKind::QpAccessErr);
const ACK: Option<Syndrome> = Some(Syndrome::ACK);

fn orders(lab: &Lab) -> Vec<Case> {
    use Opcode as O;
    let open = lab.arena.open;
    let dead = |name, shots| {
        case(name, shots, End::Dead(INVALID, REQ_ERR)).counted(DropReason::BadSequenceOfOpcodes)
    };
    vec![
        dead("WRITE Middle outside a message", vec![shot(O::RC_WRITE_MIDDLE, M)]),
        dead("WRITE Last outside a message", vec![shot(O::RC_WRITE_LAST, 8)]),
        dead("SEND Middle outside a message", vec![shot(O::RC_SEND_MIDDLE, M)]),
        dead("SEND Last with Invalidate outside a message", vec![shot(O::RC_SEND_LAST_INV, 8)]),
        dead(
            "READ inside a WRITE",
            vec![
                shot(O::RC_WRITE_FIRST, M).at(open, 0, 2 * M),
                shot(O::RC_READ_REQUEST, 0).ahead(1).at(open, 0, 8),
            ],
        ),
        dead(
            "SEND Last inside a WRITE",
            vec![shot(O::RC_WRITE_FIRST, M).at(open, 0, 2 * M), shot(O::RC_SEND_LAST, 8).ahead(1)],
        ),
        case(
            "WRITE inside a SEND",
            vec![shot(O::RC_SEND_FIRST, M), shot(O::RC_WRITE_ONLY, 8).ahead(1).at(open, 0, 8)],
            // The fault is reported with the receive that the SEND uses.
            End::Dead(INVALID, Report::Recv(WcStatus::LocQpOpErr)),
        )
        .recv(Recv::Large),
        dead("FLUSH without a placement type", vec![shot(O::RC_FLUSH, 0).at(open, 0, 8)]),
        case("a gap", vec![shot(O::RC_WRITE_ONLY, 8).ahead(3).at(open, 0, 8)], {
            End::Alive(Some(Syndrome::Nak(NakCode::PsnSequenceError)))
        })
        .counted(DropReason::OutOfSequence),
    ]
}

fn lengths(lab: &Lab) -> Vec<Case> {
    use Opcode as O;
    let open = lab.arena.open;
    let dead = |name, shots| case(name, shots, End::Dead(INVALID, REQ_ERR)).counted(DropReason::BadLength);
    vec![
        dead("WRITE shorter than its RETH", vec![shot(O::RC_WRITE_ONLY, 8).at(open, 0, 9)]),
        dead("ATOMIC WRITE of four bytes", vec![shot(O::RC_ATOMIC_WRITE, 4).at(open, 0, 8)]),
        dead("WRITE longer than its RETH", vec![shot(O::RC_WRITE_ONLY, 12).at(open, 0, 8)]),
        dead("WRITE Only longer than the MTU", vec![shot(O::RC_WRITE_ONLY, M + 4).at(open, 0, M + 4)]),
        dead("WRITE First shorter than the MTU", vec![shot(O::RC_WRITE_FIRST, M - 4).at(open, 0, 2 * M)]),
        dead(
            "WRITE First of a message that fits one packet",
            vec![shot(O::RC_WRITE_FIRST, M).at(open, 0, M)],
        ),
        dead(
            "WRITE of more than 2^31 bytes",
            vec![shot(O::RC_WRITE_FIRST, M).va(open.va, open.key, (1 << 31) + 1)],
        ),
        dead(
            "WRITE Last that ends too early",
            vec![
                shot(O::RC_WRITE_FIRST, M).at(open, 0, 3 * M),
                shot(O::RC_WRITE_MIDDLE, M).ahead(1),
                shot(O::RC_WRITE_LAST, M - 4).ahead(2),
            ],
        ),
        dead(
            "WRITE Middle instead of WRITE Last",
            vec![shot(O::RC_WRITE_FIRST, M).at(open, 0, 2 * M), shot(O::RC_WRITE_MIDDLE, M).ahead(1)],
        ),
        dead(
            "WRITE Last without payload",
            vec![shot(O::RC_WRITE_FIRST, M).at(open, 0, M + 1), shot(O::RC_WRITE_LAST, 0).ahead(1)],
        ),
        dead("too much pad", vec![shot(O::RC_WRITE_ONLY, 4).at(open, 0, 4).with(|f| f.pad_error = 3)]),
        dead("READ request with payload", vec![shot(O::RC_READ_REQUEST, 4).at(open, 0, 8)]),
        dead(
            "READ of more than 2^31 bytes",
            vec![shot(O::RC_READ_REQUEST, 0).va(open.va, open.key, u32::MAX)],
        ),
        dead("atomic with payload", vec![shot(O::RC_FETCH_ADD, 8).atomic(open, 0)]),
        case(
            "misaligned atomic",
            vec![shot(O::RC_FETCH_ADD, 0).atomic(open, 4)],
            End::Dead(INVALID, REQ_ERR),
        ),
    ]
}

fn keys(lab: &Lab) -> Vec<Case> {
    use Opcode as O;
    let arena = &lab.arena;
    let (open, readable, edge) = (arena.open, arena.readable, arena.edge);
    let dead =
        |name, shots| case(name, shots, End::Dead(ACCESS, ACCESS_ERR)).counted(DropReason::AccessFault);
    let refused = |name, shots, access| {
        case(name, shots, End::Dead(INVALID, REQ_ERR))
            .attr(|attr| attr.access -= access)
            .counted(DropReason::AccessFault)
    };
    let write =
        |target: Target, offset, len: usize| vec![shot(O::RC_WRITE_ONLY, len).at(target, offset, len)];
    let read = |target: Target, offset, len: usize| vec![shot(O::RC_READ_REQUEST, 0).at(target, offset, len)];
    vec![
        dead("WRITE with a key that does not exist", vec![shot(O::RC_WRITE_ONLY, 8).va(open.va, Rkey(0), 8)]),
        dead(
            "WRITE with a key that differs in one bit",
            vec![shot(O::RC_WRITE_ONLY, 8).va(open.va, Rkey(open.key.0 ^ 1), 8)],
        ),
        dead("WRITE with a deregistered key", write(arena.stale, 0, 8)),
        dead("READ with a deregistered key", read(arena.stale, 0, 8)),
        dead("WRITE with a key of another domain", write(arena.foreign, 0, 8)),
        dead("READ with a key of another domain", read(arena.foreign, 0, 8)),
        dead("WRITE with a local key", write(arena.private, 0x1000, 8)),
        dead("READ with a local key", read(arena.private, 0x1000, 8)),
        dead("atomic with a local key", vec![shot(O::RC_FETCH_ADD, 0).atomic(arena.private, 0x1000)]),
        dead("WRITE to read-only memory", write(readable, 0, 8)),
        dead("atomic on read-only memory", vec![shot(O::RC_COMPARE_SWAP, 0).atomic(readable, 0)]),
        dead("READ of write-only memory", read(edge, 0, 8)),
        dead("ATOMIC WRITE to read-only memory", vec![shot(O::RC_ATOMIC_WRITE, 8).at(readable, 0, 8)]),
        dead("WRITE past the end", write(open, open.len - 7, 8)),
        dead("WRITE before the start", write(open, u64::MAX, 8)),
        dead("READ past the end", read(open, open.len - 7, 8)),
        dead("READ of the byte after the end", read(open, open.len, 1)),
        dead("READ that wraps", vec![shot(O::RC_READ_REQUEST, 0).va(u64::MAX - 3, open.key, 8)]),
        dead("WRITE that wraps", vec![shot(O::RC_WRITE_ONLY, 8).va(u64::MAX - 3, edge.key, 8)]),
        dead(
            "WRITE that ends past the last address",
            vec![shot(O::RC_WRITE_ONLY, 2).va(u64::MAX, edge.key, 2)],
        ),
        dead(
            "WRITE to the last byte of the address space",
            vec![shot(O::RC_WRITE_ONLY, 1).va(u64::MAX, edge.key, 1)],
        ),
        dead("READ of 2^31 bytes", vec![shot(O::RC_READ_REQUEST, 0).va(open.va, open.key, 1 << 31)]),
        dead(
            "WRITE with only the first packet inside the region",
            vec![shot(O::RC_WRITE_FIRST, M).at(open, open.len - M as u64, 2 * M)],
        ),
        dead("atomic past the end", vec![shot(O::RC_FETCH_ADD, 0).atomic(open, open.len)]),
        refused("WRITE that the QP does not permit", write(open, 0, 8), Access::REMOTE_WRITE),
        refused("READ that the QP does not permit", read(open, 0, 8), Access::REMOTE_READ),
        refused(
            "atomic that the QP does not permit",
            vec![shot(O::RC_FETCH_ADD, 0).atomic(open, 0)],
            Access::REMOTE_ATOMIC,
        ),
        case("READ on a QP with max_dest_rd_atomic 0", read(open, 0, 8), End::Dead(INVALID, REQ_ERR))
            .attr(|attr| attr.max_dest_rd_atomic = 0)
            .counted(DropReason::QueueFull),
        case(
            "WRITE with Immediate and a bad key",
            vec![shot(O::RC_WRITE_ONLY_IMM, 8).va(open.va, Rkey(0), 8)],
            End::Dead(ACCESS, Report::Recv(WcStatus::LocAccessErr)),
        )
        .recv(Recv::Posted),
    ]
}

fn receives() -> Vec<Case> {
    use Opcode as O;
    let not_ready = End::Alive(Some(Syndrome::RnrNak(RNR_TIMER)));
    let too_long = End::Dead(INVALID, Report::Recv(WcStatus::LocLenErr));
    let unwritable = End::Dead(Some(NakCode::RemoteOperationalError), Report::Recv(WcStatus::LocProtErr));
    vec![
        case("SEND without a receive", vec![shot(O::RC_SEND_ONLY, 8)], not_ready)
            .counted(DropReason::NoReceive),
        case("empty SEND without a receive", vec![shot(O::RC_SEND_ONLY, 0)], not_ready),
        case("WRITE with Immediate without a receive", vec![shot(O::RC_WRITE_ONLY_IMM, 0)], not_ready),
        case("SEND longer than the receive", vec![shot(O::RC_SEND_ONLY, ROOM + 1)], too_long)
            .recv(Recv::Posted)
            .counted(DropReason::ReceiveTooSmall),
        case("SEND First longer than the receive", vec![shot(O::RC_SEND_FIRST, M)], too_long)
            .recv(Recv::Posted),
        case("SEND to a receive with a bad key", vec![shot(O::RC_SEND_ONLY, 8)], unwritable)
            .recv(Recv::BadKey),
        case(
            "SEND with Invalidate of a key that cannot be invalidated",
            vec![shot(O::RC_SEND_ONLY_INV, 8)],
            End::Dead(None, Report::Recv(WcStatus::RemInvReqErr)),
        )
        .recv(Recv::Posted),
        case(
            "SEND First shorter than the MTU",
            vec![shot(O::RC_SEND_FIRST, 8)],
            End::Dead(INVALID, Report::Recv(WcStatus::LocQpOpErr)),
        )
        .recv(Recv::Posted),
    ]
}

fn silent(lab: &Lab) -> Vec<Case> {
    use Opcode as O;
    let open = lab.arena.open;
    let write = || shot(O::RC_WRITE_ONLY, 8).at(open, 0, 8);
    let dropped = |name, shot, reason| case(name, vec![shot], End::Alive(None)).counted(reason);
    vec![
        dropped("a wrong ICRC", Shot { damaged: true, ..write() }, DropReason::BadIcrc),
        dropped("a version that does not exist", write().with(|f| f.tver = 1), DropReason::BadTver),
        dropped("another partition", write().with(|f| f.p_key = PKey(0x1234)), DropReason::BadPKey),
        dropped("P_Key 0", write().with(|f| f.p_key = PKey(0)), DropReason::BadPKey),
        dropped("UC on RC", shot(O::UC_WRITE_ONLY, 8).at(open, 0, 8), DropReason::WrongService),
        dropped(
            "UD on RC",
            shot(O::UD_SEND_ONLY, 8).with(|f| f.deth.q_key = QKey(1)),
            DropReason::WrongService,
        ),
        dropped("XRC on RC", shot(O::XRC_WRITE_ONLY, 8).at(open, 0, 8), DropReason::WrongService),
        dropped(
            "a CNP of another partition",
            shot(O::CNP, 0).with(|f| f.p_key = PKey(0x1234)),
            DropReason::BadPKey,
        ),
        dropped("an opcode that is reserved", shot(Opcode(0x15), 32), DropReason::UnknownOpcode),
        dropped("an opcode of a vendor", shot(Opcode(0xc0), 32), DropReason::UnknownOpcode),
        dropped(
            "a duplicate of a READ that was never sent",
            shot(O::RC_READ_REQUEST, 0).ahead(0xff_fff0).at(open, 0, 8),
            DropReason::Duplicate,
        ),
        dropped(
            "a duplicate of an atomic that was never sent",
            shot(O::RC_FETCH_ADD, 0).ahead(0xff_fff0).atomic(open, 0),
            DropReason::Duplicate,
        ),
        dropped("an ACK without a request", shot(O::RC_ACKNOWLEDGE, 0), DropReason::StaleResponse),
        dropped(
            "a READ response without a request",
            shot(O::RC_READ_RESPONSE_ONLY, 8),
            DropReason::StaleResponse,
        ),
        dropped("a packet without its headers", shot(O::RC_WRITE_ONLY, 8).cut(12), DropReason::TooShort),
        dropped("half a BTH", shot(O::RC_SEND_ONLY, 0).cut(11), DropReason::TooShort),
        dropped("more pad than payload", shot(O::RC_SEND_ONLY, 0).with(|f| f.pad_error = 3).cut(12), {
            DropReason::TooShort
        }),
    ]
}

fn harmless(lab: &Lab) -> Vec<Case> {
    use Opcode as O;
    let open = lab.arena.open;
    let fine = |name, shots| case(name, shots, End::Alive(ACK));
    vec![
        fine(
            "an empty WRITE (its key is not checked)",
            vec![shot(O::RC_WRITE_ONLY, 0).va(u64::MAX, Rkey(0), 0)],
        ),
        fine(
            "an empty READ (its key is not checked)",
            vec![shot(O::RC_READ_REQUEST, 0).va(u64::MAX, Rkey(0), 0)],
        ),
        fine("an empty WRITE with Immediate", vec![shot(O::RC_WRITE_ONLY_IMM, 0).va(1, Rkey(0), 0)])
            .recv(Recv::Posted),
        fine("a WRITE up to the last byte", vec![shot(O::RC_WRITE_ONLY, 8).at(open, open.len - 8, 8)]),
        fine("a READ up to the last byte", vec![shot(O::RC_READ_REQUEST, 0).at(open, open.len - 8, 8)]),
        fine("a WRITE to the end of the address space", {
            let edge = lab.arena.edge;
            vec![shot(O::RC_WRITE_ONLY, 8).at(edge, edge.len - 8, 8)]
        }),
        fine("a duplicate WRITE", vec![shot(O::RC_WRITE_ONLY, 8).ahead(0xff_ffff).va(0, Rkey(0), 8)]),
    ]
}

fn check(lab: &mut Lab, case: &Case) {
    let name = case.name;
    let mut victim = Victim::new(lab, QpType::Rc, false, case.attr.clone());
    let inbox = lab.arena.buffer.sge(INBOX.at, ROOM);
    match case.recv {
        Recv::None => {}
        Recv::Posted => victim.post_recv(&[inbox]),
        Recv::Large => victim.post_recv(&[lab.arena.buffer.sge(INBOX.at, 4 * M)]),
        Recv::BadKey => victim.post_recv(&[Sge { lkey: Lkey(0), ..inbox }]),
    }
    let before = case.reason.map(|reason| lab.counter(reason.name()));
    let mut last = victim.expected;
    for shot in &case.shots {
        last = victim.expected.advance(shot.ahead);
        let fields = Fields { qpn: victim.qp.qpn(), psn: last, ..shot.fields };
        let mut packet = fields.packet(shot.opcode, &vec![0x11; shot.payload]);
        packet.truncate(shot.keep);
        if shot.damaged {
            lab.peer.send_damaged(&packet);
        } else {
            lab.peer.send(&packet);
        }
    }
    lab.barrier(true);
    lab.read_events();
    let replies = lab.replies(victim.peer_qpn);
    let last_reply = replies.last().map(|bytes| Packet::parse(bytes).expect("checked when it arrived"));
    match case.end {
        End::Alive(None) => {
            assert!(replies.is_empty(), "{name}: {last_reply:?}");
            victim.check_alive(lab);
        }
        End::Alive(Some(syndrome)) => {
            let packet = last_reply.unwrap_or_else(|| panic!("{name}: no answer"));
            assert_eq!(packet.aeth().map(|aeth| aeth.syndrome), Some(syndrome), "{name}: {packet}");
            if syndrome != Syndrome::ACK {
                assert_eq!(packet.bth.psn, victim.expected, "{name}");
            }
            victim.check_alive(lab);
        }
        End::Dead(nak, report) => {
            let naks =
                last_reply.filter(|packet| packet.aeth().is_some_and(|aeth| aeth.syndrome != Syndrome::ACK));
            let found = naks.and_then(|packet| packet.aeth()).map(|aeth| aeth.syndrome);
            assert_eq!(found, nak.map(Syndrome::Nak), "{name}");
            if let Some(packet) = naks {
                assert_eq!(packet.bth.psn, last, "{name}");
            }
            let failure = victim.take_failure(lab);
            match report {
                Report::Recv(status) => {
                    assert_eq!((failure.recv, &*failure.events), (Some(status), &[][..]), "{name}")
                }
                Report::Event(kind) => {
                    assert_eq!((failure.recv, &*failure.events), (None, &[kind][..]), "{name}")
                }
            }
            assert_eq!(failure.send, None, "{name}");
            // In ERR the queue pair does not answer.
            let fields = Fields { qpn: victim.qp.qpn(), psn: last, ..Fields::new(victim.qp.qpn(), last) };
            lab.peer.send(&fields.packet(Opcode::RC_WRITE_ONLY, &[]));
            lab.barrier(true);
            assert!(lab.replies(victim.peer_qpn).is_empty(), "{name}: a packet in the error state");
        }
    }
    if let (Some(reason), Some(before)) = (case.reason, before) {
        assert!(lab.counter(reason.name()) > before, "{name} is not counted as {reason}");
    }
}

/// A response to a work request: opcode, syndrome, payload length, and the resulting completion.
type Response = (&'static str, WrOp, (Opcode, Syndrome, usize), Option<WcStatus>);

/// Responses to the requester (IBA 9.9.2): the status of the work request.
pub(crate) fn answers() {
    let mut lab = Lab::new();
    let responses = responses();
    for response in &responses {
        check_response(&mut lab, response);
        lab.arena.check();
    }
    println!("{} rows", responses.len());
}

fn responses() -> Vec<Response> {
    let write = WrOp::Write { remote_addr: 0, r_key: Rkey(0) };
    let read = WrOp::Read { remote_addr: 0, r_key: Rkey(0) };
    let add = WrOp::FetchAdd { remote_addr: 0, r_key: Rkey(0), add: 1 };
    let ack = |syndrome| (Opcode::RC_ACKNOWLEDGE, syndrome, 0);
    let nak = |code| ack(Syndrome::Nak(code));
    vec![
        ("an ACK", write, ack(Syndrome::ACK), Some(WcStatus::Success)),
        ("NAK invalid request", write, nak(NakCode::InvalidRequest), Some(WcStatus::RemInvReqErr)),
        ("NAK access", write, nak(NakCode::RemoteAccessError), Some(WcStatus::RemAccessErr)),
        ("NAK operation", write, nak(NakCode::RemoteOperationalError), Some(WcStatus::RemOpErr)),
        ("NAK invalid RD", write, nak(NakCode::InvalidRdRequest), Some(WcStatus::RemInvRdReqErr)),
        ("NAK to a READ", read, nak(NakCode::RemoteAccessError), Some(WcStatus::RemAccessErr)),
        ("a reserved syndrome", write, ack(Syndrome::from_byte(0x45)), None),
        ("another reserved syndrome", write, ack(Syndrome::from_byte(0x7f)), None),
        ("an ACK of a READ", read, ack(Syndrome::ACK), None),
        (
            "the READ's data",
            read,
            (Opcode::RC_READ_RESPONSE_ONLY, Syndrome::ACK, ROOM),
            Some(WcStatus::Success),
        ),
        (
            "too little data",
            read,
            (Opcode::RC_READ_RESPONSE_ONLY, Syndrome::ACK, 8),
            Some(WcStatus::LocLenErr),
        ),
        (
            "too much data",
            read,
            (Opcode::RC_READ_RESPONSE_ONLY, Syndrome::ACK, 4096),
            Some(WcStatus::LocLenErr),
        ),
        ("First instead of Only", read, (Opcode::RC_READ_RESPONSE_FIRST, Syndrome::ACK, ROOM), {
            Some(WcStatus::BadRespErr)
        }),
        ("an atomic's result for a READ", read, (Opcode::RC_ATOMIC_ACKNOWLEDGE, Syndrome::ACK, 0), {
            Some(WcStatus::BadRespErr)
        }),
        (
            "data for an atomic",
            add,
            (Opcode::RC_READ_RESPONSE_ONLY, Syndrome::ACK, 8),
            Some(WcStatus::BadRespErr),
        ),
        (
            "an atomic's result",
            add,
            (Opcode::RC_ATOMIC_ACKNOWLEDGE, Syndrome::ACK, 0),
            Some(WcStatus::Success),
        ),
        ("data for a WRITE", write, (Opcode::RC_READ_RESPONSE_ONLY, Syndrome::ACK, ROOM), None),
    ]
}

fn check_response(lab: &mut Lab, &(name, op, (opcode, syndrome, payload), status): &Response) {
    // Without timeout nothing is retransmitted during the test.
    let mut victim = Victim::new(lab, QpType::Rc, false, QpAttr { timeout: 0, ..connected() });
    let part = if matches!(op, WrOp::Write { .. }) { SOURCE } else { INBOX };
    victim.post_send(op, &[lab.arena.buffer.sge(part.at, ROOM)]);
    lab.barrier(true);
    let replies = lab.replies(victim.peer_qpn);
    assert_eq!(replies.len(), 1, "{name}: the request");
    let request = Packet::parse(&replies[0]).expect("checked when it arrived");
    assert!(request.row().operation != Operation::Ack);
    let fields = Fields::new(victim.qp.qpn(), request.bth.psn).with_syndrome(syndrome);
    lab.peer.send(&fields.packet(opcode, &vec![0x22; payload]));
    lab.barrier(true);
    lab.read_events();
    victim.completions();
    match status {
        None | Some(WcStatus::Success) => {
            assert_eq!(victim.completed, u64::from(status.is_some()), "{name}");
            victim.check_alive(lab);
        }
        Some(status) => {
            let failure = victim.take_failure(lab);
            assert_eq!((failure.send, &*failure.events), (Some(status), &[][..]), "{name}");
            assert_eq!(victim.qp.state(), QpState::Err, "{name}");
        }
    }
}
