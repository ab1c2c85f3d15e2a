//! The responder's table (IBA 9.9.3, C9-222): a request that the responder refuses, does not get or cannot
//! serve.

use transport::AsyncEventKind::{CommEst, CqErr, QpFatal, QpLastWqeReached, QpReqErr};
use transport::WcStatus::{
    LocLenErr, LocProtErr, LocQpOpErr, RemInvReqErr, RemOpErr, RetryExcErr, Success, WrFlushErr,
};
use transport::{Access, Dest, QpAttr, QpAttrMask, QpState, QpType, WrOp};
use wire::{Lkey, Opcode, Qpn, Rkey};

use super::cable::Fate;
use super::end::MTU;
use super::pair::{HERE, Pair, Setup, THERE};
use super::row::{DEAD, NOTHING, Row, Told, fails, show};

pub(super) const RC: Row = Row::new(QpType::Rc);
pub(super) const SETUP: Setup = RC.setup;

/// There, without a receive to blame: an event, and the receive that was posted is flushed. The request
/// behind is dropped.
const REQ_ERR: Told = Told { events: &[QpReqErr], ..DEAD };
/// Here: the peer said that the request is invalid, or that it may not.
const INVALID: Told = fails(&[RemInvReqErr, WrFlushErr]);
/// Here: nobody answers.
const UNANSWERED: Told = Told {
    counted: &["retry_exceeded_err 1", "local_ack_timeout_err 8"],
    ..fails(&[RetryExcErr, WrFlushErr])
};

pub(super) const WRITES: &[&str] = &["WRITE Only 100", "WRITE Only 101"];
pub(super) const READ: &[&str] = &["READ Request 100", "WRITE Only 101"];
const SEND: &[&str] = &["SEND Only 100", "WRITE Only 101"];
pub(super) const ADD: &[&str] = &["Fetch Add 100", "WRITE Only 101"];

const NAK_INVALID: &[&str] = &["NAK Invalid request 100"];

/// A request that is invalid.
const REFUSED: Row = Row { answers: NAK_INVALID, here: INVALID, ..RC };

/// The `nth` packet from here has another opcode when it arrives.
fn replace_opcode(pair: &mut Pair, nth: usize, opcode: Opcode) {
    pair.judge(HERE, move |before, packet| {
        if before == nth {
            packet[0] = opcode.0;
        }
        Fate::Arrives
    });
}

/// The first packet from here arrives with four bytes less.
fn shorten(pair: &mut Pair) {
    pair.judge(HERE, |before, packet| {
        if before == 0 {
            packet.truncate(packet.len() - 4);
        }
        Fate::Arrives
    });
}

