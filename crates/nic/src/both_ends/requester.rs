//! The requester's table (IBA 9.9.2): a work request that cannot be executed here, an answer that does not
//! fit, no answer.

use transport::AsyncEventKind::{CqErr, QpFatal};
use transport::WcStatus::{
    BadRespErr, LocLenErr, LocProtErr, LocQpOpErr, MwBindErr, RetryExcErr, RnrRetryExcErr, Success,
    WrFlushErr,
};
use transport::{Access, FastReg, QpAttr, QpAttrMask, QpState, QpType, Sge, WrOp};
use wire::{Lkey, Opcode, Rkey};

use super::cable::Fate;
use super::end::{MTU, OTHER_PD};
use super::pair::{HERE, Pair, Setup, THERE};
use super::row::{NOTHING, Row, Told, fails, show};

const RC: Row = Row::new(QpType::Rc);
const SETUP: Setup = RC.setup;

/// Posts `op` with a local element that was changed.
fn post_with(pair: &mut Pair, op: WrOp, len: usize, change: impl FnOnce(&mut Sge)) {
    let mut sge = pair.here.sge(len);
    change(&mut sge);
    pair.post_sges(op, &[sge]);
}

/// Whatever comes from there has been changed on the way.
fn change_answers(pair: &mut Pair, change: fn(&mut Vec<u8>)) {
    pair.judge(THERE, move |_, packet| {
        change(packet);
        Fate::Arrives
    });
}

#[test]
fn memory_of_its_own_that_does_not_fit_is_a_protection_error() {
    const OF: &str = "requester: bad lkey, out of bounds, missing LOCAL_WRITE, wrong PD";
    const LOCAL: Row =
        Row { of: OF, here: Told { counted: &["send_err 1"], ..fails(&[LocProtErr, WrFlushErr]) }, ..RC };
    show(&[
        Row {
            name: "SEND from memory without a key",
            act: |pair| post_with(pair, WrOp::Send, 8, |sge| sge.lkey.0 ^= 1),
            ..LOCAL
        },
        Row {
            name: "SEND from beyond the region",
            act: |pair| post_with(pair, WrOp::Send, 8, |sge| sge.addr -= 1),
            ..LOCAL
        },
        Row {
            name: "SEND from memory of another domain",
            act: |pair| {
                let foreign = pair.here.grant(OTHER_PD, Access::LOCAL_WRITE);
                pair.post_sges(WrOp::Send, &[Sge { addr: foreign.va, length: 8, lkey: Lkey(foreign.key) }]);
            },
            ..LOCAL
        },
        Row {
            name: "READ into memory that cannot be written",
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
            name: "the result of an atomic into memory without a key",
            act: |pair| {
                let open = pair.there.open;
                post_with(pair, open.add(0), 8, |sge| sge.lkey.0 ^= 1);
            },
            ..LOCAL
        },
        Row {
            name: "... which is reported after what was posted before it",
            of: "requester: WRs complete in posting order",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.read(0), 8);
                post_with(pair, WrOp::Send, 8, |sge| sge.lkey.0 ^= 1);
            },
            asks: &["READ Request 100"],
            answers: &["READ Response Only 100"],
            here: Told { counted: &["send_err 1"], ..fails(&[Success, LocProtErr, WrFlushErr]) },
            ..LOCAL
        },
        Row {
            name: "memory that is taken back while a READ is on its way",
            act: |pair| {
                let target = pair.here.grant(super::end::PD, Access::LOCAL_WRITE);
                let sge = Sge { addr: target.va, length: 8, lkey: Lkey(target.key) };
                let open = pair.there.open;
                pair.post_sges(open.read(0), &[sge]);
                pair.here.run_batch(pair.now);
                pair.here.take_back(target);
            },
            asks: &["READ Request 100", "WRITE Only 101"],
            answers: &["READ Response Only 100", "ACK 101"],
            here: Told { counted: &["rx_wrong_state 1"], ..fails(&[LocProtErr, WrFlushErr]) },
            ..LOCAL
        },
    ]);
}

