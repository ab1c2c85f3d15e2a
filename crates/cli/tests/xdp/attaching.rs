//! Attaching programs, reading their counters, filling their maps.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::Stdio;

use serde_json::Value;

use crate::host::*;

#[test]
fn a_program_stays_until_it_is_detached() {
    if !enter() {
        return;
    }
    let said = good(&["attach", "veth0", "--recipe", "pass"]);
    assert!(said.starts_with("veth0: roxie_pass attached (id ") && said.contains(", native mode)"), "{said}");
    let there = programs("veth0");
    assert_eq!(
        (there.len(), &there[0]["name"], &there[0]["mode"]),
        (1, &"roxie_pass".into(), &"native".into())
    );
    assert_eq!(there[0]["link"], Value::Null);
    let said = good(&["attach", "veth0", "--recipe", "drop", "--replace"]);
    assert!(said.contains(&format!("in the place of id {}", there[0]["id"])), "{said}");
    assert_eq!(programs("veth0")[0]["name"], "roxie_drop");
    let said = good(&["detach", "veth0"]);
    assert!(said.contains("roxie_drop") && said.contains("detached"), "{said}");
    assert_eq!(programs("veth0"), Vec::<Value>::new());
    good(&["attach", "lo", "--recipe", "pass"]);
    assert_eq!(programs("lo")[0]["mode"], "generic", "loopback has no driver");
}

#[test]
fn every_recipe_is_loaded_by_the_kernel() {
    if !enter() {
        return;
    }
    for recipe in [
        "aborted",
        "tx:only=roce",
        "steer:queues=1,slots=16-31",
        "police:rate=125M,burst=1M",
        "access:deny=10.0.0.0/8+fd00::/8,allow=10.1.2.3",
        "sample:every=10,snap=64",
        "forward:to=veth0+veth1",
        "redirect:to=veth1",
        "lb:to=cpu,ways=1",
        "lb:to=xsk,queues=1,ways=2",
        "lb:to=veth0+veth1",
    ] {
        good(&["attach", "veth0", "--recipe", recipe, "--replace", "--mode", "native"]);
    }
    assert_eq!(programs("veth0")[0]["maps"].as_array().unwrap().len(), 2, "devs and counters");
}

#[test]
fn a_foreground_program_is_detached_with_its_command_even_after_kill_9() {
    if !enter() {
        return;
    }
    let mut running = command(&["attach", "veth0", "--recipe", "pass", "--foreground"]).spawn().unwrap();
    eventually("attached", || !programs("veth0").is_empty());
    let link = programs("veth0")[0]["link"].as_u64().expect("held by a bpf_link");
    refused(&["detach", "veth0"], 1, &[&format!("held by bpf_link {link}"), "--force"]);
    // The program is replaced within the link, so it is still detached with the command.
    let ended = roxie(&["attach", "veth0", "--recipe", "drop", "--replace"]);
    assert!(ended.code == Some(0) && ended.err.contains("it is detached with that link"), "{ended:?}");
    assert_eq!(programs("veth0")[0]["name"], "roxie_drop");
    running.kill().unwrap();
    running.wait().unwrap();
    eventually("gone", || programs("veth0").is_empty());
}

#[test]
fn a_foreground_command_ends_when_its_program_is_detached() {
    if !enter() {
        return;
    }
    let detach = || drop(good(&["detach", "veth0", "--force"]));
    let other = || {
        detach();
        good(&["attach", "veth0", "--recipe", "drop"]);
    };
    let delete = || ip(&["link", "delete", "veth0"]);
    let detached = "roxie: veth0: another command detached the program\n";
    let replaced = "another command replaced the program (roxie_drop, id ";
    let ways: [(&dyn Fn(), &[&str]); 3] = [
        (&detach, &[detached]),
        // The command may look between the two.
        (&other, &[replaced, detached]),
        (&delete, &["roxie: interface veth0 was removed, and the program with it\n"]),
    ];
    for (way, says) in ways {
        let mut running = command(&["attach", "veth0", "--recipe", "pass", "--foreground"]);
        let mut running = running.stderr(std::process::Stdio::piped()).spawn().unwrap();
        eventually("attached", || !programs("veth0").is_empty());
        way();
        eventually("ended", || running.try_wait().unwrap().is_some());
        let ended = running.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        let is_said = says.iter().any(|says| err.contains(says));
        assert!(ended.status.code() == Some(1) && is_said, "{:?}: {err}", ended.status);
        if says.contains(&replaced) {
            assert_eq!(programs("veth0")[0]["name"], "roxie_drop", "the other program stays");
            detach();
        }
    }
}