#[test]
fn what_can_be_mended_is_and_nobody_is_told() {
    show(&[
        Row {
            name: "a request that is lost",
            of: "responder: PSN ahead",
            act: |pair| {
                pair.judge(HERE, |before, _| if before == 0 { Fate::IsLost } else { Fate::Arrives });
                let open = pair.there.open;
                pair.post(open.write(0), 8);
            },
            asks: WRITES,
            answers: &["NAK PSN sequence error 100", "ACK 101"],
            here: Told { sends: &[Success, Success], counted: &["rcvd_seq_err 1"], ..NOTHING },
            there: Told { counted: &["out_of_seq_request 1", "kept_request 1", "send_seq_err 1"], ..NOTHING },
            ..RC
        },
        Row {
            name: "a SEND that finds a receive later",
            of: "responder: no receive WQE",
            room: None,
            act: |pair| {
                pair.post(WrOp::Send, 8);
                pair.run_for_us(100);
                pair.receive(64);
            },
            asks: SEND,
            answers: &["RNR NAK Timer=0.64 ms 100", "ACK 101"],
            here: Told { sends: &[Success, Success], counted: &["rcvd_rnr_err 1"], ..NOTHING },
            there: Told { recvs: &[Success], counted: &["rx_no_receive 1", "send_rnr_err 1"], ..NOTHING },
            ..RC
        },
        Row {
            name: "a WRITE with Immediate that finds a receive later",
            of: "responder: RNR at the last packet",
            room: None,
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write_imm(0), 2 * MTU);
                pair.run_for_us(100);
                pair.receive(64);
            },
            asks: &["WRITE First 100", "WRITE Last Immediate 101", "WRITE Only 102"],
            answers: &["RNR NAK Timer=0.64 ms 101", "ACK 102"],
            here: Told { sends: &[Success, Success], counted: &["rcvd_rnr_err 1"], ..NOTHING },
            there: Told { recvs: &[Success], counted: &["rx_no_receive 1", "send_rnr_err 1"], ..NOTHING },
            ..RC
        },
        Row {
            name: "a READ of the past that comes again",
            of: "responder: duplicate not answerable",
            setup: Setup {
                here: |attr| attr.max_rd_atomic = 1,
                there: |attr| attr.max_dest_rd_atomic = 1,
                ..SETUP
            },
            act: |pair| {
                for _ in 0..2 {
                    let open = pair.there.open;
                    pair.post(open.read(0), 8);
                    pair.run();
                }
                pair.cable.deliver_again(HERE, 0);
            },
            asks: &["READ Request 100", "READ Request 101", "WRITE Only 102"],
            answers: &["READ Response Only 100", "READ Response Only 101", "ACK 102"],
            here: Told { sends: &[Success, Success, Success], ..NOTHING },
            there: Told { counted: &["duplicate_request 1"], ..NOTHING },
            ..RC
        },
        Row {
            name: "the first message in RTR",
            of: "responder: COMM_EST",
            setup: Setup { there_state: QpState::Rtr, ..SETUP },
            act: |pair| pair.post(WrOp::Send, 8),
            asks: SEND,
            answers: &["ACK 101"],
            here: Told { sends: &[Success, Success], ..NOTHING },
            there: Told { state: QpState::Rtr, recvs: &[Success], events: &[CommEst], ..NOTHING },
            ..RC
        },
    ]);
}

#[test]
fn opcodes_that_do_not_fit_are_invalid_requests() {
    const COUNTED: &[&str] = &["rx_wrong_state 1", "rx_bad_opcode_order 1"];
    show(&[
        Row {
            name: "Middle without First",
            of: "responder: opcode order",
            act: |pair| {
                replace_opcode(pair, 0, Opcode::RC_SEND_MIDDLE);
                pair.post(WrOp::Send, 8);
            },
            asks: &["SEND Middle 100", "WRITE Only 101"],
            there: Told { counted: COUNTED, ..REQ_ERR },
            ..REFUSED
        },
        Row {
            name: "a WRITE inside a SEND",
            of: "responder: opcode order, receive WQE in hand",
            room: Some(2 * MTU),
            act: |pair| {
                replace_opcode(pair, 1, Opcode::RC_WRITE_LAST);
                pair.post(WrOp::Send, 2 * MTU);
            },
            asks: &["SEND First 100", "WRITE Last 101", "WRITE Only 102"],
            answers: &["NAK Invalid request 101"],
            here: INVALID,
            there: Told { recvs: &[LocQpOpErr], counted: COUNTED, ..DEAD },
            ..RC
        },
        Row {
            name: "a FLUSH of a selectivity that there is not",
            of: "responder: bad opcode (A19)",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.flush(1, 2), 0);
            },
            asks: &["FLUSH 100", "WRITE Only 101"],
            there: Told { counted: COUNTED, ..REQ_ERR },
            ..REFUSED
        },
        Row {
            name: "an XRC message to a queue that is not there",
            of: "responder: bad opcode (A14: XRC SRQ)",
            act: |pair| {
                pair.here.dest = Some(Dest::Srq(pair.there.srqn() + 1));
                pair.post(WrOp::Send, 8);
            },
            asks: SEND,
            answers: NAK_INVALID,
            here: Told { recvs: &[], ..INVALID },
            there: Told {
                recvs: &[],
                events: &[QpReqErr],
                counted: &["rx_wrong_state 1", "rx_no_such_srq 1"],
                ..DEAD
            },
            ..Row::new(QpType::XrcIni)
        },
    ]);
}

