//! The fault table of the requester (IBA 9.9.2): a work request that it cannot execute, a wrong response, and
//! a missing response.

use transport::AsyncEventKind::{CqErr, QpFatal};
use transport::WcStatus::{
    BadRespErr, LocLenErr, LocProtErr, LocQpOpErr, MwBindErr, RetryExcErr, RnrRetryExcErr, Success,
    WrFlushErr,
};
use transport::numbering::place_of;
use transport::{Access, FastReg, QpAttr, QpAttrMask, QpState, QpType, Sge, WrOp};
use wire::{Lkey, Opcode, Rkey};

use super::cable::Fate;
use super::end::{MTU, OTHER_PD};
use super::pair::{HERE, Pair, Setup, THERE};
use super::row::{Expected, NOTHING, Row, check, fails};

const RC: Row = Row::new(QpType::Rc);
const SETUP: Setup = RC.setup;

/// Posts `op` with a local scatter/gather element that `change` has modified.
fn post_with(pair: &mut Pair, op: WrOp, len: usize, change: impl FnOnce(&mut Sge)) {
    let mut sge = pair.here.sge(len);
    change(&mut sge);
    pair.post_sges(op, &[sge]);
}

/// Applies `change` to each packet of the responder.
fn change_responses(pair: &mut Pair, change: fn(&mut Vec<u8>)) {
    pair.judge(THERE, move |_, packet| {
        change(packet);
        Fate::Arrives
    });
}

#[test]
fn local_memory_errors_complete_the_work_request_with_loc_prot_err() {
    const RULE: &str = "requester: bad lkey, out of bounds, missing LOCAL_WRITE, wrong PD";
    const LOCAL: Row = Row {
        rule: RULE,
        here: Expected { counted: &["send_err 1"], ..fails(&[LocProtErr, WrFlushErr]) },
        ..RC
    };
    check(&[
        Row {
            name: "SEND with an unknown L_Key",
            act: |pair| post_with(pair, WrOp::Send, 8, |sge| sge.lkey.0 ^= 1),
            ..LOCAL
        },
        Row {
            name: "SEND from outside the region",
            act: |pair| post_with(pair, WrOp::Send, 8, |sge| sge.addr -= 1),
            ..LOCAL
        },
        Row {
            name: "SEND from memory of another protection domain",
            act: |pair| {
                let foreign = pair.here.grant(OTHER_PD, Access::LOCAL_WRITE);
                pair.post_sges(WrOp::Send, &[Sge { addr: foreign.va, length: 8, lkey: Lkey(foreign.key) }]);
            },
            ..LOCAL
        },
        Row {
            name: "READ into memory without LOCAL_WRITE",
            act: |pair| {
                let readable = pair.here.grant(super::end::PD, Access::REMOTE_READ);
                let open = pair.there.open;
                pair.post_sges(
                    open.read(0),
                    &[Sge { addr: readable.va, length: 8, lkey: Lkey(readable.key) }],
                );
            },
            ..LOCAL
        },
        Row {
            name: "atomic with a result buffer without a key",
            act: |pair| {
                let open = pair.there.open;
                post_with(pair, open.add(0), 8, |sge| sge.lkey.0 ^= 1);
            },
            ..LOCAL
        },
        Row {
            name: "a local error is reported after the READ posted before it",
            rule: "requester: WRs complete in posting order",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.read(0), 8);
                post_with(pair, WrOp::Send, 8, |sge| sge.lkey.0 ^= 1);
            },
            requests: &["READ Request 100"],
            responses: &["READ Response Only 100"],
            here: Expected { counted: &["send_err 1"], ..fails(&[Success, LocProtErr, WrFlushErr]) },
            ..LOCAL
        },
        Row {
            name: "memory that is deregistered while a READ is in flight",
            act: |pair| {
                let target = pair.here.grant(super::end::PD, Access::LOCAL_WRITE);
                let sge = Sge { addr: target.va, length: 8, lkey: Lkey(target.key) };
                let open = pair.there.open;
                pair.post_sges(open.read(0), &[sge]);
                pair.here.run_batch(pair.now);
                pair.here.deregister(target);
            },
            requests: &["READ Request 100", "WRITE Only 101"],
            responses: &["READ Response Only 100", "ACK 101"],
            here: Expected { counted: &["rx_wrong_state 1"], ..fails(&[LocProtErr, WrFlushErr]) },
            ..LOCAL
        },
    ]);
}

