//! `roxie capture` on the interfaces and processes of unmodified programs.

use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Port, Topology, User};
use roxie_tests::process::{Running, eventually};
use serde_json::Value;

use crate::case::{Case, LONG, SHORT, good, roxie, says};
use crate::hooks::only_process;
use crate::perftest;

/// Time limit for a capture to begin.
const BEGINS: Duration = Duration::from_secs(60);
/// Longest time from a packet to its line of output.
const SHOWN: Duration = Duration::from_millis(500);

pub(crate) fn cases() -> Vec<Case> {
    let v4 = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    let v6 = Place::new(Topology::TwoHosts, Family::V6, User::Root);
    let unprivileged = Place::new(Topology::TwoHosts, Family::V4, User::Ordinary);
    let native = Place::xsk(Family::V4, 1500, Port::Native, Port::Native);
    let case = |place: Place, what: &str, program, run: fn(&Lab, &Place, &str) -> Result<(), String>| {
        Case::new(place, what, program, move |lab, name| run(lab, &place, name))
    };
    vec![
        case(v4, "rping captured on both interfaces", "rping", exchange),
        case(v6, "rping captured on both interfaces", "rping", exchange),
        case(v4, "bursts captured packet by packet", "ib_write_bw", bursts),
        case(v6, "bursts captured packet by packet", "ib_write_bw", bursts),
        case(v4, "captures by clsact keep an existing clsact", "tc", clsact),
        case(unprivileged, "rping captured by process", "rping", process),
        case(Place { family: Family::V6, ..unprivileged }, "rping captured by process", "rping", process),
        case(native, "rping captured by process", "rping", process),
        case(unprivileged, "bursts captured by process", "ib_write_bw", bursts_of_process),
        case(v4, "receive times of the driver", "rping", nic_time),
        case(unprivileged, "packets that a hook drops", "rping", verdicts),
        case(v4, "captures with a limited file size", "ib_write_bw", full_files),
        case(v4, "a process of another user", "rping", strangers),
    ]
}

/// Starts a capture on one side and waits until its programs are attached.
fn begin(lab: &Lab, place: &Place, side: Side, name: &str, words: &[&str]) -> Result<Running, String> {
    let words = [&["capture"], words].concat();
    let mut capture = lab.roxie_command(place, side, name, &words).map_err(|error| error.to_string())?;
    let links = if words.contains(&"--nic-time") { 3 } else { 2 };
    let listens = || {
        let shown = std::fs::read_dir(format!("/proc/{}/fd", capture.pid())).into_iter().flatten().flatten();
        // /proc shows a link for each classifier, and one for the XDP program of receive times.
        shown.filter(|fd| fd.path().read_link().is_ok_and(|to| to.ends_with("anon_inode:bpf_link"))).count()
            == links
    };
    if eventually(BEGINS, listens) {
        return Ok(capture);
    }
    capture.signal(Signal::SIGINT);
    Err(format!("it does not listen\n{}", capture.wait(SHORT).describe()))
}

/// The process that has the device on one side.
fn process_of(lab: &Lab, place: &Place, side: Side, name: &str) -> Result<String, String> {
    let mut found = Err("no process".to_owned());
    eventually(BEGINS, || {
        found = roxie(lab, place, side, &format!("{name} processes"), &["hook", "list", "--json"])
            .and_then(good)
            .and_then(|ended| only_process(&ended).ok_or(ended.output));
        found.is_ok()
    });
    found
}

/// Starts to record a process into a new file; returns when the file exists.
fn record(
    lab: &Lab,
    place: &Place,
    name: &str,
    pid: &str,
    more: &[&str],
) -> Result<(Running, PathBuf), String> {
    // Only root may write to the log directory.
    let dir = if place.user == User::Root { lab.logs().to_owned() } else { std::env::temp_dir() };
    let file = dir.join(format!("roxie-{}-{}.pcapng", std::process::id(), lab.port()));
    // An old file of a killed test would look like a started capture.
    let _ = std::fs::remove_file(&file);
    let path = file.display().to_string();
    let words = [&["capture", "record", "-p", pid, "-o", &path], more].concat();
    let mut capture =
        lab.roxie_command(place, Side::Server, name, &words).map_err(|error| error.to_string())?;
    if eventually(BEGINS, || file.metadata().is_ok_and(|meta| meta.len() > 0)) {
        return Ok((capture, file));
    }
    capture.signal(Signal::SIGINT);
    Err(format!("it does not listen\n{}", capture.wait(SHORT).describe()))
}

