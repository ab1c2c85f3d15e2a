//! The rules of the responder, one by one. Requests start at PSN 100; the path MTU is 1024.

use wire::{DropReason, Opcode, Rkey};

use crate::testing::{Bench, LOCAL, PEER_QPN, Pkt, QPN, REMOTE, RKEY, attr, config};
use crate::{
    Access, AsyncEventKind, QpEvent, QpState, QpType, RecvWr, ReorderBuffer, Sge, Wc, WcOpcode, WcStatus,
    WrOp,
};

fn write(psn: u32, at: u64, value: u8, len: usize) -> Pkt {
    Pkt::new(Opcode::RC_WRITE_ONLY, psn).reth(REMOTE + at, RKEY, len as u32).payload(value, len)
}

fn read(psn: u32, at: u64, len: u32) -> Pkt {
    Pkt::new(Opcode::RC_READ_REQUEST, psn).reth(REMOTE + at, RKEY, len)
}

fn send(psn: u32, value: u8, len: usize) -> Pkt {
    Pkt::new(Opcode::RC_SEND_ONLY, psn).payload(value, len)
}

fn fetch_add(psn: u32, at: u64, add: u64) -> Pkt {
    Pkt::new(Opcode::RC_FETCH_ADD, psn).atomic(REMOTE + at, add, 0)
}

#[test]
fn a_write_is_placed_and_acknowledged_when_asked() {
    let mut b = Bench::rc();
    b.recv(&write(100, 16, 7, 5)).unwrap();
    assert_eq!(b.sent(), [""; 0], "no AckReq, no ACK");
    b.recv(&write(101, 24, 8, 4).ack_req()).unwrap();
    assert_eq!(b.mem.remote_at(REMOTE + 15, 14), [0, 7, 7, 7, 7, 7, 0, 0, 0, 8, 8, 8, 8, 0]);
    assert_eq!(b.sent(), ["Acknowledge 101 msn 2"]);
    assert_eq!(b.events(), [], "a WRITE produces no completion at the responder");
}

#[test]
fn acks_of_a_batch_are_coalesced_into_the_latest() {
    let mut b = Bench::rc();
    b.batch(&[write(100, 0, 1, 8).ack_req(), write(101, 8, 1, 8).ack_req(), write(102, 0, 2, 8)]);
    assert_eq!(b.sent(), ["Acknowledge 101 msn 3"]);
}

/// IBA C9-113: one NAK for a gap, with the PSN that is missing.
#[test]
fn a_gap_is_nakked_once_with_the_expected_psn() {
    let mut b = Bench::rc();
    b.reorder = ReorderBuffer::none();
    assert_eq!(b.recv(&write(102, 0, 1, 8)), Err(DropReason::OutOfSequence));
    assert_eq!(b.sent(), ["Acknowledge 100 NAK 0 msn 0"]);
    b.batch(&[write(103, 0, 1, 8), write(104, 0, 1, 8)]);
    assert_eq!(b.sent(), [""; 0]);
    assert_eq!(b.mem.remote_at(REMOTE, 8), [0; 8], "nothing out of order was executed");
    b.recv(&write(100, 0, 1, 8)).unwrap();
    b.recv(&write(105, 0, 1, 8)).unwrap_err();
    assert_eq!(b.sent(), ["Acknowledge 101 NAK 0 msn 1"], "another gap, another NAK");
    assert_eq!((b.qp.counters().out_of_seq_request, b.qp.counters().kept_request), (4, 0));
}

#[test]
fn a_gap_that_closes_within_the_batch_is_not_nakked() {
    let mut b = Bench::rc();
    b.batch(&[write(101, 0, 1, 8), write(100, 0, 1, 8)]);
    assert_eq!(b.sent(), [""; 0]);
}

#[test]
fn a_duplicate_write_is_not_executed_and_acknowledged_with_the_last_psn() {
    let mut b = Bench::rc();
    b.batch(&[write(100, 0, 1, 8), write(101, 8, 1, 8)]);
    b.mem.put_remote(REMOTE, &[9; 8]);
    b.recv(&write(100, 0, 1, 8)).unwrap();
    assert_eq!(b.mem.remote_at(REMOTE, 8), [9; 8]);
    assert_eq!(b.sent(), ["Acknowledge 101 msn 2"]);
    assert_eq!(b.qp.counters().duplicate_request, 1);
}

