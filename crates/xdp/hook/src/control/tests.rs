//! Requests and replies through the socket; foreign users and invalid records are refused.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use bpf::insn::encode;
use bpf::{
    Btf, Imm64, Initial, Insn, Kfunc, MapDef, Page, Program, ProgramKind, Recipe, Reg, Slot, UpdateMode,
};
use transport::QpCounters;
use wire::capture::{Conditions, PsnRange};
use wire::{Opcode, Psn, Qpn};

use super::server::Answers;
use super::*;
use crate::plan::PlannedStage;
use crate::{HookCounters, HookMap, HookPlan, HookRecords, LogLine, MapId};
use roxie::status::{ObjectStatus, QpStatus};
use sys::RecordWriter;

const EXIT: Slot = Slot { opcode: 0x95, dst: 0, src: 0, off: 0, imm: 0 };

fn program() -> Program {
    let mut recipe = Recipe::steer(4791, 4);
    recipe.counters = true;
    let mut program = recipe.program("steer", ProgramKind::Xdp).unwrap();
    program.btf = Some(Btf { blob: vec![0x9f, 0xeb, 1, 0], ..Btf::default() });
    program.maps.push(MapDef { initial: vec![1, 2, 3, 4], frozen: true, ..MapDef::array("more", 4, 1) });
    program
}

fn requests() -> Vec<Request> {
    let stages = vec![PlannedStage::Native("impair:loss=1%".to_owned()), PlannedStage::Program(program())];
    vec![
        Request::Attach { point: HookPoint::Egress, plan: HookPlan { stages }, replace: true, held: true },
        Request::Detach { point: HookPoint::Ingress },
        Request::Status,
        Request::Frames,
        Request::Tap(TapFilter {
            snap_len: 128,
            room: 1 << 20,
            hosts: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            qps: vec![Qpn::new(0x03_0011)],
            conditions: Conditions {
                opcodes: [Opcode(0), Opcode(0xff)].into_iter().collect(),
                psns: Some(PsnRange { first: Psn::new(0xff_fffe), last: Psn::new(1) }),
                naks: true,
                congestion: false,
                errors: true,
            },
            sample: 1000,
            verdicts: true,
        }),
        Request::Engine,
        Request::QueuePairs { from: 65_535 },
        Request::Objects { kind: ObjectKind::CmId, from: u32::MAX },
    ]
    .into_iter()
    .chain(data_requests().into_iter().map(Request::Data))
    .collect()
}

fn data_requests() -> Vec<DataRequest> {
    let map = MapId { hook: u64::MAX, index: 3 };
    vec![
        DataRequest::Maps,
        DataRequest::Types(map),
        DataRequest::Page { map, from: 9, with_zeros: true },
        DataRequest::Lookup { map, key: vec![1, 2] },
        DataRequest::Update { map, key: vec![1], value: vec![2, 3], mode: UpdateMode::NoExist },
        DataRequest::Delete { map, key: Vec::new() },
        DataRequest::Records(map),
        DataRequest::Log,
    ]
}

fn data_replies() -> Vec<DataReply> {
    let (id, point) = (MapId { hook: 1, index: 0 }, HookPoint::Egress);
    let map = HookMap { id, point, program: "count".to_owned(), def: MapDef::array("counters", 16, 4) };
    let line = LogLine { time_ns: 7, point, program: "count".to_owned(), text: "hello".to_owned() };
    vec![
        DataReply::Done,
        DataReply::Maps(vec![map]),
        DataReply::Types(vec![0x9f, 0xeb]),
        DataReply::Page(Page { entries: vec![(vec![1], vec![2, 3])], next: Some(5) }),
        DataReply::Page(Page::default()),
        DataReply::Value(Some(vec![4])),
        DataReply::Value(None),
        DataReply::Records(HookRecords { records: vec![vec![5, 6], Vec::new()], lost: 8 }),
        DataReply::Log { lines: vec![line], lost: 9 },
    ]
}

