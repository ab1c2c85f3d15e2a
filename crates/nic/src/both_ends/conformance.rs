//! What other implementations of RoCEv2 got wrong, as far as it takes both ends to see; docs/conformance.md
//! has the list.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transport::{Access, FastReg, MwBind, QpState, QpType, SendFlags, WcStatus, WrOp};
use wire::{Gid, Lkey, Packet, Rkey};

use super::cable::Fate;
use super::end::{Granted, MTU, PD};
use super::pair::{HERE, Pair, Setup, THERE};
use crate::keys::MwType;

const RC: Setup = Setup::new(QpType::Rc);
const OK: WcStatus = WcStatus::Success;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}

fn asks(pair: &Pair) -> usize {
    pair.cable.said_by(HERE).len()
}

fn answers(pair: &Pair) -> Vec<String> {
    pair.cable.said_by(THERE)
}

/// rxe rounds 5 up to 8, which overruns the peer.
#[test]
fn limits_of_reads_are_exact_at_both_ends() {
    let mut pair = Pair::new(&Setup { here: |attr| attr.max_rd_atomic = 5, ..RC });
    let open = pair.there.open;
    for _ in 0..8 {
        pair.post(open.read(0), 8);
    }
    pair.here.run_batch(pair.now);
    assert_eq!(asks(&pair), 5);

    let setup =
        Setup { here: |attr| attr.max_rd_atomic = 8, there: |attr| attr.max_dest_rd_atomic = 5, ..RC };
    let mut pair = Pair::new(&setup);
    let open = pair.there.open;
    for _ in 0..8 {
        pair.post(open.read(0), 8);
    }
    pair.run();
    assert_eq!(answers(&pair).last().map(String::as_str), Some("NAK Invalid request 105"));
    assert_eq!(pair.here.look().sends[4..6], [OK, WcStatus::RemInvReqErr]);
}

/// rxe recycles what it keeps for replays, so a duplicate may find nothing.
#[test]
fn every_read_within_the_limit_is_answered_again() {
    let mut pair = Pair::new(&Setup { there: |attr| attr.max_dest_rd_atomic = 3, ..RC });
    let open = pair.there.open;
    for at in 0..4 {
        pair.there.write_granted(at * 8, &[at as u8; 8]);
        pair.post(open.read(at * 8), 8);
        pair.run();
    }
    let first = pair.cable.sent_by(THERE);
    for nth in 0..4 {
        pair.cable.deliver_again(HERE, nth);
        pair.run();
    }
    let again = pair.cable.sent_by(THERE).split_off(first.len());
    let payload = |bytes: &[u8]| {
        let packet = Packet::parse(bytes).expect("whole");
        (packet.bth.psn, packet.payload().to_vec())
    };
    // The oldest has made room for the last.
    let expected: Vec<_> = first[1..].iter().map(|bytes| payload(bytes)).collect();
    assert_eq!(again.iter().map(|bytes| payload(bytes)).collect::<Vec<_>>(), expected);
}

/// To rxe completions in error and flushed ones are unsolicited, and a program that sleeps never wakes.
#[test]
fn completions_in_error_are_solicited() {
    let mut pair = Pair::new(&RC);
    let open = pair.there.open;
    pair.here.send_cq.arm(true);
    pair.here.recv_cq.arm(true);
    let spare = pair.here.sge(8);
    pair.here.post_recv(&[spare]);
    pair.post(open.write(0), 8);
    pair.run();
    let events = |pair: &Pair| {
        let mut events = 0;
        pair.here.channel.for_each(|_| events += 1);
        events
    };
    assert_eq!(events(&pair), 0, "one that is as it should be");
    pair.post(Granted { key: open.key ^ 1, ..open }.write(0), 8);
    pair.run();
    assert_eq!(pair.here.look().sends, [OK, WcStatus::RemAccessErr]);
    assert_eq!(events(&pair), 2, "the refused WRITE, and the receive that was flushed");
}