#[test]
fn a_read_response_has_an_aeth_in_its_first_and_last_packet() {
    let mut b = Bench::rc();
    b.mem.put_remote(REMOTE, &[5; 2050]);
    b.recv(&read(100, 0, 2050)).unwrap();
    assert_eq!(
        b.sent(),
        [
            "READ Response First 100 msn 1 [1024]",
            "READ Response Middle 101 [1024]",
            "READ Response Last 102 msn 1 [2]"
        ]
    );
    b.recv(&write(103, 0, 1, 8).ack_req()).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 103 msn 2"], "the READ took three PSNs");
}

#[test]
fn the_ack_of_a_later_request_waits_for_the_read_data() {
    let mut b = Bench::rc();
    b.batch(&[
        write(100, 0, 3, 8).ack_req(),
        read(101, 0, 8),
        write(102, 8, 4, 8).ack_req(),
        read(103, 8, 8),
    ]);
    assert_eq!(b.sent(), ["READ Response Only 101 msn 2 [8]", "READ Response Only 103 msn 4 [8]"]);
    b.batch(&[read(104, 0, 1025), write(106, 8, 4, 8).ack_req(), write(108, 0, 0, 8)]);
    assert_eq!(
        b.sent(),
        [
            "READ Response First 104 msn 5 [1024]",
            "READ Response Last 105 msn 5 [1]",
            "Acknowledge 107 NAK 0 msn 6",
        ],
        "the NAK acknowledges 106"
    );
}

