//! The fault table of the responder (IBA 9.9.3, C9-222): requests that it refuses, does not receive or cannot
//! execute.

use transport::AsyncEventKind::{CommEst, CqErr, QpFatal, QpLastWqeReached, QpReqErr};
use transport::WcStatus::{
    LocLenErr, LocProtErr, LocQpOpErr, RemInvReqErr, RemOpErr, RetryExcErr, Success, WrFlushErr,
};
use transport::{Access, Dest, QpAttr, QpAttrMask, QpState, QpType, WrOp};
use wire::{Lkey, Opcode, Qpn, Rkey};

use super::cable::Fate;
use super::end::MTU;
use super::pair::{HERE, Pair, Setup, THERE};
use super::row::{Expected, IN_ERR, NOTHING, Row, check, fails};

pub(super) const RC: Row = Row::new(QpType::Rc);
pub(super) const SETUP: Setup = RC.setup;

/// At the responder, for a fault outside a receive: an event, and the posted receive is flushed. The
/// following request is dropped.
const REQ_ERR: Expected = Expected { events: &[QpReqErr], ..IN_ERR };
/// At the requester: the responder has sent a NAK "invalid request".
const INVALID: Expected = fails(&[RemInvReqErr, WrFlushErr]);
/// At the requester: no response arrives.
const NO_RESPONSE: Expected = Expected {
    counted: &["retry_exceeded_err 1", "local_ack_timeout_err 8"],
    ..fails(&[RetryExcErr, WrFlushErr])
};

pub(super) const WRITES: &[&str] = &["WRITE Only 100", "WRITE Only 101"];
pub(super) const READ: &[&str] = &["READ Request 100", "WRITE Only 101"];
const SEND: &[&str] = &["SEND Only 100", "WRITE Only 101"];
pub(super) const ADD: &[&str] = &["Fetch Add 100", "WRITE Only 101"];

const NAK_INVALID: &[&str] = &["NAK Invalid request 100"];

/// An invalid request.
const REFUSED: Row = Row { responses: NAK_INVALID, here: INVALID, ..RC };

/// Replaces the opcode of the `nth` packet of the requester.
fn replace_opcode(pair: &mut Pair, nth: usize, opcode: Opcode) {
    pair.judge(HERE, move |before, packet| {
        if before == nth {
            packet[0] = opcode.0;
        }
        Fate::Arrives
    });
}

/// Removes the last four bytes of the first packet of the requester.
fn shorten(pair: &mut Pair) {
    pair.judge(HERE, |before, packet| {
        if before == 0 {
            packet.truncate(packet.len() - 4);
        }
        Fate::Arrives
    });
}

#[test]
fn lost_and_rnr_nakked_requests_succeed_after_retransmission() {
    check(&[
        Row {
            name: "the first request is lost",
            rule: "responder: PSN ahead",
            act: |pair| {
                pair.judge(HERE, |before, _| if before == 0 { Fate::IsLost } else { Fate::Arrives });
                let open = pair.there.open;
                pair.post(open.write(0), 8);
            },
            requests: WRITES,
            // The second request is not kept: the UDP source port of the peer is not known yet.
            responses: &["NAK PSN sequence error 100", "ACK 100", "ACK 101"],
            here: Expected { sends: &[Success, Success], counted: &["rcvd_seq_err 1"], ..NOTHING },
            there: Expected { counted: &["out_of_seq_request 1", "send_seq_err 1"], ..NOTHING },
            ..RC
        },
        Row {
            name: "a later request is lost",
            rule: "responder: PSN ahead",
            act: |pair| {
                pair.judge(HERE, |before, _| if before == 1 { Fate::IsLost } else { Fate::Arrives });
                let open = pair.there.open;
                pair.post(open.write(0), 8);
                pair.run();
                pair.post(open.write(0), 8);
            },
            requests: &["WRITE Only 100", "WRITE Only 101", "WRITE Only 102"],
            responses: &["ACK 100", "NAK PSN sequence error 101", "ACK 102"],
            here: Expected { sends: &[Success, Success, Success], counted: &["rcvd_seq_err 1"], ..NOTHING },
            there: Expected {
                counted: &["out_of_seq_request 1", "kept_request 1", "send_seq_err 1"],
                ..NOTHING
            },
            ..RC
        },
        Row {
            name: "the receive of a SEND is posted late",
            rule: "responder: no receive WQE",
            receive_len: None,
            act: |pair| {
                pair.post(WrOp::Send, 8);
                pair.run_for_us(100);
                pair.receive(64);
            },
            requests: SEND,
            responses: &["RNR NAK Timer=0.64 ms 100", "ACK 101"],
            here: Expected { sends: &[Success, Success], counted: &["rcvd_rnr_err 1"], ..NOTHING },
            there: Expected { recvs: &[Success], counted: &["rx_no_receive 1", "send_rnr_err 1"], ..NOTHING },
            ..RC
        },
        Row {
            name: "the receive of a WRITE with Immediate is posted late",
            rule: "responder: RNR at the last packet",
            receive_len: None,
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write_imm(0), 2 * MTU);
                pair.run_for_us(100);
                pair.receive(64);
            },
            requests: &["WRITE First 100", "WRITE Last Immediate 101", "WRITE Only 102"],
            responses: &["RNR NAK Timer=0.64 ms 101", "ACK 102"],
            here: Expected { sends: &[Success, Success], counted: &["rcvd_rnr_err 1"], ..NOTHING },
            there: Expected { recvs: &[Success], counted: &["rx_no_receive 1", "send_rnr_err 1"], ..NOTHING },
            ..RC
        },
    ]);
}