fn objects() -> Vec<ObjectStatus> {
    let (local, remote) = (Some("[fd00::1]:7174".parse().unwrap()), None);
    let (qpn, id) = (Some(Qpn::new(0x03_0011)), 3);
    vec![
        ObjectStatus::Pd { id, ctx: 1, users: 4 },
        ObjectStatus::Cq { id, ctx: 1, entries: 16, users: 2 },
        ObjectStatus::Mr { id, key: 0xffff_ffff, len: 1 << 40, pd: 1 },
        ObjectStatus::CmId { id, state: 5, port_space: 0x106, qpn, local, remote },
        ObjectStatus::Ctx { id },
        ObjectStatus::Srq { id, pd: 1, cq: Some(2), qps: vec![Qpn::new(7), Qpn::new(0x03_0011)] },
    ]
}

fn queue_pair() -> QpStatus {
    QpStatus {
        qpn: Qpn::new(0x03_0011),
        service: "RC".to_owned(),
        state: "RTS".to_owned(),
        local: Some("fd00::1".parse().unwrap()),
        remote: Some("10.0.0.2".parse().unwrap()),
        dest_qpn: Some(Qpn::new(0x12)),
        sq_psn: Psn::new(0xff_ffff),
        timeout: 14,
        traffic_class: 3,
        round_trip_ns: Some(17_000),
        paced_bps: Some(0),
        counters: QpCounters { sent_pkts: 1, uc_dropped_messages: 2, ..QpCounters::default() },
        ..QpStatus::default()
    }
}

fn replies() -> Vec<Reply> {
    let counters = HookCounters { packets: 7, bytes: u64::MAX, doubled: 3, ..HookCounters::default() };
    let rows = vec![("faults".to_owned(), 1)];
    let frame = KeptFrame { time_ns: 5, point: HookPoint::Egress, key: 3, len: 70, bytes: vec![1, 2, 3] };
    let (name, notes) = ("a+b".to_owned(), vec!["slot 3: invalid access".to_owned()]);
    vec![
        Reply::Done,
        Reply::Refused { why: "no".to_owned(), remedy: None },
        Reply::Refused { why: "no".to_owned(), remedy: Some("yes".to_owned()) },
        Reply::Status(vec![HookStatus { point: HookPoint::Egress, name, counters, rows, notes }]),
        Reply::Status(Vec::new()),
        Reply::Frames(vec![frame]),
        Reply::Engine(EngineStatus {
            device: "roxie0".to_owned(),
            netdev: "eth0".to_owned(),
            port: "udp".to_owned(),
            counters: vec![("rx_packets".to_owned(), 7)],
        }),
        Reply::QueuePairs(QpPage { qps: vec![QpStatus::default(), queue_pair()], next: Some(129) }),
        Reply::Objects(ObjectPage { objects: objects(), next: Some(7) }),
    ]
    .into_iter()
    .chain(data_replies().into_iter().map(Reply::Data))
    .collect()
}

#[test]
fn parsing_is_the_inverse_of_encoding() {
    for request in requests() {
        assert_eq!(Request::parse(&request.to_bytes()), Some(request));
    }
    for reply in replies() {
        assert_eq!(Reply::parse(&reply.to_bytes()), Some(reply));
    }
}

#[test]
fn a_truncated_or_longer_record_is_invalid() {
    for request in requests() {
        let bytes = request.to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Request::parse(&bytes[..len]), None, "{len} of {}", bytes.len());
        }
        assert_eq!(Request::parse(&[&bytes[..], &[0]].concat()), None);
    }
    for reply in replies() {
        let bytes = reply.to_bytes();
        assert!((0..bytes.len()).all(|len| Reply::parse(&bytes[..len]).is_none()));
    }
    // A list that announces more items than there are.
    let mut bytes = requests()[0].to_bytes();
    bytes[8..12].copy_from_slice(&[0xff; 4]);
    assert_eq!(Request::parse(&bytes), None);
}