/// Older kernels repeated REG_MR with the packets before it, and the second time it fails.
#[test]
fn a_registration_is_done_once_however_often_packets_are_sent_again() {
    let mut pair = Pair::new(&RC);
    pair.judge(HERE, |before, _| if before < 3 { Fate::IsLost } else { Fate::Arrives });
    let open = pair.there.open;
    let keys = &mut pair.here.core.tables.mrs;
    let key = keys.alloc_fast(PD).expect("room");
    keys.map_fast(key, pair.here.open.va, pair.here.open.len).expect("not valid yet");
    pair.post(open.write(0), 8);
    pair.post(WrOp::RegMr(FastReg { key: Rkey(key), iova: 0, access: Access::REMOTE_READ }), 0);
    pair.post(WrOp::LocalInv(Rkey(key)), 0);
    pair.post(open.write(8), 8);
    pair.run();
    assert!(asks(&pair) > 3);
    let here = pair.here.look();
    assert_eq!((here.sends, here.state), (vec![OK; 4], QpState::Rts));
}

/// rxe compares addresses with and without the window's offset.
#[test]
fn a_read_through_a_zero_based_window_is_answered_again() {
    let mut pair = Pair::new(&RC);
    let (open, qpn) = (pair.there.open, pair.there.qpn);
    let key = pair.there.window(MwType::Type2);
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    let len = 8 * MTU as u64;
    let bind = MwBind { r_key: Rkey(key), mr: Lkey(open.key), addr: open.va + 0x1000, len, access };
    pair.there.core.tables.mrs.bind(PD, qpn, &bind).expect("permitted");
    let bytes = pattern(3 * MTU);
    pair.there.write_granted(0x1000 + 16, &bytes);
    pair.judge(THERE, |before, _| if before == 1 { Fate::IsLost } else { Fate::Arrives });
    pair.post(Granted { va: 0, key, len }.read(16), bytes.len());
    pair.run();
    assert_eq!(pair.here.look().sends, [OK]);
    assert_eq!(pair.here.local(bytes.len()), bytes);
    let middle = answers(&pair).iter().filter(|answer| answer.ends_with(" 101")).count();
    assert_eq!(middle, 2, "it was given again: {:?}", answers(&pair));
}

/// A process that gets no CPU for a while finds its answers late, and not missing.
#[test]
fn an_answer_that_lies_unread_is_not_overdue() {
    const PATIENCE: Setup = Setup { here: |attr| (attr.timeout, attr.retry_cnt) = (8, 0), ..RC };
    let mut pair = Pair::new(&PATIENCE);
    let open = pair.there.open;
    pair.post(open.write(0), 8);
    pair.run();
    assert_eq!(pair.here.look().sends, [OK]);
    pair.cable.hand_over_one_by_one();
    pair.cable.deliver_again(THERE, 0);
    pair.post(open.write(8), 8);
    pair.here.run_batch(pair.now);
    pair.there.run_batch(pair.now);
    pair.now = pair.now.plus_ns(1_000_000_000);
    pair.here.run_batch(pair.now);
    let here = pair.here.look();
    assert_eq!((here.sends, here.state), (vec![OK], QpState::Rts));
    assert_eq!(asks(&pair), 2, "nothing was sent again");
}

/// Since Linux 6.10 rxe ends the connection when the kernel does not take a packet.
#[test]
fn a_request_that_the_kernel_refuses_is_as_good_as_lost() {
    let mut pair = Pair::new(&RC);
    let bytes = pattern(3 * MTU);
    pair.here.write_local(&bytes);
    pair.judge(HERE, |before, _| if before < 2 { Fate::IsRefused } else { Fate::Arrives });
    let open = pair.there.open;
    pair.post(open.write(0), bytes.len());
    pair.run();
    let here = pair.here.look();
    assert_eq!((here.sends, here.state), (vec![OK], QpState::Rts));
    assert!(here.counted.contains(&"tx_no_buffer 2".to_owned()), "{:?}", here.counted);
    assert_eq!(pair.there.granted(0, bytes.len()), bytes);
}

