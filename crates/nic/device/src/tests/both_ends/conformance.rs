//! Known errors of other RoCEv2 implementations that need both ends to show; docs/conformance.md lists them.

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

fn requests(pair: &Pair) -> usize {
    pair.cable.described_by(HERE).len()
}

fn responses(pair: &Pair) -> Vec<String> {
    pair.cable.described_by(THERE)
}

/// rxe rounds a limit of 5 READs up to 8, which exceeds the limit of the peer.
#[test]
fn limits_of_reads_are_exact_at_both_ends() {
    let mut pair = Pair::new(&Setup { here: |attr| attr.max_rd_atomic = 5, ..RC });
    let open = pair.there.open;
    for _ in 0..8 {
        pair.post(open.read(0), 8);
    }
    pair.here.run_batch(pair.now);
    assert_eq!(requests(&pair), 5);

    let setup =
        Setup { here: |attr| attr.max_rd_atomic = 8, there: |attr| attr.max_dest_rd_atomic = 5, ..RC };
    let mut pair = Pair::new(&setup);
    let open = pair.there.open;
    for _ in 0..8 {
        pair.post(open.read(0), 8);
    }
    pair.run();
    assert_eq!(responses(&pair).last().map(String::as_str), Some("NAK Invalid request 105"));
    assert_eq!(pair.here.observe().sends[4..6], [OK, WcStatus::RemInvReqErr]);
}

/// rxe reuses the entries of its replay queue early, so it cannot respond to some duplicates.
#[test]
fn every_read_within_the_limit_can_be_replayed() {
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
    // The last READ has replaced the oldest one in the replay queue.
    let expected: Vec<_> = first[1..].iter().map(|bytes| payload(bytes)).collect();
    assert_eq!(again.iter().map(|bytes| payload(bytes)).collect::<Vec<_>>(), expected);
}

/// rxe treats completions in error and flushed ones as unsolicited, so a sleeping program never wakes.
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
    assert_eq!(events(&pair), 0, "a successful completion raises no event");
    pair.post(Granted { key: open.key ^ 1, ..open }.write(0), 8);
    pair.run();
    assert_eq!(pair.here.observe().sends, [OK, WcStatus::RemAccessErr]);
    assert_eq!(events(&pair), 2, "the refused WRITE, and the receive that was flushed");
}

/// rxe of older kernels executes REG_MR again when it retransmits earlier packets, and the second time fails.
#[test]
fn reg_mr_and_local_inv_are_executed_once_despite_retransmissions() {
    let mut pair = Pair::new(&RC);
    pair.judge(HERE, |before, _| if before < 3 { Fate::IsLost } else { Fate::Arrives });
    let open = pair.there.open;
    let keys = &mut pair.here.core.tables.mrs;
    let key = keys.alloc_fast(PD).expect("space");
    keys.map_fast(key, pair.here.open.va, pair.here.open.len).expect("not valid yet");
    pair.post(open.write(0), 8);
    pair.post(WrOp::RegMr(FastReg { key: Rkey(key), iova: 0, access: Access::REMOTE_READ }), 0);
    pair.post(WrOp::LocalInv(Rkey(key)), 0);
    pair.post(open.write(8), 8);
    pair.run();
    assert!(requests(&pair) > 3);
    let here = pair.here.observe();
    assert_eq!((here.sends, here.state), (vec![OK; 4], QpState::Rts));
}

/// rxe compares an address that includes the offset of the window with one that does not.
#[test]
fn a_read_through_a_zero_based_window_can_be_replayed() {
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
    assert_eq!(pair.here.observe().sends, [OK]);
    assert_eq!(pair.here.local(bytes.len()), bytes);
    let middle = responses(&pair).iter().filter(|response| response.ends_with(" 101")).count();
    assert_eq!(middle, 2, "the responder retransmitted it: {:?}", responses(&pair));
}

