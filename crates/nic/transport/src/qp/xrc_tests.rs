//! Extended reliable connections: a header that names a shared receive queue, and halves of queue pairs (IBA
//! Annex A14).

use wire::{DropReason, ExtHeader, NakCode, Opcode, Packet, Psn, Service};

use crate::testing::{
    Bench, LKEY, LOCAL, PEER_QPN, Pkt, QPN, REMOTE, RKEY, RQ_PSN, attr, config, read, text, write,
};
use crate::{
    AsyncEventKind, Dest, Errno, PdId, QpAttr, QpEvent, QpState, QpType, RecvQueue, RecvWr, SendFlags, Sge,
    VerbsError, Wc, WcOpcode, WcStatus, WrOp,
};

const SRQ: u32 = 0x12_3456;
const OTHER: u32 = 7;
const SRQ_PD: PdId = PdId(50);

fn sender() -> Bench {
    Bench::new(config(QpType::XrcIni), &attr(), QpState::Rts)
}

/// A receiving end with two shared receive queues of different protection domains.
fn target() -> Bench {
    let attr = QpAttr { rq_psn: Psn::new(RQ_PSN - 1), ..attr() };
    let mut b = Bench::new(config(QpType::XrcTgt), &attr, QpState::Rtr);
    for (number, pd) in [(SRQ, SRQ_PD), (OTHER, PdId(51))] {
        b.xrc.push((number, RecvQueue::new(16, 4, pd).unwrap()));
    }
    // Drops COMM_EST.
    b.recv(&Pkt::new(Opcode::XRC_WRITE_ONLY, RQ_PSN - 1).srq(SRQ)).unwrap();
    b.sent();
    b.events();
    b
}

fn receive(b: &mut Bench, queue: usize, wr_id: u64, length: u32) {
    let sge = Sge { addr: LOCAL, length, lkey: LKEY };
    b.xrc[queue].1.post(&RecvWr { wr_id, sg_list: &[sge] }).unwrap();
}

fn post(b: &mut Bench, dest: Option<Dest>, op: WrOp, length: u32) -> Result<(), VerbsError> {
    let sge = Sge { addr: LOCAL, length, lkey: LKEY };
    b.post_to(dest, 1, op, &[sge], SendFlags::SIGNALED)
}

fn send(psn: u32, length: usize) -> Pkt {
    Pkt::new(Opcode::XRC_SEND_ONLY, psn).srq(SRQ).payload(9, length)
}

#[test]
fn every_request_packet_names_the_shared_receive_queue() {
    let mut b = sender();
    let (remote_addr, r_key) = (REMOTE, RKEY);
    for (op, length) in [
        (WrOp::Send, 2500),
        (WrOp::SendImm([1; 4]), 8),
        (WrOp::SendInv(RKEY), 8),
        (write(0), 1500),
        (WrOp::WriteImm { remote_addr, r_key, imm: [1; 4] }, 8),
        (read(0), 2048),
        (WrOp::CompareSwap { remote_addr, r_key, compare: 0, swap: 1 }, 8),
        (WrOp::FetchAdd { remote_addr, r_key, add: 1 }, 8),
    ] {
        post(&mut b, Some(Dest::Srq(SRQ)), op, length).unwrap();
    }
    let mut sent = Vec::new();
    while let Some((bytes, _)) = b.poll() {
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.row().service, Service::Xrc);
        assert_eq!(packet.row().headers.first(), Some(&ExtHeader::Xrceth));
        assert_eq!(packet.xrceth().unwrap().srqn, SRQ, "{packet}");
        sent.push(text(&bytes).split(" 5").next().unwrap().to_owned());
    }
    assert_eq!(
        sent,
        [
            "SEND First",
            "SEND Middle",
            "SEND Last",
            "SEND Only Immediate",
            "SEND Only Invalidate",
            "WRITE First",
            "WRITE Last",
            "WRITE Only Immediate",
            "READ Request",
            "Compare Swap",
            "Fetch Add"
        ]
    );
}

#[test]
fn responses_complete_xrc_requests() {
    let mut b = sender();
    post(&mut b, Some(Dest::Srq(SRQ)), read(0), 8).unwrap();
    post(&mut b, Some(Dest::Srq(OTHER)), WrOp::Send, 8).unwrap();
    b.sent();
    b.recv(&Pkt::new(Opcode::XRC_READ_RESPONSE_ONLY, 500).payload(3, 8)).unwrap();
    b.recv(&Pkt::new(Opcode::XRC_ACKNOWLEDGE, 501)).unwrap();
    assert_eq!(b.send_wcs(), [(1, WcStatus::Success), (1, WcStatus::Success)]);
    assert_eq!(b.mem.local_at(LOCAL, 8), [3; 8]);
}