/// rxe makes an RNR NAK of it.
#[test]
fn an_answer_that_the_kernel_refuses_is_given_again() {
    let mut pair = Pair::new(&RC);
    let bytes = pattern(3 * MTU);
    pair.there.write_granted(0, &bytes);
    pair.judge(THERE, |before, _| if before == 1 { Fate::IsRefused } else { Fate::Arrives });
    let open = pair.there.open;
    pair.post(open.read(0), bytes.len());
    pair.run();
    assert_eq!(pair.here.look().sends, [OK]);
    assert_eq!(pair.here.local(bytes.len()), bytes);
    assert!(answers(&pair).iter().all(|answer| answer.starts_with("READ Response")), "{:?}", answers(&pair));
    assert!(pair.there.look().counted.contains(&"tx_no_buffer 1".to_owned()));
}

/// rxe put the same packet into every receive that was left, about a thousand completions.
#[test]
fn in_the_error_state_each_receive_is_flushed_once_and_takes_nothing() {
    let mut pair = Pair::new(&RC);
    for _ in 0..4 {
        pair.receive(64);
    }
    pair.post(WrOp::Send, 65);
    for _ in 0..4 {
        pair.post(WrOp::Send, 8);
    }
    pair.run();
    for nth in 0..asks(&pair) {
        pair.cable.deliver_again(HERE, nth);
    }
    pair.run();
    let mut expected = vec![WcStatus::WrFlushErr; 4];
    expected[0] = WcStatus::LocLenErr;
    assert_eq!(pair.there.look().recvs, expected);
}

/// rxe says IBV_WC_GRH of every receive; there is a GRH area on UD only.
#[test]
fn only_datagrams_have_a_grh_area() {
    for (ty, flags) in [(QpType::Rc, 0), (QpType::Uc, 0), (QpType::Ud, transport::Wc::GRH)] {
        let mut pair = Pair::new(&Setup::new(ty));
        pair.receive(64);
        pair.post(WrOp::Send, 8);
        pair.run();
        let wc = pair.there.recv_cq.pop_one().expect("it arrived");
        assert_eq!((wc.status, wc.wc_flags), (OK, flags), "{ty:?}");
    }
}

/// rxe asks for acknowledgements of datagrams, which nobody gives.
#[test]
fn management_datagrams_and_messages_on_ud_and_uc_ask_for_no_acknowledgement() {
    for ty in [QpType::Ud, QpType::Uc] {
        let mut pair = Pair::new(&Setup::new(ty));
        pair.receive(64);
        pair.post(WrOp::Send, 8);
        let [src, dst] =
            ["10.0.0.1", "10.0.0.2"].map(|ip| Gid::from(ip.parse::<std::net::Ipv4Addr>().unwrap()));
        pair.here.core.send_mad(src, dst, &[1; wire::mad::MAD_LEN]);
        pair.run();
        let sent = pair.cable.sent_by(HERE);
        assert_eq!(sent.len(), 2);
        for bytes in sent {
            assert!(!Packet::parse(&bytes).expect("whole").bth.ack_req);
        }
        assert!(answers(&pair).is_empty());
    }
}

/// rxe answers every single one.
#[test]
fn a_burst_of_duplicates_is_answered_once() {
    let mut pair = Pair::new(&RC);
    let open = pair.there.open;
    for op in [open.write(0), open.read(0), open.add(0)] {
        pair.post(op, 8);
        pair.run();
    }
    for nth in 0..3 {
        let before = answers(&pair).len();
        for _ in 0..50 {
            pair.cable.deliver_again(HERE, nth);
        }
        pair.run();
        assert!(answers(&pair).len() <= before + 1, "{:?}", &answers(&pair)[before..]);
    }
    assert_eq!(pair.there.granted(0, 1), [1], "added once");
}

/// What happens to the packets of a run.
type Mishap = fn(&str, usize) -> Fate;