#[test]
fn work_requests_that_cannot_be_executed_complete_with_a_local_error() {
    const OPERATION: Row = Row {
        rule: "requester: bind/register/invalidate failure",
        here: Expected { counted: &["send_err 1"], ..fails(&[LocQpOpErr, WrFlushErr]) },
        ..RC
    };
    check(&[
        Row {
            name: "READ on a queue pair with max_rd_atomic 0",
            rule: "requester: a limit of 0; malformed WQE",
            setup: Setup { here: |attr| attr.max_rd_atomic = 0, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.read(0), 8);
            },
            ..OPERATION
        },
        Row {
            name: "a message longer than 2^31 bytes",
            rule: "requester: message longer than max_msg_sz",
            act: |pair| {
                let half = Sge { length: 1 << 30, ..pair.here.sge(0) };
                pair.post_sges(WrOp::Send, &[half, Sge { length: (1 << 30) + 1, ..half }]);
            },
            here: Expected { counted: &["send_err 1"], ..fails(&[LocLenErr, WrFlushErr]) },
            ..OPERATION
        },
        Row {
            name: "LOCAL_INV of a region that cannot be invalidated",
            act: |pair| {
                let key = Rkey(pair.here.open.key);
                pair.post(WrOp::LocalInv(key), 0);
            },
            ..OPERATION
        },
        Row {
            name: "REG_MR with a key that is not for fast registration",
            act: |pair| {
                let key = Rkey(pair.here.open.key);
                pair.post(WrOp::RegMr(FastReg { key, iova: 0, access: Access::empty() }), 0);
            },
            ..OPERATION
        },
        Row {
            name: "bind of a window to a region without MW_BIND",
            act: Pair::bind_window_without_mw_bind,
            here: Expected { counted: &["send_err 1"], ..fails(&[MwBindErr, WrFlushErr]) },
            ..OPERATION
        },
    ]);
}

#[test]
fn a_wrong_response_ends_the_work_request_and_a_reserved_syndrome_is_ignored() {
    const READ: Row = Row {
        rule: "requester: READ responses",
        requests: &["READ Request 100", "WRITE Only 101"],
        act: |pair| {
            let open = pair.there.open;
            pair.post(open.read(0), 8);
        },
        ..RC
    };
    check(&[
        Row {
            name: "READ response that is too short",
            rule: "requester: READ response length mismatch",
            act: |pair| {
                change_responses(pair, |packet| packet.truncate(packet.len() - 4));
                (READ.act)(pair);
            },
            follower: false,
            requests: &["READ Request 100"],
            responses: &["READ Response Only 100"],
            here: fails(&[LocLenErr]),
            ..READ
        },
        Row {
            name: "atomic acknowledgement in response to a READ",
            rule: "requester: unexpected response opcode",
            act: |pair| {
                change_responses(pair, |packet| packet[0] = Opcode::RC_ATOMIC_ACKNOWLEDGE.0);
                (READ.act)(pair);
            },
            follower: false,
            requests: &["READ Request 100"],
            responses: &["Atomic Acknowledge 100"],
            here: fails(&[BadRespErr]),
            ..READ
        },
        Row {
            name: "READ Response First instead of Only",
            rule: "requester: expected sequence",
            act: |pair| {
                change_responses(pair, |packet| packet[0] = Opcode::RC_READ_RESPONSE_FIRST.0);
                (READ.act)(pair);
            },
            follower: false,
            requests: &["READ Request 100"],
            responses: &["READ Response First 100"],
            here: fails(&[BadRespErr]),
            ..READ
        },
        Row {
            name: "an ACK with a reserved syndrome",
            rule: "requester: Ignore: reserved syndromes",
            act: |pair| {
                pair.judge(THERE, |before, packet| {
                    if before == 0 {
                        packet[12] = 0x45;
                    }
                    Fate::Arrives
                });
                pair.post(WrOp::Send, 8);
            },
            follower: false,
            requests: &["SEND Only 100"],
            responses: &["Reserved (0x45) 100", "ACK 100"],
            here: Expected {
                sends: &[Success],
                counted: &["rx_reserved_syndrome 1", "ignored_responses 1"],
                ..NOTHING
            },
            there: Expected { recvs: &[Success], counted: &["duplicate_request 1"], ..NOTHING },
            ..READ
        },
    ]);
}

#[test]
fn requests_fail_after_retry_cnt_or_rnr_retry_retransmissions() {
    check(&[
        Row {
            name: "all requests are lost",
            rule: "requester: timeouts exhausted; 7 means seven",
            act: |pair| {
                pair.judge(HERE, |_, _| Fate::IsLost);
                pair.post(WrOp::Send, 8);
            },
            requests: &["SEND Only 100", "WRITE Only 101"],
            here: Expected {
                counted: &["retry_exceeded_err 1", "local_ack_timeout_err 8"],
                ..fails(&[RetryExcErr, WrFlushErr])
            },
            ..RC
        },
        Row {
            name: "retry_cnt 0, all requests are lost",
            rule: "requester: retry counter is 0",
            setup: Setup { here: |attr| attr.retry_cnt = 0, ..SETUP },
            act: |pair| {
                pair.judge(HERE, |_, _| Fate::IsLost);
                pair.post(WrOp::Send, 8);
            },
            requests: &["SEND Only 100", "WRITE Only 101"],
            here: Expected {
                counted: &["retry_exceeded_err 1", "local_ack_timeout_err 1"],
                ..fails(&[RetryExcErr, WrFlushErr])
            },
            ..RC
        },
        Row {
            name: "the responder never has a receive",
            rule: "requester: RNR retries exhausted",
            setup: Setup { here: |attr| attr.rnr_retry = 2, ..SETUP },
            receive_len: None,
            act: |pair| pair.post(WrOp::Send, 8),
            follower: false,
            requests: &["SEND Only 100"],
            responses: &["RNR NAK Timer=0.64 ms 100"; 3],
            here: Expected {
                counted: &["rcvd_rnr_err 3", "retry_rnr_exceeded_err 1"],
                ..fails(&[RnrRetryExcErr])
            },
            there: Expected { counted: &["rx_no_receive 3", "send_rnr_err 3"], ..NOTHING },
        },
        Row {
            name: "one packet of a message is lost each time",
            rule: "requester: NAK 0x60: repeated NAKs for the same PSN end some time",
            act: |pair| {
                pair.judge(HERE, |_, packet| if packet[11] == 101 { Fate::IsLost } else { Fate::Arrives });
                let open = pair.there.open;
                pair.post(open.write(0), 3 * MTU);
            },
            follower: false,
            requests: &["WRITE First 100", "WRITE Middle 101", "WRITE Last 102"],
            responses: &["NAK PSN sequence error 101"],
            here: Expected {
                counted: &["rcvd_seq_err 1", "retry_exceeded_err 1", "local_ack_timeout_err 8"],
                ..fails(&[RetryExcErr])
            },
            there: Expected {
                counted: &["out_of_seq_request", "kept_request 1", "send_seq_err 1"],
                ..NOTHING
            },
            ..RC
        },
    ]);
}

