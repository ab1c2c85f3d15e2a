//! Programs on a veth; as root, else skipped.

use std::net::IpAddr;

use bpf::{Action, Pick, ProgramKind, Recipe, XdpAction, recipe::Target};

use super::*;
use sys::bpf::{Map, Program, TestRun, XdpLink, get_pinned};
use sys::testing::{enter_new_netns, ip, mount_bpf_fs, run};
use sys::{Netlink, XdpMode, xdp_features};

fn verdict(action: XdpAction) -> bpf::Program {
    Recipe::verdict(action).program("test_verdict", ProgramKind::Xdp).unwrap()
}

/// Creates a veth pair in a new namespace; returns the index of its first end.
fn veth() -> Option<u32> {
    if !enter_new_netns() {
        return None;
    }
    ip("link add veth0 type veth peer name veth1");
    ip("link set veth0 up");
    ip("link set veth1 up");
    index("veth0")
}

fn index(netdev: &str) -> Option<u32> {
    let links = Netlink::new().unwrap().links().unwrap();
    links.iter().find(|link| link.name == netdev).map(|link| link.index)
}

fn on(ifindex: u32) -> Vec<(XdpMode, u32)> {
    let link = Netlink::new().unwrap().link(ifindex).unwrap();
    link.xdp.iter().map(|xdp| (xdp.mode, xdp.program_id)).collect()
}

#[test]
fn a_program_is_on_the_interface_while_its_value_lives() {
    let Some(veth0) = veth() else { return };
    for (mode, want) in [
        (Mode::Auto, XdpMode::Native),
        (Mode::Only(XdpMode::Generic), XdpMode::Generic),
        (Mode::Only(XdpMode::Native), XdpMode::Native),
    ] {
        let attached = attach(veth0, &verdict(XdpAction::Pass), mode).unwrap();
        assert_eq!((attached.mode(), attached.not_native()), (want, None));
        assert_eq!(on(veth0), [(want, attached.id())]);
        assert_eq!(attached.presence().unwrap(), Presence::On);
        drop(attached);
        assert_eq!(on(veth0), []);
    }
}

#[test]
fn a_second_program_is_refused_with_the_name_of_the_first() {
    let Some(veth0) = veth() else { return };
    let first = attach(veth0, &verdict(XdpAction::Pass), Mode::Auto).unwrap();
    for mode in [Mode::Auto, Mode::Only(XdpMode::Native), Mode::Only(XdpMode::Generic)] {
        let error = attach(veth0, &verdict(XdpAction::Drop), mode).unwrap_err();
        let text = format!("XDP program already attached (id {}, test_verdict, native mode)", first.id());
        assert_eq!(error.to_string(), text);
    }
    assert_eq!(on(veth0), [(XdpMode::Native, first.id())]);
}

#[test]
fn the_interface_is_never_without_a_program_during_a_replacement() {
    let Some(veth0) = veth() else { return };
    let mut attached = attach(veth0, &verdict(XdpAction::Pass), Mode::Auto).unwrap();
    let before = attached.id();
    attached.replace(&verdict(XdpAction::Drop)).unwrap();
    assert_ne!(attached.id(), before);
    assert_eq!(on(veth0), [(XdpMode::Native, attached.id())]);
    run("ip", "link del veth0");
    assert_eq!(attached.presence().unwrap(), Presence::Gone);
    let error = attached.replace(&verdict(XdpAction::Pass)).unwrap_err();
    assert!(matches!(error, AttachError::Refused { .. }), "{error}");
}

#[test]
fn the_kernels_explanation_is_shown() {
    let Some(veth0) = veth() else { return };
    let error = attach(1, &verdict(XdpAction::Pass), Mode::Only(XdpMode::Native)).unwrap_err();
    assert!(error.to_string().contains("does not support XDP in native mode"), "{error}");
    // Loopback has generic mode only; so has an interface with a peer that uses jumbo frames,
    // unless the program takes fragments.
    assert_eq!(attach(1, &verdict(XdpAction::Pass), Mode::Auto).unwrap().mode(), XdpMode::Generic);
    ip("link set veth1 mtu 9000");
    let attached = attach(veth0, &verdict(XdpAction::Pass), Mode::Auto).unwrap();
    assert_eq!(attached.mode(), XdpMode::Generic);
    assert!(attached.not_native().unwrap().contains("MTU is too large"), "{:?}", attached.not_native());
    drop(attached);
    let frags = Recipe { frags: true, ..Recipe::verdict(XdpAction::Pass) };
    let frags = frags.program("test_verdict", ProgramKind::Xdp).unwrap();
    assert_eq!(attach(veth0, &frags, Mode::Auto).unwrap().mode(), XdpMode::Native);
}