/// Each of these has shown a bug of rxe once. A packet is given in words, with how many of its kind there
/// were before.
const MISHAPS: [(&str, usize, Mishap); 9] = [
    ("a READ response in the middle is lost", THERE, |said, nth| {
        if said.starts_with("READ Response Middle") && nth == 0 { Fate::IsLost } else { Fate::Arrives }
    }),
    ("the last READ response is lost", THERE, |said, nth| {
        if said.starts_with("READ Response Last") && nth == 0 { Fate::IsLost } else { Fate::Arrives }
    }),
    ("the acknowledgement of an atomic is lost", THERE, |said, nth| {
        if said.starts_with("Atomic Acknowledge") && nth == 0 { Fate::IsLost } else { Fate::Arrives }
    }),
    ("the end of a WRITE with Immediate is lost", HERE, |said, nth| {
        if said.starts_with("WRITE Last Immediate") && nth == 0 { Fate::IsLost } else { Fate::Arrives }
    }),
    ("every request comes twice", HERE, |_, _| Fate::ArrivesTwice),
    ("every answer comes twice", THERE, |_, _| Fate::ArrivesTwice),
    ("neighbours among requests are swapped", HERE, |_, nth| {
        if nth % 2 == 0 { Fate::IsOvertaken } else { Fate::Arrives }
    }),
    ("neighbours among answers are swapped", THERE, |_, nth| {
        if nth % 2 == 0 { Fate::IsOvertaken } else { Fate::Arrives }
    }),
    ("acknowledgements are lost, NAKs as well", THERE, |said, nth| {
        if (said.starts_with("ACK") || said.starts_with("NAK")) && nth < 3 {
            Fate::IsLost
        } else {
            Fate::Arrives
        }
    }),
];

#[test]
fn mishaps_on_the_way_change_nothing() {
    for (name, end, mishap) in MISHAPS {
        let mut pair = Pair::new(&RC);
        let mut seen: Vec<String> = Vec::new();
        let happened = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&happened);
        pair.judge(end, move |_, packet| {
            let said = super::cable::words(&[packet.as_slice(), &[0; 4]].concat());
            let kind = said.rsplit_once(' ').map_or(said.clone(), |(kind, _psn)| kind.to_owned());
            let nth = seen.iter().filter(|before| **before == kind).count();
            seen.push(kind);
            let fate = mishap(&said, nth);
            count.fetch_add(usize::from(fate != Fate::Arrives), Ordering::Relaxed);
            fate
        });
        let sent = pattern(3 * MTU);
        pair.here.write_local(&sent);
        let open = pair.there.open;
        // Receives come late, when packets behind the first SEND are on their way.
        let inbox = 8 * MTU as u64;
        pair.post(WrOp::Send, 3 * MTU);
        pair.post(open.write_imm(inbox), 3 * MTU);
        pair.post(open.add(0), 8);
        pair.post(WrOp::SendImm([1; 4]), 8);
        pair.run_for_us(300);
        for _ in 0..3 {
            pair.receive(4 * MTU);
        }
        pair.run();
        pair.post(open.read(inbox), 3 * MTU);
        pair.here.post_send(pair.now, open.write(8), &[pair.here.sge(8)], SendFlags::FENCE).expect("room");
        pair.run();
        assert_ne!(happened.load(Ordering::Relaxed), 0, "{name}: nothing happened");
        let (here, there) = (pair.here.look(), pair.there.look());
        assert_eq!((here.sends, here.state), (vec![OK; 6], QpState::Rts), "{name}");
        assert_eq!((there.recvs, there.state), (vec![OK; 3], QpState::Rts), "{name}");
        assert_eq!(pair.there.granted(inbox, sent.len()), sent, "{name}");
        assert_eq!(pair.there.granted(0, 1), [1], "{name}: added once");
        let result = pair.there.granted(8, 8);
        assert_eq!(result, &pair.here.local(8)[..], "{name}: the fenced WRITE sent what was read");
        assert_eq!(pair.here.local(3 * MTU)[8..], sent[8..], "{name}: what was read");
    }
}