#[test]
fn a_duplicate_of_a_read_that_is_no_longer_stored_is_dropped() {
    check(&[Row {
        name: "a duplicate of the first of two READs, max_dest_rd_atomic 1",
        rule: "responder: duplicate not answerable",
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
        requests: &["READ Request 100", "READ Request 101", "WRITE Only 102"],
        responses: &["READ Response Only 100", "READ Response Only 101", "ACK 102"],
        here: Expected { sends: &[Success, Success, Success], ..NOTHING },
        there: Expected { counted: &["duplicate_request 1"], ..NOTHING },
        ..RC
    }]);
}

#[test]
fn the_first_message_in_rtr_raises_comm_est() {
    check(&[Row {
        name: "the first message in RTR",
        rule: "responder: COMM_EST",
        setup: Setup { there_state: QpState::Rtr, ..SETUP },
        act: |pair| pair.post(WrOp::Send, 8),
        requests: SEND,
        responses: &["ACK 101"],
        here: Expected { sends: &[Success, Success], ..NOTHING },
        there: Expected { state: QpState::Rtr, recvs: &[Success], events: &[CommEst], ..NOTHING },
        ..RC
    }]);
}

#[test]
fn opcodes_out_of_sequence_and_unsupported_variants_are_invalid_requests() {
    const COUNTED: &[&str] = &["rx_wrong_state 1", "rx_bad_opcode_order 1"];
    check(&[
        Row {
            name: "Middle without First",
            rule: "responder: opcode order",
            act: |pair| {
                replace_opcode(pair, 0, Opcode::RC_SEND_MIDDLE);
                pair.post(WrOp::Send, 8);
            },
            requests: &["SEND Middle 100", "WRITE Only 101"],
            there: Expected { counted: COUNTED, ..REQ_ERR },
            ..REFUSED
        },
        Row {
            name: "a WRITE inside a SEND",
            rule: "responder: opcode order, receive WQE in hand",
            receive_len: Some(2 * MTU),
            act: |pair| {
                replace_opcode(pair, 1, Opcode::RC_WRITE_LAST);
                pair.post(WrOp::Send, 2 * MTU);
            },
            requests: &["SEND First 100", "WRITE Last 101", "WRITE Only 102"],
            responses: &["NAK Invalid request 101"],
            here: INVALID,
            there: Expected { recvs: &[LocQpOpErr], counted: COUNTED, ..IN_ERR },
            ..RC
        },
        Row {
            name: "FLUSH with an undefined selectivity",
            rule: "responder: bad opcode (A19)",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.flush(1, 2), 0);
            },
            requests: &["FLUSH 100", "WRITE Only 101"],
            there: Expected { counted: COUNTED, ..REQ_ERR },
            ..REFUSED
        },
        Row {
            name: "XRC message to an SRQ that does not exist",
            rule: "responder: bad opcode (A14: XRC SRQ)",
            act: |pair| {
                pair.here.dest = Some(Dest::Srq(pair.there.srqn() + 1));
                pair.post(WrOp::Send, 8);
            },
            requests: SEND,
            responses: NAK_INVALID,
            here: Expected { recvs: &[], ..INVALID },
            there: Expected {
                recvs: &[],
                events: &[QpReqErr],
                counted: &["rx_wrong_state 1", "rx_no_such_srq 1"],
                ..IN_ERR
            },
            ..Row::new(QpType::XrcIni)
        },
    ]);
}