#[test]
fn err_state_and_a_full_send_cq_stop_the_send_queue() {
    check(&[
        Row {
            name: "modify_qp to ERR",
            rule: "requester: QP in ERR",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(0), 8);
                pair.here.run_batch(pair.now);
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                pair.here.modify(pair.now, &attr, QpAttrMask::STATE).expect("always legal");
            },
            requests: &["WRITE Only 100"],
            responses: &["ACK 100"],
            here: Expected { counted: &["rx_wrong_state 1"], ..fails(&[WrFlushErr, WrFlushErr]) },
            ..RC
        },
        Row {
            name: "send CQ overflow",
            rule: "queues: overflow",
            setup: Setup { send_cqe: 1, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(0), 8);
            },
            requests: &["WRITE Only 100", "WRITE Only 101"],
            responses: &["ACK 101"],
            here: Expected { events: &[CqErr, QpFatal], ..fails(&[Success]) },
            ..RC
        },
    ]);
}

/// The flow window holds 80 packets of 1024 bytes. A QP without a rate limit sends one burst of 62; its
/// last packet sets AckReq.
#[test]
fn a_rate_limited_qp_sets_ack_req_before_its_window_is_full() {
    let mut pair = Pair::new(&SETUP);
    pair.cable.set_window(80 * MTU);
    let limit = QpAttr { rate_limit: 1_000_000, ..QpAttr::default() };
    pair.here.modify(pair.now, &limit, QpAttrMask::RATE_LIMIT).expect("a limit");
    let open = pair.there.open;
    for _ in 0..4 {
        pair.post(open.write(0), 48 * MTU);
    }
    pair.run();
    let here = pair.here.observe();
    assert_eq!(here.sends, [Success; 4]);
    let timed_out = ["probes", "retransmitted_pkts"];
    let again: Vec<_> = here
        .counted
        .iter()
        .filter(|described| timed_out.iter().any(|name| described.starts_with(name)))
        .collect();
    assert!(again.is_empty(), "{again:?}");
}

/// A burst is 62 packets of 1024 bytes.
#[test]
fn a_message_of_two_bursts_leaves_in_two_halves() {
    for (packets, bursts) in [(62, &[62][..]), (63, &[32, 31]), (64, &[32, 32])] {
        let mut pair = Pair::new(&SETUP);
        let open = pair.there.open;
        pair.post(open.write(0), packets * MTU);
        pair.run();
        assert_eq!(pair.cable.handed_over_by(HERE), bursts, "a WRITE of {packets} packets");
        pair.post(open.read(0), packets * MTU);
        pair.run();
        // The first packet is the ACK of the WRITE.
        assert_eq!(pair.cable.handed_over_by(THERE)[1..], *bursts, "a READ of {packets} packets");
        assert_eq!(pair.here.observe().sends, [Success; 2]);
    }
}

#[test]
fn only_a_queue_pair_in_rts_waits_for_a_full_transmit_queue() {
    for (state, port_full_count) in [(QpState::Sqd, 0), (QpState::Rts, 1)] {
        let mut pair = Pair::new(&SETUP);
        let index = place_of(pair.here.qpn);
        let enter = |pair: &mut Pair, state| {
            let attr = QpAttr { state, ..QpAttr::default() };
            pair.here.modify(pair.now, &attr, QpAttrMask::STATE).expect("permitted");
        };
        enter(&mut pair, state);
        pair.post(pair.there.open.write(0), 8);
        pair.cable.set_full(true);
        let now = pair.now;
        pair.here.core.post(|| now, index, 1);
        assert_eq!(pair.here.core.tables.port_full_count(), port_full_count, "{state:?}");
        assert!(pair.cable.is_empty());

        pair.cable.set_full(false);
        enter(&mut pair, QpState::Rts);
        pair.run();
        assert_eq!(pair.here.observe().sends, [Success]);
    }
}
