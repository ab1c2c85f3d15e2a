//! The state of one thread. The test holds the other end of its connections.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::*;
use crate::cq::CompletionQueue;
use crate::engine::Parts;
use crate::events::EventQueue;
use crate::gid::{GidTable, Gids};
use crate::hook::Hooks;
use crate::port::{DeadPort, PortChoice, PortKind};
use crate::registry::tests::new_domain;
use crate::registry::{DomainConfig, Membership};
use crate::runtime::Runtime;
use crate::sched::Tuning;
use crate::srqs::{SrqEntry, XrcScope, srqn};
use crate::verbs::{Context, Device, DeviceConfig, Xrcd, XrcdInit};
use transport::{PacketSource, PdId, QpAttr, QpAttrMask, QpState, RecvQueue, RecvWr};
use wire::Gid;

const DOMAIN: PdId = PdId(7);
const FILE: FileId = (1, 2);

/// An engine without threads.
fn engine() -> Arc<Engine> {
    let parts = Parts {
        port: Box::new(DeadPort::default()),
        registry: Box::new(Membership::join(&new_domain()).expect("a new domain")),
        gids: Arc::new(Gids::new(GidTable::without_addresses())),
        hooks: Hooks::new(1),
        control: None,
        runtime: Runtime::Kernel,
        tuning: Tuning::default(),
    };
    Engine::new(parts, None).expect("a descriptor")
}

/// A device with all its threads, in a domain of its own.
fn context() -> Context {
    let config = DeviceConfig {
        netdev: Some("lo".to_owned()),
        port: Some(PortChoice { kind: PortKind::Udp, ..PortChoice::default() }),
        domain: Some(DomainConfig { allow_uids: Vec::new(), ..new_domain() }),
        ..DeviceConfig::default()
    };
    Device::open(&config).and_then(|device| device.context()).expect("lo exists")
}

/// A file of its own for each test, removed at once.
fn open_xrcd(context: &Context) -> (Xrcd, FileId) {
    use std::os::unix::fs::MetadataExt;
    let path: PathBuf = std::env::temp_dir().join(format!("roxie-xrc-test-{:016x}", sys::random_u64()));
    let file = File::create_new(&path).expect("a new file");
    std::fs::remove_file(&path).expect("the new file");
    let metadata = file.metadata().expect("an open file");
    let init = XrcdInit { file: Some(file.as_fd()), create: true, exclusive: false };
    (context.open_xrcd(&init).expect("a new domain"), (metadata.dev(), metadata.ino()))
}

fn peers(engine: &Arc<Engine>) -> Peers {
    let listener = meeting::listen(&new_domain().name, 2 * BACKLOG).expect("a new name");
    let kick = Arc::new(EventFd::new().expect("a descriptor"));
    Peers::new(Arc::downgrade(engine), kick, listener)
}

/// Adds a connection; returns its token and its other end.
fn connected(peers: &mut Peers, engine: &Engine, slot: Option<u16>) -> (u64, OwnedFd) {
    let (here, there) = sys::seqpacket_pair().expect("descriptors");
    (peers.add(engine, here, slot), there)
}

/// Takes all records that a connection has sent.
fn records(from: &OwnedFd) -> Vec<(Record, Vec<u8>)> {
    let mut buffer = vec![0; HEAD_LEN + DATA_MAX];
    std::iter::from_fn(|| {
        let received = sys::recv_record(from.as_fd(), &mut buffer, &mut Vec::new(), false).ok()?;
        Record::parse(&buffer[..received.len]).map(|(record, data)| (record, data.to_vec()))
    })
    .collect()
}

fn kinds(from: &OwnedFd) -> Vec<Kind> {
    records(from).iter().map(|(record, _)| record.kind).collect()
}

fn say(to: &OwnedFd, record: &Record) {
    sys::send_record(to.as_fd(), &record.emit(), &[], &[]).expect("room in the socket");
}

