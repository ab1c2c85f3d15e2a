//! READs followed by requests that overwrite what they read. The path MTU is 256.

use wire::{DropReason, Opcode, Packet};

use crate::testing::{self, Bench, LKEY, LOCAL, Pkt, REMOTE, RKEY, SQ_PSN, attr};
use crate::{PathMtu, QpAttr, QpAttrMask, QpState, QpType, SendFlags, Sge, WcStatus, WrOp};

const MTU: u32 = 256;

fn read(psn: u32, at: u64, len: u32) -> Pkt {
    Pkt::new(Opcode::RC_READ_REQUEST, psn).reth(REMOTE + at, RKEY, len)
}

fn write(psn: u32, at: u64, value: u8, len: u32) -> Pkt {
    Pkt::new(Opcode::RC_WRITE_ONLY, psn).reth(REMOTE + at, RKEY, len).payload(value, len as usize)
}

/// A responder with a memory of ones.
fn bench() -> Bench {
    let b = Bench::rc_with(|attr| attr.path_mtu = PathMtu::M256);
    b.mem.put_remote(REMOTE, &[1; 8192]);
    b
}

/// Passes what one queue pair sends to the other.
fn carry(from: &mut Bench, to: &mut Bench) -> usize {
    let sent: Vec<_> = core::iter::from_fn(|| from.poll()).collect();
    for (bytes, _) in &sent {
        let packet = Packet::parse(bytes).unwrap();
        let _postponed = to.qp.handle_packet(to.now, &packet, &to.from, &to.mem, None, &mut to.reorder);
    }
    to.qp.end_of_batch(to.now, false);
    sent.len()
}

/// Posts these operations at once to one queue pair and carries packets until both are silent. Returns the
/// requester and the responder.
fn run(ops: &[(WrOp, u32)]) -> [Bench; 2] {
    let mut requester = Bench::rc();
    let mut responder = Bench::rc_with(|attr| attr.rq_psn = wire::Psn::new(SQ_PSN));
    requester.mem.put_local(LOCAL, &[2; 8192]);
    responder.mem.put_remote(REMOTE, &[1; 8192]);
    for (wr_id, (op, len)) in (0..).zip(ops) {
        // A READ has its own buffer, so that a WRITE behind it does not send what it has read.
        let at = if matches!(op, WrOp::Write { .. }) { 0 } else { 16384 * (wr_id + 1) };
        let sge = Sge { addr: LOCAL + at, length: *len, lkey: LKEY };
        requester.post_sges(wr_id, *op, &[sge], SendFlags::SIGNALED).unwrap();
    }
    while carry(&mut requester, &mut responder) + carry(&mut responder, &mut requester) > 0 {}
    let done: Vec<_> = (0..ops.len() as u64).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(requester.send_wcs(), done);
    [requester, responder]
}

#[test]
fn a_read_of_a_real_requester_returns_the_bytes_before_the_write_behind_it() {
    for len in [1, 8, 256, 257, 1024, 1025, 4096, 8192] {
        let [requester, responder] = run(&[(testing::read(0), len), (testing::write(0), len)]);
        let len = len as usize;
        assert_eq!(requester.mem.local_at(LOCAL + 16384, len), vec![1; len], "{len} bytes");
        assert_eq!(responder.mem.remote_at(REMOTE, len), vec![2; len], "{len} bytes");
    }
}

#[test]
fn a_read_of_a_real_requester_returns_the_word_before_the_atomic_behind_it() {
    let (remote_addr, r_key) = (REMOTE, RKEY);
    let add = WrOp::FetchAdd { remote_addr, r_key, add: 1 };
    let [requester, responder] = run(&[(testing::read(0), 8), (add, 8)]);
    assert_eq!(requester.mem.local_at(LOCAL + 16384, 8), [1; 8]);
    assert_eq!(requester.mem.local_at(LOCAL + 2 * 16384, 8), [1; 8]);
    assert_eq!(responder.mem.remote_at(REMOTE, 8), (u64::from_ne_bytes([1; 8]) + 1).to_ne_bytes());
}

