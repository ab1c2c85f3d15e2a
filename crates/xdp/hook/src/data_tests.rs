//! Requests for the data of attached programs, without a socket.

use bpf::{Asm, Helper, MapKind, Program, ProgramKind, Reg, Size, XdpAction};

use super::super::Verdict;
use super::*;
use crate::tests::key;
use roxie::port::Headers;
use roxie::runtime::Runtime;

/// A program with a map, a ring and a printed line per packet.
fn program() -> Program {
    let mut asm = Asm::new("talks");
    let flows = asm.map(MapDef::new("flows", MapKind::Hash, 4, 8, 4));
    let ring = asm.map(MapDef::ringbuf("events", 4096));
    asm.load_map(Reg::R1, flows).store(Size::W, Reg::R10, -4, 7).mov(Reg::R2, Reg::R10).add(Reg::R2, -4);
    asm.call(Helper::MapLookupElem);
    // "hi 7", in the order of the stack.
    asm.store(Size::Dw, Reg::R10, -16, i32::from_le_bytes(*b"hi %"));
    asm.store(Size::W, Reg::R10, -12, i32::from_le_bytes(*b"d\0\0\0"));
    asm.mov(Reg::R1, Reg::R10).add(Reg::R1, -16).mov(Reg::R2, 8).mov(Reg::R3, 7).call(Helper::TracePrintk);
    asm.load_map(Reg::R1, ring).mov(Reg::R2, Reg::R10).add(Reg::R2, -16).mov(Reg::R3, 4).mov(Reg::R4, 0);
    asm.call(Helper::RingbufOutput).ret(XdpAction::Pass);
    Program { kind: ProgramKind::Xdp, ..asm.finish().unwrap() }
}

fn hooks() -> Hooks {
    let mut hooks = Hooks::new(1);
    let hook = Hook::program(&program()).unwrap();
    hooks.attach(HookPoint::Egress, hook.then(Hook::parse("sample:every=2").unwrap()), false).unwrap();
    hooks
}

fn ask(hooks: &mut Hooks, request: DataRequest) -> Result<DataReply, HookError> {
    hooks.data(request, 5).and_then(DataAccess::finish)
}

fn maps(hooks: &mut Hooks) -> Vec<HookMap> {
    let Ok(DataReply::Maps(maps)) = ask(hooks, DataRequest::Maps) else { panic!() };
    maps
}

fn judge(hooks: &mut Hooks) {
    let Hooks { egress, scratch, .. } = hooks;
    scratch.begin(Headers::new(&key("10.0.0.2"), 0xc001, 4791).unwrap(), false);
    let fate = egress.hook.as_mut().unwrap().judge(scratch, &Runtime::Kernel, &[0; 64]);
    assert_eq!(fate.verdict, Verdict::Pass);
}

#[test]
fn maps_records_and_lines_of_a_hook_are_read_and_changed() {
    let hooks = &mut hooks();
    let maps = maps(hooks);
    let names: Vec<_> = maps.iter().map(|map| (&map.program[..], &map.def.name[..])).collect();
    let expected =
        [("talks", "flows"), ("talks", "events"), ("sample", "samples"), ("sample", "sample_state")];
    assert_eq!(names, expected);
    let (flows, events, samples) = (maps[0].id, maps[1].id, maps[2].id);
    let Ok(DataReply::Types(types)) = ask(hooks, DataRequest::Types(flows)) else { panic!() };
    assert!(!types.is_empty());

    let key = vec![7, 0, 0, 0];
    let update =
        |value: Vec<u8>| DataRequest::Update { map: flows, key: key.clone(), value, mode: UpdateMode::Any };
    assert!(ask(hooks, update(vec![1; 8])).is_ok() && ask(hooks, update(vec![1; 9])).is_err());
    let look = DataRequest::Lookup { map: flows, key: key.clone() };
    assert_eq!(ask(hooks, look).unwrap(), DataReply::Value(Some(vec![1; 8])));
    let page = DataRequest::Page { map: flows, from: 0, with_zeros: false };
    let Ok(DataReply::Page(page)) = ask(hooks, page) else { panic!() };
    assert_eq!((page.entries, page.next), (vec![(key.clone(), vec![1; 8])], None));
    let delete = || DataRequest::Delete { map: flows, key: key.clone() };
    assert!(ask(hooks, delete()).is_ok() && ask(hooks, delete()).is_err());

    // Lines are kept from the first request on, records all the time.
    judge(hooks);
    assert_eq!(ask(hooks, DataRequest::Log).unwrap(), DataReply::Log { lines: Vec::new(), lost: 0 });
    let now_ns = Runtime::Kernel.now_ns();
    assert!(matches!(hooks.data(DataRequest::Log, now_ns), Ok(DataAccess::Ready(_))));
    judge(hooks);
    let Ok(DataAccess::Ready(DataReply::Log { lines, .. })) = hooks.data(DataRequest::Log, now_ns) else {
        panic!()
    };
    assert_eq!((lines.len(), &lines[0].text[..], lines[0].point), (1, "hi 7", HookPoint::Egress));
    for (map, count) in [(events, 2), (samples, 1)] {
        let Ok(DataReply::Records(read)) = ask(hooks, DataRequest::Records(map)) else { panic!() };
        assert_eq!((read.records.len(), read.lost), (count, 0));
    }
    assert!(ask(hooks, DataRequest::Records(flows)).is_err());
    let look = DataRequest::Lookup { map: events, key };
    assert!(ask(hooks, look).is_err());
}

#[test]
fn a_replaced_hook_takes_no_requests_for_the_maps_of_the_former_one() {
    let hooks = &mut hooks();
    let old = maps(hooks)[0].id;
    hooks.attach(HookPoint::Egress, Hook::program(&program()).unwrap(), true).unwrap();
    let error = ask(hooks, DataRequest::Lookup { map: old, key: vec![0; 4] }).unwrap_err();
    assert!(matches!(error, HookError::MapGone), "{error}");
    let now = maps(hooks)[0].id;
    assert_ne!(old, now);
    for index in [4, u32::MAX] {
        let gone = MapId { index, ..now };
        assert!(ask(hooks, DataRequest::Records(gone)).is_err());
    }
}

#[test]
fn a_held_hook_is_detached_with_its_connection() {
    let hooks = &mut hooks();
    hooks.hold(HookPoint::Egress, 7);
    hooks.release_held(6);
    assert_eq!(hooks.status().len(), 1);
    hooks.release_held(7);
    assert_eq!(hooks.status().len(), 0);
    // A hook that replaces a held one stays.
    let hook = || Hook::program(&program()).unwrap();
    hooks.attach(HookPoint::Egress, hook(), false).unwrap();
    hooks.hold(HookPoint::Egress, 7);
    hooks.attach(HookPoint::Egress, hook(), true).unwrap();
    hooks.release_held(7);
    assert_eq!(hooks.status().len(), 1);
}

#[test]
fn an_entry_that_no_reply_can_hold_is_refused() {
    let mut asm = Asm::new("large");
    asm.map(MapDef::array("large", 1 << 20, 1));
    let program = asm.ret(XdpAction::Pass).clone().finish().unwrap();
    let hooks = &mut Hooks::new(1);
    hooks.attach(HookPoint::Ingress, Hook::program(&program).unwrap(), false).unwrap();
    let map = maps(hooks)[0].id;
    let error = ask(hooks, DataRequest::Page { map, from: 0, with_zeros: true }).unwrap_err();
    assert!(matches!(error, HookError::ValueTooLarge { .. }), "{error}");
}