#[test]
fn a_moderated_event_of_a_lent_receive_wakes_the_progress_thread_in_time() {
    // The queue is full again when the receive comes back, so the receive is flushed.
    for (kind, posted_again) in [(Kind::Done, 0), (Kind::GiveBack, 2)] {
        let engine = engine();
        let channel = Arc::new(EventQueue::new().expect("a descriptor"));
        let armed = Arc::clone(&engine.armed_cqs);
        let cq = CompletionQueue::new(4, Some(channel), 0, armed, &engine.moderator, 4);
        cq.moderate(10, 1000);
        cq.arm(false);
        let mut queue = RecvQueue::new(2, 1, PdId(1)).expect("small");
        queue.post(&RecvWr { wr_id: 1, sg_list: &[] }).expect("room");
        let events = Arc::new(EventQueue::new().expect("a descriptor"));
        let xrc = Some(XrcScope { domain: DOMAIN, cq: Arc::clone(&cq) });
        engine.lock().tables.srqs.entries.push(Some(SrqEntry { queue, cookie: 0, events, xrc }));
        let mut peers = peers(&engine);
        let (token, borrower) = connected(&mut peers, &engine, None);
        let srqn = srqn(engine.registry.slot(), 0);
        let ask = Record::new(Kind::Ask, FILE, srqn, 0);
        let answer = engine.lock().tables.handle_borrower(engine.now(), (token, 5), &ask, &[], Some(DOMAIN));
        assert_eq!(answer.map(|answer| answer.map(|answer| answer.kind)), Ok(Some(Kind::Lend)));
        for wr_id in 0..posted_again {
            let queue = &mut engine.lock().tables.srqs.entries[0];
            queue.as_mut().expect("the queue").queue.post(&RecvWr { wr_id, sg_list: &[] }).expect("room");
        }
        engine.progress.set_until(u64::MAX);
        say(&borrower, &Record::new(kind, FILE, srqn, 5));
        peers.serve(&engine, token);
        assert!(cq.pop_one().is_some());
        assert!(engine.moderator.next().is_some(), "the event is held back");
        assert!(engine.progress.kick().take().is_ok(), "{kind:?}: the progress thread sleeps past the event");
    }
}

#[test]
fn a_flood_of_connections_does_not_keep_the_thread_from_the_others() {
    let engine = engine();
    let mut peers = peers(&engine);
    let name = format!("roxie-test/{:016x}", sys::random_u64());
    let listener = meeting::listen(&name, 2 * BACKLOG).expect("a new name");
    peers.listeners[0].fd = Arc::new(listener.public);
    let flood: Vec<_> = (0..ACCEPTS_PER_ROUND + 10).map(|_| sys::connect_seqpacket(&name)).collect();
    assert!(flood.iter().all(Result::is_ok));
    peers.accept(&engine, 0, now_ns());
    assert_eq!(peers.connections.len(), ACCEPTS_PER_ROUND);
    peers.accept(&engine, 0, now_ns());
    assert_eq!(peers.connections.len(), flood.len());
}

#[test]
fn a_listener_pauses_after_an_error() {
    let engine = engine();
    let mut peers = peers(&engine);
    let public_only = |peers: &mut Peers| peers.listeners.truncate(1);
    public_only(&mut peers);
    let (fds, timeout) = peers.poll_fds(1000);
    assert_eq!((fds.len(), timeout), (2, None));
    // No listener: accept(2) fails each time, as it does without descriptors.
    let (broken, _other) = sys::seqpacket_pair().expect("descriptors");
    let listening = std::mem::replace(&mut peers.listeners[0].fd, Arc::new(broken));
    peers.accept(&engine, 0, 1000);
    let (fds, timeout) = peers.poll_fds(1000);
    assert_eq!((fds.len(), timeout), (1, Some(ACCEPT_PAUSE_NS)), "the thread would not sleep");
    peers.listeners[0].fd = listening;
    peers.accept(&engine, 0, 1000 + ACCEPT_PAUSE_NS);
    assert_eq!(peers.poll_fds(1000 + ACCEPT_PAUSE_NS).0.len(), 2);
}