/// Captures handshake, payload and disconnection of a server process. The capture ends with the process and
/// has its last packets.
fn process(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port().to_string(), lab.address(place));
    let common = ["-a", address, "-p", &port, "-C", "3"];
    let mut server = start(lab, place, Side::Server, name, &[&["rping", "-s"], &common[..]].concat())?;
    wait_ready(&mut server, Ready::Cm(port.parse().map_err(|_| "a port")?))?;
    let pid = process_of(lab, place, Side::Server, name)?;
    let (mut capture, file) = record(lab, place, &format!("{name} capture"), &pid, &[])?;
    let mut client = start(lab, place, Side::Client, name, &[&["rping", "-c"], &common[..]].concat())?;
    good(client.wait(LONG))?;
    good(server.wait(SHORT))?;
    let said = good(capture.wait(SHORT))?;
    says(&said, " 0 lost")?;
    says(&said, &format!("process {pid} has ended"))?;
    let path = file.display().to_string();
    let words = ["capture", "read", &path, "--format", "struct", "--no-pager"];
    let shown = good(roxie(lab, place, Side::Server, &format!("{name} read"), &words)?)?;
    for text in [
        "ConnectRequest",
        "ConnectReply",
        "ReadyToUse",
        "DisconnectRequest",
        "IB_OPCODE_RC_SEND_ONLY",
        "IB_OPCODE_RC_RDMA_READ_REQUEST",
        "IB_OPCODE_RC_RDMA_READ_RESPONSE_ONLY",
        "IB_OPCODE_RC_RDMA_WRITE_ONLY",
        "IB_OPCODE_RC_ACKNOWLEDGE",
        "rdma-ping-2: CDE",
        "RXE_ICRC ok",
    ] {
        says(&shown, text)?;
    }
    let words = ["capture", "analyse", &path, "--no-pager"];
    let analysis = roxie(lab, place, Side::Server, &format!("{name} analysis"), &words)?;
    says(&analysis, ": connected in ")?;
    // A process that gets no CPU for a millisecond makes its peer send a probe or repeat a message, which the
    // analysis reports; it must report nothing else.
    let (_, findings) = analysis.output.split_once("Findings").unwrap_or_default();
    let is_resend = |kind: &str| kind.starts_with("lost-") || kind == "duplicated";
    let of_loss = |line: &str| line.split_whitespace().nth(1).is_some_and(is_resend);
    let mut heads =
        findings.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    if !analysis.succeeded() && (findings.is_empty() || !heads.all(of_loss)) {
        return Err(analysis.describe());
    }
    std::fs::remove_file(&file).map_err(|error| error.to_string())
}

/// Captures a moment of a stream: each packet of a burst must have its headers and a right ICRC, and
/// dropped packets are counted. Also one queue pair only. The stream continues after its reader was killed.
/// The stream is endless, so it also outlasts a slow machine.
fn bursts_of_process(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["ib_write_bw", "-F", "-d", "roxie0", "-p", &port_word, "-s", "65536", "--run_infinitely"];
    let mut server = start(lab, place, Side::Server, name, &common)?;
    wait_ready(&mut server, Ready::Tcp(port))?;
    let _client = start(lab, place, Side::Client, name, &[&common[..], &[address]].concat())?;
    let pid = process_of(lab, place, Side::Server, name)?;
    let (mut capture, file) = record(lab, place, &format!("{name} capture"), &pid, &["--seconds", "0.2"])?;
    says(&good(capture.wait(SHORT))?, " packets captured, ")?;
    let path = file.display().to_string();
    let read = |words: &[&str]| {
        let words = [&["capture", "read", "--no-pager"], words].concat();
        good(roxie(lab, place, Side::Server, &format!("{name} read"), &words)?)
    };
    let writes = read(&[&path, "--opcode", "write", "--json", "-c", "2000"])?;
    let packets: Vec<Value> =
        writes.output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let bad = packets.iter().find(|packet| packet["roxie.icrc.status"] != "good");
    if packets.len() < 1000 || bad.is_some() {
        return Err(format!("{} packets, {bad:?}", packets.len()));
    }
    if !packets.iter().any(|packet| packet["ip.id"].as_str().is_some_and(|id| id != "0x0000")) {
        return Err("no packet follows another one in a burst".to_owned());
    }
    says(&read(&[&path, "--only-errors"])?, "nothing to show")?;
    let words = ["capture", "analyse", &path, "--no-pager"];
    let analysis = roxie(lab, place, Side::Server, &format!("{name} analysis"), &words)?;
    for text in ["Devices at their end", "RC QP 0x", "rx_packets="] {
        says(&analysis, text)?;
    }
    let qpn = packets[0]["infiniband.bth.destqp"].as_str().ok_or("no queue pair")?.to_owned();
    says(&read(&["-p", &pid, "--qp", &qpn, "-c", "500"])?, "ACK")?;

    let (mut killed, again) = record(lab, place, &format!("{name} killed"), &pid, &[])?;
    killed.signal(Signal::SIGKILL);
    killed.wait(SHORT);
    says(&read(&["-p", &pid, "--qp", &qpn, "-c", "500"])?, "ACK")?;
    [file, again].iter().try_for_each(std::fs::remove_file).map_err(|error| error.to_string())
}