#[test]
fn one_overwritten_response_packet_is_saved_and_nothing_is_nakked() {
    let mut b = bench();
    b.batch(&[read(100, 0, 8), write(101, 0, 2, 8).ack_req()]);
    assert_eq!(b.mem.remote_at(REMOTE, 8), [2; 8]);
    let (first, _) = b.poll().unwrap();
    assert_eq!(Packet::parse(&first).unwrap().payload(), [1; 8]);
    assert_eq!(b.sent(), ["Acknowledge 101 msn 2"]);
    b.recv(&read(100, 0, 4)).unwrap();
    assert_eq!(b.sent_payload(), [1; 4], "a duplicate finds the bytes, too");
}

#[test]
fn an_atomic_behind_a_read_does_not_change_what_the_read_returns() {
    let mut b = bench();
    b.mem.put_remote(REMOTE + 8, &5_u64.to_ne_bytes());
    let add = Pkt::new(Opcode::RC_FETCH_ADD, 101).atomic(REMOTE + 8, 1, 0);
    let word = Pkt::new(Opcode::RC_ATOMIC_WRITE, 103).reth(REMOTE, RKEY, 8).payload(9, 8);
    b.batch(&[read(100, 0, 16), add]);
    let both = [[1; 8], 5_u64.to_ne_bytes()].concat();
    assert_eq!(b.sent_payload(), both);
    assert_eq!(b.mem.remote_at(REMOTE + 8, 8), 6_u64.to_ne_bytes());
    b.batch(&[read(102, 0, 8), word]);
    assert_eq!(b.sent_payload(), [1; 8]);
    assert_eq!(b.mem.remote_at(REMOTE, 8), [9; 8]);
}

#[test]
fn a_write_of_more_than_can_be_saved_is_nakked_behind_the_responses_and_executed_again() {
    let mut b = bench();
    let writes = [0, 1, 2].map(|i| write(103 + i, u64::from(i * MTU), 2, MTU));
    b.batch(&[read(100, 0, 3 * MTU)]);
    assert_eq!(b.batch(&writes), [Err(DropReason::OutOfSequence), Ok(()), Ok(())]);
    assert_eq!(b.mem.remote_at(REMOTE, 768), [1; 768]);
    let mut payload = Vec::new();
    for _ in 0..3 {
        let (bytes, _) = b.poll().unwrap();
        payload.extend_from_slice(Packet::parse(&bytes).unwrap().payload());
    }
    assert_eq!(payload, [1; 768]);
    assert_eq!(b.sent(), ["Acknowledge 103 NAK 0 msn 1"]);
    b.recv(&writes[0]).unwrap();
    assert_eq!(b.mem.remote_at(REMOTE, 768), [2; 768], "the other WRITEs were kept");
}

#[test]
fn a_write_into_the_sent_part_of_a_response_is_executed_at_once() {
    let mut b = bench();
    b.batch(&[read(100, 0, 4 * MTU)]);
    b.poll();
    b.poll();
    b.batch(&[write(104, 0, 2, MTU), write(105, 256, 2, MTU), write(106, 1024, 2, MTU)]);
    assert_eq!(b.mem.remote_at(REMOTE, 1280), [vec![2; 512], vec![1; 512], vec![2; 256]].concat());
    b.batch(&[write(107, 512, 2, 32)]);
    assert_eq!(b.sent_payload(), [1; 512], "the bytes of the third packet were saved");
    b.batch(&[read(108, 0, 8), write(109, 0, 3, 8)]);
    assert_eq!(b.sent_payload(), [2; 8], "the room is free again");
    assert_eq!(b.qp.counters().send_seq_err, 0);
}

/// A WRITE that is not aligned to the packets of the READ overlaps two of them.
#[test]
fn bytes_of_two_response_packets_are_saved() {
    let mut b = bench();
    b.batch(&[read(100, 0, 3 * MTU), write(103, 240, 2, 30)]);
    assert_eq!(b.mem.remote_at(REMOTE + 240, 30), [2; 30]);
    b.batch(&[write(104, 260, 3, 10)]);
    assert_eq!(b.mem.remote_at(REMOTE + 260, 10), [3; 10], "these are saved already");
    let (first, _) = b.poll().unwrap();
    assert_eq!(Packet::parse(&first).unwrap().payload(), [1; 256]);
    b.recv(&write(105, 269, 4, 2)).unwrap_err();
    assert_eq!(b.sent_payload(), [1; 512]);
    b.recv(&write(105, 269, 4, 2)).unwrap();
    assert_eq!(b.mem.remote_at(REMOTE + 268, 4), [3, 4, 4, 1]);
}