#[test]
fn an_owner_that_reads_nothing_lends_nothing_until_it_has_read() {
    let engine = engine();
    let slot = engine.registry.slot() + 1;
    let queue = ForeignQueue { domain: DOMAIN, srqn: srqn(slot, 0) };
    engine.lock().tables.srqs.borrowed.add_domain(DOMAIN, FILE, Arc::default());
    let mut peers = peers(&engine);
    let (token, owner) = connected(&mut peers, &engine, Some(slot));
    let data = Record::new(Kind::Data, FILE, queue.srqn, 0);
    while !peers.is_full(token) {
        peers.send(token, &data, &[7; DATA_MAX]);
    }
    peers.handle_output(&engine, Output::Ask { file: FILE, queue });
    assert!(peers.connections[0].waiting_bytes <= WAITING_MAX + HEAD_LEN + DATA_MAX);
    // Records of the owner wait in the socket meanwhile.
    say(&owner, &Record::new(Kind::Lend, FILE, queue.srqn, 3));
    peers.serve(&engine, token);
    assert_eq!(peers.connections[0].events() & libc::POLLIN, 0);
    let mut received = Vec::new();
    while !peers.connections[0].waiting.is_empty() {
        received.extend(kinds(&owner));
        peers.serve(&engine, token);
    }
    received.extend(kinds(&owner));
    let give_back = received.pop();
    assert!(received.iter().all(|kind| *kind == Kind::Data), "nothing was asked");
    assert_eq!(give_back, Some(Kind::GiveBack), "what was lent without a question");
    peers.handle_output(&engine, Output::Ask { file: FILE, queue });
    assert_eq!((kinds(&owner), peers.connections[0].waiting_bytes), (vec![Kind::Ask], 0));
}

#[test]
fn a_message_reaches_the_owner_although_the_domain_is_closed_meanwhile() {
    let context = context();
    let engine = context.device().engine().expect("it runs");
    let (xrcd, file) = open_xrcd(&context);
    let domain = domain_of(&engine, file).expect("it is open");
    let slot = engine.registry.slot() ^ 1;
    let queue = ForeignQueue { domain: domain.id(), srqn: srqn(slot, 3) };
    let length = DATA_MAX + 9;
    let sge = domain.stored().add(domain.pd(), queue.srqn, 4, length).expect("memory");
    let opcode = transport::WcOpcode::Recv;
    let wc = Wc { wr_id: 4, opcode, byte_len: length as u32, ..Wc::default() };
    let mut outputs = {
        let mut core = engine.lock();
        let wqe_bytes: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
        let mut own = RecvQueue::new(1, 1, domain.id()).expect("small");
        own.post(&RecvWr { wr_id: 4, sg_list: &[sge] }).expect("room");
        let (wqe, _) = own.withdraw().expect("posted");
        wqe.write(&core.tables.mrs, 0, &wqe_bytes).expect("registered memory");
        core.tables.srqs.borrowed.finish(queue, wc, true);
        core.tables.srqs.borrowed.take_output()
    };
    drop((domain, xrcd));
    assert!(domain_of(&engine, file).is_none(), "it is closed");
    let mut peers = peers(&engine);
    let (_, owner) = connected(&mut peers, &engine, Some(slot));
    peers.handle_output(&engine, outputs.remove(0));
    let received = records(&owner);
    let kinds: Vec<Kind> = received.iter().map(|(record, _)| record.kind).collect();
    assert_eq!(kinds, [Kind::Data, Kind::Data, Kind::Done]);
    let bytes: Vec<u8> = received.iter().flat_map(|(_, data)| data.clone()).collect();
    assert!(bytes.len() == length && bytes.iter().enumerate().all(|(i, byte)| *byte == (i * 7) as u8));
    assert!(received[2].0.solicited && received[2].0.wc.byte_len == length as u32);
}

#[test]
fn a_receive_that_is_lent_after_the_domain_was_closed_is_given_back_and_an_ask_refused() {
    let engine = engine();
    let mut peers = peers(&engine);
    let slot = engine.registry.slot() ^ 1;
    let (token, owner) = connected(&mut peers, &engine, Some(slot));
    say(&owner, &Record { value: 100, ..Record::new(Kind::Lend, FILE, srqn(slot, 0), 8) });
    say(&owner, &Record::new(Kind::NotReady, FILE, srqn(slot, 0), 9));
    peers.serve(&engine, token);
    let answers = records(&owner);
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].0.kind, answers[0].0.id), (Kind::GiveBack, 8));
    // The same as owner.
    let (token, borrower) = connected(&mut peers, &engine, None);
    say(&borrower, &Record::new(Kind::Ask, FILE, srqn(engine.registry.slot(), 0), 0));
    peers.serve(&engine, token);
    assert_eq!(kinds(&borrower), [Kind::Refuse]);
    assert!(!peers.connections.iter().any(|connection| connection.has_ended));
}

