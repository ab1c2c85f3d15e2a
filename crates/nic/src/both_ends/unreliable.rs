//! UC and UD (IBA 9.8.2, 9.8.3, 10.3.1): the sender never learns what became of a message, and a local
//! error stops its send queue only (SQE), which `ibv_modify_qp` starts again.

use transport::WcStatus::{LocLenErr, LocProtErr, MwBindErr, Success, WrFlushErr};
use transport::{Access, Dest, QpState, QpType, Sge, WrOp};
use wire::{Lkey, QKey};

use super::cable::Fate;
use super::end::{Granted, MTU, Q_KEY};
use super::pair::{HERE, Pair, Setup};
use super::row::{NOTHING, Row, Told, show};

const UC: Row = Row::new(QpType::Uc);
const UD: Row = Row { room: Some(104), ..Row::new(QpType::Ud) };
/// Here: sent is sent.
const SENT: Told = Told { sends: &[Success, Success], ..NOTHING };
const ONE_DROPPED: &str = "uc_dropped_messages 1";

fn lose(pair: &mut Pair, nth: usize) {
    pair.judge(HERE, move |before, _| if before == nth { Fate::IsLost } else { Fate::Arrives });
}

#[test]
fn what_does_not_fit_is_dropped_by_uc_and_nobody_is_told() {
    const OF: &str = "UC: no receive WQE, key error, access flag missing, length error";
    show(&[
        Row {
            name: "SEND without a receive",
            of: OF,
            room: None,
            act: |pair| pair.post(WrOp::Send, 8),
            asks: &["SEND Only 100", "WRITE Only 101"],
            here: SENT,
            there: Told { counted: &["rx_no_receive 1", ONE_DROPPED], ..NOTHING },
            ..UC
        },
        Row {
            name: "the end of a WRITE with Immediate without a receive",
            of: "UC: WRITE w/ Imm whose last packet finds no WQE is lost",
            room: None,
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write_imm(0), 2 * MTU);
            },
            asks: &["WRITE First 100", "WRITE Last Immediate 101", "WRITE Only 102"],
            here: SENT,
            there: Told { counted: &["rx_no_receive 1", ONE_DROPPED], ..NOTHING },
            ..UC
        },
        Row {
            name: "SEND longer than the receive, which stays",
            of: OF,
            act: |pair| pair.post(WrOp::Send, 65),
            asks: &["SEND Only 100", "WRITE Only 101"],
            here: SENT,
            there: Told { counted: &["rx_receive_too_small 1", ONE_DROPPED], ..NOTHING },
            ..UC
        },
        Row {
            name: "WRITE with a key that was never given",
            of: OF,
            act: |pair| {
                let open = pair.there.open;
                pair.post(Granted { key: open.key ^ 1, ..open }.write(0), 8);
            },
            asks: &["WRITE Only 100", "WRITE Only 101"],
            here: SENT,
            there: Told { counted: &["rx_access_fault 1", ONE_DROPPED], ..NOTHING },
            ..UC
        },
        Row {
            name: "WRITE that the queue pair does not permit, and the empty one behind it",
            of: OF,
            setup: Setup { there: |attr| attr.access -= Access::REMOTE_WRITE, ..UC.setup },
            act: |pair| {
                let open = pair.there.open;
                pair.post(open.write(0), 8);
            },
            asks: &["WRITE Only 100", "WRITE Only 101"],
            here: SENT,
            there: Told { counted: &["rx_access_fault 2", "uc_dropped_messages 2"], ..NOTHING },
            ..UC
        },
    ]);
}

#[test]
fn a_receive_of_uc_that_is_to_blame_is_completed_and_the_peer_learns_nothing() {
    show(&[Row {
        name: "a receive into memory without a key",
        of: "UC: receive WQE with bad lkey",
        room: None,
        act: |pair| {
            let sge = pair.there.sge(64);
            pair.there.post_recv(&[Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }]);
            pair.post(WrOp::Send, 8);
        },
        asks: &["SEND Only 100", "WRITE Only 101"],
        here: SENT,
        there: Told {
            recvs: &[LocProtErr],
            state: QpState::Err,
            counted: &["rx_wrong_state 1", "rx_access_fault 1"],
            ..NOTHING
        },
        ..UC
    }]);
}

#[test]
fn a_uc_message_that_is_not_whole_is_dropped_and_its_receive_used_again() {
    const SEND: Row = Row {
        of: "UC: PSN mismatch: dropping until First/Only; the receive WQE is reused",
        room: Some(4 * MTU),
        follower: false,
        asks: &["SEND First 100", "SEND Middle 101", "SEND Last 102", "SEND Only 103"],
        here: SENT,
        ..UC
    };
    show(&[
        Row {
            name: "First is lost",
            act: |pair| {
                lose(pair, 0);
                pair.post(WrOp::Send, 3 * MTU);
                pair.post(WrOp::Send, 8);
            },
            there: Told { recvs: &[Success], counted: &["rx_uc_incomplete 2"], ..NOTHING },
            ..SEND
        },
        Row {
            name: "Middle is lost",
            act: |pair| {
                lose(pair, 1);
                pair.post(WrOp::Send, 3 * MTU);
                pair.post(WrOp::Send, 8);
            },
            there: Told { recvs: &[Success], counted: &["rx_uc_incomplete 1", ONE_DROPPED], ..NOTHING },
            ..SEND
        },
        Row {
            name: "Last is lost",
            of: "UC: a new First/Only in the middle of a message: abandon the old, process the new",
            act: |pair| {
                lose(pair, 2);
                pair.post(WrOp::Send, 3 * MTU);
                pair.post(WrOp::Send, 8);
            },
            there: Told { recvs: &[Success], counted: &[ONE_DROPPED], ..NOTHING },
            ..SEND
        },
    ]);
}