/// A plan comes from another process: what exceeds a limit, or refers to what the plan does not have, is
/// refused before the machine sees it.
#[test]
fn a_plan_with_a_count_size_or_index_out_of_range_is_refused() {
    let accepts = |stages| HookPlan::from_bytes(&HookPlan { stages }.to_bytes()).is_some();
    let native = |len: usize| PlannedStage::Native("x".repeat(len));
    assert!(accepts(vec![native(1); 64]) && !accepts(vec![native(1); 65]));
    assert!(accepts(vec![native(4096)]) && !accepts(vec![native(4097)]));

    let slots = |imm| {
        let mut slots = Vec::new();
        encode(&Insn::LoadImm64 { dst: Reg::R1, imm }, &mut slots);
        slots
    };
    let call = |id| {
        let mut slots = Vec::new();
        encode(&Insn::CallKfunc { id, btf: 0 }, &mut slots);
        slots
    };
    let array = || MapDef::array("a", 8, 2);
    let kfunc = || Kfunc { name: "f".to_owned(), id: None };
    let plain = || Program { maps: vec![array(), array()], kfuncs: vec![kfunc()], ..Program::default() };
    let with_slots = |slots| Program { slots, ..plain() };
    let with_map = |def: MapDef| Program { maps: vec![def], ..plain() };
    let with_entry = |entry| with_map(MapDef { entries: vec![entry], ..array() });
    let with_tails = |tails: usize, initial: usize| Program {
        tails: vec![Program::default(); tails],
        ..with_map(MapDef { initial: vec![0; initial], value_size: 1 << 20, ..array() })
    };
    let one = |program| accepts(vec![PlannedStage::Program(program)]);
    for (good, bad) in [
        (with_slots(slots(Imm64::Map(1))), with_slots(slots(Imm64::Map(2)))),
        (
            with_slots(slots(Imm64::MapValue { map: 1, off: 7 })),
            with_slots(slots(Imm64::MapValue { map: 1, off: 8 })),
        ),
        (with_slots(call(0)), with_slots(call(1))),
        (with_slots(call(0)), with_slots(call(-1))),
        (plain(), with_slots(vec![Slot { opcode: 0xff, ..Slot::default() }])),
        (with_slots(vec![EXIT; 1 << 20]), with_slots(vec![EXIT; (1 << 20) + 1])),
        (
            Program { kfuncs: vec![kfunc(); 256], ..plain() },
            Program { kfuncs: vec![kfunc(); 257], ..plain() },
        ),
        (Program { maps: vec![array(); 1000], ..plain() }, Program { maps: vec![array(); 1001], ..plain() }),
        (with_tails(1024, 0), with_tails(1025, 0)),
        (with_tails(60, 1 << 20), with_tails(64, 1 << 20)),
        (
            with_map(MapDef { initial: vec![0; 8], ..array() }),
            with_map(MapDef { initial: vec![0; 9], ..array() }),
        ),
        (with_entry((1, Initial::Map(0))), with_entry((2, Initial::Map(0)))),
        (with_entry((1, Initial::Map(0))), with_entry((1, Initial::Map(1)))),
        (
            with_map(MapDef { entries: vec![(1, Initial::Map(0)); 4096], ..array() }),
            with_map(MapDef { entries: vec![(1, Initial::Map(0)); 4097], ..array() }),
        ),
    ] {
        assert!(one(good));
        assert!(!one(bad.clone()), "{:?}", Program { slots: Vec::new(), tails: Vec::new(), ..bad });
    }
}

/// A hostile process must not control the terminal of the user that looks at it.
#[test]
fn text_of_the_other_process_has_no_control_characters() {
    let hostile = "x\u{1b}]0;title\u{7}\u{9b}2J";
    let status = HookStatus {
        point: HookPoint::Ingress,
        name: hostile.to_owned(),
        counters: HookCounters::default(),
        rows: vec![(hostile.to_owned(), 1)],
        notes: vec![hostile.to_owned()],
    };
    let engine = EngineStatus {
        device: hostile.to_owned(),
        netdev: hostile.to_owned(),
        port: hostile.to_owned(),
        counters: vec![(hostile.to_owned(), 7)],
    };
    let text = || hostile.to_owned();
    let qp = QpStatus { service: text(), state: text(), ..QpStatus::default() };
    let (id, point) = (MapId { hook: 1, index: 0 }, HookPoint::Egress);
    let map = HookMap { id, point, program: text(), def: MapDef::array(hostile, 16, 4) };
    let lines = vec![LogLine { time_ns: 7, point, program: text(), text: text() }];
    for reply in [
        Reply::Refused { why: text(), remedy: Some(text()) },
        Reply::Status(vec![status]),
        Reply::Engine(engine),
        Reply::QueuePairs(QpPage { qps: vec![qp], next: None }),
        Reply::Data(DataReply::Maps(vec![map])),
        Reply::Data(DataReply::Log { lines, lost: 0 }),
    ] {
        let read = Reply::parse(&reply.to_bytes()).unwrap();
        let (all, raw) = (format!("{read:?}"), format!("{reply:?}"));
        assert!(raw.contains("\\u{1b}]0") && !raw.contains("\\\\u{1b}"), "{raw}");
        assert_eq!(all.matches("\\\\u{1b}]0;title\\\\u{7}\\\\u{9b}2J").count(), raw.matches("title").count());
    }
}