#[test]
fn requests_without_the_access_flag_of_the_queue_pair_are_invalid_requests() {
    const NOT_PERMITTED: Row = Row {
        rule: "responder: QP access flag missing",
        there: Expected { counted: &["rx_wrong_state 1", "rx_access_fault 1"], ..REQ_ERR },
        ..REFUSED
    };
    check(&[
        Row {
            name: "WRITE",
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_WRITE, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(0), 8);
            },
            requests: WRITES,
            ..NOT_PERMITTED
        },
        Row {
            name: "WRITE with Immediate, which takes no receive",
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_WRITE, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write_imm(0), 8);
            },
            requests: &["WRITE Only Immediate 100", "WRITE Only 101"],
            ..NOT_PERMITTED
        },
        Row {
            name: "READ",
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_READ, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.read(0), 8);
            },
            requests: READ,
            ..NOT_PERMITTED
        },
        Row {
            name: "atomic",
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_ATOMIC, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.add(0), 8);
            },
            requests: ADD,
            ..NOT_PERMITTED
        },
        Row {
            name: "ATOMIC WRITE",
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_WRITE, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.atomic_write(0), 8);
            },
            requests: &["ATOMIC WRITE 100", "WRITE Only 101"],
            ..NOT_PERMITTED
        },
        Row {
            name: "FLUSH",
            setup: Setup { there: |attr| attr.access -= Access::FLUSH_GLOBAL, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.flush(1, 0), 0);
            },
            requests: &["FLUSH 100", "WRITE Only 101"],
            ..NOT_PERMITTED
        },
    ]);
}

#[test]
fn wrong_message_lengths_are_invalid_requests() {
    check(&[
        Row {
            name: "SEND First shorter than the path MTU",
            rule: "responder: length rule broken, receive WQE in hand",
            receive_len: Some(2 * MTU),
            act: |pair| {
                shorten(pair);
                pair.post(WrOp::Send, 2 * MTU);
            },
            requests: &["SEND First 100", "SEND Last 101", "WRITE Only 102"],
            there: Expected {
                recvs: &[LocQpOpErr],
                counted: &["rx_wrong_state 2", "rx_bad_length 1"],
                ..IN_ERR
            },
            ..REFUSED
        },
        Row {
            name: "WRITE shorter than its DMA length",
            rule: "responder: length rule broken",
            act: |pair| {
                shorten(pair);
                let open = pair.there.open;
                pair.post(open.write(0), 8);
            },
            requests: WRITES,
            there: Expected { counted: &["rx_wrong_state 1", "rx_bad_length 1"], ..REQ_ERR },
            ..REFUSED
        },
        Row {
            name: "SEND longer than its receive",
            rule: "responder: message longer than receive buffer",
            act: |pair| pair.post(WrOp::Send, 65),
            requests: SEND,
            there: Expected {
                recvs: &[LocLenErr],
                counted: &["rx_wrong_state 1", "rx_receive_too_small 1"],
                ..IN_ERR
            },
            ..REFUSED
        },
        Row {
            name: "SEND longer than its receive from an SRQ; the other receives stay",
            rule: "responder: message longer than receive buffer; queues: SRQ",
            setup: Setup { shared: true, ..SETUP },
            act: |pair| {
                pair.receive(64);
                pair.post(WrOp::Send, 65);
            },
            requests: SEND,
            there: Expected {
                recvs: &[LocLenErr],
                events: &[QpLastWqeReached],
                counted: &["rx_wrong_state 1", "rx_receive_too_small 1"],
                ..IN_ERR
            },
            ..REFUSED
        },
    ]);
}

