//! UC and UD (IBA 9.8.2, 9.8.3, 10.3.1): the sender never learns whether a message arrived. A local error
//! stops only the send queue (SQE), and `ibv_modify_qp` restarts it.

use transport::WcStatus::{LocLenErr, LocProtErr, MwBindErr, Success, WrFlushErr};
use transport::{Access, Dest, QpState, QpType, Sge, WrOp};
use wire::{Lkey, QKey};

use super::cable::Fate;
use super::end::{Granted, MTU, Q_KEY};
use super::pair::{HERE, Pair, Setup};
use super::row::{Expected, NOTHING, Row, check};

const UC: Row = Row::new(QpType::Uc);
const UD: Row = Row { receive_len: Some(104), ..Row::new(QpType::Ud) };
/// At the sender: both messages complete when they have left.
const SENT: Expected = Expected { sends: &[Success, Success], ..NOTHING };
const ONE_DROPPED: &str = "uc_dropped_messages 1";

fn lose(pair: &mut Pair, nth: usize) {
    pair.judge(HERE, move |before, _| if before == nth { Fate::IsLost } else { Fate::Arrives });
}

#[test]
fn uc_drops_requests_that_it_cannot_execute_and_the_sender_sees_success() {
    const RULE: &str = "UC: no receive WQE, key error, access flag missing, length error";
    check(&[
        Row {
            name: "SEND without a receive",
            rule: RULE,
            receive_len: None,
            act: |pair| pair.post(WrOp::Send, 8),
            requests: &["SEND Only 100", "WRITE Only 101"],
            here: SENT,
            there: Expected { counted: &["rx_no_receive 1", ONE_DROPPED], ..NOTHING },
            ..UC
        },
        Row {
            name: "WRITE with Immediate without a receive for its last packet",
            rule: "UC: WRITE w/ Imm is lost if its last packet finds no WQE",
            receive_len: None,
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write_imm(0), 2 * MTU);
            },
            requests: &["WRITE First 100", "WRITE Last Immediate 101", "WRITE Only 102"],
            here: SENT,
            there: Expected { counted: &["rx_no_receive 1", ONE_DROPPED], ..NOTHING },
            ..UC
        },
        Row {
            name: "SEND longer than the receive, which is not consumed",
            rule: RULE,
            act: |pair| pair.post(WrOp::Send, 65),
            requests: &["SEND Only 100", "WRITE Only 101"],
            here: SENT,
            there: Expected { counted: &["rx_receive_too_small 1", ONE_DROPPED], ..NOTHING },
            ..UC
        },
        Row {
            name: "WRITE with an unknown R_Key",
            rule: RULE,
            act: |pair| {
                let open = pair.there.open;
                pair.post(Granted { key: open.key ^ 1, ..open }.write(0), 8);
            },
            requests: &["WRITE Only 100", "WRITE Only 101"],
            here: SENT,
            there: Expected { counted: &["rx_access_fault 1", ONE_DROPPED], ..NOTHING },
            ..UC
        },
        Row {
            name: "two WRITEs to a queue pair without REMOTE_WRITE",
            rule: RULE,
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_WRITE, ..UC.setup },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(0), 8);
            },
            requests: &["WRITE Only 100", "WRITE Only 101"],
            here: SENT,
            there: Expected { counted: &["rx_access_fault 2", "uc_dropped_messages 2"], ..NOTHING },
            ..UC
        },
    ]);
}

#[test]
fn a_faulty_uc_receive_completes_in_error_and_the_sender_sees_success() {
    check(&[Row {
        name: "receive with an unknown L_Key",
        rule: "UC: receive WQE with bad lkey",
        receive_len: None,
        act: |pair| {
            let sge = pair.there.sge(64);
            pair.there.post_recv(&[Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }]);
            pair.post(WrOp::Send, 8);
        },
        requests: &["SEND Only 100", "WRITE Only 101"],
        here: SENT,
        there: Expected {
            recvs: &[LocProtErr],
            state: QpState::Err,
            counted: &["rx_wrong_state 1", "rx_access_fault 1"],
            ..NOTHING
        },
        ..UC
    }]);
}

#[test]
fn an_incomplete_uc_message_is_dropped_and_its_receive_is_reused() {
    const SEND: Row = Row {
        rule: "UC: PSN mismatch: dropping until First/Only; the receive WQE is reused",
        receive_len: Some(4 * MTU),
        follower: false,
        requests: &["SEND First 100", "SEND Middle 101", "SEND Last 102", "SEND Only 103"],
        here: SENT,
        ..UC
    };
    check(&[
        Row {
            name: "First is lost",
            act: |pair| {
                lose(pair, 0);
                pair.post(WrOp::Send, 3 * MTU);
                pair.post(WrOp::Send, 8);
            },
            there: Expected { recvs: &[Success], counted: &["rx_uc_incomplete 2"], ..NOTHING },
            ..SEND
        },
        Row {
            name: "Middle is lost",
            act: |pair| {
                lose(pair, 1);
                pair.post(WrOp::Send, 3 * MTU);
                pair.post(WrOp::Send, 8);
            },
            there: Expected { recvs: &[Success], counted: &["rx_uc_incomplete 1", ONE_DROPPED], ..NOTHING },
            ..SEND
        },
        Row {
            name: "Last is lost",
            rule: "UC: a new First/Only in the middle of a message: abandon the old, process the new",
            act: |pair| {
                lose(pair, 2);
                pair.post(WrOp::Send, 3 * MTU);
                pair.post(WrOp::Send, 8);
            },
            there: Expected { recvs: &[Success], counted: &[ONE_DROPPED], ..NOTHING },
            ..SEND
        },
    ]);
}