#[test]
fn what_the_queue_pair_does_not_permit_is_an_invalid_request() {
    const NOT_PERMITTED: Row = Row {
        of: "responder: QP access flag missing",
        there: Told { counted: &["rx_wrong_state 1", "rx_access_fault 1"], ..REQ_ERR },
        ..REFUSED
    };
    show(&[
        Row {
            name: "WRITE",
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_WRITE, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(0), 8);
            },
            asks: WRITES,
            ..NOT_PERMITTED
        },
        Row {
            name: "WRITE with Immediate, whose receive was not taken yet",
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_WRITE, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write_imm(0), 8);
            },
            asks: &["WRITE Only Immediate 100", "WRITE Only 101"],
            ..NOT_PERMITTED
        },
        Row {
            name: "READ",
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_READ, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.read(0), 8);
            },
            asks: READ,
            ..NOT_PERMITTED
        },
        Row {
            name: "atomic",
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_ATOMIC, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.add(0), 8);
            },
            asks: ADD,
            ..NOT_PERMITTED
        },
        Row {
            name: "ATOMIC WRITE",
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_WRITE, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.atomic_write(0), 8);
            },
            asks: &["ATOMIC WRITE 100", "WRITE Only 101"],
            ..NOT_PERMITTED
        },
        Row {
            name: "FLUSH",
            setup: Setup { there: |attr| attr.access -= Access::FLUSH_GLOBAL, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.flush(1, 0), 0);
            },
            asks: &["FLUSH 100", "WRITE Only 101"],
            ..NOT_PERMITTED
        },
    ]);
}

#[test]
fn lengths_and_numbers_beyond_the_rules_are_invalid_requests() {
    show(&[
        Row {
            name: "a SEND First that is not full",
            of: "responder: length rule broken, receive WQE in hand",
            room: Some(2 * MTU),
            act: |pair| {
                shorten(pair);
                pair.post(WrOp::Send, 2 * MTU);
            },
            asks: &["SEND First 100", "SEND Last 101", "WRITE Only 102"],
            there: Told { recvs: &[LocQpOpErr], counted: &["rx_wrong_state 2", "rx_bad_length 1"], ..DEAD },
            ..REFUSED
        },
        Row {
            name: "a WRITE that is shorter than it says",
            of: "responder: length rule broken",
            act: |pair| {
                shorten(pair);
                let open = pair.there.open;
                pair.post(open.write(0), 8);
            },
            asks: WRITES,
            there: Told { counted: &["rx_wrong_state 1", "rx_bad_length 1"], ..REQ_ERR },
            ..REFUSED
        },
        Row {
            name: "a SEND longer than its receive",
            of: "responder: message longer than receive buffer",
            act: |pair| pair.post(WrOp::Send, 65),
            asks: SEND,
            there: Told {
                recvs: &[LocLenErr],
                counted: &["rx_wrong_state 1", "rx_receive_too_small 1"],
                ..DEAD
            },
            ..REFUSED
        },
        Row {
            name: "a SEND longer than its receive from a shared queue, which keeps the others",
            of: "responder: message longer than receive buffer; queues: SRQ",
            setup: Setup { shared: true, ..SETUP },
            act: |pair| {
                pair.receive(64);
                pair.post(WrOp::Send, 65);
            },
            asks: SEND,
            there: Told {
                recvs: &[LocLenErr],
                events: &[QpLastWqeReached],
                counted: &["rx_wrong_state 1", "rx_receive_too_small 1"],
                ..DEAD
            },
            ..REFUSED
        },
        Row {
            name: "a READ more than the responder keeps",
            of: "responder: more READs/atomics than max_dest_rd_atomic",
            setup: Setup { there: |attr| attr.max_dest_rd_atomic = 2, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                for _ in 0..3 {
                    pair.post(open.read(0), 8);
                }
            },
            asks: &["READ Request 100", "READ Request 101", "READ Request 102", "WRITE Only 103"],
            answers: &["READ Response Only 100", "READ Response Only 101", "NAK Invalid request 102"],
            here: fails(&[Success, Success, RemInvReqErr, WrFlushErr]),
            there: Told { counted: &["rx_wrong_state 1", "rx_queue_full 1"], ..REQ_ERR },
            ..RC
        },
        Row {
            name: "an atomic where none is served",
            of: "responder: more READs/atomics than max_dest_rd_atomic (0)",
            setup: Setup { there: |attr| attr.max_dest_rd_atomic = 0, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.add(0), 8);
            },
            asks: ADD,
            there: Told { counted: &["rx_wrong_state 1", "rx_queue_full 1"], ..REQ_ERR },
            ..REFUSED
        },
        Row {
            name: "an atomic on an odd address",
            of: "responder: misaligned atomic",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.add(4), 8);
            },
            asks: ADD,
            there: Told { counted: &["rx_wrong_state 1", "rx_access_fault 1"], ..REQ_ERR },
            ..REFUSED
        },
    ]);
}

