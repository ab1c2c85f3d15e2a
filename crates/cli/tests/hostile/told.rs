//! Texts inside of files and of the kernel: comments of captures, traces, findings of a process, names in
//! object files and of interfaces, the verifier's log.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use bpf::{Asm, MapDef, MapKind, Reg, XdpAction};
use nix::sched::{CloneFlags, unshare};
use roxie_capture::source::Source;
use roxie_capture::write::{NewInterface, NewPacket, Writer};
use serde_json::json;

use crate::{NAME, Place, SHOWN, Said, check, golden, said};

fn run(place: &Place, row: &str) -> Said {
    said(place, row, OsStr::new(NAME), None)
}

/// A capture with an interface and comments that have hostile texts.
fn capture() -> Vec<u8> {
    let file = golden::file("loss-write-ack-v4");
    let mut source = Source::new(&file[..]).expect("a capture");
    let mut writer = Writer::new(Vec::new()).expect("memory");
    let mut number = 0;
    while let Some(record) = source.next_record().expect("whole") {
        if number == 0 {
            let link_type = record.decode_as.link_type;
            let hostile = Some(NAME);
            let interface = NewInterface { name: hostile, left_out: hostile, times: hostile, link_type };
            writer.interface(&interface).expect("memory");
        }
        number += 1;
        let packet = NewPacket {
            interface: 0,
            time_ns: record.time_ns,
            original_len: record.original_len,
            data: record.data,
            outbound: None,
            verdict: None,
        };
        writer.packet(&packet, [NAME.into()]).expect("memory");
    }
    writer.statistics(0, 1, &[format!("process 1 {NAME} slot 3"), NAME.to_owned()]).expect("memory");
    std::mem::take(writer.output())
}

#[test]
fn texts_of_a_capture_are_shown_as_numbers() {
    let place = Place::new("captures");
    fs::write(place.0.join("x.pcapng"), capture()).expect("writable");
    let mut all = [
        "capture read x.pcapng",
        "capture read x.pcapng --format tree",
        "capture read x.pcapng --json",
        "capture analyse x.pcapng",
        "capture analyse x.pcapng --json",
        "capture report x.pcapng -o -",
        "capture annotate x.pcapng -o y.pcapng",
        "capture read y.pcapng --format tree",
    ]
    .map(|row| run(&place, row));
    // It shows that it is written.
    all[6].err.extend(SHOWN.bytes());
    check(&all);
    for line in all[2].out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let value: serde_json::Value = serde_json::from_slice(line).expect("JSON");
        assert_eq!(value["frame.comment"], NAME, "JSON has the text as it is");
    }
}

#[test]
fn texts_of_a_trace_are_shown_as_numbers() {
    let place = Place::new("traces");
    let message = json!({
        "pid": 1, "qpn": 2, "peer": 3, "local": "::1", "remote": "::1", "service": NAME, "opcode": NAME,
        "wr_id": 0, "bytes": 8, "first": 0, "end": 1, "retransmitted": 0, "status": 0, "posted": 1,
        "left": 2, "last": 2, "executed": null, "acked": 3, "completed": 4, "polled": 5, "is_left": false,
    });
    let event = json!({ "ph": "b", "cat": "message", "name": NAME, "args": message });
    let named = json!({ "ph": "M", "name": "process_name", "pid": 1, "args": { "name": NAME } });
    let wrong = json!({ "ph": "X", "args": { NAME: NAME } });
    for (file, events) in [("x.json", vec![named, event]), ("y.json", vec![wrong])] {
        fs::write(place.0.join(file), json!({ "traceEvents": events }).to_string()).expect("writable");
    }
    let rows = ["trace merge x.json -o z.json", "trace merge x.json --json -o z.json"];
    let mut all: Vec<Said> = rows.map(|row| run(&place, row)).into();
    check(&all);
    all.push(run(&place, "trace merge y.json -o z.json"));
    assert_eq!(all[2].fault(), None, "{}", all[2].err.escape_ascii());
}

