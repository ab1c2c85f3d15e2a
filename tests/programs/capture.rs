//! Traffic of unmodified programs as `roxie capture` sees it on their interfaces.

use std::time::Duration;

use nix::sys::signal::Signal;
use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Running, eventually};

use crate::case::{Case, LONG, SHORT, good, roxie, says};
use crate::perftest;

/// How long a capture may take to begin.
const BEGINS: Duration = Duration::from_secs(5);
/// What was copied is shown after this long at the latest.
const SHOWN: Duration = Duration::from_millis(500);

pub(crate) fn cases() -> Vec<Case> {
    let v4 = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    let v6 = Place::new(Topology::TwoHosts, Family::V6, User::Root);
    let case = |place: Place, what: &str, program, run: fn(&Lab, &Place, &str) -> Result<(), String>| {
        Case::new(place, what, program, move |lab, name| run(lab, &place, name))
    };
    vec![
        case(v4, "rping captured on both interfaces", "rping", exchange),
        case(v6, "rping captured on both interfaces", "rping", exchange),
        case(v4, "bursts captured as the packets they are", "ib_write_bw", bursts),
        case(v6, "bursts captured as the packets they are", "ib_write_bw", bursts),
    ]
}

/// Starts a capture on one side and waits until its programs are attached.
fn begin(lab: &Lab, place: &Place, side: Side, name: &str, words: &[&str]) -> Result<Running, String> {
    let words = [&["capture"], words].concat();
    let mut capture = lab.roxie_command(place, side, name, &words).map_err(|error| error.to_string())?;
    let listens = || {
        let shown = std::fs::read_dir(format!("/proc/{}/fd", capture.pid())).into_iter().flatten().flatten();
        // Two links of the two classifiers, by what /proc calls such descriptors.
        shown.filter(|fd| fd.path().read_link().is_ok_and(|to| to.ends_with("anon_inode:bpf_link"))).count()
            == 2
    };
    if eventually(BEGINS, listens) {
        return Ok(capture);
    }
    capture.signal(Signal::SIGINT);
    Err(format!("it does not listen\n{}", capture.wait(SHORT).describe()))
}

/// Ends a capture as a person does.
fn end(mut capture: Running) -> Result<String, String> {
    std::thread::sleep(SHOWN);
    capture.signal(Signal::SIGINT);
    Ok(good(capture.wait(SHORT))?.output)
}

/// Both interfaces show handshake, payload and disconnection, whichever way they went.
fn exchange(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port().to_string(), lab.address(place));
    let words = ["read", "-i", lab.netdev(place), "--format", "struct", "--host", address];
    let captures = [Side::Server, Side::Client]
        .map(|side| begin(lab, place, side, &format!("{name} {side:?} capture"), &words));
    let common = ["-a", address, "-p", &port, "-C", "3"];
    Pair {
        name,
        server: [&["rping", "-s"], &common[..]].concat(),
        client: [&["rping", "-c"], &common[..]].concat(),
        ready: Ready::Cm(port.parse().map_err(|_| "a port")?),
        limit: LONG,
    }
    .run(lab, place)?;
    for capture in captures {
        let shown = end(capture?)?;
        let wanted = [
            "IB_OPCODE_UD_SEND_ONLY",
            "IB_OPCODE_RC_SEND_ONLY",
            "IB_OPCODE_RC_RDMA_READ_REQUEST",
            "IB_OPCODE_RC_RDMA_READ_RESPONSE_ONLY",
            "IB_OPCODE_RC_RDMA_WRITE_ONLY",
            "IB_OPCODE_RC_ACKNOWLEDGE",
            "rdma-ping-0: ABC",
            "rdma-ping-2: CDE",
            "RXE_ICRC ok",
        ];
        if let Some(missing) = wanted.into_iter().find(|text| !shown.contains(text)) {
            return Err(format!("'{missing}' was not captured:\n{shown}"));
        }
    }
    Ok(())
}

/// Every packet of the bursts is there, whole, and its ICRC is right; the same of headers only.
fn bursts(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    const MESSAGES: usize = 100;
    /// Packets of a message of 64 KiB at path MTU 1024.
    const PACKETS: usize = 64;
    for snap in [None, Some("128")] {
        let file = std::env::temp_dir().join(format!("roxie-{}-{}.pcapng", std::process::id(), lab.port()));
        let path = file.display().to_string();
        let mut words = vec!["record", "-i", lab.netdev(place), "-o", &path];
        words.extend(snap.iter().flat_map(|snap| ["-s", snap]));
        let capture = begin(lab, place, Side::Client, &format!("{name} capture"), &words)?;
        perftest::run(lab, place, name, "ib_write_bw", &["-s", "65536"], &MESSAGES.to_string())?;
        let said = end(capture)?;
        let read = |more: &[&str]| {
            let words = [&["capture", "read", &path, "--no-pager", "-t", "none"], more].concat();
            good(roxie(lab, place, Side::Client, &format!("{name} read"), &words)?)
        };
        if !said.contains(" 0 lost") {
            return Err(said);
        }
        let writes = read(&["--opcode", "write"])?;
        let lines = writes.output.lines().filter(|line| line.contains(" WRITE ")).count();
        if lines < MESSAGES * PACKETS {
            return Err(format!("{lines} packets of {}\n{said}", MESSAGES * PACKETS));
        }
        says(&read(&["--only-errors"])?, "nothing to show")?;
        std::fs::remove_file(&file).map_err(|error| error.to_string())?;
    }
    Ok(())
}