/// The READ was lost; the WRITEs behind it were kept, and follow it at once.
#[test]
fn kept_writes_behind_a_late_read_do_not_change_what_it_returns() {
    let mut b = bench();
    let writes = [write(102, 0, 2, 8), write(103, 256, 2, MTU), write(104, 512, 2, 8)];
    b.batch(&writes);
    b.sent();
    b.recv(&read(100, 0, 2 * MTU)).unwrap();
    assert_eq!(b.sent_payload(), [1; 512]);
    assert_eq!(b.mem.remote_at(REMOTE, 768), [vec![2; 8], vec![1; 760]].concat());
    b.recv(&writes[1]).unwrap();
    let all = [vec![2; 8], vec![1; 248], vec![2; 264], vec![1; 248]].concat();
    assert_eq!(b.mem.remote_at(REMOTE, 768), all);
}

#[test]
fn requests_beside_the_bytes_of_a_read_are_not_affected() {
    let mut b = bench();
    b.batch(&[read(100, 256, 2 * MTU), write(102, 0, 2, MTU), write(103, 768, 2, MTU), read(104, 0, 8)]);
    assert_eq!(b.sent_payload(), [vec![1; 512], vec![2; 8]].concat());
    assert_eq!(b.qp.counters().send_seq_err, 0);
}

#[test]
fn a_write_whose_addresses_wrap_around_is_refused_beside_an_unsent_response() {
    let mut b = bench();
    let wild = Pkt::new(Opcode::RC_WRITE_ONLY, 101).reth(u64::MAX - 3, RKEY, 8).payload(2, 8);
    b.batch(&[read(100, 0, 8), wild])[1].unwrap_err();
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn a_new_connection_does_not_find_the_packet_that_an_old_one_saved() {
    let mut b = bench();
    b.batch(&[read(100, 0, 8), write(101, 0, 2, 8)]);
    for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
        let attr = QpAttr { state, ..attr() };
        b.qp.modify(b.now, &attr, QpAttrMask::required(QpType::Rc, state)).unwrap();
    }
    b.qp.learn_port(b.from.src_port);
    b.recv(&read(100, 0, 8)).unwrap();
    assert_eq!(b.sent_payload(), [2; 8]);
}

#[test]
fn eight_bytes_of_a_long_response_packet_are_saved_and_more_than_there_is_room_for_are_not() {
    let mut b = Bench::rc();
    b.batch(&[read(100, 0, 1024), write(101, 8, 2, 8)]);
    assert_eq!(b.sent_payload(), [0; 1024]);
    assert_eq!(b.mem.remote_at(REMOTE, 24), [[0; 8], [2; 8], [0; 8]].concat());
    let long = write(103, 0, 3, 33);
    b.batch(&[read(102, 0, 1024), long.clone()])[1].unwrap_err();
    assert_eq!(b.sent(), ["READ Response Only 102 msn 3 [1024]", "Acknowledge 103 NAK 0 msn 3"]);
    b.recv(&long).unwrap();
    assert_eq!(b.mem.remote_at(REMOTE, 34), [vec![3; 33], vec![0]].concat());
}

#[test]
fn a_write_of_bytes_that_two_reads_have_to_read_waits_for_one_of_them() {
    let mut b = bench();
    let behind = write(102, 0, 2, 8);
    b.batch(&[read(100, 0, 8), read(101, 4, 8), behind.clone()])[2].unwrap_err();
    b.poll();
    b.recv(&behind).unwrap();
    assert_eq!(b.sent_payload(), [1; 8]);
    assert_eq!(b.mem.remote_at(REMOTE, 8), [2; 8]);
}