/// The command writes a finding itself, where the libraries of its programs would.
#[test]
fn findings_of_a_process_are_shown_as_numbers() {
    let roxie = Path::new(env!("CARGO_BIN_EXE_roxie"));
    if !roxie.with_file_name("libroxie_audit.so").exists() {
        return println!("skipped: needs the libraries beside roxie (cargo build)");
    }
    let place = Place::new("findings");
    let stack = json!({ "what": NAME, "thread": NAME, "frames": [[NAME, 1]] });
    let finding = json!({ "type": "finding", "kind": "leaked-qp", "text": NAME, "stacks": [stack] });
    let lines = format!("{}\n{finding}\n", json!({ "type": "process", "command": NAME }));
    fs::write(place.0.join("lines"), lines).expect("writable");
    fs::write(place.0.join("copy"), "#!/bin/sh\ncp lines \"$ROXIE_CHECK/7-0a.jsonl\"\n").expect("writable");
    // Its lines are shown as lines.
    let line = NAME.replace('\n', " ");
    fs::write(place.0.join("say"), format!("#!/bin/sh\nprintf '{line}'; exit 1\n")).expect("writable");
    check(&[
        run(&place, "check -- sh ./copy"),
        run(&place, "check --json -- sh ./copy"),
        run(&place, "check --output - -- sh ./copy"),
        run(&place, "run --chaos seeds=1..2 -- sh ./say"),
    ]);
}

/// An object file with hostile names of its program, function and map. The kernel refuses the names, and its
/// log repeats them.
fn object() -> Vec<u8> {
    let mut program = Asm::new(NAME);
    let map = program.map(MapDef::new(NAME, MapKind::Array, 4, 8, 1));
    program.load_map(Reg::R1, map).ret(XdpAction::Pass);
    bpf::object::write(&program.finish().expect("a program")).expect("an object file")
}

#[test]
fn names_in_an_object_file_are_shown_as_numbers() {
    let place = Place::new("objects");
    fs::write(place.0.join("x.o"), object()).expect("writable");
    check(&[
        run(&place, "xdp attach lo x.o --dump"),
        run(&place, "run --ingress x.o:nothing -- true"),
        run(&place, "xdp attach lo x.o --prog nothing"),
    ]);
}

/// The longest name of an interface has 15 bytes, and no white space.
const NETDEV: &str = "v\x1b[31mRED\x07\u{9f}";

#[test]
fn names_of_interfaces_and_the_log_of_the_verifier_are_shown_as_numbers() {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        return println!("skipped: needs root");
    }
    let ip = |words: &[&str]| {
        let done = Command::new("ip").args(words).stdin(Stdio::null()).output().expect("ip runs");
        assert!(done.status.success(), "ip {words:?}: {}", done.stderr.escape_ascii());
    };
    ip(&["link", "set", "lo", "up"]);
    ip(&["link", "add", NETDEV, "type", "veth", "peer", "name", "other"]);
    ip(&["address", "add", "10.1.0.1/24", "dev", NETDEV]);
    ip(&["link", "set", NETDEV, "up"]);
    ip(&["link", "set", "other", "up"]);
    let place = Place::new("netdevs");
    fs::write(place.0.join("x.o"), object()).expect("writable");
    let rows = [
        "xdp attach lo x.o --mode generic",
        "xdp list",
        "xdp list --json",
        "xdp stats {}",
        "xdp attach {} --recipe drop",
        "xdp attach {} --recipe drop",
        "xdp stats {}",
        "xdp map get {} nothing",
        "xdp detach {}",
        "doctor",
        "devinfo --netdev {}",
        "devinfo --netdev {} --json",
        "env --netdev {}",
    ];
    check(&rows.map(|row| said(&place, row, OsStr::new(NETDEV), None)));
}