fn domain() -> DomainConfig {
    DomainConfig { name: format!("roxie-hook-{:x}", sys::random_u64()), ..DomainConfig::default() }
}

/// Plays an engine, and records which connections were closed.
#[derive(Default)]
struct Owner {
    gone: Mutex<Vec<u64>>,
    tap: Mutex<Option<RecordWriter>>,
    page: Mutex<ObjectPage>,
}

impl Answers for Owner {
    fn answer(&self, _client: u64, request: Request) -> (Reply, Option<OwnedFd>) {
        let reply = match request {
            Request::Attach { point: HookPoint::Egress, plan, replace: true, held: false } => {
                assert_eq!(plan.stages, [PlannedStage::Program(program())]);
                Reply::Done
            }
            Request::Status => replies().swap_remove(3),
            Request::Tap(_) => {
                let (mut writer, reader) = RecordWriter::new(1 << 16).unwrap();
                assert!(writer.push(&[b"first"]));
                *self.tap.lock().unwrap() = Some(writer);
                return (Reply::Done, Some(reader));
            }
            // The endless list.
            Request::QueuePairs { from } => {
                Reply::QueuePairs(QpPage { qps: vec![QpStatus::default(); 128], next: Some(from + 128) })
            }
            Request::Objects { .. } => Reply::Objects(self.page.lock().unwrap().clone()),
            _ => Reply::Refused { why: "no".to_owned(), remedy: Some("yes".to_owned()) },
        };
        (reply, None)
    }

    fn forget(&self, client: u64) {
        self.gone.lock().unwrap().push(client);
    }
}

/// Unread records survive the process that wrote them.
#[test]
fn the_last_records_of_a_process_are_read() {
    let (domain, owner) = (domain(), Owner::default());
    let control = Control::open(&domain, 3).unwrap();
    let remote = Remote::connect(&domain, std::process::id(), 3, Users::Own).unwrap();
    let mut copies = std::thread::scope(|scope| {
        let asked = scope.spawn(|| remote.tap(&TapFilter::default()).unwrap());
        while !asked.is_finished() {
            control.serve(&owner);
            std::thread::yield_now();
        }
        asked.join().unwrap()
    });
    assert!(!remote.has_ended());
    let mut writer = owner.tap.lock().unwrap().take().unwrap();
    assert!(writer.push(&[b"la", b"st"]));
    writer.lose(1);
    drop((writer, control));
    assert!(remote.has_ended());
    let mut read = Vec::new();
    copies.read(usize::MAX, |record| read.push(record.to_vec()));
    assert_eq!((read, copies.lost()), (vec![b"first".to_vec(), b"last".to_vec()], 1));
}

/// A hostile process must not keep its reader busy, nor fill its memory.
#[test]
fn lists_that_do_not_end_or_are_out_of_order_are_refused() {
    let (domain, owner) = (domain(), Owner::default());
    let control = Control::open(&domain, 3).unwrap();
    let remote = Remote::connect(&domain, std::process::id(), 3, Users::Own).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                control.serve(&owner);
                std::thread::yield_now();
            }
        });
        let ends = |ids: &[u32], next| {
            let objects = ids.iter().map(|id| ObjectStatus::Pd { id: *id, ctx: 1, users: 0 }).collect();
            *owner.page.lock().unwrap() = ObjectPage { objects, next };
            remote.objects(ObjectKind::Pd)
        };
        let good = ends(&[0, 2, 9], None).unwrap();
        let refused = [
            ends(&[2, 1], None),
            ends(&[1, 1], None),
            ends(&[5], Some(5)),
            ends(&[], Some(0)),
            // The second page is the first once more, below what was asked for.
            ends(&[1], Some(2)),
        ];
        let endless = remote.queue_pairs();
        done.store(true, Ordering::Relaxed);
        assert_eq!(good.len(), 3);
        for refused in refused {
            assert!(matches!(refused, Err(ControlError::Io(_))), "{refused:?}");
        }
        assert!(endless.is_err());
    });
}