/// A process without a CPU reads its ACKs late. The ACK timer must not expire before it has read them.
#[test]
fn an_ack_that_waits_unread_in_the_port_does_not_cause_a_timeout() {
    const NO_RETRIES: Setup = Setup { here: |attr| (attr.timeout, attr.retry_cnt) = (8, 0), ..RC };
    let mut pair = Pair::new(&NO_RETRIES);
    let open = pair.there.open;
    pair.post(open.write(0), 8);
    pair.run();
    assert_eq!(pair.here.observe().sends, [OK]);
    pair.cable.deliver_one_by_one();
    pair.cable.deliver_again(THERE, 0);
    pair.post(open.write(8), 8);
    pair.here.run_batch(pair.now);
    pair.there.run_batch(pair.now);
    pair.now = pair.now.plus_ns(1_000_000_000);
    pair.here.run_batch(pair.now);
    let here = pair.here.observe();
    assert_eq!((here.sends, here.state), (vec![OK], QpState::Rts));
    assert_eq!(requests(&pair), 2, "no request was retransmitted");
}

/// rxe since Linux 6.10 ends the connection when the kernel refuses a packet.
#[test]
fn a_request_that_the_kernel_refuses_is_retransmitted() {
    let mut pair = Pair::new(&RC);
    let bytes = pattern(3 * MTU);
    pair.here.write_local(&bytes);
    pair.judge(HERE, |before, _| if before < 2 { Fate::IsRefused } else { Fate::Arrives });
    let open = pair.there.open;
    pair.post(open.write(0), bytes.len());
    pair.run();
    let here = pair.here.observe();
    assert_eq!((here.sends, here.state), (vec![OK], QpState::Rts));
    assert!(here.counted.contains(&"tx_no_buffer 2".to_owned()), "{:?}", here.counted);
    assert_eq!(pair.there.granted(0, bytes.len()), bytes);
}

/// rxe turns such a response into an RNR NAK.
#[test]
fn a_response_that_the_kernel_refuses_is_retransmitted() {
    let mut pair = Pair::new(&RC);
    let bytes = pattern(3 * MTU);
    pair.there.write_granted(0, &bytes);
    pair.judge(THERE, |before, _| if before == 1 { Fate::IsRefused } else { Fate::Arrives });
    let open = pair.there.open;
    pair.post(open.read(0), bytes.len());
    pair.run();
    assert_eq!(pair.here.observe().sends, [OK]);
    assert_eq!(pair.here.local(bytes.len()), bytes);
    assert!(
        responses(&pair).iter().all(|response| response.starts_with("READ Response")),
        "{:?}",
        responses(&pair)
    );
    assert!(pair.there.observe().counted.contains(&"tx_no_buffer 1".to_owned()));
}

/// rxe completed every posted receive, about a thousand, with the same packet.
#[test]
fn in_the_error_state_each_receive_is_flushed_once_and_receives_nothing() {
    let mut pair = Pair::new(&RC);
    for _ in 0..4 {
        pair.receive(64);
    }
    pair.post(WrOp::Send, 65);
    for _ in 0..4 {
        pair.post(WrOp::Send, 8);
    }
    pair.run();
    for nth in 0..requests(&pair) {
        pair.cable.deliver_again(HERE, nth);
    }
    pair.run();
    let mut expected = vec![WcStatus::WrFlushErr; 4];
    expected[0] = WcStatus::LocLenErr;
    assert_eq!(pair.there.observe().recvs, expected);
}

/// rxe sets IBV_WC_GRH for every receive. Only UD has a GRH area.
#[test]
fn only_datagrams_have_a_grh_area() {
    for (ty, flags) in [(QpType::Rc, 0), (QpType::Uc, 0), (QpType::Ud, transport::Wc::GRH)] {
        let mut pair = Pair::new(&Setup::new(ty));
        pair.receive(64);
        pair.post(WrOp::Send, 8);
        pair.run();
        let wc = pair.there.recv_cq.pop_one().expect("a completion");
        assert_eq!((wc.status, wc.wc_flags), (OK, flags), "{ty:?}");
    }
}

/// rxe sets AckReq in datagrams, which the peer never acknowledges.
#[test]
fn management_datagrams_and_ud_and_uc_messages_do_not_set_ack_req() {
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
        assert!(responses(&pair).is_empty());
    }
}