#[test]
fn too_many_reads_and_misaligned_atomics_are_invalid_requests() {
    check(&[
        Row {
            name: "three READs, max_dest_rd_atomic 2",
            rule: "responder: more READs/atomics than max_dest_rd_atomic",
            setup: Setup { there: |attr| attr.max_dest_rd_atomic = 2, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                for _ in 0..3 {
                    pair.post(open.read(0), 8);
                }
            },
            requests: &["READ Request 100", "READ Request 101", "READ Request 102", "WRITE Only 103"],
            responses: &["READ Response Only 100", "READ Response Only 101", "NAK Invalid request 102"],
            here: fails(&[Success, Success, RemInvReqErr, WrFlushErr]),
            there: Expected { counted: &["rx_wrong_state 1", "rx_queue_full 1"], ..REQ_ERR },
            ..RC
        },
        Row {
            name: "atomic, max_dest_rd_atomic 0",
            rule: "responder: more READs/atomics than max_dest_rd_atomic (0)",
            setup: Setup { there: |attr| attr.max_dest_rd_atomic = 0, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.add(0), 8);
            },
            requests: ADD,
            there: Expected { counted: &["rx_wrong_state 1", "rx_queue_full 1"], ..REQ_ERR },
            ..REFUSED
        },
        Row {
            name: "atomic on a misaligned address",
            rule: "responder: misaligned atomic",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.add(4), 8);
            },
            requests: ADD,
            there: Expected { counted: &["rx_wrong_state 1", "rx_access_fault 1"], ..REQ_ERR },
            ..REFUSED
        },
    ]);
}

#[test]
fn a_fault_that_a_receive_completion_reports_raises_no_event() {
    check(&[
        Row {
            name: "receive with an unknown L_Key",
            rule: "responder: receive WQE with bad lkey",
            receive_len: None,
            act: |pair| {
                let sge = pair.there.sge(64);
                pair.there.post_recv(&[transport::Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }]);
                pair.post(WrOp::Send, 8);
            },
            requests: SEND,
            responses: &["NAK Remote operational error 100"],
            here: fails(&[RemOpErr, WrFlushErr]),
            there: Expected {
                recvs: &[LocProtErr],
                counted: &["rx_wrong_state 1", "rx_access_fault 1"],
                ..IN_ERR
            },
            ..RC
        },
        Row {
            name: "SEND with Invalidate of a key that cannot be invalidated",
            rule: "responder: SEND w/ Invalidate",
            act: |pair| {
                let open = pair.there.open;
                pair.post(WrOp::SendInv(Rkey(open.key)), 8);
            },
            requests: &["SEND Only Invalidate 100", "WRITE Only 101"],
            here: NO_RESPONSE,
            there: Expected {
                recvs: &[RemInvReqErr],
                counted: &["rx_wrong_state", "rx_access_fault 1"],
                ..IN_ERR
            },
            ..RC
        },
    ]);
}

#[test]
fn a_queue_pair_that_is_missing_or_in_err_sends_no_response() {
    const RULE: &str = "responder: a QP in ERR or one that does not exist";
    check(&[
        Row {
            name: "the queue pair does not exist",
            rule: RULE,
            setup: Setup { here: |attr| attr.dest_qp = Qpn::new(attr.dest_qp.value() ^ 1), ..SETUP },
            act: |pair| pair.post(WrOp::Send, 8),
            requests: SEND,
            here: NO_RESPONSE,
            there: Expected { counted: &["rx_unknown_qp"], ..NOTHING },
            ..RC
        },
        Row {
            name: "the queue pair is in ERR",
            rule: RULE,
            act: |pair| {
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                pair.there.modify(pair.now, &attr, QpAttrMask::STATE).expect("always legal");
                pair.post(WrOp::Send, 8);
            },
            requests: SEND,
            here: NO_RESPONSE,
            there: Expected { counted: &["rx_wrong_state"], ..IN_ERR },
            ..RC
        },
        Row {
            name: "receive CQ overflow",
            rule: "responder: receive CQ overflow",
            setup: Setup { recv_cqe: 1, ..SETUP },
            act: |pair| {
                pair.receive(64);
                pair.post(WrOp::Send, 8);
                pair.run();
                pair.post(WrOp::Send, 8);
            },
            requests: &["SEND Only 100", "SEND Only 101", "WRITE Only 102"],
            responses: &["ACK 100"],
            here: Expected { sends: &[Success, RetryExcErr, WrFlushErr], ..NO_RESPONSE },
            there: Expected {
                recvs: &[Success],
                events: &[CqErr, QpFatal],
                counted: &["rx_wrong_state"],
                ..IN_ERR
            },
            ..RC
        },
        Row {
            name: "the NAK is lost",
            rule: "responder: if that NAK is lost the peer ends in RETRY_EXC_ERR",
            act: |pair| {
                pair.judge(THERE, |_, _| Fate::IsLost);
                pair.post(WrOp::Send, 65);
            },
            requests: SEND,
            responses: NAK_INVALID,
            here: NO_RESPONSE,
            there: Expected {
                recvs: &[LocLenErr],
                counted: &["rx_wrong_state", "rx_receive_too_small 1"],
                ..IN_ERR
            },
            ..RC
        },
    ]);
}
