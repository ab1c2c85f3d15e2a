//! Raw packet queue pairs: perftest's raw Ethernet programs between two hosts; without privileges the error
//! of hardware drivers.

use std::time::Duration;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::start;
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Ended, eventually};

use crate::case::{Case, LONG, SHORT, build, good, roxie, says};

/// Frames that a program must move, less than it does.
const FRAMES: u64 = 500;
/// Until the server has its flow rule: its packet socket is open.
const READY: Duration = Duration::from_secs(20);

pub(crate) fn cases() -> Vec<Case> {
    let root = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    let mut cases = Vec::new();
    for (tool, words) in [
        ("raw_ethernet_bw", &["-D", "1"][..]),
        ("raw_ethernet_bw", &["-D", "1", "-J", "10.1.0.1", "-j", "10.1.0.2", "-K", "5000", "-k", "5001"]),
        ("raw_ethernet_lat", &["-n", "1000"]),
    ] {
        let title = format!("{tool} {}", words.join(" "));
        cases.push(Case::new(root, &title, tool, move |lab, name| run(lab, &root, name, tool, words)));
    }
    let title = "each kind of flow rule gets its frames";
    cases.push(Case::new(root, title, PYVERBS, move |lab, name| rules(lab, &root, name)));
    cases.push(Case::new(root, "frames to the device's own address come back", "cc", move |lab, name| {
        own_address(lab, &root, name)
    }));
    let ordinary = Place::new(Topology::Loopback, Family::V4, User::Ordinary);
    cases.push(Case::new(
        ordinary,
        "raw packet queue pairs without privileges say what is missing",
        "raw_ethernet_bw",
        move |lab, name| refused(lab, &ordinary, name),
    ));
    cases
}

fn own_address(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = build(lab, "raw_own.c", &["-libverbs"])?;
    let words = ["run", "--netdev", lab.netdev(place), "--", program.path(), lab.netdev(place)];
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    says(&ended, "to the own address: 1\nafter an event: 1\nto another address: 0\n")
}

fn run(lab: &Lab, place: &Place, name: &str, tool: &str, words: &[&str]) -> Result<(), String> {
    let (here, there) = (address(lab, place, Side::Server)?, address(lab, place, Side::Client)?);
    let common = ["env", "ROXIE_STATS=1", tool, "-d", "roxie0", "-F"];
    let line = |role, own, peer| [&common[..], &[role, "-B", own, "-E", peer], words].concat();
    let mut server = start(lab, place, Side::Server, name, &line("--server", &here, &there))?;
    // The receiving packet socket has the protocol 3 (ETH_P_ALL).
    let ready = || server.net("packet").lines().any(|line| line.contains(" 0003 "));
    if !eventually(READY, ready) {
        return Err(format!("the server has no flow rule\n{}", server.wait(SHORT).describe()));
    }
    let mut client = start(lab, place, Side::Client, name, &line("--client", &there, &here))?;
    let (client, server) = (client.wait(LONG), server.wait(SHORT));
    for (ended, counter) in [(&client, "raw_tx_frames"), (&server, "raw_rx_frames")] {
        if !ended.succeeded() || count(ended, counter) < FRAMES {
            return Err(format!("{counter}\n{}{}", client.describe(), server.describe()));
        }
    }
    Ok(())
}

/// The program that `find` looks for in its place: the file of python3-pyverbs.
const PYVERBS: &str = "/usr/lib/python3/dist-packages/pyverbs/__init__.py";
/// The program of both sides, and the frames that each kind of rule gets: to the address of the normal rule,
/// to another address, to a group.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/raw_rules.py");
const KINDS: [(&str, &str); 4] =
    [("normal", "5 0 0"), ("sniffer", "5 5 5"), ("default", "0 5 0"), ("multicast", "0 0 5")];

fn rules(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let python = ["/usr/bin/python3", RULES];
    let kinds = KINDS.map(|(kind, _)| kind);
    let mut receiver = start(lab, place, Side::Server, name, &[&python[..], &["receive"], &kinds].concat())?;
    if !eventually(READY, || receiver.output().contains("ready") || receiver.has_ended()) {
        return Err(receiver.wait(Duration::ZERO).describe());
    }
    let sender = start(lab, place, Side::Client, name, &[&python[..], &["send"]].concat())?.wait(SHORT);
    let received = receiver.wait(LONG);
    for (kind, counts) in KINDS {
        if !received.output.contains(&format!("{kind} {counts}\n")) {
            return Err(format!("{kind}\n{}{}", received.describe(), sender.describe()));
        }
    }
    Ok(())
}

/// The Ethernet address of a side.
fn address(lab: &Lab, place: &Place, side: Side) -> Result<String, String> {
    let link = lab.ip(place, side, "link show veth0").map_err(|error| error.to_string())?;
    let mut words = link.split_whitespace().skip_while(|word| *word != "link/ether").skip(1);
    words.next().map(str::to_owned).ok_or_else(|| format!("no Ethernet address: {link}"))
}

/// A counter that `ROXIE_STATS=1` prints.
fn count(ended: &Ended, counter: &str) -> u64 {
    let line = ended.output.lines().find_map(|line| line.strip_prefix(&format!("roxie: {counter} ")));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

fn refused(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let mac = "02:00:00:00:00:01";
    let words = ["raw_ethernet_bw", "-d", "roxie0", "-F", "--client", "-B", mac, "-E", mac, "-n", "10"];
    let ended = start(lab, place, Side::Client, name, &words)?.wait(SHORT);
    if !ended.succeeded() && ended.output.contains("raw packet queue pairs need CAP_NET_RAW") {
        return Ok(());
    }
    Err(ended.describe())
}