#[test]
fn a_recipe_that_the_driver_refuses_runs_as_one_for_the_network_stack() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        SEC("xdp") int single(struct xdp_md *ctx) { return XDP_PASS; }
        LICENSE;
    "#;
    let Some(file) = object("single-part", source) else { return };
    let pins = mount_bpf_fs().join("pins");
    // The driver takes no large MTU with a program for one buffer, and out0 no redirected packets.
    ip(&["link", "set", "veth1", "mtu", "9000"]);
    ip(&["link", "add", "out0", "type", "veth", "peer", "name", "out1"]);
    let recipe = format!("{file}+redirect:to=out0");
    let words = ["attach", "veth0", "--recipe", &recipe];
    good(&[&words[..], &["--mode", "generic"]].concat());
    let wanted = programs("veth0")[0]["tag"].clone();
    good(&["detach", "veth0"]);
    for more in [&[][..], &["--pin", pins.to_str().unwrap()], &["--foreground"]] {
        let mut command = command(&[&words[..], more].concat());
        let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(running.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("generic mode"), "{said}");
        assert!(good(&["map", "get", "veth0", "devs"]).contains("out0"), "{more:?}");
        let there = programs("veth0").remove(0);
        assert_eq!((&there["mode"], &there["tag"]), (&"generic".into(), &wanted), "{more:?}");
        if more.contains(&"--foreground") {
            running.kill().unwrap();
        }
        let said = running.wait_with_output().unwrap().stderr;
        let said = String::from_utf8_lossy(&said);
        roxie(&["detach", "veth0"]);
        assert!(said.contains("not in the driver") && said.contains("MTU is too large"), "{said}");
        assert!(!said.contains("go through the network stack: the driver"), "{said}");
        eventually("detached", || programs("veth0").is_empty());
    }
}

#[test]
fn maps_are_pinned_only_if_the_program_is_attached() {
    if !enter() {
        return;
    }
    let dir = mount_bpf_fs().join("steering");
    let path = dir.to_str().unwrap();
    good(&["attach", "veth1", "--recipe", "pass"]);
    refused(&["attach", "veth1", "--recipe", "steer", "--pin", path], 1, &["already attached"]);
    assert!(!dir.exists());
    good(&["attach", "veth0", "--recipe", "steer", "--pin", path]);
    let mut names: Vec<_> =
        dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["addresses", "counters", "slots", "xsks"]);
    refused(&["attach", "veth1", "--recipe", "steer", "--replace", "--pin", path], 1, &["File exists"]);
    assert_eq!(programs("veth1")[0]["name"], "roxie_pass");
}

#[test]
fn verdicts_are_counted_and_shown() {
    if !enter() {
        return;
    }
    ip(&["address", "add", "10.9.0.2/24", "dev", "veth1"]);
    ip(&["neigh", "add", "10.9.0.9", "lladdr", "02:00:00:00:00:09", "dev", "veth1", "nud", "permanent"]);
    good(&["attach", "veth0", "--recipe", "drop:only=roce"]);
    // The port and length of RoCE packets, to a host that does not exist: out of veth1, into veth0.
    let sender = UdpSocket::bind("10.9.0.2:0").unwrap();
    for _ in 0..25 {
        sender.send_to(&[0; 40], "10.9.0.9:4791").unwrap();
    }
    let dropped = || {
        let stats: Value = serde_json::from_str(&good(&["stats", "veth0", "--json"])).unwrap();
        (stats["verdicts"]["XDP_DROP.packets"].clone(), stats["verdicts"]["XDP_DROP.bytes"].clone())
    };
    eventually("counted", || dropped().0 == 25);
    assert_eq!(dropped().1, 25 * (14 + 20 + 8 + 40));
    let said = good(&["stats", "veth0"]);
    assert!(said.contains("roxie_drop") && said.contains("XDP_DROP.packets"), "{said}");
    assert!(said.contains("rx_queue_0_xdp_drops"), "the driver's own count: {said}");
    assert!(said.contains("lost: rx_queue_0_xdp_drops"), "it is told as a loss: {said}");
    let doctor = std::process::Command::new(env!("CARGO_BIN_EXE_roxie")).arg("doctor").output().unwrap();
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        doctor.contains("veth0: packets lost: 25 rx_queue_0_xdp_drops (dropped by the XDP program"),
        "{doctor}"
    );
}