#[test]
fn a_duplicate_read_gets_a_new_response_from_memory() {
    let mut b = Bench::rc();
    b.recv(&read(100, 0, 3000)).unwrap();
    b.sent();
    b.mem.put_remote(REMOTE + 1024, &[6; 1976]);
    b.recv(&read(101, 1024, 1976)).unwrap();
    assert_eq!(b.sent(), ["READ Response First 101 msn 1 [1024]", "READ Response Last 102 msn 1 [952]"]);
    assert_eq!(b.recv(&read(101, 1024, 1977)), Err(DropReason::Duplicate), "longer than the original");
    assert_eq!(b.recv(&read(101, 1025, 100)), Err(DropReason::Duplicate), "other address");
    assert_eq!(b.sent(), [""; 0]);
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn a_retransmitted_read_restarts_the_response_in_progress() {
    let mut b = Bench::rc();
    b.recv(&read(100, 0, 5 * 1024)).unwrap();
    for _ in 0..3 {
        b.poll();
    }
    b.recv(&read(101, 1024, 4 * 1024)).unwrap();
    let first: Vec<String> = b.sent();
    assert_eq!(first[0], "READ Response First 101 msn 1 [1024]");
    assert_eq!(first.len(), 4);
}

/// IBA C9-150: an atomic is executed once, its result is kept.
#[test]
fn a_duplicate_atomic_returns_the_stored_result() {
    let mut b = Bench::rc();
    b.mem.put_remote(REMOTE + 8, &10_u64.to_ne_bytes());
    b.recv(&fetch_add(100, 8, 5)).unwrap();
    b.recv(&Pkt::new(Opcode::RC_COMPARE_SWAP, 101).atomic(REMOTE + 8, 99, 15)).unwrap();
    assert_eq!(
        b.sent(),
        ["Atomic Acknowledge 100 msn 1 original 10", "Atomic Acknowledge 101 msn 2 original 15"]
    );
    b.recv(&fetch_add(100, 8, 5)).unwrap();
    assert_eq!(b.sent()[0], "Atomic Acknowledge 100 msn 1 original 10");
    assert_eq!(b.mem.remote_at(REMOTE + 8, 8), 99_u64.to_ne_bytes());
}

#[test]
fn a_duplicate_that_left_the_replay_queue_is_dropped() {
    let mut b = Bench::rc_with(|attr| attr.max_dest_rd_atomic = 2);
    for i in 0..3 {
        b.recv(&fetch_add(100 + i, 8, 1)).unwrap();
        b.sent();
    }
    assert_eq!(b.recv(&fetch_add(100, 8, 1)), Err(DropReason::Duplicate));
    assert_eq!(b.sent(), [""; 0]);
    assert_eq!(b.recv(&fetch_add(101, 8, 1)), Ok(()));
}

#[test]
fn more_reads_than_max_dest_rd_atomic_are_an_invalid_request() {
    let mut b = Bench::rc_with(|attr| attr.max_dest_rd_atomic = 2);
    b.batch(&[read(100, 0, 8), read(101, 0, 8), read(102, 0, 8)]);
    assert_eq!(
        b.sent(),
        [
            "READ Response Only 100 msn 1 [8]",
            "READ Response Only 101 msn 2 [8]",
            "Acknowledge 102 NAK 1 msn 2",
        ],
        "the accepted READs get their responses, then the NAK follows"
    );
    b.assert_err_event(AsyncEventKind::QpReqErr);
    assert_eq!(b.recv(&read(102, 0, 8)), Err(DropReason::WrongState));
    assert_eq!(b.sent(), [""; 0]);
}

#[test]
fn a_send_without_a_receive_is_rnr_nakked_and_later_packets_are_dropped_silently() {
    let mut b = Bench::rc();
    b.batch(&[send(100, 1, 8), send(101, 2, 8)]);
    assert_eq!(b.sent(), ["Acknowledge 100 RNR 12 msn 0"]);
    assert_eq!(b.recv(&send(102, 3, 8)), Err(DropReason::OutOfSequence), "the requester retransmits it");
    assert_eq!(b.sent(), [""; 0], "a sequence NAK would bring the peer back too early");
    b.post_recv(1, 0, 8);
    b.recv(&send(100, 1, 8).ack_req()).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 100 msn 1"], "101 is in flight, not missing");
    assert_eq!(b.recv_wc().wr_id, 1);
    assert_eq!(b.recv(&send(101, 2, 8)), Err(DropReason::NoReceive));
    assert_eq!(b.sent(), ["Acknowledge 101 RNR 12 msn 1"]);
    b.post_recv(2, 0, 8);
    b.recv(&send(101, 2, 8).ack_req()).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 101 msn 2"]);
    assert_eq!(b.recv_wc().wr_id, 2);
    assert_eq!(b.qp.counters().send_rnr_err, 2);
}

#[test]
fn a_send_fills_the_receive_across_packets_and_elements() {
    let mut b = Bench::rc();
    let lkey = crate::testing::LKEY;
    let sges = [
        Sge { addr: LOCAL, length: 1000, lkey },
        Sge { addr: LOCAL + 5000, length: 0, lkey: wire::Lkey(0) },
        Sge { addr: LOCAL + 2000, length: 1000, lkey },
    ];
    b.qp.post_recv(&RecvWr { wr_id: 9, sg_list: &sges }).unwrap();
    b.recv(&Pkt::new(Opcode::RC_SEND_FIRST, 100).payload(1, 1024)).unwrap();
    assert_eq!(b.events(), []);
    b.recv(&Pkt::new(Opcode::RC_SEND_LAST_IMM, 101).payload(2, 76).solicited()).unwrap();
    let expected = Wc {
        wr_id: 9,
        opcode: WcOpcode::Recv,
        byte_len: 1100,
        imm_data: [1, 2, 3, 4],
        qp_num: 0x11,
        src_qp: PEER_QPN,
        wc_flags: Wc::WITH_IMM,
        ..Wc::default()
    };
    assert_eq!(b.events(), [QpEvent::RecvWc { srqn: None, wc: expected, solicited: true }]);
    assert_eq!(b.mem.local_at(LOCAL, 1000), [1; 1000]);
    assert_eq!(b.mem.local_at(LOCAL + 2000, 100), [[1; 24].as_slice(), &[2; 76]].concat());
    assert_eq!(b.mem.local_at(LOCAL + 2100, 1), [0]);
}

#[test]
fn a_write_with_immediate_takes_its_receive_at_the_last_packet() {
    let mut b = Bench::rc();
    b.recv(&Pkt::new(Opcode::RC_WRITE_FIRST, 100).reth(REMOTE, RKEY, 1030).payload(1, 1024)).unwrap();
    let last = Pkt::new(Opcode::RC_WRITE_LAST_IMM, 101).payload(2, 6).ack_req();
    b.recv(&last).unwrap_err();
    assert_eq!(b.sent(), ["Acknowledge 101 RNR 12 msn 0"], "only the last packet is retransmitted");
    assert_eq!(b.mem.remote_at(REMOTE + 1023, 2), [1, 0]);
    b.post_recv(4, 0, 0);
    b.recv(&last).unwrap();
    let wc = b.recv_wc();
    assert_eq!((wc.opcode, wc.byte_len, wc.wc_flags), (WcOpcode::RecvRdmaWithImm, 1030, Wc::WITH_IMM));
    assert_eq!(b.mem.remote_at(REMOTE + 1023, 3), [1, 2, 2]);
    assert_eq!(b.sent(), ["Acknowledge 101 msn 1"]);
}

/// IBA C9-88: key and address of a zero-length request are not checked.
#[test]
fn zero_length_requests_need_no_key() {
    let mut b = Bench::rc();
    b.post_recv(1, 0, 0);
    b.batch(&[
        Pkt::new(Opcode::RC_WRITE_ONLY, 100).reth(0, Rkey(0), 0),
        Pkt::new(Opcode::RC_READ_REQUEST, 101).reth(0, Rkey(0), 0),
        Pkt::new(Opcode::RC_WRITE_ONLY_IMM, 102).reth(0, Rkey(0), 0).ack_req(),
    ]);
    assert_eq!(b.sent(), ["READ Response Only 101 msn 2", "Acknowledge 102 msn 3"]);
    assert_eq!(b.recv_wc().byte_len, 0);
}

#[test]
fn opcodes_out_of_order_are_invalid_requests() {
    let first = Pkt::new(Opcode::RC_WRITE_FIRST, 100).reth(REMOTE, RKEY, 4096).payload(1, 1024);
    for bad in [
        vec![Pkt::new(Opcode::RC_SEND_MIDDLE, 100).payload(0, 1024)],
        vec![Pkt::new(Opcode::RC_WRITE_LAST, 100).payload(0, 4)],
        vec![first.clone(), Pkt::new(Opcode::RC_SEND_LAST, 101).payload(0, 4)],
        vec![first.clone(), write(101, 0, 0, 4)],
        vec![first.clone(), read(101, 0, 4)],
        vec![first, fetch_add(101, 0, 4)],
        vec![Pkt::new(Opcode::RC_FLUSH, 100)],
    ] {
        let mut b = Bench::rc();
        b.batch(&bad);
        assert_eq!(b.sent(), [format!("Acknowledge {} NAK 1 msn 0", 99 + bad.len())]);
        b.assert_err_event(AsyncEventKind::QpReqErr);
    }
}

/// IBA C9-222: if a receive work request is in use it completes in error, and no event is raised.
#[test]
fn an_error_inside_a_send_completes_its_receive_and_flushes_the_others() {
    let mut b = Bench::rc();
    b.post_recv(1, 0, 4096);
    b.post_recv(2, 0, 4096);
    b.post(7, WrOp::Send, 8);
    b.recv(&Pkt::new(Opcode::RC_SEND_FIRST, 100).payload(1, 1024)).unwrap();
    b.recv(&write(101, 0, 0, 4)).unwrap_err();
    let statuses: Vec<_> = b
        .events()
        .into_iter()
        .map(|event| match event {
            QpEvent::RecvWc { wc, solicited, .. } => (wc.wr_id, wc.status, solicited),
            QpEvent::SendWc(wc) => (wc.wr_id, wc.status, true),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        statuses,
        [(1, WcStatus::LocQpOpErr, true), (7, WcStatus::WrFlushErr, true), (2, WcStatus::WrFlushErr, true),]
    );
}

#[test]
fn packets_that_break_a_length_rule_are_invalid_requests() {
    let first =
        |len: u32, payload| Pkt::new(Opcode::RC_WRITE_FIRST, 100).reth(REMOTE, RKEY, len).payload(0, payload);
    let after = |opcode, payload| vec![first(2048 + 10, 1024), Pkt::new(opcode, 101).payload(0, payload)];
    for bad in [
        vec![first(2048, 1020)],
        vec![first(1024, 1024)],
        vec![Pkt::new(Opcode::RC_WRITE_ONLY, 100).reth(REMOTE, RKEY, 9).payload(0, 8)],
        vec![Pkt::new(Opcode::RC_WRITE_ONLY, 100).reth(REMOTE, RKEY, 1028).payload(0, 1028)],
        after(Opcode::RC_WRITE_MIDDLE, 1020),
        after(Opcode::RC_WRITE_LAST, 0),
        after(Opcode::RC_WRITE_LAST, 1024),
        vec![first(1024 + 1024, 1024), Pkt::new(Opcode::RC_WRITE_MIDDLE, 101).payload(0, 1024)],
        vec![first((1 << 31) + 1, 1024)],
        vec![Pkt::new(Opcode::RC_READ_REQUEST, 100).reth(REMOTE, RKEY, (1 << 31) + 1)],
        vec![read(100, 0, 8).payload(0, 4)],
        vec![fetch_add(100, 0, 8).payload(0, 4)],
    ] {
        let mut b = Bench::rc();
        let results = b.batch(&bad);
        assert_eq!(results.last(), Some(&Err(DropReason::BadLength)), "{bad:?}");
        assert_eq!(b.sent(), [format!("Acknowledge {} NAK 1 msn 0", 99 + bad.len())]);
        b.assert_err_event(AsyncEventKind::QpReqErr);
    }
}

#[test]
fn a_message_longer_than_the_receive_is_a_local_length_error() {
    let mut b = Bench::rc();
    b.post_recv(1, 0, 1030);
    b.recv(&Pkt::new(Opcode::RC_SEND_FIRST, 100).payload(1, 1024)).unwrap();
    b.recv(&Pkt::new(Opcode::RC_SEND_LAST, 101).payload(1, 7)).unwrap_err();
    assert_eq!(b.sent(), ["Acknowledge 101 NAK 1 msn 0"]);
    assert_eq!(b.recv_wc().status, WcStatus::LocLenErr);
    assert_eq!(b.mem.local_at(LOCAL + 1024, 8), [0; 8]);
}

#[test]
fn an_access_flag_that_the_queue_pair_lacks_is_an_invalid_request() {
    for (flag, pkt) in [
        (Access::REMOTE_WRITE, write(100, 0, 1, 8)),
        (Access::REMOTE_READ, read(100, 0, 8)),
        (Access::REMOTE_ATOMIC, fetch_add(100, 0, 8)),
    ] {
        let mut b = Bench::rc_with(|attr| attr.access.remove(flag));
        b.recv(&pkt).unwrap_err();
        assert_eq!(b.sent(), ["Acknowledge 100 NAK 1 msn 0"]);
        b.assert_err_event(AsyncEventKind::QpReqErr);
    }
}

#[test]
fn a_key_or_range_that_does_not_fit_is_a_remote_access_error() {
    let size = crate::testing::SIZE as u64;
    let only = Opcode::RC_WRITE_ONLY;
    for bad in [
        Pkt::new(only, 100).reth(REMOTE, Rkey(1), 8).payload(1, 8),
        Pkt::new(only, 100).reth(REMOTE - 1, RKEY, 8).payload(1, 8),
        Pkt::new(only, 100).reth(REMOTE + size - 7, RKEY, 8).payload(1, 8),
        Pkt::new(only, 100).reth(u64::MAX - 3, RKEY, 8).payload(1, 8),
        Pkt::new(Opcode::RC_WRITE_FIRST, 100).reth(REMOTE + size - 1024, RKEY, 2048).payload(1, 1024),
        read(100, size - 7, 8),
        fetch_add(100, size, 8),
    ] {
        let mut b = Bench::rc();
        assert_eq!(b.recv(&bad), Err(DropReason::AccessFault));
        assert_eq!(b.sent(), ["Acknowledge 100 NAK 2 msn 0"]);
        b.assert_err_event(AsyncEventKind::QpAccessErr);
        assert!(b.mem.remote.borrow().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_write_with_immediate_that_is_refused_completes_its_receive() {
    let mut b = Bench::rc();
    b.post_recv(3, 0, 0);
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY_IMM, 100).reth(REMOTE, Rkey(1), 8).payload(1, 8)).unwrap_err();
    assert_eq!(b.sent(), ["Acknowledge 100 NAK 2 msn 0"]);
    assert_eq!(b.recv_wc().status, WcStatus::LocAccessErr);
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let mut b = Bench::rc();
    b.recv(&fetch_add(100, 4, 1)).unwrap_err();
    assert_eq!(b.sent(), ["Acknowledge 100 NAK 1 msn 0"]);
    b.assert_err_event(AsyncEventKind::QpReqErr);
}

#[test]
fn a_receive_with_a_bad_key_is_a_remote_operational_error() {
    let mut b = Bench::rc();
    let sge = Sge { addr: LOCAL, length: 8, lkey: wire::Lkey(5) };
    b.qp.post_recv(&RecvWr { wr_id: 1, sg_list: &[sge] }).unwrap();
    b.recv(&send(100, 1, 8)).unwrap_err();
    assert_eq!(b.sent(), ["Acknowledge 100 NAK 3 msn 0"]);
    let wc = b.recv_wc();
    assert_eq!((wc.status, wc.opcode, wc.qp_num), (WcStatus::LocProtErr, WcOpcode::Recv, QPN));
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn send_with_invalidate_invalidates_after_delivery() {
    let mut b = Bench::rc();
    b.post_recv(1, 0, 8);
    b.recv(&Pkt::new(Opcode::RC_SEND_ONLY_INV, 100).inv(Rkey(0x55)).payload(1, 8)).unwrap();
    let wc = b.recv_wc();
    assert_eq!((wc.wc_flags, wc.imm_data), (Wc::WITH_INV, 0x55_u32.to_ne_bytes()));
    assert_eq!(*b.mem.invalidated.borrow(), [0x55]);
}

#[test]
fn a_key_that_cannot_be_invalidated_ends_the_connection_without_a_nak() {
    let mut b = Bench::rc();
    b.post_recv(1, 0, 8);
    b.recv(&Pkt::new(Opcode::RC_SEND_ONLY_INV, 100).inv(RKEY).payload(1, 8).ack_req()).unwrap_err();
    assert_eq!(b.sent(), [""; 0]);
    assert_eq!(b.recv_wc().status, WcStatus::RemInvReqErr);
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn memory_taken_back_during_a_write_refuses_the_rest() {
    let mut b = Bench::rc();
    b.recv(&Pkt::new(Opcode::RC_WRITE_FIRST, 100).reth(REMOTE, RKEY, 1030).payload(1, 1024)).unwrap();
    b.mem.revoked.set(true);
    b.recv(&Pkt::new(Opcode::RC_WRITE_LAST, 101).payload(2, 6)).unwrap_err();
    assert_eq!(b.sent(), ["Acknowledge 101 NAK 2 msn 0"]);
    b.assert_err_event(AsyncEventKind::QpAccessErr);
}

#[test]
fn memory_revoked_during_a_read_response_is_nakked() {
    let mut b = Bench::rc();
    b.recv(&read(100, 0, 3000)).unwrap();
    b.poll();
    b.mem.revoked.set(true);
    assert_eq!(b.sent(), ["Acknowledge 101 NAK 2 msn 1"]);
    b.assert_err_event(AsyncEventKind::QpAccessErr);
}

#[test]
fn comm_est_is_raised_by_the_first_packet_in_rtr_only() {
    let mut b = Bench::new(config(QpType::Rc), &attr(), QpState::Rtr);
    b.recv(&write(101, 0, 1, 8)).unwrap();
    b.recv(&write(100, 0, 1, 8).ack_req()).unwrap();
    assert_eq!(b.events(), [QpEvent::Async(AsyncEventKind::CommEst)]);
    assert_eq!(b.sent(), ["Acknowledge 100 msn 2"], "RTR sends ACKs");
}

#[test]
fn psn_wrap_in_the_middle_of_a_read() {
    let mut b = Bench::rc_with(|attr| attr.rq_psn = wire::Psn::new(0xff_ffff));
    b.recv(&read(0xff_ffff, 0, 3072)).unwrap();
    let sent = b.sent();
    assert_eq!(sent[0], "READ Response First 16777215 msn 1 [1024]");
    assert_eq!(sent[1], "READ Response Middle 0 [1024]");
    b.recv(&read(0, 1024, 2048)).unwrap();
    assert_eq!(b.sent(), ["READ Response First 0 msn 1 [1024]", "READ Response Last 1 msn 1 [1024]"]);
    b.recv(&write(2, 0, 1, 8).ack_req()).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 2 msn 2"]);
}

#[test]
fn a_shared_receive_queue_is_used_and_left_alone_by_errors() {
    let mut cfg = config(QpType::Rc);
    cfg.srq = true;
    let mut b = Bench::new(cfg, &attr(), QpState::Rts);
    let own = b.qp.post_recv(&RecvWr { wr_id: 1, sg_list: &[] });
    assert!(own.is_err(), "it has no receive queue of its own");
    for i in 0..3 {
        b.post_recv(i, 0, 8);
    }
    b.srq.as_mut().unwrap().arm_limit(3).unwrap();
    b.recv(&send(100, 1, 8)).unwrap();
    let events = b.events();
    assert_eq!(events[0], QpEvent::Async(AsyncEventKind::SrqLimitReached));
    assert!(matches!(events[1], QpEvent::RecvWc { wc, .. } if wc.wr_id == 0));
    b.recv(&write(101, 0, 1, 8).payload(0, 4)).unwrap_err();
    assert_eq!(
        b.events(),
        [QpEvent::Async(AsyncEventKind::QpReqErr), QpEvent::Async(AsyncEventKind::QpLastWqeReached)]
    );
    assert_eq!(b.srq.as_ref().unwrap().len(), 2);
}

#[test]
fn packets_that_are_not_for_this_connection_are_dropped_first() {
    let mut b = Bench::rc();
    let peer = b.from.src;
    b.from.src = wire::Gid([3; 16]);
    assert_eq!(b.recv(&write(100, 0, 1, 8)), Err(DropReason::WrongPeer));
    b.from.src = peer;
    let mut alien = write(100, 0, 1, 8);
    alien.bth.p_key = wire::PKey(0x8001);
    assert_eq!(b.recv(&alien), Err(DropReason::BadPKey));
    assert_eq!(b.recv(&Pkt::new(Opcode::UC_SEND_ONLY, 100)), Err(DropReason::WrongService));
    let limited = {
        let mut p = write(100, 0, 1, 8);
        p.bth.p_key = wire::PKey(0x7fff);
        p
    };
    assert_eq!(b.recv(&limited), Ok(()), "a limited member may talk to a full one");
    for state in [QpState::Reset, QpState::Init] {
        let mut b = Bench::new(config(QpType::Rc), &attr(), state);
        b.from.src = peer;
        assert!(b.recv(&write(100, 0, 1, 8)).is_err());
    }
    let mut b = Bench::new(config(QpType::Rc), &attr(), QpState::Rtr);
    assert_eq!(b.recv(&Pkt::ack(500)), Err(DropReason::WrongState));
}

#[test]
fn a_read_with_ack_req_gets_only_its_response() {
    let mut b = Bench::rc();
    b.recv(&Pkt::new(Opcode::RC_READ_REQUEST, 100).reth(REMOTE, RKEY, 8).ack_req()).unwrap();
    assert_eq!(b.sent().len(), 1);
}

#[test]
fn receives_are_counted() {
    let mut b = Bench::rc();
    for i in 0..2 {
        b.post_recv(u64::from(i), 0, 8);
        b.recv(&Pkt::new(Opcode::RC_SEND_ONLY, 100 + i).payload(1, 8)).unwrap();
    }
    assert_eq!(b.qp.counters().rdma_recvs, 2);
}
