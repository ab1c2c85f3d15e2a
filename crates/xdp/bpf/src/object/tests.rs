//! Tests with objects that clang builds from the sources in `xdp/`.

use super::{clang, *};
use crate::btf::Btf;
use crate::map::{Map, MapKind, UpdateMode};
use crate::vm::{Env, Image, Machine, XdpBuff};
use crate::{Helper, ProgramKind, XdpAction};

struct Host;

impl Env for Host {
    fn ktime_ns(&mut self) -> u64 {
        0
    }

    fn random(&mut self) -> u32 {
        0
    }
}

/// Returns the programs of a source file, or `None` if clang is not installed.
fn programs(name: &str) -> Option<Vec<Program>> {
    match clang::build(name, "v3") {
        Ok(object) => Some(programs_of(&object, None).unwrap_or_else(|error| panic!("{name}: {error}"))),
        Err(reason) => {
            println!("{reason}");
            None
        }
    }
}

fn image(program: &Program) -> Image {
    let maps = program.maps.iter().map(|def| Map::new(def, 2).unwrap()).collect();
    Image::new(program, maps)
        .unwrap_or_else(|error| panic!("{}: {error}\n{}", program.name, program.listing()))
}

/// Returns the verdict on a packet of 60 bytes with this EtherType.
fn run(image: &Image, ethertype: u16) -> u32 {
    let mut buffer = [0; 400];
    buffer[256 + 12..][..2].copy_from_slice(&ethertype.to_be_bytes());
    buffer[256 + 14] = 0x45;
    let mut buff = XdpBuff::new(&mut buffer, 256..316).unwrap();
    let outcome = Machine::new(0).run(image, &mut buff, &mut Host);
    assert_eq!(outcome.fault, None);
    outcome.returned
}

#[test]
fn every_program_in_the_file_is_found_with_its_kind() {
    let Some(programs) = programs("redirect") else { return };
    let names: Vec<_> = programs.iter().map(|program| (program.name.as_str(), program.kind)).collect();
    assert_eq!(
        names,
        [
            ("on_device", ProgramKind::XdpDevmap),
            ("on_processor", ProgramKind::XdpCpumap),
            ("to_device", ProgramKind::Xdp),
            ("to_device_by_index", ProgramKind::Xdp),
            ("to_processor", ProgramKind::Xdp),
            ("to_socket", ProgramKind::Xdp),
        ]
    );
    for program in &programs {
        let maps: Vec<_> = program.maps.iter().map(|map| (map.name.as_str(), map.kind)).collect();
        assert_eq!(
            maps,
            [
                ("devices", MapKind::Devmap),
                ("devices_by_index", MapKind::DevmapHash),
                ("processors", MapKind::Cpumap),
                ("sockets", MapKind::Xskmap),
            ]
        );
        assert_eq!((program.license.as_str(), program.frags), ("Dual MIT/GPL", false));
        image(program);
    }
    assert!(self::programs("patch").unwrap()[0].frags);
}

#[test]
fn programs_of_other_types_are_skipped() {
    let Some(programs) = programs("mixed") else { return };
    let [program] = &programs[..] else { panic!("{} programs", programs.len()) };
    assert_eq!(program.name, "received");
    let image = image(program);
    assert_eq!(run(&image, 0x0800), XdpAction::Pass.number());
    let seen = image.map(program.map("seen").unwrap()).unwrap();
    assert_eq!(seen.lookup(&[0; 4]).unwrap()[0], 1);
}

#[test]
fn map_references_and_calls_are_linked() {
    let Some(programs) = programs("hash") else { return };
    let digest = &programs[0];
    let listing = digest.listing().to_string();
    assert!(listing.contains("r1 = map[results]"), "{listing}");
    assert!(listing.contains("#mix") && listing.contains("\nscale:\n"), "{listing}");
    let btf = digest.btf.as_ref().unwrap();
    let functions: Vec<_> = btf.func_info.iter().map(|info| btf.name_of(info.type_id).unwrap()).collect();
    assert_eq!(functions.len(), 3);
    assert_eq!(functions[0], "digest");
    assert_eq!(btf.line_info.len() % Btf::LINE_INFO_LEN as usize, 0);
    assert!(!btf.line_info.is_empty());
}

#[test]
fn global_data_is_initialized_and_constants_are_read_only() {
    let Some(programs) = programs("filter") else { return };
    let program = &programs[0];
    let constants = &program.maps[program.map(".rodata").unwrap().index()];
    assert!(constants.frozen && constants.flags & MapDef::RDONLY_PROG != 0);
    assert_eq!(constants.initial, [7, 0, 0, 0, 1, 0, 0, 0]);
    let image = image(program);
    assert_eq!(run(&image, 0x86dd), XdpAction::Pass.number());
    let data = image.map(program.map(".data").unwrap()).unwrap();
    data.update(&[0; 4], &[3, 0, 0, 0], UpdateMode::Any).unwrap();
    assert_eq!(run(&image, 0x86dd), XdpAction::Tx.number(), "on_miss is read from the map");
    let addresses = image.map(program.map("addresses").unwrap()).unwrap();
    addresses.update(&[0; 4], &[0; 16], UpdateMode::Any).unwrap();
    assert_eq!(run(&image, 0x0800), XdpAction::Drop.number(), "on_match is in .rodata");
    let counters = image.map(program.map(".bss").unwrap()).unwrap().lookup(&[0; 4]).unwrap();
    assert_eq!(counters.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 1, "one match was counted");
}

/// Loads all sources in all versions of the instruction set that the installed clang supports.
#[test]
fn every_example_of_the_xdp_directory_loads_into_the_machine() {
    for name in [
        "calls", "count", "echo", "filter", "flows", "hash", "packets", "patch", "prefixes", "redirect",
        "roce", "tail", "tunnel", "verdicts", "vlan",
    ] {
        for version in ["v1", "v2", "v3"] {
            let object = match clang::build(name, version) {
                Ok(object) => object,
                Err(reason) => return println!("{reason}"),
            };
            for program in programs_of(&object, None).unwrap() {
                image(&program);
            }
        }
    }
}

#[test]
fn a_file_that_is_no_bpf_object_is_refused() {
    assert!(matches!(programs_of(b"\x7fELF", None), Err(ObjectError::Parse(_))));
    assert!(matches!(programs_of(&[], None), Err(ObjectError::Parse(_))));
    let program = std::fs::read("/proc/self/exe").unwrap();
    let refusal = programs_of(&program, None).unwrap_err().to_string();
    assert!(refusal.contains("not for BPF"), "{refusal}");
}

#[test]
fn relocated_helper_calls_agree_with_the_header() {
    let Some(programs) = programs("tail") else { return };
    let listing = programs[0].listing().to_string();
    for helper in [Helper::XdpAdjustTail, Helper::XdpAdjustMeta] {
        assert!(listing.contains(&format!("call bpf_{}#{}", helper.name(), helper.id())), "{listing}");
    }
}