#[test]
fn samples_become_a_capture_file() {
    if !enter() {
        return;
    }
    good(&["attach", "veth0", "--recipe", "sample:only=roce,port=9,every=4,snap=50"]);
    good(&["send", "veth1", "--count", "40"]);
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("roxie-xdp-samples-{}.pcap", std::process::id()));
    good(&["samples", "veth0", "--count", "4", "--write", file.to_str().unwrap()]);
    let lines = good(&["samples", "veth0", "--count", "6"]);
    assert!(
        lines.lines().count() == 6 && lines.contains("60 bytes, queue 0, packet 36 of its CPU"),
        "{lines}"
    );
    let capture = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let mut reader = pcap_file::pcap::PcapReader::new(&capture[..]).unwrap();
    let mut packets = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        assert_eq!((packet.orig_len, packet.data.len()), (60, 50));
        assert_eq!(packet.data[12..14], [8, 0], "IPv4");
        let age = std::time::UNIX_EPOCH.elapsed().unwrap().saturating_sub(packet.timestamp);
        assert!(age.as_secs() < 60, "{age:?}");
        packets += 1;
    }
    assert_eq!(packets, 4);
    refused(&["samples", "veth1"], 1, &["no program that samples", "--recipe sample"]);
}

#[test]
fn rates_are_shown_again_and_again() {
    if !enter() {
        return;
    }
    use std::io::{BufRead, BufReader};
    good(&["attach", "veth0", "--recipe", "pass"]);
    let mut watching = command(&["stats", "veth0", "--watch", "--json"]);
    let mut watching = watching.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    for line in lines.take(2) {
        let stats: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(
            (&stats["per_second"], &stats["programs"][0]["name"]),
            (&true.into(), &"roxie_pass".into())
        );
    }
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn an_object_file_is_attached_by_its_section() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        SEC("xdp") int first(struct xdp_md *ctx) { return XDP_PASS; }
        SEC("xdp.frags") int second(struct xdp_md *ctx) { return XDP_DROP; }
        SEC("xdp/cpumap") int inner(struct xdp_md *ctx) { return XDP_PASS; }
        LICENSE;
    "#;
    let Some(file) = object("sections", source) else { return };
    refused(&["attach", "veth0", &file], 1, &["choose one with --prog: first (xdp), second (xdp.frags)"]);
    refused(
        &["attach", "veth0", &file, "--section", "tc"],
        1,
        &["no program in a section 'tc'", "first (xdp)"],
    );
    refused(&["attach", "veth0", &file, "--prog", "third"], 1, &["no such program", "second (xdp.frags)"]);
    // What the user names is meant for the interface.
    good(&["attach", "veth0", &file, "--prog", "inner"]);
    good(&["attach", "veth0", &file, "--section", "xdp.frags", "--replace"]);
    assert_eq!(programs("veth0")[0]["name"], "second");
    let listing = good(&["attach", "veth0", &file, "--prog", "first", "--dump"]);
    assert!(
        listing.contains("first:") && listing.contains("r0 = 2") && listing.contains("exit"),
        "{listing}"
    );
}