/// rxe responds to each duplicate.
#[test]
fn a_burst_of_duplicates_gets_one_response() {
    let mut pair = Pair::new(&RC);
    let open = pair.there.open;
    for op in [open.write(0), open.read(0), open.add(0)] {
        pair.post(op, 8);
        pair.run();
    }
    for nth in 0..3 {
        let before = responses(&pair).len();
        for _ in 0..50 {
            pair.cable.deliver_again(HERE, nth);
        }
        pair.run();
        assert!(responses(&pair).len() <= before + 1, "{:?}", &responses(&pair)[before..]);
    }
    assert_eq!(pair.there.granted(0, 1), [1], "added once");
}

/// Decides the fate of a packet.
type FateOf = fn(&str, usize) -> Fate;

/// Faults of the network, each of which once exposed a bug of rxe: name, faulty end, and the fate of a packet
/// by its description and the number of earlier packets of its kind.
const FAULTS: [(&str, usize, FateOf); 9] = [
    ("a READ response in the middle is lost", THERE, |described, nth| {
        if described.starts_with("READ Response Middle") && nth == 0 { Fate::IsLost } else { Fate::Arrives }
    }),
    ("the last READ response is lost", THERE, |described, nth| {
        if described.starts_with("READ Response Last") && nth == 0 { Fate::IsLost } else { Fate::Arrives }
    }),
    ("the acknowledgement of an atomic is lost", THERE, |described, nth| {
        if described.starts_with("Atomic Acknowledge") && nth == 0 { Fate::IsLost } else { Fate::Arrives }
    }),
    ("the last packet of a WRITE with Immediate is lost", HERE, |described, nth| {
        if described.starts_with("WRITE Last Immediate") && nth == 0 { Fate::IsLost } else { Fate::Arrives }
    }),
    ("every request is duplicated", HERE, |_, _| Fate::ArrivesTwice),
    ("every response is duplicated", THERE, |_, _| Fate::ArrivesTwice),
    (
        "neighbouring requests are swapped",
        HERE,
        |_, nth| {
            if nth % 2 == 0 { Fate::IsOvertaken } else { Fate::Arrives }
        },
    ),
    ("neighbouring responses are swapped", THERE, |_, nth| {
        if nth % 2 == 0 { Fate::IsOvertaken } else { Fate::Arrives }
    }),
    ("ACKs and NAKs are lost", THERE, |described, nth| {
        if (described.starts_with("ACK") || described.starts_with("NAK")) && nth < 3 {
            Fate::IsLost
        } else {
            Fate::Arrives
        }
    }),
];

#[test]
fn lost_duplicated_and_reordered_packets_do_not_change_the_result() {
    for (name, end, fate_of) in FAULTS {
        let mut pair = Pair::new(&RC);
        let mut seen: Vec<String> = Vec::new();
        let happened = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&happened);
        pair.judge(end, move |_, packet| {
            let described = super::cable::words(&[packet.as_slice(), &[0; 4]].concat());
            let kind = described.rsplit_once(' ').map_or(described.clone(), |(kind, _psn)| kind.to_owned());
            let nth = seen.iter().filter(|before| **before == kind).count();
            seen.push(kind);
            let fate = fate_of(&described, nth);
            count.fetch_add(usize::from(fate != Fate::Arrives), Ordering::Relaxed);
            fate
        });
        let sent = pattern(3 * MTU);
        pair.here.write_local(&sent);
        let open = pair.there.open;
        // The receives are posted late: packets behind the first SEND are then in flight.
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
        pair.here.post_send(pair.now, open.write(8), &[pair.here.sge(8)], SendFlags::FENCE).expect("space");
        pair.run();
        assert_ne!(happened.load(Ordering::Relaxed), 0, "{name}: the fault did not occur");
        let (here, there) = (pair.here.observe(), pair.there.observe());
        assert_eq!((here.sends, here.state), (vec![OK; 6], QpState::Rts), "{name}");
        assert_eq!((there.recvs, there.state), (vec![OK; 3], QpState::Rts), "{name}");
        assert_eq!(pair.there.granted(inbox, sent.len()), sent, "{name}");
        assert_eq!(pair.there.granted(0, 1), [1], "{name}: added once");
        let result = pair.there.granted(8, 8);
        assert_eq!(result, &pair.here.local(8)[..], "{name}: the fenced WRITE sent the data of the READ");
        assert_eq!(pair.here.local(3 * MTU)[8..], sent[8..], "{name}: data of the READ");
    }
}