/// A file that may not grow (`ulimit -f`), or a full disk, ends a capture with an error, on an interface
/// and of a process. The captured packets can be read, no program stays attached, and the traffic
/// continues.
fn full_files(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    const LIMIT: u64 = 100_000;
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["ib_write_bw", "-F", "-d", "roxie0", "-p", &port_word, "-s", "65536", "--run_infinitely"];
    let mut server = start(lab, place, Side::Server, name, &common)?;
    wait_ready(&mut server, Ready::Tcp(port))?;
    let _client = start(lab, place, Side::Client, name, &[&common[..], &[address]].concat())?;
    let pid = process_of(lab, place, Side::Server, name)?;
    let path = lab.logs().join(format!("{port}.pcapng"));
    let file = path.display().to_string();
    let (roxie_path, limit) = (lab.roxie().display().to_string(), format!("--fsize={LIMIT}"));
    let capture = |what: &str, words: &[&str]| {
        // Filters of a clsact would stay if a signal ended the process.
        let line = &["prlimit", &limit, "env", "ROXIE_TAP=clsact", &roxie_path, "capture", "record"][..];
        let name = format!("{name} {what}");
        let ended = start(lab, place, Side::Server, &name, &[line, words].concat())?.wait(LONG);
        says(&ended, "the capture has ended")?;
        if ended.succeeded() { Err(ended.describe()) } else { Ok(ended) }
    };
    let netdev = lab.netdev(place);
    for source in [["-p", &pid], ["-i", netdev]] {
        let ended = capture(source[0], &[&source[..], &["-o", &file]].concat())?;
        says(&ended, &format!("writing {file}: File too large"))?;
        if path.metadata().map_or(0, |meta| meta.len()) != LIMIT {
            return Err(ended.describe());
        }
        let words = ["capture", "read", &file, "--no-pager", "-c", "20"];
        says(&good(roxie(lab, place, Side::Server, &format!("{name} read"), &words)?)?, "WRITE")?;
        let ended = capture(source[0], &[&source[..], &["-o", "/dev/full"]].concat())?;
        says(&ended, "writing /dev/full: No space left on device")?;
    }
    let mut tc =
        start(lab, place, Side::Server, &format!("{name} tc"), &["tc", "qdisc", "show", "dev", netdev])?;
    let tc = good(tc.wait(SHORT))?;
    if tc.output.contains("clsact") {
        return Err(tc.describe());
    }
    let qpn = ["capture", "read", "-p", &pid, "--no-pager", "--opcode", "write", "-c", "100"];
    says(&good(roxie(lab, place, Side::Server, &format!("{name} goes on"), &qpn)?)?, "WRITE")?;
    std::fs::remove_file(&path).map_err(|error| error.to_string())
}