/// Keeps a packet of queue pair `index` for a queue of another process; the owner is not asked.
fn hold(engine: &Engine, queue: ForeignQueue, index: crate::engine::QpIndex) -> Vec<Output> {
    let gid = Gid::from(std::net::IpAddr::from([127, 0, 0, 1]));
    let from = PacketSource { src: gid, src_port: 1, dst: gid, tos: 0, ttl: 64 };
    let mut core = engine.lock();
    let borrowed = &mut core.tables.srqs.borrowed;
    assert!(borrowed.queue(queue).is_some(), "the domain is shared");
    assert!(borrowed.hold(queue, index, &[0; 40], &from));
    borrowed.take_output()
}

#[test]
fn a_packet_that_waits_does_not_survive_the_reset_of_its_queue_pair() {
    let context = context();
    let engine = context.device().engine().expect("it runs");
    let (xrcd, file) = open_xrcd(&context);
    let domain = domain_of(&engine, file).expect("it is open").id();
    let queue = ForeignQueue { domain, srqn: srqn(engine.registry.slot() ^ 1, 0) };
    let qp = xrcd.create_qp(0).expect("space");
    let index = engine.lock().tables.index_of(qp.qpn()).expect("it exists");
    assert_eq!(hold(&engine, queue, index).len(), 1);
    qp.modify(&QpAttr { state: QpState::Reset, ..QpAttr::default() }, QpAttrMask::STATE).expect("any state");
    let held = engine.lock().tables.srqs.borrowed.begin_answer(queue, Answer::NotReady);
    assert!(held.is_empty());
}

#[test]
fn a_failed_change_of_a_queue_pair_leaves_nothing_for_the_thread_undelivered() {
    let context = context();
    let engine = context.device().engine().expect("it runs");
    let (xrcd, file) = open_xrcd(&context);
    let domain = domain_of(&engine, file).expect("it is open").id();
    let queue = ForeignQueue { domain, srqn: srqn(engine.registry.slot() ^ 1, 0) };
    let qp = xrcd.create_qp(0).expect("space");
    engine.lock().tables.srqs.borrowed.finish(queue, Wc::default(), false);
    let wrong = QpAttr { state: QpState::Rts, ..QpAttr::default() };
    assert!(qp.modify(&wrong, QpAttrMask::STATE).is_err());
    assert!(!engine.lock().tables.srqs.borrowed.has_output());
}

#[test]
fn errors_that_pass_count_as_an_empty_queue() {
    let answer = |errno| answer_without_connection(&io::Error::from_raw_os_error(errno));
    for errno in [libc::EAGAIN, libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::EINTR, libc::ENOMEM] {
        assert!(matches!(answer(errno), Answer::NotReady), "{errno}");
    }
    // Without an owner, and with an owner of another user.
    for errno in [libc::ECONNREFUSED, libc::EPERM] {
        assert!(matches!(answer(errno), Answer::Refused), "{errno}");
    }
    let no_group = io::Error::from(io::ErrorKind::NotFound);
    assert!(matches!(answer_without_connection(&no_group), Answer::Refused));
}

#[test]
fn an_owner_that_accepts_slowly_is_asked_again() {
    let engine = engine();
    let slot = engine.registry.slot() ^ 1;
    let name = engine.registry.membership().expect("a member").xrc_name(slot);
    let busy = sys::bind_seqpacket(&name).expect("a free slot");
    sys::listen(busy.as_fd(), 0).expect("a new socket");
    let _first = sys::connect_seqpacket(&name).expect("room for one");
    engine.lock().tables.srqs.borrowed.add_domain(DOMAIN, FILE, Arc::default());
    let queue = ForeignQueue { domain: DOMAIN, srqn: srqn(slot, 0) };
    let mut peers = peers(&engine);
    for _ in 0..2 {
        let output = hold(&engine, queue, 0).remove(0);
        peers.handle_output(&engine, output);
        assert!(!engine.lock().tables.srqs.borrowed.is_asked(queue));
    }
    // It was not refused: the messages of its queue pair are not either.
    assert!(engine.lock().tables.srqs.borrowed.is_known(queue));
    drop(busy);
    let output = hold(&engine, queue, 0).remove(0);
    peers.handle_output(&engine, output);
    assert!(!engine.lock().tables.srqs.borrowed.is_known(queue));
}