#[test]
fn what_cannot_be_done_fails_in_its_turn() {
    const OPERATION: Row = Row {
        of: "requester: bind/register/invalidate failure",
        here: Told { counted: &["send_err 1"], ..fails(&[LocQpOpErr, WrFlushErr]) },
        ..RC
    };
    show(&[
        Row {
            name: "READ on a queue pair without any",
            of: "requester: a limit of 0; malformed WQE",
            setup: Setup { here: |attr| attr.max_rd_atomic = 0, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.read(0), 8);
            },
            ..OPERATION
        },
        Row {
            name: "a message longer than 2^31 bytes",
            of: "requester: message longer than max_msg_sz",
            act: |pair| {
                let half = Sge { length: 1 << 30, ..pair.here.sge(0) };
                pair.post_sges(WrOp::Send, &[half, Sge { length: (1 << 30) + 1, ..half }]);
            },
            here: Told { counted: &["send_err 1"], ..fails(&[LocLenErr, WrFlushErr]) },
            ..OPERATION
        },
        Row {
            name: "invalidation of a region that is registered for good",
            act: |pair| {
                let key = Rkey(pair.here.open.key);
                pair.post(WrOp::LocalInv(key), 0);
            },
            ..OPERATION
        },
        Row {
            name: "registration under a key that was not made for it",
            act: |pair| {
                let key = Rkey(pair.here.open.key);
                pair.post(WrOp::RegMr(FastReg { key, iova: 0, access: Access::empty() }), 0);
            },
            ..OPERATION
        },
        Row {
            name: "a window on a region that does not permit it",
            act: Pair::bind_what_does_not_permit_it,
            here: Told { counted: &["send_err 1"], ..fails(&[MwBindErr, WrFlushErr]) },
            ..OPERATION
        },
    ]);
}

#[test]
fn an_answer_that_does_not_fit_ends_the_work_request() {
    const READ: Row = Row {
        of: "requester: READ responses",
        asks: &["READ Request 100", "WRITE Only 101"],
        act: |pair| {
            let open = pair.there.open;
            pair.post(open.read(0), 8);
        },
        ..RC
    };
    show(&[
        Row {
            name: "too little data",
            of: "requester: READ response length mismatch",
            act: |pair| {
                change_answers(pair, |packet| packet.truncate(packet.len() - 4));
                (READ.act)(pair);
            },
            follower: false,
            asks: &["READ Request 100"],
            answers: &["READ Response Only 100"],
            here: fails(&[LocLenErr]),
            ..READ
        },
        Row {
            name: "the result of an atomic for a READ",
            of: "requester: unexpected response opcode",
            act: |pair| {
                change_answers(pair, |packet| packet[0] = Opcode::RC_ATOMIC_ACKNOWLEDGE.0);
                (READ.act)(pair);
            },
            follower: false,
            asks: &["READ Request 100"],
            answers: &["Atomic Acknowledge 100"],
            here: fails(&[BadRespErr]),
            ..READ
        },
        Row {
            name: "First where Only is due",
            of: "requester: expected sequence",
            act: |pair| {
                change_answers(pair, |packet| packet[0] = Opcode::RC_READ_RESPONSE_FIRST.0);
                (READ.act)(pair);
            },
            follower: false,
            asks: &["READ Request 100"],
            answers: &["READ Response First 100"],
            here: fails(&[BadRespErr]),
            ..READ
        },
        Row {
            name: "a syndrome that is reserved, which is no answer",
            of: "requester: Ignore: reserved syndromes",
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
            asks: &["SEND Only 100"],
            answers: &["Reserved (0x45) 100", "ACK 100"],
            here: Told {
                sends: &[Success],
                counted: &["rx_reserved_syndrome 1", "ignored_responses 1"],
                ..NOTHING
            },
            there: Told { recvs: &[Success], counted: &["duplicate_request 1"], ..NOTHING },
            ..READ
        },
    ]);
}