#[test]
fn a_local_error_on_uc_or_ud_stops_the_send_queue_until_it_is_told_to_go_on() {
    const SQE: Told =
        Told { sends: &[LocProtErr, WrFlushErr], state: QpState::Sqe, counted: &["send_err 1"], ..NOTHING };
    const OF: &str = "requester: On UC/UD a local send error leads to SQE";
    show(&[
        Row {
            name: "UC: SEND from memory without a key",
            of: OF,
            act: |pair| {
                let sge = pair.here.sge(8);
                pair.post_sges(WrOp::Send, &[Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }]);
            },
            here: SQE,
            ..UC
        },
        Row {
            name: "UC: a message longer than 2^31 bytes",
            of: OF,
            act: |pair| {
                let half = Sge { length: 1 << 30, ..pair.here.sge(0) };
                pair.post_sges(WrOp::Send, &[half, Sge { length: (1 << 30) + 1, ..half }]);
            },
            here: Told { sends: &[LocLenErr, WrFlushErr], ..SQE },
            ..UC
        },
        Row {
            name: "UC: a window on a region that does not permit it",
            of: OF,
            act: Pair::bind_what_does_not_permit_it,
            here: Told { sends: &[MwBindErr, WrFlushErr], ..SQE },
            ..UC
        },
        Row {
            name: "UD: SEND from memory without a key",
            of: OF,
            act: |pair| {
                let sge = pair.here.sge(8);
                pair.post_sges(WrOp::Send, &[Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }]);
            },
            here: SQE,
            ..UD
        },
    ]);
}

#[test]
fn datagrams_that_do_not_belong_take_no_receive_and_nobody_is_told() {
    // The empty one behind takes the receive.
    const THERE_IS: Told = Told { recvs: &[Success], ..NOTHING };
    const DATAGRAM: Row =
        Row { of: "UD: receive drop rules", asks: &["SEND Only 100", "SEND Only 101"], here: SENT, ..UD };
    show(&[
        Row {
            name: "another Q_Key",
            act: |pair| {
                let usual = pair.here.dest;
                if let Some(Dest::Ud(dest)) = &mut pair.here.dest {
                    dest.remote_qkey = QKey(Q_KEY.0 ^ 1);
                }
                pair.post(WrOp::Send, 8);
                pair.here.dest = usual;
            },
            there: Told { counted: &["qkey_viol_cntr 1"], ..THERE_IS },
            ..DATAGRAM
        },
        Row {
            name: "another partition",
            act: |pair| {
                pair.judge(HERE, |before, packet| {
                    if before == 0 {
                        packet[2..4].copy_from_slice(&[0x92, 0x34]);
                    }
                    Fate::Arrives
                });
                pair.post(WrOp::Send, 8);
            },
            there: Told { counted: &["bad_pkey_cntr 1"], ..THERE_IS },
            ..DATAGRAM
        },
        Row {
            name: "no receive",
            room: None,
            act: |pair| pair.post(WrOp::Send, 8),
            there: Told { counted: &["rx_no_receive 2", "rcvd_no_wqe 2"], ..NOTHING },
            ..DATAGRAM
        },
        Row {
            name: "a receive without room for the GRH area",
            room: Some(47),
            act: |pair| pair.post(WrOp::Send, 8),
            there: Told { counted: &["rx_receive_too_small 1", "rcvd_no_wqe 1"], ..THERE_IS },
            ..DATAGRAM
        },
        Row {
            name: "longer than the path MTU: not sent, and no error",
            of: "UD: C10-93.1.1",
            act: |pair| pair.post(WrOp::Send, MTU + 1),
            asks: &["SEND Only 101"],
            here: Told { counted: &["ud_send_too_long 1"], ..SENT },
            there: THERE_IS,
            ..DATAGRAM
        },
        Row {
            name: "the sender's own Q_Key, by the high bit",
            of: "UD: the high bit of the WR's Q_Key; IBA 10.2.5",
            act: |pair| {
                if let Some(Dest::Ud(dest)) = &mut pair.here.dest {
                    dest.remote_qkey = QKey(0x8000_0000);
                }
                pair.receive(40);
                pair.post(WrOp::Send, 8);
            },
            there: Told { recvs: &[Success, Success], ..NOTHING },
            ..DATAGRAM
        },
        Row {
            name: "a receive into memory without a key",
            of: "UD: receive WQE with bad lkey",
            room: None,
            act: |pair| {
                let sge = pair.there.sge(64);
                pair.there.post_recv(&[Sge { lkey: Lkey(sge.lkey.0 ^ 1), ..sge }]);
                pair.post(WrOp::Send, 8);
            },
            there: Told {
                recvs: &[LocProtErr],
                state: QpState::Err,
                counted: &["rx_wrong_state 1"],
                ..NOTHING
            },
            ..DATAGRAM
        },
    ]);
}