/// A process of another user is refused, and so is a process without a device; the message says which.
fn strangers(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port().to_string(), lab.address(place));
    let words = ["rping", "-s", "-a", address, "-p", &port, "-C", "1"];
    let mut server = start(lab, place, Side::Server, name, &words)?;
    wait_ready(&mut server, Ready::Cm(port.parse().map_err(|_| "a port")?))?;
    let pid = process_of(lab, place, Side::Server, name)?;
    let ordinary = Place { user: User::Ordinary, ..*place };
    let refused = |place: &Place, pid: &str, why: &str| {
        let words = ["capture", "read", "-p", pid];
        let ended = roxie(lab, place, Side::Server, &format!("{name} {pid}"), &words)?;
        if ended.succeeded() { Err(ended.describe()) } else { says(&ended, why) }
    };
    refused(&ordinary, &pid, "is another user's")?;
    refused(place, &std::process::id().to_string(), "in another network namespace")?;
    refused(place, "4194304", "there is no process 4194304")?;
    server.signal(Signal::SIGINT);
    server.wait(SHORT);
    Ok(())
}

/// Ends a capture with SIGINT.
fn end(mut capture: Running) -> Result<String, String> {
    std::thread::sleep(SHOWN);
    capture.signal(Signal::SIGINT);
    Ok(good(capture.wait(SHORT))?.output)
}

/// The captured traffic: a handshake, three messages each way, and a disconnection.
fn three_pings(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port().to_string(), lab.address(place));
    let common = ["-a", address, "-p", &port, "-C", "3"];
    Pair {
        name,
        server: [&["rping", "-s"], &common[..]].concat(),
        client: [&["rping", "-c"], &common[..]].concat(),
        ready: Ready::Cm(port.parse().map_err(|_| "a port")?),
        limit: LONG,
    }
    .run(lab, place)
    .map(drop)
}

/// Both interfaces show handshake, payload and disconnection, in both directions.
fn exchange(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let words = ["read", "-i", lab.netdev(place), "--format", "struct", "--host", lab.address(place)];
    let captures = [Side::Server, Side::Client]
        .map(|side| begin(lab, place, side, &format!("{name} {side:?} capture"), &words));
    three_pings(lab, place, name)?;
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

/// Captures with clsact filters, as on a kernel without links for classifiers. The capture leaves an
/// existing clsact alone, and removes filters that a killed capture has left.
fn clsact(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let netdev = lab.netdev(place);
    let tc = |words: &[&str]| {
        let line = [&["tc"], words].concat();
        good(start(lab, place, Side::Server, &format!("{name} tc"), &line)?.wait(SHORT))
    };
    let names = || -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        for direction in ["ingress", "egress"] {
            let shown = tc(&["filter", "show", "dev", netdev, direction])?;
            let name = |word: &&str| word.starts_with("roxie_tap:");
            found.extend(shown.output.split_whitespace().filter(name).map(str::to_owned));
        }
        Ok(found)
    };
    let filters = || names().map(|names| names.len());
    let begin = || {
        let before = names()?;
        let roxie = lab.roxie().display().to_string();
        let line = ["env", "ROXIE_TAP=clsact", &roxie, "capture", "read", "-i", netdev];
        let mut capture = start(lab, place, Side::Server, &format!("{name} capture"), &line)?;
        // The filters of a killed capture are no sign of this one.
        let is_new = |name: &String| !before.contains(name);
        if eventually(BEGINS, || names().is_ok_and(|now| now.len() == 2 && now.iter().all(is_new))) {
            return Ok(capture);
        }
        capture.signal(Signal::SIGINT);
        Err(capture.wait(SHORT).describe())
    };
    let is_there = || Ok::<_, String>(tc(&["qdisc", "show", "dev", netdev])?.output.contains("clsact"));
    // After a kill the filters stay. The next capture removes them, and its own when it ends, but keeps the
    // clsact, which it did not make.
    tc(&["qdisc", "add", "dev", netdev, "clsact"])?;
    let mut killed = begin()?;
    killed.signal(Signal::SIGKILL);
    let _by_us = killed.wait(SHORT);
    if filters()? != 2 {
        return Err("the filters of a killed capture do not stay: docs/capture.md says so".to_owned());
    }
    let capture = begin()?;
    // A capture in another PID namespace still recognises a running capture.
    let roxie = lab.roxie().display().to_string();
    let line = [
        &["unshare", "--pid", "--fork", "--mount-proc", "env", "ROXIE_TAP=clsact", &roxie][..],
        &["capture", "read", "-i", netdev, "--seconds", "0.1"],
    ];
    good(start(lab, place, Side::Server, &format!("{name} elsewhere"), &line.concat())?.wait(SHORT))?;
    if filters()? != 2 {
        return Err("a capture in another PID namespace takes off what is in use".to_owned());
    }
    three_pings(lab, place, name)?;
    let shown = end(capture)?;
    for text in ["ConnectRequest", "READ Request", "ACK"] {
        if !shown.contains(text) {
            return Err(format!("'{text}' was not captured:\n{shown}"));
        }
    }
    if filters()? != 0 || !is_there()? {
        return Err("filters stay, or the existing clsact was removed".to_owned());
    }
    tc(&["qdisc", "del", "dev", netdev, "clsact"])?;
    end(begin()?)?;
    if is_there()? { Err("its clsact stays".to_owned()) } else { Ok(()) }
}