#[test]
fn a_message_goes_to_the_queue_that_it_names_and_the_completion_names_the_sender() {
    let mut b = target();
    receive(&mut b, 0, 10, 64);
    receive(&mut b, 1, 11, 64);
    b.recv(&send(RQ_PSN, 8).srq(OTHER).solicited()).unwrap();
    b.recv(&send(RQ_PSN + 1, 8).ack_req()).unwrap();
    let wc = |wr_id| Wc {
        wr_id,
        opcode: WcOpcode::Recv,
        byte_len: 8,
        qp_num: QPN,
        src_qp: PEER_QPN,
        ..Wc::default()
    };
    let expected = [
        QpEvent::RecvWc { srqn: Some(OTHER), wc: wc(11), solicited: true },
        QpEvent::RecvWc { srqn: Some(SRQ), wc: wc(10), solicited: false },
    ];
    assert_eq!(b.events(), expected);
    let (bytes, _) = b.poll().unwrap();
    let ack = Packet::parse(&bytes).unwrap();
    assert_eq!(ack.bth.opcode, Opcode::XRC_ACKNOWLEDGE);
    assert_eq!((ack.bth.psn.value(), ack.bth.dest_qp.value()), (RQ_PSN + 1, PEER_QPN));
}

/// IBA A14: R_Key and receive buffers belong to the protection domain of the shared receive queue.
#[test]
fn keys_belong_to_the_domain_of_the_shared_receive_queue() {
    let mut b = target();
    receive(&mut b, 0, 10, 64);
    let (write, atomic) = (Opcode::XRC_WRITE_ONLY, Opcode::XRC_FETCH_ADD);
    for packet in [
        send(RQ_PSN, 8),
        Pkt::new(write, RQ_PSN + 1).srq(SRQ).reth(REMOTE, RKEY, 8).payload(1, 8),
        Pkt::new(atomic, RQ_PSN + 2).srq(SRQ).atomic(REMOTE, 1, 0),
        Pkt::new(Opcode::XRC_READ_REQUEST, RQ_PSN + 3).srq(SRQ).reth(REMOTE, RKEY, 8),
    ] {
        b.mem.last_pd.set(PdId(0));
        b.recv(&packet).unwrap();
        b.sent();
        assert_eq!(b.mem.last_pd.get(), SRQ_PD, "{packet:?}");
    }
}

#[test]
fn responses_have_no_xrc_header_and_are_sent_again_for_duplicates() {
    let mut b = target();
    b.mem.put_remote(REMOTE, &[5; 2048]);
    let read = Pkt::new(Opcode::XRC_READ_REQUEST, RQ_PSN).srq(SRQ).reth(REMOTE, RKEY, 2048);
    for _ in 0..2 {
        b.recv(&read).unwrap();
        let sent = b.sent();
        assert_eq!(sent.len(), 2, "{sent:?}");
        assert!(sent[0].starts_with("READ Response First 100 msn"), "{sent:?}");
        assert!(sent[1].starts_with("READ Response Last 101 msn"), "{sent:?}");
    }
    let again = Pkt::new(Opcode::XRC_READ_REQUEST, RQ_PSN).srq(1).reth(REMOTE, RKEY, 2048);
    assert_eq!(b.recv(&again), Err(DropReason::Duplicate), "of another queue");
    assert_eq!(b.sent(), [""; 0]);
}

#[test]
fn an_empty_shared_receive_queue_causes_an_rnr_nak() {
    let mut b = target();
    receive(&mut b, 1, 11, 64);
    b.recv(&send(RQ_PSN, 8)).unwrap_err();
    assert_eq!(b.sent(), ["Acknowledge 100 RNR 12 msn 1"]);
    receive(&mut b, 0, 10, 64);
    b.recv(&send(RQ_PSN, 8)).unwrap();
    assert_eq!(b.recv_wc().wr_id, 10);
}