#[test]
fn who_is_not_answered_asks_as_often_as_it_was_told_and_gives_up() {
    show(&[
        Row {
            name: "nothing arrives",
            of: "requester: timeouts exhausted; 7 means seven",
            act: |pair| {
                pair.judge(HERE, |_, _| Fate::IsLost);
                pair.post(WrOp::Send, 8);
            },
            asks: &["SEND Only 100", "WRITE Only 101"],
            here: Told {
                counted: &["retry_exceeded_err 1", "local_ack_timeout_err 8"],
                ..fails(&[RetryExcErr, WrFlushErr])
            },
            ..RC
        },
        Row {
            name: "no retries",
            of: "requester: retry counter is 0",
            setup: Setup { here: |attr| attr.retry_cnt = 0, ..SETUP },
            act: |pair| {
                pair.judge(HERE, |_, _| Fate::IsLost);
                pair.post(WrOp::Send, 8);
            },
            asks: &["SEND Only 100", "WRITE Only 101"],
            here: Told {
                counted: &["retry_exceeded_err 1", "local_ack_timeout_err 1"],
                ..fails(&[RetryExcErr, WrFlushErr])
            },
            ..RC
        },
        Row {
            name: "never a receive",
            of: "requester: RNR retries exhausted",
            setup: Setup { here: |attr| attr.rnr_retry = 2, ..SETUP },
            room: None,
            act: |pair| pair.post(WrOp::Send, 8),
            follower: false,
            asks: &["SEND Only 100"],
            answers: &["RNR NAK Timer=0.64 ms 100"; 3],
            here: Told {
                counted: &["rcvd_rnr_err 3", "retry_rnr_exceeded_err 1"],
                ..fails(&[RnrRetryExcErr])
            },
            there: Told { counted: &["rx_no_receive 3", "send_rnr_err 3"], ..NOTHING },
        },
        Row {
            name: "its own ERR",
            of: "requester: QP in ERR",
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(0), 8);
                pair.here.run_batch(pair.now);
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                pair.here.modify(pair.now, &attr, QpAttrMask::STATE).expect("always legal");
            },
            asks: &["WRITE Only 100"],
            answers: &["ACK 100"],
            here: Told { counted: &["rx_wrong_state 1"], ..fails(&[WrFlushErr, WrFlushErr]) },
            ..RC
        },
        Row {
            name: "a CQ for sends that is full",
            of: "queues: overflow",
            setup: Setup { send_cqe: 1, ..SETUP },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(0), 8);
            },
            asks: &["WRITE Only 100", "WRITE Only 101"],
            answers: &["ACK 101"],
            here: Told { events: &[CqErr, QpFatal], ..fails(&[Success]) },
            ..RC
        },
        Row {
            name: "a message of several packets of which one is lost again and again",
            of: "requester: NAK 0x60: repeated NAKs for the same PSN end some time",
            act: |pair| {
                pair.judge(HERE, |_, packet| if packet[11] == 101 { Fate::IsLost } else { Fate::Arrives });
                let open = pair.there.open;
                pair.post(open.write(0), 3 * MTU);
            },
            follower: false,
            asks: &["WRITE First 100", "WRITE Middle 101", "WRITE Last 102"],
            answers: &["NAK PSN sequence error 101"],
            here: Told {
                counted: &["rcvd_seq_err 1", "retry_exceeded_err 1", "local_ack_timeout_err 8"],
                ..fails(&[RetryExcErr])
            },
            there: Told { counted: &["out_of_seq_request", "kept_request 1", "send_seq_err 1"], ..NOTHING },
            ..RC
        },
    ]);
}

/// The flow has room for 80 packets of 1024 bytes, of which a QP without a rate uses a burst of 62, whose
/// last one asks.
#[test]
fn a_window_that_a_rate_fills_one_by_one_asks_before_it_is_full() {
    let mut pair = Pair::new(&SETUP);
    pair.cable.set_window(80 * MTU);
    let limit = QpAttr { rate_limit: 1_000_000, ..QpAttr::default() };
    pair.here.modify(pair.now, &limit, QpAttrMask::RATE_LIMIT).expect("a limit");
    let open = pair.there.open;
    for _ in 0..4 {
        pair.post(open.write(0), 48 * MTU);
    }
    pair.run();
    let here = pair.here.look();
    assert_eq!(here.sends, [Success; 4]);
    let overdue = ["probes", "retransmitted_pkts"];
    let again: Vec<_> =
        here.counted.iter().filter(|said| overdue.iter().any(|name| said.starts_with(name))).collect();
    assert!(again.is_empty(), "{again:?}");
}

/// 62 packets of 1024 bytes make a burst.
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
        // The first is the ACK of the WRITE.
        assert_eq!(pair.cable.handed_over_by(THERE)[1..], *bursts, "a READ of {packets} packets");
        assert_eq!(pair.here.look().sends, [Success; 2]);
    }
}

#[test]
fn only_a_queue_pair_that_may_send_waits_for_room_in_the_port() {
    for (state, port_full_count) in [(QpState::Sqd, 0), (QpState::Rts, 1)] {
        let mut pair = Pair::new(&SETUP);
        let index = pair.here.qpn.value() as u16;
        let enter = |pair: &mut Pair, state| {
            let attr = QpAttr { state, ..QpAttr::default() };
            pair.here.modify(pair.now, &attr, QpAttrMask::STATE).expect("permitted");
        };
        enter(&mut pair, state);
        pair.post(pair.there.open.write(0), 8);
        pair.cable.set_full(true);
        pair.here.core.update_after_post(pair.now, index, true);
        assert_eq!(pair.here.core.tables.port_full_count(), port_full_count, "{state:?}");
        assert!(pair.cable.is_empty());

        pair.cable.set_full(false);
        enter(&mut pair, QpState::Rts);
        pair.run();
        assert_eq!(pair.here.look().sends, [Success]);
    }
}