#[test]
fn a_receive_that_is_to_blame_is_completed_and_no_event_comes() {
    show(&[
        Row {
            name: "a receive into memory without a key",
            of: "responder: receive WQE with bad lkey",
            room: None,
            act: |pair| {
                let sge = pair.there.sge(64);
                pair.there.post_recv(&[transport::Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }]);
                pair.post(WrOp::Send, 8);
            },
            asks: SEND,
            answers: &["NAK Remote operational error 100"],
            here: fails(&[RemOpErr, WrFlushErr]),
            there: Told { recvs: &[LocProtErr], counted: &["rx_wrong_state 1", "rx_access_fault 1"], ..DEAD },
            ..RC
        },
        Row {
            name: "a key that cannot be invalidated",
            of: "responder: SEND w/ Invalidate",
            act: |pair| {
                let open = pair.there.open;
                pair.post(WrOp::SendInv(Rkey(open.key)), 8);
            },
            asks: &["SEND Only Invalidate 100", "WRITE Only 101"],
            here: UNANSWERED,
            there: Told { recvs: &[RemInvReqErr], counted: &["rx_wrong_state", "rx_access_fault 1"], ..DEAD },
            ..RC
        },
    ]);
}

#[test]
fn who_is_dead_or_not_there_answers_nothing() {
    const OF: &str = "responder: a QP in ERR or one that does not exist";
    show(&[
        Row {
            name: "a queue pair that does not exist",
            of: OF,
            setup: Setup { here: |attr| attr.dest_qp = Qpn::new(attr.dest_qp.value() ^ 1), ..SETUP },
            act: |pair| pair.post(WrOp::Send, 8),
            asks: SEND,
            here: UNANSWERED,
            there: Told { counted: &["rx_unknown_qp"], ..NOTHING },
            ..RC
        },
        Row {
            name: "a queue pair in ERR",
            of: OF,
            act: |pair| {
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                pair.there.modify(pair.now, &attr, QpAttrMask::STATE).expect("always legal");
                pair.post(WrOp::Send, 8);
            },
            asks: SEND,
            here: UNANSWERED,
            there: Told { counted: &["rx_wrong_state"], ..DEAD },
            ..RC
        },
        Row {
            name: "a receive CQ that is full",
            of: "responder: receive CQ overflow",
            setup: Setup { recv_cqe: 1, ..SETUP },
            act: |pair| {
                pair.receive(64);
                pair.post(WrOp::Send, 8);
                pair.run();
                pair.post(WrOp::Send, 8);
            },
            asks: &["SEND Only 100", "SEND Only 101", "WRITE Only 102"],
            answers: &["ACK 100"],
            here: Told { sends: &[Success, RetryExcErr, WrFlushErr], ..UNANSWERED },
            there: Told {
                recvs: &[Success],
                events: &[CqErr, QpFatal],
                counted: &["rx_wrong_state"],
                ..DEAD
            },
            ..RC
        },
        Row {
            name: "a NAK that is lost",
            of: "responder: if that NAK is lost the peer ends in RETRY_EXC_ERR",
            act: |pair| {
                pair.judge(THERE, |_, _| Fate::IsLost);
                pair.post(WrOp::Send, 65);
            },
            asks: SEND,
            answers: NAK_INVALID,
            here: UNANSWERED,
            there: Told {
                recvs: &[LocLenErr],
                counted: &["rx_wrong_state", "rx_receive_too_small 1"],
                ..DEAD
            },
            ..RC
        },
    ]);
}