/// Packets that arrive at a veth have the time at which the program ran in its driver, and the file says so.
fn nic_time(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let file = lab.logs().join(format!("{}.pcapng", lab.port()));
    let path = file.display().to_string();
    let words = ["record", "-i", lab.netdev(place), "-o", &path, "--nic-time"];
    let capture = match begin(lab, place, Side::Server, &format!("{name} capture"), &words) {
        Err(error) if error.contains("its driver has no receive hints") => {
            println!("skipped: needs Linux 6.8");
            return Ok(());
        }
        begun => begun?,
    };
    three_pings(lab, place, name)?;
    let said = end(capture)?;
    let times = said.lines().find_map(|line| line.split_once("receive times: ")).map(|(_, times)| times);
    let times = times.ok_or_else(|| format!("no receive times\n{said}"))?;
    let numbers: Vec<u64> = times.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // Three messages, three READs and the handshake arrive.
    if numbers.len() != 3 || numbers[0] != 0 || numbers[1] < 6 || numbers[2] != 0 {
        return Err(format!("{numbers:?}\n{said}"));
    }
    let words = ["capture", "read", &path, "--no-pager"];
    let shown = good(roxie(lab, place, Side::Server, &format!("{name} read"), &words)?)?;
    says(&shown, "receive times: the NIC's timestamp where its driver gives one")?;
    std::fs::remove_file(&file).map_err(|error| error.to_string())
}

/// Packets that a hook drops are recorded with its verdict, and the analysis leaves them out.
fn verdicts(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port().to_string(), lab.address(place));
    let common = ["-a", address, "-p", &port, "-C", "100"];
    let hooks = ["env", "ROXIE_INGRESS=impair:loss=10%,seed=1", "ROXIE_EGRESS=impair:loss=10%,seed=2"];
    let words = [&hooks[..], &["rping", "-s"], &common[..]].concat();
    let mut server = start(lab, place, Side::Server, name, &words)?;
    wait_ready(&mut server, Ready::Cm(port.parse().map_err(|_| "a port")?))?;
    let pid = process_of(lab, place, Side::Server, name)?;
    let (mut capture, file) = record(lab, place, &format!("{name} capture"), &pid, &["--verdicts"])?;
    let mut client = start(lab, place, Side::Client, name, &[&["rping", "-c"], &common[..]].concat())?;
    good(client.wait(LONG))?;
    good(server.wait(SHORT))?;
    good(capture.wait(SHORT))?;
    let path = file.display().to_string();
    let words = ["capture", "read", &path, "--no-pager", "--json"];
    let shown = good(roxie(lab, place, Side::Server, &format!("{name} read"), &words)?)?;
    for point in ["ingress", "egress"] {
        says(&shown, &format!("XDP_DROP by the {point} hook"))?;
    }
    let words = ["capture", "analyse", &path, "--no-pager"];
    let analysis = roxie(lab, place, Side::Server, &format!("{name} analysis"), &words)?;
    says(&analysis, " packets were not passed by a hook")?;
    std::fs::remove_file(&file).map_err(|error| error.to_string())
}

/// Every packet of the bursts is captured completely and its ICRC is right; also with headers only.
fn bursts(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    const MESSAGES: usize = 100;
    /// Packets of a message of 64 KiB at path MTU 1024.
    const PACKETS: usize = 64;
    for snap in [None, Some("128")] {
        let file = lab.logs().join(format!("{}.pcapng", lab.port()));
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
