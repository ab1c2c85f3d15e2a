//! Requests and replies survive the socket; strangers and nonsense get nowhere.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use bpf::{MapDef, Program, ProgramKind, Recipe};

use super::*;
use crate::hook::plan::PlannedStage;
use crate::hook::{HookCounters, HookPlan, RedirectedFrame};
use crate::sys;

fn program() -> Program {
    let mut recipe = Recipe::steer(4791, 4);
    recipe.counters = true;
    let mut program = recipe.program("steer", ProgramKind::Xdp).unwrap();
    program.btf = None;
    program.maps.push(MapDef { initial: vec![1, 2, 3, 4], frozen: true, ..MapDef::array("more", 4, 1) });
    program
}

fn requests() -> Vec<Request> {
    let stages = vec![PlannedStage::Native("impair:loss=1%".to_owned()), PlannedStage::Program(program())];
    vec![
        Request::Attach { point: HookPoint::Egress, plan: HookPlan { stages }, replace: true },
        Request::Detach { point: HookPoint::Ingress },
        Request::Status,
        Request::Frames,
    ]
}

fn replies() -> Vec<Reply> {
    let counters = HookCounters { packets: 7, bytes: u64::MAX, doubled: 3, ..HookCounters::default() };
    let rows = vec![("faults".to_owned(), 1)];
    let (name, notes) = ("a+b".to_owned(), vec!["slot 3: invalid access".to_owned()]);
    vec![
        Reply::Done,
        Reply::Refused { why: "no".to_owned(), remedy: None },
        Reply::Refused { why: "no".to_owned(), remedy: Some("yes".to_owned()) },
        Reply::Status(vec![HookStatus { point: HookPoint::Egress, name, counters, rows, notes }]),
        Reply::Status(Vec::new()),
        Reply::Frames(vec![RedirectedFrame {
            time_ns: 5,
            point: HookPoint::Egress,
            key: 3,
            bytes: vec![1, 2, 3],
        }]),
    ]
}

#[test]
fn what_was_written_is_read() {
    for request in requests() {
        assert_eq!(Request::parse(&request.to_bytes()), Some(request));
    }
    for reply in replies() {
        assert_eq!(Reply::parse(&reply.to_bytes()), Some(reply));
    }
}

#[test]
fn what_is_cut_or_longer_is_no_record() {
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
    // A list that announces more than there is.
    let mut bytes = requests()[0].to_bytes();
    bytes[7..11].copy_from_slice(&[0xff; 4]);
    assert_eq!(Request::parse(&bytes), None);
}

fn domain() -> DomainConfig {
    DomainConfig { name: format!("roxie-hook-{:x}", sys::random_u64()), ..DomainConfig::default() }
}

#[test]
fn a_request_is_answered() {
    let (domain, pid) = (domain(), std::process::id());
    let control = Control::open(&domain, 3).unwrap();
    assert!(Control::open(&domain, 3).is_err(), "the name is taken");
    assert_eq!(Remote::find(&domain, None), [(pid, 3)]);
    assert_eq!(Remote::find(&domain, Some(pid + 1)), []);
    let remote = Remote::connect(&domain, pid, 3).unwrap();
    assert_eq!((remote.pid(), remote.slot()), (pid, 3));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                control.serve(&mut |request| match request {
                    Request::Attach { point: HookPoint::Egress, plan, replace: true } => {
                        assert_eq!(plan.stages, [PlannedStage::Program(program())]);
                        Reply::Done
                    }
                    Request::Status => replies().swap_remove(3),
                    _ => Reply::Refused { why: "no".to_owned(), remedy: Some("yes".to_owned()) },
                });
                std::thread::yield_now();
            }
        });
        let plan = HookPlan { stages: vec![PlannedStage::Program(program())] };
        remote.attach(HookPoint::Egress, &plan, true).unwrap();
        let refused = remote.detach(HookPoint::Egress).unwrap_err();
        assert_eq!((refused.to_string(), refused.remedy()), ("no".to_owned(), Some("yes".to_owned())));
        assert_eq!(Reply::Status(remote.hooks().unwrap()), replies()[3]);
        // Nonsense is refused, and the next one is served all the same.
        let stranger = sys::connect_seqpacket(&domain.hook_name(pid, 3)).unwrap();
        sys::send_record(stranger.as_fd(), b"hello", &[], &[]).unwrap();
        let plan = HookPlan { stages: vec![PlannedStage::Native("x".repeat(RECORD_MAX))] };
        assert!(matches!(remote.attach(HookPoint::Egress, &plan, true), Err(ControlError::TooLarge { .. })));
        // More connections than there is room for: the last one is served.
        let crowd: Vec<Remote> = (0..20)
            .filter_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                Remote::connect(&domain, pid, 3).ok()
            })
            .collect();
        assert_eq!(crowd.last().unwrap().hooks().unwrap().len(), 1);
        done.store(true, Ordering::Relaxed);
    });
    drop(control);
    assert_eq!(Remote::find(&domain, None), []);
    assert!(Remote::connect(&domain, pid, 3).is_err());
}
