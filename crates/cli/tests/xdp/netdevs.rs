//! Kinds of interfaces: what `roxie doctor` says of each, and whether programs and AF_XDP work as it says.
//!
//! `cargo test -p roxie-cli --test xdp netdevs -- --nocapture` prints the table of docs/xdp.md.

use std::process::Command;

use crate::host::*;
use crate::hosts::*;

/// A kind of interface with the commands of `ip` that make `dut`. `lower` is a veth to another host, N is 1
/// or 2 on the two hosts, and M that of the other one.
struct Kind {
    name: &'static str,
    commands: &'static [&'static str],
    /// There is another host behind it, with an interface of the same kind.
    has_peer: bool,
}

const KINDS: [Kind; 9] = [
    Kind { name: "veth, 1 queue", commands: &["link set lower name dut"], has_peer: true },
    Kind { name: "veth, 4 queues", commands: &["link set lower name dut"], has_peer: true },
    Kind {
        name: "bridge",
        commands: &["link add dut type bridge", "link set lower master dut up"],
        has_peer: true,
    },
    Kind {
        name: "bridge port",
        commands: &["link add bridge type bridge", "link set lower name dut", "link set dut master bridge"],
        has_peer: false,
    },
    Kind {
        name: "macvlan",
        commands: &["link set lower up", "link add dut link lower type macvlan mode bridge"],
        has_peer: true,
    },
    Kind {
        name: "vxlan",
        commands: &[
            "address add 10.5.0.N/24 dev lower",
            "link set lower up",
            "link add dut type vxlan id 7 dev lower remote 10.5.0.M dstport 4789",
        ],
        has_peer: true,
    },
    Kind { name: "tap", commands: &["tuntap add dut mode tap"], has_peer: false },
    Kind { name: "tun", commands: &["tuntap add dut mode tun"], has_peer: false },
    Kind { name: "lo", commands: &["link set lo name dut"], has_peer: false },
];

/// Two hosts with a `dut` each.
fn hosts(kind: &Kind) -> [Host; 2] {
    let queues = if kind.name == "veth, 4 queues" { "4" } else { "1" };
    let queues = ["numrxqueues", queues, "numtxqueues", queues];
    let ends = [&["link", "add", "end1"][..], &queues, &["type", "veth", "peer", "name", "end2"], &queues];
    ip(&ends.concat());
    [(1, "2", "end1"), (2, "1", "end2")].map(|(number, other, end)| {
        let host = Host::new();
        host.adopt(end);
        let number: u8 = number;
        let number = number.to_string();
        let commands: Vec<String> =
            kind.commands.iter().map(|words| words.replace('N', &number).replace('M', other)).collect();
        host.run(move || {
            ip(&["link", "set", end, "name", "lower"]);
            for words in &commands {
                ip(&words.split(' ').collect::<Vec<_>>());
            }
            ip(&["address", "add", &format!("10.4.0.{number}/24"), "dev", "dut"]);
            ip(&["link", "set", "dut", "up"]);
        });
        host
    })
}

/// Output of `roxie` with these words. The exit code depends on the rest of the machine.
fn said(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_roxie")).args(words).output().unwrap();
    [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
}

/// The rest of the line that begins with `start`, without spaces.
fn line<'a>(text: &'a str, start: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.split_once(start).map(|(_, rest)| rest.trim()));
    found.unwrap_or_else(|| panic!("no {start:?} in {text}"))
}

/// What one interface can do.
struct Findings {
    doctor: String,
    /// Modes in which a program was attached.
    modes: Vec<&'static str>,
    /// What `devinfo` says of AF_XDP before it is tried.
    outlook: String,
}

fn look() -> Findings {
    let doctor = line(&said(&["doctor"]), "XDP             dut: ").to_owned();
    let modes = ["generic", "native"].into_iter().filter(|mode| {
        let ended = roxie(&["attach", "dut", "--recipe", "pass", "--mode", mode]);
        let is_attached = ended.code == Some(0);
        assert!(is_attached || ended.err.contains("the driver has no native XDP"), "{ended:?}");
        is_attached && good(&["detach", "dut"]).contains("detached")
    });
    let modes = modes.collect();
    let info = said(&["devinfo", "--netdev", "dut", "--port", "xsk"]);
    Findings { doctor, modes, outlook: line(&info, "packets_by ").to_owned() }
}

/// RDMA between both hosts over AF_XDP; `None` if the device cannot be opened.
fn rdma(server: &Host, client: &Host) -> Option<bool> {
    let (mut process, port) = server.run(|| {
        let mut process = demo("demo-server", "xsk", "dut", "10.4.0.1", 0);
        let port = listening_port(&mut process);
        (process, port)
    });
    let port = port?;
    let passed = client.run(move || demo("demo-client", "xsk", "dut", "10.4.0.1", port).wait().unwrap());
    let _ended = process.kill();
    process.wait().unwrap();
    Some(passed.success())
}

#[test]
fn doctor_says_beforehand_what_each_kind_of_interface_can_do() {
    if !enter() {
        return;
    }
    println!(
        "| interface | doctor | `attach --mode` | `--port xsk` | RDMA over AF_XDP |\n|---|---|---|---|---|"
    );
    for kind in &KINDS {
        let [server, client] = hosts(kind);
        let Findings { doctor, modes, outlook } = server.run(look);
        let is_ethernet = !doctor.contains("no AF_XDP");
        let claimed: Vec<&str> = if doctor.starts_with("generic, native mode") {
            vec!["generic", "native"]
        } else {
            vec!["generic"]
        };
        assert_eq!(modes, claimed, "{}: {doctor}", kind.name);
        assert_eq!(outlook.starts_with("xsk, "), is_ethernet, "{}: {doctor}: {outlook}", kind.name);
        let moved = match (is_ethernet, kind.has_peer) {
            (true, true) => {
                assert_eq!(rdma(&server, &client), Some(true), "{}", kind.name);
                "verified"
            }
            (true, false) => "no peer",
            (false, _) => {
                assert_eq!(rdma(&server, &client), None, "{}", kind.name);
                "refused"
            }
        };
        println!("| {} | {doctor} | {} | {outlook} | {moved} |", kind.name, modes.join(", "));
    }
}
