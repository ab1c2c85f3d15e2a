//! Programs of object files in the kernel: types of maps, pins by name, tail calls, device-bound programs; as
//! root and with clang, else skipped.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use ::bpf::object::{Kernel, candidates};
use ::bpf::{MapDef, MapKind};

#[path = "../../../../xdp/bpf/src/object/tests/clang.rs"]
mod clang;

use super::*;
use crate::testing::{Host, ip, mount_bpf_fs};

/// Returns a program of an object file, linked for the running kernel.
fn program(name: &str, of: &str) -> Option<::bpf::Program> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../xdp/bpf/src/object/{name}.c"));
    let built = if own.exists() { clang::build_file(&own, "v3") } else { clang::build(name, "v3") };
    let file = built.map_err(|reason| println!("{reason}")).ok()?;
    let types = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version = Kernel::version_of(&release);
    let kernel = Kernel {
        types: Some(&types),
        version,
        config: Some("CONFIG_BPF=y\n"),
        cpus: Some(possible_cpus() as u32),
    };
    let all = candidates(&file, &kernel).unwrap();
    let found = all.into_iter().find(|one| one.name == of).unwrap();
    Some(found.program.unwrap_or_else(|error| panic!("{of}: {error}")))
}

fn verdict_of(program: &Program) -> u32 {
    let run = TestRun { packet: &[0; 61], repeat: 1, ..TestRun::default() };
    program.test_run(&run).unwrap().verdict
}

#[test]
fn programs_adapt_to_the_running_kernel() {
    if Host::new().is_none() {
        return;
    }
    // PASS: the configuration is read. DROP: the absent function is not called, and the fields are as the
    // kernel has them.
    for (name, verdict) in [("configured", 2), ("asks_first", 1), ("adapted", 1), ("unsized", 3)] {
        let Some(definition) = program("kernel", name) else { return };
        let (loaded, _maps) =
            Program::load_with_maps(&definition).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(verdict_of(&loaded), verdict, "{name}");
    }
}

#[test]
fn a_program_that_reads_metadata_of_the_device_is_loaded_for_one_interface() {
    let Some(host) = Host::new() else { return };
    let Some(definition) = program("kernel", "hashed") else { return };
    let refused = Program::load_with_maps(&definition).unwrap_err().to_string();
    assert!(refused.contains("kernel functions: bpf_xdp_metadata_rx_hash"), "{refused}");
    host.visit(|| {
        ip("link add bound0 type veth peer name bound1");
        let index = crate::Netlink::new().unwrap().links().unwrap();
        let index = index.into_iter().find(|link| link.name == "bound0").unwrap().index;
        Program::load_for(&definition, Some(index)).unwrap_or_else(|error| panic!("{error}"));
    });
}

#[test]
fn spin_locks_maps_of_maps_and_tail_calls_are_in_place() {
    if Host::new().is_none() {
        return;
    }
    // 61 bytes: the second inner map exists; entry 1 is `middle`, which calls `last`.
    for (name, verdict) in [("inner_maps", 3), ("chain", 3)] {
        let Some(definition) = program("calls", name) else { return };
        let (loaded, _maps) =
            Program::load_with_maps(&definition).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(verdict_of(&loaded), verdict, "{name}");
    }
}

#[test]
fn a_map_that_is_pinned_by_name_is_shared() {
    if Host::new().is_none() {
        return;
    }
    let shared = std::thread::spawn(|| {
        mount_bpf_fs();
        let define = |name: &str, entries| {
            let mut asm = ::bpf::Asm::new(name);
            asm.map(MapDef { pinned: true, ..MapDef::new("roxie_shared", MapKind::Hash, 4, 8, entries) });
            asm.ret(::bpf::XdpAction::Pass);
            asm.finish().unwrap()
        };
        let (_one, maps) = Program::load_with_maps(&define("one", 4)).unwrap();
        maps[0].update(&[1; 4], &[7; 8]).unwrap();
        let (_other, maps) = Program::load_with_maps(&define("other", 4)).unwrap();
        let mut value = [0; 8];
        assert!(maps[0].lookup(&[1; 4], &mut value).unwrap());
        assert_eq!(value, [7; 8]);
        let error = Program::load_with_maps(&define("larger", 5)).unwrap_err().to_string();
        assert!(error.contains("another form is pinned at /sys/fs/bpf/roxie_shared"), "{error}");
    });
    shared.join().unwrap();
}

/// The kernel compares the attach types of programs. libbpf and aya set that of XDP; some loaders set none.
#[test]
fn programs_of_other_loaders_share_program_arrays_and_links() {
    let Some(host) = Host::new() else { return };
    let define = |name: &str| {
        let mut asm = ::bpf::Asm::new(name);
        let jumps = asm.map(MapDef::new("jumps", MapKind::ProgArray, 4, 4, 2));
        asm.load_map(::bpf::Reg::R2, jumps).mov(::bpf::Reg::R3, 0).call(::bpf::Helper::TailCall);
        asm.ret(::bpf::XdpAction::Pass);
        asm.finish().unwrap()
    };
    let (theirs, ours) = (define("theirs"), define("ours"));
    for attach_type in [37, 0] {
        let maps = [Map::create(&theirs.maps[0]).unwrap()];
        let job = program::Job::new(&theirs, &maps, None, None).unwrap();
        let (other, _) = job.load([attach_type; 2]).unwrap_or_else(|error| panic!("{error}"));
        let own = Program::load(&ours, &maps).unwrap_or_else(|error| panic!("type {attach_type}: {error}"));
        for (key, one) in [(0_u32, &other), (1, &own)] {
            maps[0].update(&key.to_ne_bytes(), &one.as_fd().as_raw_fd().to_ne_bytes()).unwrap();
        }
        host.visit(|| {
            let link = XdpLink::attach(&other, 1, crate::XdpMode::Generic).unwrap();
            link.replace(&own, Some(&other)).unwrap_or_else(|error| panic!("type {attach_type}: {error}"));
        });
    }
}

#[test]
fn a_pinned_map_that_cannot_be_created_is_not_blamed_on_the_file_system() {
    if Host::new().is_none() {
        return;
    }
    let said = std::thread::spawn(|| {
        mount_bpf_fs();
        ["large", "dir/"].map(|name| {
            let entries = if name == "large" { u32::MAX } else { 4 };
            let mut asm = ::bpf::Asm::new("shares");
            asm.map(MapDef { pinned: true, ..MapDef::new(name, MapKind::Hash, 4, 8, entries) });
            asm.ret(::bpf::XdpAction::Pass);
            Program::load_with_maps(&asm.finish().unwrap()).map(|_| ()).map_err(|error| error.to_string())
        })
    });
    let [large, slash] = said.join().unwrap();
    let large = large.unwrap_err();
    assert!(large.contains("pinned at /sys/fs/bpf/large)") && !large.contains("file system"), "{large}");
    assert_eq!(slash, Ok(()), "a slash in a name is no directory");
}