/// However a connection ends, its owner is told.
#[test]
fn the_owner_learns_which_connections_were_closed() {
    let (domain, owner) = (domain(), Owner::default());
    let control = Control::open(&domain, 3).unwrap();
    let connect = || Remote::connect(&domain, std::process::id(), 3, Users::Own).unwrap();
    // One call accepts a limited number.
    let gone = || {
        (0..10).for_each(|_| control.serve(&owner));
        owner.gone.lock().unwrap().clone()
    };
    drop(connect());
    assert_eq!(gone(), [1]);
    let crowd: Vec<Remote> = (0..8).map(|_| connect()).collect();
    assert_eq!(gone(), [1]);
    // The ninth replaces the oldest.
    let one_more = connect();
    assert_eq!(gone(), [1, 2]);
    drop((crowd, one_more));
}

/// `roxie top` looks once for all engines, however many names other users have taken.
#[test]
fn a_listing_is_one_look_at_the_names() {
    let (domain, pid) = (domain(), std::process::id());
    let control = Control::open(&domain, 3).unwrap();
    let taken: Vec<_> = (0..50)
        .map(|other| sys::bind_seqpacket(&format!("{}0", engine_prefix(&domain, other, 1))).unwrap())
        .collect();
    let _malformed = sys::bind_seqpacket(&format!("{}x/y/0", domain_prefix(&domain))).unwrap();
    let listing = Listing::read(&domain);
    let _later = Control::open(&domain, 4).unwrap();
    let mut expected: Vec<_> = (0..50).map(|other| (other, 1)).chain([(pid, 3)]).collect();
    expected.sort_unstable();
    assert_eq!(listing.engines().collect::<Vec<_>>(), expected);
    assert!(listing.connect(pid, 3, Users::Own).is_ok() && !listing.contains(pid, 4));
    for (pid, slot) in [(7, 1), (pid, 4)] {
        let error = listing.connect(pid, slot, Users::Own).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    }
    drop((control, taken));
    assert!(listing.connect(pid, 3, Users::Own).is_err(), "it has ended");
}

#[test]
fn a_request_is_answered() {
    let (domain, pid) = (domain(), std::process::id());
    let control = Control::open(&domain, 3).unwrap();
    // Another user took a name of this kind first; nothing listens on it.
    let taken = sys::bind_seqpacket(&format!("{}0", engine_prefix(&domain, pid, 3))).unwrap();
    assert_eq!(Remote::find(&domain, None), [(pid, 3)]);
    assert_eq!(Remote::find(&domain, Some(pid + 1)), []);
    let remote = Remote::connect(&domain, pid, 3, Users::Own).unwrap();
    assert_eq!((remote.pid(), remote.slot()), (pid, 3));
    let (done, owner) = (AtomicBool::new(false), Owner::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                control.serve(&owner);
                std::thread::yield_now();
            }
        });
        let plan = HookPlan { stages: vec![PlannedStage::Program(program())] };
        remote.attach(HookPoint::Egress, &plan, true).unwrap();
        let refused = remote.detach(HookPoint::Egress).unwrap_err();
        assert_eq!((refused.to_string(), refused.remedy()), ("no".to_owned(), Some("yes".to_owned())));
        assert_eq!(Reply::Status(remote.hooks().unwrap()), replies()[3]);
        // An invalid request is refused, and the next one is served all the same.
        let names = sys::abstract_names(&engine_prefix(&domain, pid, 3));
        let strangers: Vec<_> = names.iter().filter_map(|name| sys::connect_seqpacket(name).ok()).collect();
        let stranger = &strangers[0];
        sys::send_record(stranger.as_fd(), b"hello", &[], &[]).unwrap();
        let plan = HookPlan { stages: vec![PlannedStage::Native("x".repeat(RECORD_MAX))] };
        assert!(matches!(remote.attach(HookPoint::Egress, &plan, true), Err(ControlError::TooLarge { .. })));
        // More connections than the limit: the last one is served.
        let crowd: Vec<Remote> = (0..20)
            .filter_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                Remote::connect(&domain, pid, 3, Users::Own).ok()
            })
            .collect();
        assert_eq!(crowd.last().unwrap().hooks().unwrap().len(), 1);
        done.store(true, Ordering::Relaxed);
    });
    drop((control, taken));
    assert_eq!(Remote::find(&domain, None), []);
    assert!(Remote::connect(&domain, pid, 3, Users::Own).is_err());
}