#[test]
fn a_local_error_on_uc_or_ud_enters_sqe_and_modify_qp_leaves_it() {
    const SQE: Expected = Expected {
        sends: &[LocProtErr, WrFlushErr],
        state: QpState::Sqe,
        counted: &["send_err 1"],
        ..NOTHING
    };
    const RULE: &str = "requester: On UC/UD a local send error leads to SQE";
    check(&[
        Row {
            name: "UC: SEND with an unknown L_Key",
            rule: RULE,
            act: |pair| {
                let sge = pair.here.sge(8);
                pair.post_sges(WrOp::Send, &[Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }]);
            },
            here: SQE,
            ..UC
        },
        Row {
            name: "UC: a message longer than 2^31 bytes",
            rule: RULE,
            act: |pair| {
                let half = Sge { length: 1 << 30, ..pair.here.sge(0) };
                pair.post_sges(WrOp::Send, &[half, Sge { length: (1 << 30) + 1, ..half }]);
            },
            here: Expected { sends: &[LocLenErr, WrFlushErr], ..SQE },
            ..UC
        },
        Row {
            name: "UC: bind of a window to a region without MW_BIND",
            rule: RULE,
            act: Pair::bind_window_without_mw_bind,
            here: Expected { sends: &[MwBindErr, WrFlushErr], ..SQE },
            ..UC
        },
        Row {
            name: "UD: SEND with an unknown L_Key",
            rule: RULE,
            act: |pair| {
                let sge = pair.here.sge(8);
                pair.post_sges(WrOp::Send, &[Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }]);
            },
            here: SQE,
            ..UD
        },
    ]);
}

/// At the receiver: only the empty message of the follower takes a receive.
const FOLLOWER_ARRIVES: Expected = Expected { recvs: &[Success], ..NOTHING };
const DATAGRAM: Row =
    Row { rule: "UD: receive drop rules", requests: &["SEND Only 100", "SEND Only 101"], here: SENT, ..UD };

#[test]
fn ud_drops_datagrams_with_a_wrong_key_or_without_a_fitting_receive() {
    check(&[
        Row {
            name: "wrong Q_Key",
            act: |pair| {
                let usual = pair.here.dest;
                if let Some(Dest::Ud(dest)) = &mut pair.here.dest {
                    dest.remote_qkey = QKey(Q_KEY.0 ^ 1);
                }
                pair.post(WrOp::Send, 8);
                pair.here.dest = usual;
            },
            there: Expected { counted: &["qkey_viol_cntr 1"], ..FOLLOWER_ARRIVES },
            ..DATAGRAM
        },
        Row {
            name: "wrong P_Key",
            act: |pair| {
                pair.judge(HERE, |before, packet| {
                    if before == 0 {
                        packet[2..4].copy_from_slice(&[0x92, 0x34]);
                    }
                    Fate::Arrives
                });
                pair.post(WrOp::Send, 8);
            },
            there: Expected { counted: &["bad_pkey_cntr 1"], ..FOLLOWER_ARRIVES },
            ..DATAGRAM
        },
        Row {
            name: "no receive",
            receive_len: None,
            act: |pair| pair.post(WrOp::Send, 8),
            there: Expected { counted: &["rx_no_receive 2", "rcvd_no_wqe 2"], ..NOTHING },
            ..DATAGRAM
        },
        Row {
            name: "receive too small for the GRH area",
            receive_len: Some(47),
            act: |pair| pair.post(WrOp::Send, 8),
            there: Expected { counted: &["rx_receive_too_small 1", "rcvd_no_wqe 1"], ..FOLLOWER_ARRIVES },
            ..DATAGRAM
        },
    ]);
}

#[test]
fn a_ud_message_longer_than_the_path_mtu_is_not_sent() {
    check(&[Row {
        name: "SEND longer than the path MTU",
        rule: "UD: C10-93.1.1",
        act: |pair| pair.post(WrOp::Send, MTU + 1),
        requests: &["SEND Only 101"],
        here: Expected { counted: &["ud_send_too_long 1"], ..SENT },
        there: FOLLOWER_ARRIVES,
        ..DATAGRAM
    }]);
}

#[test]
fn a_q_key_with_the_high_bit_is_replaced_by_that_of_the_sender() {
    check(&[Row {
        name: "Q_Key of the sender, selected by the high bit",
        rule: "UD: the high bit of the WR's Q_Key; IBA 10.2.5",
        act: |pair| {
            if let Some(Dest::Ud(dest)) = &mut pair.here.dest {
                dest.remote_qkey = QKey(0x8000_0000);
            }
            pair.receive(40);
            pair.post(WrOp::Send, 8);
        },
        there: Expected { recvs: &[Success, Success], ..NOTHING },
        ..DATAGRAM
    }]);
}

#[test]
fn a_faulty_ud_receive_completes_in_error_and_the_sender_sees_success() {
    check(&[Row {
        name: "receive with an unknown L_Key",
        rule: "UD: receive WQE with bad lkey",
        receive_len: None,
        act: |pair| {
            let sge = pair.there.sge(64);
            pair.there.post_recv(&[Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }]);
            pair.post(WrOp::Send, 8);
        },
        there: Expected {
            recvs: &[LocProtErr],
            state: QpState::Err,
            counted: &["rx_wrong_state 1"],
            ..NOTHING
        },
        ..DATAGRAM
    }]);
}
