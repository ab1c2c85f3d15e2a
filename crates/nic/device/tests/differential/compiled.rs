//! The programs in `xdp/`, built by clang for every version of the instruction set it knows.

#[path = "../../../../xdp/bpf/src/object/tests/clang.rs"]
mod clang;

use bpf::object::programs_of;
use bpf::{Program, XdpAction};

use crate::packets::packet;
use crate::twins::{Twins, possible};
use roxie_tests::random::Rng;

const PACKETS: u32 = 300;

/// Versions that clang 14 has; a newer one brings v4.
const VERSIONS: [&str; 3] = ["v1", "v2", "v3"];

/// Runs each XDP program of the file, in each version, in both places on fuzzed packets. `prepare` fills
/// maps.
fn agree(file: &str, seen: &[XdpAction], prepare: impl Fn(&Twins)) {
    agree_on(file, seen, prepare, packet);
}

fn agree_on(file: &str, seen: &[XdpAction], prepare: impl Fn(&Twins), packet: impl Fn(&mut Rng) -> Vec<u8>) {
    if !possible() {
        return;
    }
    for version in VERSIONS {
        let object = match clang::build(file, version) {
            Ok(object) => object,
            Err(reason) => return println!("{reason}"),
        };
        for program in programs_of(&object, None).unwrap() {
            if program.kind != bpf::ProgramKind::Xdp {
                // The kernel runs programs of map entries only there, so this just checks that it loads
                // them.
                sys::bpf::Program::load_with_maps(&program).unwrap();
                assert_eq!(bpf::vet::vet(&program), [], "{}", program.name);
                continue;
            }
            one(program, seen, &prepare, &packet);
        }
    }
}

fn one(program: Program, seen: &[XdpAction], prepare: impl Fn(&Twins), packet: impl Fn(&mut Rng) -> Vec<u8>) {
    let mut twins = Twins::new(program);
    prepare(&twins);
    let mut rng = Rng(30);
    let mut verdicts = [0; 5];
    for _ in 0..PACKETS {
        let verdict = twins.run(&packet(&mut rng));
        if let Some(count) = verdicts.get_mut(verdict as usize) {
            *count += 1;
        }
    }
    twins.compare_maps();
    for action in seen {
        assert!(verdicts[action.number() as usize] > 0, "{}: no {action}: {verdicts:?}", twins.program.name);
    }
}

#[test]
fn kernel_and_interpreter_agree_on_compiled_verdicts() {
    agree("verdicts", &[], |_| {});
}

#[test]
fn kernel_and_interpreter_agree_on_compiled_counters() {
    agree("count", &[XdpAction::Pass], |_| {});
}

#[test]
fn kernel_and_interpreter_agree_on_a_compiled_flow_table() {
    agree("flows", &[XdpAction::Pass, XdpAction::Tx, XdpAction::Drop], |_| {});
}

#[test]
fn kernel_and_interpreter_agree_on_a_compiled_filter() {
    agree("filter", &[XdpAction::Pass, XdpAction::Drop, XdpAction::Aborted], |twins| {
        twins.fill("addresses", &[10, 1, 0, 77], &0_u64.to_le_bytes());
        twins.fill("addresses", &[10, 2, 0, 3], &5_u64.to_le_bytes());
        twins.fill("ports", &53_u32.to_le_bytes(), &[1, 0, 0, 0]);
    });
}

#[test]
fn kernel_and_interpreter_agree_on_a_compiled_prefix_table() {
    agree("prefixes", &[XdpAction::Pass, XdpAction::Drop, XdpAction::Tx], |twins| {
        let verdict = |len: u8, address: [u8; 4], verdict: XdpAction| {
            let key = [[len, 0, 0, 0], address].concat();
            twins.fill("prefixes", &key, &verdict.number().to_le_bytes());
        };
        verdict(24, [10, 1, 0, 0], XdpAction::Drop);
        verdict(25, [10, 1, 0, 128], XdpAction::Tx);
        verdict(32, [10, 1, 0, 2], XdpAction::Pass);
    });
}

#[test]
fn kernel_and_interpreter_agree_on_a_compiled_roce_parser() {
    agree("roce", &[XdpAction::Pass, XdpAction::Tx], |_| {});
    agree("packets", &[XdpAction::Pass], |_| {});
}

#[test]
fn kernel_and_interpreter_agree_on_compiled_packet_rewriting() {
    agree("echo", &[XdpAction::Pass, XdpAction::Tx], |_| {});
    agree("vlan", &[XdpAction::Pass, XdpAction::Tx], |_| {});
    agree("tunnel", &[XdpAction::Pass, XdpAction::Tx], |_| {});
    agree("tail", &[XdpAction::Pass], |_| {});
}

/// Packets of up to three fragments.
#[test]
fn kernel_and_interpreter_agree_on_compiled_programs_with_fragments() {
    agree_on(
        "patch",
        &[XdpAction::Pass, XdpAction::Tx],
        |_| {},
        |rng| {
            let mut packet =
                vec![0; rng.pick(&[20, 64, 100, 3519, 3520, 3521, 3530, 4000, 7616, 7620, 9000])];
            rng.fill(&mut packet);
            packet
        },
    );
}

#[test]
fn kernel_and_interpreter_agree_on_compiled_functions_and_loops() {
    agree_on(
        "hash",
        &[XdpAction::Drop, XdpAction::Tx],
        |_| {},
        |rng| {
            let mut packet = vec![0; 14 + rng.below(600)];
            rng.fill(&mut packet);
            packet
        },
    );
}

/// Helpers that call functions of the program, tail calls, maps of maps, queues and spin locks.
#[test]
fn kernel_and_interpreter_agree_on_compiled_callbacks_and_tail_calls() {
    agree("calls", &[], |_| {});
}

#[test]
fn kernel_and_interpreter_agree_on_compiled_redirects() {
    agree("redirect", &[], |twins| {
        twins.fill("devices", &[2, 0, 0, 0], &[1, 0, 0, 0]);
        twins.fill("devices", &[3, 0, 0, 0], &[1, 0, 0, 0]);
        twins.fill("devices_by_index", &[1, 0, 0, 0], &[1, 0, 0, 0]);
        twins.fill("processors", &[0, 0, 0, 0], &[64, 0, 0, 0]);
        twins.fill("processors", &[1, 0, 0, 0], &[64, 0, 0, 0]);
    });
}
