//! Maps and programs in the kernel; as root, else skipped.

use std::os::fd::AsFd;

use ::bpf::{Asm, MapDef, MapKind, ProgramKind, Recipe, Reg, XdpAction, XdpMd};

use super::*;

/// True, with a word, if this process may not load programs.
fn skipped() -> bool {
    let refused = Map::create(&MapDef::array("probe", 4, 1)).is_err();
    if refused {
        eprintln!("skipped: needs CAP_BPF");
    }
    refused
}

#[test]
fn a_map_keeps_what_is_put_and_refuses_wrong_lengths() {
    if skipped() {
        return;
    }
    let map = Map::create(&MapDef::new("numbers", MapKind::Hash, 4, 8, 2)).unwrap();
    let mut value = [0; 8];
    assert!(!map.lookup(&[1; 4], &mut value).unwrap());
    map.update(&[1; 4], &[7; 8]).unwrap();
    assert!(map.lookup(&[1; 4], &mut value).unwrap());
    assert_eq!(value, [7; 8]);
    let mut key = [0; 4];
    assert!(map.next_key(None, &mut key).unwrap());
    assert_eq!(key, [1; 4]);
    assert!(!map.next_key(Some(&[1; 4]), &mut key).unwrap());
    map.update(&[2; 4], &[8; 8]).unwrap();
    assert_eq!(map.update(&[3; 4], &[9; 8]).unwrap_err().raw_os_error(), Some(libc::E2BIG));
    for (key, value) in [(&[1u8; 3][..], &mut [0u8; 8][..]), (&[1; 4], &mut [0; 7])] {
        assert_eq!(map.lookup(key, value).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(map.update(key, value).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
    map.delete(&[1; 4]).unwrap();
    map.delete(&[1; 4]).unwrap();
    assert!(!map.lookup(&[1; 4], &mut value).unwrap());
    let again = Map::from_fd(map.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!((again.kind(), again.value_size()), (MapKind::Hash, 8));
}

#[test]
fn a_map_per_cpu_takes_a_value_of_each_cpu() {
    if skipped() {
        return;
    }
    let map = Map::create(&MapDef::percpu_array("counts", 4, 1)).unwrap();
    let mut value = vec![1; map.value_size()];
    assert!(value.len() >= 8 && value.len().is_multiple_of(8), "{}", value.len());
    assert!(map.lookup(&[0; 4], &mut value).unwrap());
    assert!(value.iter().all(|b| *b == 0));
}

#[test]
fn a_program_runs_and_a_wrong_one_is_explained() {
    if skipped() {
        return;
    }
    let pass = Recipe::verdict(XdpAction::Pass).program("roxie_test", ProgramKind::Xdp).unwrap();
    let (program, _maps) = Program::load_with_maps(&pass).unwrap();
    let info = program.info().unwrap();
    assert_eq!((info.name.as_str(), info.uid), ("roxie_test", 0));
    assert!(program_ids().unwrap().contains(&info.id));
    assert_eq!(Program::by_id(info.id).unwrap().info().unwrap(), info);
    let packet = [0xab; 64];
    let outcome = program.test_run(&TestRun { packet: &packet, repeat: 10, ..TestRun::default() }).unwrap();
    assert_eq!((outcome.verdict, outcome.packet.as_slice()), (2, &packet[..]));
    let mut asm = Asm::new("forgetful");
    asm.exit();
    let error = Program::load(&asm.finish().unwrap(), &[]).unwrap_err();
    assert_eq!(error.error.raw_os_error(), Some(libc::EACCES));
    assert!(error.to_string().contains("R0 !read_ok"), "{error}");
    // A program that refers to a map which is not given.
    let steer = Recipe::steer(4791, 1).program("steer", ProgramKind::Xdp).unwrap();
    let error = Program::load(&steer, &[]).unwrap_err();
    assert_eq!(error.error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.log.contains("map 0"), "{error}");
}

/// Only a program for a DEVMAP entry may ask where the packet goes.
#[test]
fn programs_are_loaded_for_where_they_run() {
    if skipped() {
        return;
    }
    let mut asm = Asm::new("where_to");
    asm.load_ctx(Reg::R0, Reg::R1, XdpMd::EgressIfindex).exit();
    let program = asm.finish().unwrap();
    let load = |kind| Program::load(&::bpf::Program { kind, ..program.clone() }, &[]);
    load(ProgramKind::XdpDevmap).unwrap();
    for kind in [ProgramKind::Xdp, ProgramKind::XdpCpumap] {
        assert!(load(kind).unwrap_err().log.contains("invalid bpf_context access"));
    }
}

#[test]
fn the_first_value_is_in_place_and_a_frozen_map_stays_so() {
    if skipped() {
        return;
    }
    let def = MapDef { initial: vec![1, 2, 3, 4], frozen: true, ..MapDef::array("constants", 4, 1) };
    let map = Map::create(&def).unwrap();
    let mut value = [0; 4];
    assert!(map.lookup(&[0; 4], &mut value).unwrap());
    assert_eq!(value, [1, 2, 3, 4]);
    assert_eq!(map.update(&[0; 4], &[9; 4]).unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn names_are_made_what_the_kernel_accepts() {
    assert_eq!(text(&name("a-very-long-name-indeed")), "a_very_long_nam");
    assert_eq!(text(&name("xdp.1")), "xdp.1");
}