#[test]
fn an_early_packet_goes_to_the_queue_that_it_names() {
    let mut b = target();
    receive(&mut b, 0, 10, 64);
    receive(&mut b, 1, 11, 64);
    b.recv(&send(RQ_PSN + 1, 8).srq(OTHER)).unwrap();
    assert!(b.events().is_empty());
    b.recv(&send(RQ_PSN, 8)).unwrap();
    let queues = b.events().into_iter().map(|event| match event {
        QpEvent::RecvWc { srqn, .. } => srqn,
        other => panic!("{other:?}"),
    });
    assert_eq!(queues.collect::<Vec<_>>(), [Some(SRQ), Some(OTHER)]);
}

#[test]
fn an_unknown_queue_or_a_change_of_queue_within_a_message_is_refused() {
    let first = || Pkt::new(Opcode::XRC_SEND_FIRST, RQ_PSN).srq(SRQ).payload(1, 1024);
    let refused = |mut b: Bench, packet: &Pkt, reason, psn| {
        assert_eq!(b.recv(packet), Err(reason));
        let sent = b.sent();
        let nak = format!("Acknowledge {psn} NAK {} msn 1", NakCode::InvalidRequest as u8);
        assert_eq!(sent, [nak]);
        assert_eq!(b.qp.state(), QpState::Err);
        b.events()
    };
    let none = Pkt::new(Opcode::XRC_SEND_ONLY, RQ_PSN).srq(99);
    let event = [QpEvent::Async(AsyncEventKind::QpReqErr)];
    assert_eq!(refused(target(), &none, DropReason::NoSuchSrq, RQ_PSN), event);
    let write = Pkt::new(Opcode::XRC_WRITE_ONLY, RQ_PSN).srq(99).reth(REMOTE, RKEY, 8).payload(1, 8);
    assert_eq!(refused(target(), &write, DropReason::NoSuchSrq, RQ_PSN), event);

    let mut b = target();
    receive(&mut b, 0, 10, 4096);
    b.recv(&first()).unwrap();
    let last = Pkt::new(Opcode::XRC_SEND_LAST, RQ_PSN + 1).srq(OTHER).payload(1, 8);
    let events = refused(b, &last, DropReason::BadSequenceOfOpcodes, RQ_PSN + 1);
    let [QpEvent::RecvWc { srqn: Some(SRQ), wc, solicited: true }] = events[..] else { panic!("{events:?}") };
    assert_eq!((wc.wr_id, wc.status), (10, WcStatus::LocQpOpErr));
}

#[test]
fn the_limit_event_names_the_shared_receive_queue() {
    let mut b = target();
    receive(&mut b, 1, 11, 64);
    b.xrc[1].1.arm_limit(1).unwrap();
    b.recv(&send(RQ_PSN, 8).srq(OTHER)).unwrap();
    assert_eq!(b.events()[0], QpEvent::XrcLimitReached(OTHER));
}

#[test]
fn each_end_of_xrc_is_half_a_queue_pair() {
    let (mut ini, mut tgt) = (sender(), target());
    let srq = Some(Dest::Srq(SRQ));
    assert_eq!(
        post(&mut ini, None, WrOp::Send, 8).map_err(VerbsError::kind),
        Err(Errno::EINVAL),
        "it names no queue"
    );
    let flush = WrOp::Flush { remote_addr: REMOTE, r_key: RKEY, length: 8, placement: 1, selectivity: 0 };
    assert_eq!(
        post(&mut ini, srq, flush, 0).map_err(VerbsError::kind),
        Err(Errno::EINVAL),
        "XRC has no FLUSH"
    );
    let receive = RecvWr { wr_id: 1, sg_list: &[] };
    assert_eq!(ini.qp.post_recv(&receive).map_err(VerbsError::kind), Err(Errno::EINVAL));
    assert_eq!(tgt.qp.post_recv(&receive).map_err(VerbsError::kind), Err(Errno::EINVAL));
    assert_eq!(post(&mut tgt, srq, WrOp::Send, 8).map_err(VerbsError::kind), Err(Errno::EINVAL));

    assert_eq!(ini.recv(&send(RQ_PSN, 8)), Err(DropReason::WrongService));
    assert_eq!(tgt.recv(&Pkt::new(Opcode::XRC_ACKNOWLEDGE, 500)), Err(DropReason::WrongService));
    assert_eq!(tgt.recv(&Pkt::new(Opcode::RC_SEND_ONLY, RQ_PSN)), Err(DropReason::WrongService));
    assert_eq!((ini.qp.state(), tgt.qp.state()), (QpState::Rts, QpState::Rtr));
}
