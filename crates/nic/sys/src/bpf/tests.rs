//! Maps and programs in the kernel; as root, else skipped.

use std::os::fd::AsFd;

use ::bpf::{Asm, MapDef, MapKind, ProgramKind, Recipe, Reg, TAP, Tap, TapHeader, XdpAction, XdpMd};

use super::*;

/// Prints a notice and returns true if this process may not load programs.
fn skipped() -> bool {
    let refused = Map::create(&MapDef::array("probe", 4, 1)).is_err();
    if refused {
        eprintln!("skipped: needs CAP_BPF");
    }
    refused
}

#[test]
fn a_map_stores_values_and_refuses_wrong_lengths() {
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
fn a_perf_event_array_without_a_size_gets_an_entry_for_each_cpu() {
    if skipped() {
        return;
    }
    let create =
        |entries| Map::create(&MapDef::new("events", MapKind::PerfEventArray, 4, 4, entries)).unwrap();
    let all = create(0).max_entries().unwrap() as usize;
    assert!(all >= std::thread::available_parallelism().unwrap().get(), "{all}");
    assert_eq!(create(1).max_entries().unwrap(), 1);
    // The kernel refuses other maps without a size.
    let array = Map::create(&MapDef::array("array", 4, 0)).unwrap_err();
    assert_eq!(array.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn the_error_for_a_map_that_the_kernel_refuses_names_the_map() {
    if skipped() {
        return;
    }
    let pass = Recipe::verdict(XdpAction::Pass).program("pass", ProgramKind::Xdp).unwrap();
    let maps = vec![MapDef::array("good", 4, 1), MapDef::array("empty", 4, 0)];
    let error = Program::load_with_maps(&::bpf::Program { maps, ..pass }).unwrap_err().to_string();
    assert!(error.contains("the map empty (array, key 4 bytes, value 4 bytes, 0 entries)"), "{error}");
}

#[test]
fn a_program_runs_and_an_invalid_one_is_explained() {
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
    // A program that refers to a map that is not given.
    let steer = Recipe::steer(4791, 1).program("steer", ProgramKind::Xdp).unwrap();
    let error = Program::load(&steer, &[]).unwrap_err();
    assert_eq!(error.error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.log.contains("map 0"), "{error}");
}

/// Only a program for a DEVMAP entry may read the egress interface.
#[test]
fn the_kind_of_a_program_decides_which_context_fields_it_may_read() {
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
fn the_first_value_is_in_place_and_a_frozen_map_keeps_it() {
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
fn names_are_converted_to_what_the_kernel_accepts() {
    assert_eq!(text(&name("a-very-long-name-indeed")), "a_very_long_nam");
    assert_eq!(text(&name("xdp.1")), "xdp.1");
}

/// `struct __sk_buff` with only the segment size set.
fn skb_context(segment: u32) -> [u8; 192] {
    let mut context = [0; 192];
    context[176..180].copy_from_slice(&segment.to_ne_bytes());
    context
}

fn roce_frame(port: u16, payload: &[u8]) -> Vec<u8> {
    let udp_len = (wire::Udp::LEN + payload.len()) as u16;
    let mut frame = vec![0; 42];
    frame[12..14].copy_from_slice(&[8, 0]);
    let ip = wire::Ipv4::udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 64, udp_len).with_checksum();
    ip.emit(frame[14..].first_chunk_mut().unwrap());
    let udp = wire::Udp { src_port: 50000, dst_port: port, length: udp_len, checksum: 0 };
    udp.emit(frame[34..].first_chunk_mut().unwrap());
    frame.extend_from_slice(payload);
    frame
}

/// Returns what a tap copies of a packet, or of a burst of segments.
fn tapped(tap: &Tap, frame: &[u8], segment: u32) -> Vec<(TapHeader, Vec<u8>)> {
    let definition = tap.program("tap", true).unwrap();
    let (program, maps) = Program::load_with_maps(&definition).unwrap_or_else(|error| panic!("{error}"));
    let mut ring = RingReader::new(&maps[definition.map(TAP).unwrap().index()]).unwrap();
    let context = skb_context(segment);
    let run = TestRun { packet: frame, context: &context, repeat: 1, ..TestRun::default() };
    let outcome = program.test_run(&run).unwrap();
    assert_eq!(
        (outcome.verdict, outcome.packet.as_slice()),
        (u32::MAX, frame),
        "everything passes as it came"
    );
    let mut found = Vec::new();
    ring.read(usize::MAX, |record| {
        let (header, copy) = TapHeader::parse(record).unwrap();
        found.push((header, copy.to_vec()));
    });
    found
}

#[test]
fn a_tap_copies_only_matching_packets() {
    if skipped() {
        return;
    }
    let whole = Tap {
        snap_len: Tap::WHOLE,
        hosts: Vec::new(),
        filter: None,
        hints: false,
        port: 4791,
        ring_len: 1 << 20,
    };
    let payload: Vec<u8> = (0..=255).cycle().take(700).collect();
    let frame = roce_frame(4791, &payload);
    let found = tapped(&whole, &frame, 0);
    assert_eq!(found.len(), 1);
    let (header, copy) = &found[0];
    assert_eq!(
        (header.len as usize, header.outer_len, header.segment, header.stride),
        (frame.len(), 42, 0, 0)
    );
    assert!(header.outbound);
    assert_eq!(copy[..frame.len()], frame);
    assert!(tapped(&whole, &roce_frame(4792, &payload), 0).is_empty());

    let of =
        |hosts: &[&str]| Tap { hosts: hosts.iter().map(|ip| ip.parse().unwrap()).collect(), ..whole.clone() };
    assert_eq!(tapped(&of(&["10.0.0.9", "10.0.0.2"]), &frame, 0).len(), 1);
    assert!(tapped(&of(&["10.0.0.9", "fd00::1"]), &frame, 0).is_empty());
    assert!(tapped(&of(&["fd00::1"]), &frame, 0).is_empty());

    // A burst: whole in one piece, of headers the shared ones and the front of each packet.
    let (header, copy) = tapped(&whole, &frame, 300).remove(0);
    assert_eq!((header.segment, header.stride, &copy[..frame.len()]), (300, 0, &frame[..]));
    let heads = Tap { snap_len: 128, ..whole };
    let (header, copy) = tapped(&heads, &frame, 300).remove(0);
    assert_eq!((header.segment, header.stride, &copy[..42]), (300, 88, &frame[..42]));
    for (number, from) in [0, 300, 600].into_iter().enumerate() {
        let at = TapHeader::PACKETS_AT - TapHeader::LEN + number * 88;
        assert_eq!(copy[at..at + 88], payload[from..from + 88]);
    }
}