#[test]
fn maps_are_read_and_filled_while_the_program_runs() {
    if !enter() {
        return;
    }
    ip(&["address", "add", "10.9.0.2/24", "dev", "veth1"]);
    ip(&["neigh", "add", "10.9.0.9", "lladdr", "02:00:00:00:00:09", "dev", "veth1", "nud", "permanent"]);
    good(&["attach", "veth0", "--recipe", "access:deny=192.0.2.0/24+192.0.3.0/24"]);
    let list = good(&["map", "list", "veth0"]);
    assert!(list.contains("access") && list.contains("lpm_trie") && list.contains("counters"), "{list}");
    good(&["map", "set", "veth0", "access", "10.9.0.0/16", "0"]);
    good(&["map", "delete", "veth0", "access", "192.0.3.0/24"]);
    // A prefix inside a shorter one has no entry.
    refused(&["map", "get", "veth0", "access", "10.9.1.0/24"], 1, &["no entry 10.9.1.0/24"]);
    refused(&["map", "delete", "veth0", "access", "10.9.1.0/24"], 1, &["no entry 10.9.1.0/24"]);
    let entries: Value = serde_json::from_str(&good(&["map", "get", "veth0", "access", "--json"])).unwrap();
    let mut keys: Vec<&str> =
        entries.as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["10.9.0.0/16", "192.0.2.0/24"]);
    let sender = UdpSocket::bind("10.9.0.2:0").unwrap();
    sender.send_to(&[0; 40], "10.9.0.9:9").unwrap();
    // XDP_DROP is 1; bytes: Ethernet, IPv4, UDP.
    eventually("dropped by the new entry", || {
        good(&["map", "get", "veth0", "counters", "1"]).contains("1+82")
    });
    refused(&["map", "get", "veth0", "access", "10.9.9.9/32", "x"], 2, &["unexpected argument"]);
    refused(
        &["map", "set", "veth0", "access", "10.9.0.0", "many"],
        2,
        &["value 'many' does not make 4 bytes"],
    );
    refused(&["map", "set", "veth0", "nonesuch", "1", "1"], 1, &["no map 'nonesuch'", "access, counters"]);
    refused(&["map", "set", "veth0", "counters", "99", "1+1"], 1, &["beyond the map's size"]);
    refused(&["map", "delete", "veth0", "counters", "1"], 1, &["none can be deleted"]);
    refused(&["map", "delete", "veth0", "access", "192.0.3.0/24"], 1, &["there is no entry 192.0.3.0/24"]);
    refused(&["map", "list", "veth1"], 1, &["no XDP program", "roxie xdp attach"]);

    good(&["attach", "veth1", "--recipe", "redirect:to=veth0"]);
    assert!(good(&["map", "get", "veth1", "devs"]).contains("veth0"));
    good(&["map", "set", "veth1", "devs", "0", "veth1"]);
    assert!(good(&["map", "get", "veth1", "devs", "0"]).contains("veth1"));
    let ended = roxie_as_nobody(&["map", "list", "veth0"]);
    assert!(ended.code == Some(1) && ended.err.contains("try with sudo"), "{ended:?}");
}

#[test]
fn counters_of_other_programs_are_not_taken_for_verdicts() {
    if !enter() {
        return;
    }
    let Some(file) = object("classes", include_str!("../../../../xdp/count.c")) else { return };
    good(&["attach", "veth0", &file]);
    good(&["send", "veth1", "--count", "3"]);
    let said = good(&["stats", "veth0"]);
    assert!(said.contains("rx_packets") && !said.contains("XDP_DROP"), "{said}");
}

#[test]
fn a_program_in_a_section_of_any_name_is_attached_if_it_is_named() {
    if !enter() {
        return;
    }
    let source = r#"
        #include "xdp.h"
        SEC("xdp_devmap") int first(struct xdp_md *ctx) { return XDP_PASS; }
        SEC("my prog") int second(struct xdp_md *ctx) { return XDP_PASS; }
        SEC("?xdp.frags") int third(struct xdp_md *ctx) { return XDP_PASS; }
        LICENSE;
    "#;
    let Some(file) = object("any-section", source) else { return };
    for (words, name) in [
        (["--section", "xdp_devmap"], "first"),
        (["--section", "my prog"], "second"),
        (["--prog", "second"], "second"),
        (["--section", "xdp.frags"], "third"),
    ] {
        let said = good(&[&["attach", "veth0", &file, "--replace"][..], &words].concat());
        assert!(said.contains(&format!("{name} attached")), "{words:?}: {said}");
    }
    let all = "first (xdp_devmap), second (my prog), third (?xdp.frags)";
    refused(&["attach", "veth0", &file, "--prog", "nonesuch"], 1, &["no such program 'nonesuch'", all]);
}