#[test]
fn the_peer_gains_features_while_a_program_is_attached() {
    let Some(veth0) = veth() else { return };
    let veth1 = index("veth1").unwrap();
    let Ok(before) = xdp_features(veth1) else {
        eprintln!("skipped: needs Linux 6.3");
        return;
    };
    assert!(before.native() && before.redirect() && !before.zero_copy(), "{before}");
    let attached = attach(veth0, &verdict(XdpAction::Pass), Mode::Auto).unwrap();
    assert!(!before.xmit() && xdp_features(veth1).unwrap().xmit());
    drop(attached);
    assert_eq!(xdp_features(veth1).unwrap(), before);
}

#[test]
fn a_pin_keeps_the_program_until_it_is_removed() {
    let Some(veth0) = veth() else { return };
    let path = std::path::Path::new(mount_bpf_fs()).join("steering");
    let mut attached = attach(veth0, &verdict(XdpAction::Pass), Mode::Auto).unwrap();
    attached.pin(&path).unwrap();
    let id = attached.id();
    drop(attached);
    assert_eq!(on(veth0), [(XdpMode::Native, id)]);
    assert_eq!(XdpLink::from_fd(get_pinned(&path).unwrap()).info().unwrap(), (id, veth0));
    std::fs::remove_file(&path).unwrap();
    // The kernel detaches it a moment after the last reference was dropped.
    let start = std::time::Instant::now();
    while !on(veth0).is_empty() {
        assert!(start.elapsed().as_secs() < 5);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A RoCE packet of 64 bytes after Ethernet; only the fields that the program reads are set.
fn roce(dst: IpAddr, dest_qp: u32, udp_port: u16) -> Vec<u8> {
    let mut packet = vec![0; 12];
    match dst {
        IpAddr::V4(dst) => {
            packet.extend([0x08, 0x00, 0x45]);
            packet.resize(14 + 20, 0);
            packet[14 + 9] = 17;
            packet[14 + 16..14 + 20].copy_from_slice(&dst.octets());
        }
        IpAddr::V6(dst) => {
            packet.extend([0x86, 0xdd, 0x60]);
            packet.resize(14 + 40, 0);
            packet[14 + 6] = 17;
            packet[14 + 24..14 + 40].copy_from_slice(&dst.octets());
        }
    }
    packet.extend([0xc0, 0]);
    packet.extend(udp_port.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend([0; 4]);
    packet.extend(dest_qp.to_be_bytes());
    packet.resize(packet.len() + 20, 0);
    packet
}

/// The steering program with DROP instead of a redirect, to distinguish that from a pass.
#[test]
fn only_packets_for_the_ports_addresses_and_slots_are_steered() {
    if Map::create(&bpf::MapDef::array("probe", 4, 1)).is_err() {
        eprintln!("skipped: needs CAP_BPF");
        return;
    }
    let action =
        Action::Redirect { target: Target::Xsk, entries: 4, pick: Pick::RxQueue, miss: XdpAction::Drop };
    let recipe = Recipe { action, ..Recipe::steer(4791, 4) };
    let definition = recipe.program("steer_or_drop", ProgramKind::Xdp).unwrap();
    let (program, maps) = Program::load_with_maps(&definition).unwrap();
    let map = |name| &maps[definition.map(name).unwrap().index()];
    let (ours, other): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let (ours6, other6): (IpAddr, IpAddr) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
    for address in [ours, ours6] {
        map("addresses").update(&bpf::recipe::source_key(address), &[1; 4]).unwrap();
    }
    map("slots").update(&0u32.to_ne_bytes(), &1u32.to_ne_bytes()).unwrap();
    map("slots").update(&0x123u32.to_ne_bytes(), &1u32.to_ne_bytes()).unwrap();
    let steered = |packet: &[u8]| {
        let outcome = program.test_run(&TestRun { packet, repeat: 1, ..TestRun::default() }).unwrap();
        assert_eq!(outcome.packet, packet, "untouched");
        outcome.verdict == XdpAction::Drop.number()
    };
    for (dst, dest_qp, port, want) in [
        (ours, 0x12_3456, 4791, true),
        (ours6, 0x12_3456, 4791, true),
        (ours, 0x00_0011, 4791, true),
        (ours, 1, 4791, false),
        (ours6, 1, 4791, false),
        (ours, 0x13_3456, 4791, false),
        (other, 0x12_3456, 4791, false),
        (other6, 0x12_3456, 4791, false),
        (ours, 0x12_3456, 4792, false),
    ] {
        let packet = roce(dst, dest_qp, port);
        assert_eq!(steered(&packet), want, "{dst} {dest_qp:#x} {port}");
    }
    let mut fragment = roce(ours, 0x12_3456, 4791);
    fragment[14 + 6] = 0x20;
    assert!(!steered(&fragment));
    let whole = roce(ours, 0x12_3456, 4791);
    assert!(!steered(&whole[..14 + 20 + 8 + 11]), "no space for a BTH");
}

#[test]
fn an_installed_program_stays_and_is_replaced_only_on_request() {
    let Some(veth0) = veth() else { return };
    let load = |action| Program::load_with_maps(&verdict(action)).unwrap().0;
    let (pass, drop_all) = (load(XdpAction::Pass), load(XdpAction::Drop));
    let id = |program: &Program| program.info().unwrap().id;
    let first = install(veth0, &pass, Mode::Auto, false).unwrap();
    assert_eq!((first.mode, first.not_native, first.replaced), (XdpMode::Native, None, None));
    let error = install(veth0, &drop_all, Mode::Auto, false).unwrap_err();
    assert!(matches!(error, AttachError::Occupied { id: there, .. } if there == id(&pass)), "{error}");
    let first_id = id(&pass);
    drop(pass);
    assert_eq!(on(veth0), [(XdpMode::Native, first_id)]);

    let second = install(veth0, &drop_all, Mode::Auto, true).unwrap();
    assert_eq!((second.replaced, second.link), (Some(first_id), None));
    assert_eq!(on(veth0), [(XdpMode::Native, id(&drop_all))]);
    let error = install(veth0, &load(XdpAction::Pass), Mode::Only(XdpMode::Generic), true).unwrap_err();
    assert!(error.to_string().contains("generic"), "{error}");
    remove(veth0, Netlink::new().unwrap().link(veth0).unwrap().xdp[0], false).unwrap();
    assert_eq!(on(veth0), []);
}

#[test]
fn a_program_held_by_a_link_is_replaced_within_it_and_removed_with_force() {
    let Some(veth0) = veth() else { return };
    let attached = attach(veth0, &verdict(XdpAction::Pass), Mode::Auto).unwrap();
    let (program, _maps) = Program::load_with_maps(&verdict(XdpAction::Drop)).unwrap();
    let installed = install(veth0, &program, Mode::Auto, true).unwrap();
    assert!(installed.link.is_some() && installed.replaced == Some(attached.id()), "{installed:?}");
    let there = Netlink::new().unwrap().link(veth0).unwrap().xdp[0];
    assert_eq!(there.program_id, program.info().unwrap().id);
    let error = remove(veth0, there, false).unwrap_err();
    assert!(matches!(error, RemoveError::Held(id) if Some(id) == installed.link), "{error}");
    remove(veth0, there, true).unwrap();
    assert_eq!(on(veth0), []);
}

#[test]
fn the_maps_of_a_program_are_found_through_it() {
    if Map::create(&bpf::MapDef::array("probe", 4, 1)).is_err() {
        eprintln!("skipped: needs root");
        return;
    }
    let definition = Recipe { counters: true, ..Recipe::steer(4791, 4) };
    let definition = definition.program("steer", ProgramKind::Xdp).unwrap();
    let (program, _maps) = Program::load_with_maps(&definition).unwrap();
    let ids = program.map_ids().unwrap();
    let mut names: Vec<_> = ids.iter().map(|id| Map::by_id(*id).unwrap().name().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["addresses", "counters", "slots", "xsks"]);
    let (bare, _maps) = Program::load_with_maps(&verdict(XdpAction::Pass)).unwrap();
    assert_eq!(bare.map_ids().unwrap(), []);
}
