//! `roxie run --capture`: all packets of all processes of a command, in one file.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Port, Topology, User};
use roxie_tests::process::Ended;

use crate::case::{Case, build, gid_index, good, roxie, says, until_listening};

type Run = fn(&Lab, &Place, &str) -> Result<(), String>;

pub(crate) fn cases() -> Vec<Case> {
    let loopback = |family| Place::new(Topology::Loopback, family, User::Ordinary);
    let case = |place: Place, what: &str, tool, run: Run| {
        Case::new(place, what, tool, move |lab, name| run(lab, &place, name))
    };
    let (v4, v6) = (loopback(Family::V4), loopback(Family::V6));
    let shm = Place::shm(Topology::Loopback, Family::V4, User::Ordinary);
    vec![
        case(v4, "a captured command has every packet", "ib_write_bw", every_packet),
        case(v6, "a captured command has every packet", "ib_write_bw", every_packet),
        case(shm, "a captured command has every packet", "ib_write_bw", every_packet),
        case(v4, "a captured command may fork and execute", "cc", forked),
        case(v4, "a capture is kept on errors only", "cc", on_error),
        case(v4, "a command without packets leaves no capture", "true", no_packets),
        case(v4, "an impossible capture is refused before the command", "echo", refused),
        case(v4, "a full disk ends the capture, not the command", "cc", full_disk),
        case(v4, "a capture that cannot be kept leaves the exit code", "cc", not_kept),
        case(v4, "two captures to one file", "sh", two_captures),
        case(v4, "a captured command ends by a signal", "cc", interrupted),
        case(v4, "a killed capture does not stop its command", "ib_write_bw", reader_killed),
    ]
}

/// The command removes the unfinished file; its exit code stays.
fn not_kept(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (scratch, program) = (Scratch::new(lab, name)?, build(lab, "../misuse/correct.c", &["-libverbs"])?);
    let script = format!("{} && rm {}/* && exit 7", program.path(), scratch.0.display());
    let ended = run(lab, place, name, &scratch.file(), &[], &script)?;
    says(&ended, "No such file or directory")?;
    if ended.code() == Some(7) { Ok(()) } else { Err(ended.describe()) }
}

/// The second command is refused before it starts.
fn two_captures(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let scratch = Scratch::new(lab, name)?;
    let (roxie, file) = (lab.roxie().display().to_string(), scratch.file());
    let script = format!("{roxie} run --capture {file} -- echo second-started; echo code:$?");
    let ended = run(lab, place, name, &file, &[], &script)?;
    says(&ended, "captures to this file")?;
    says(&ended, "code:1")?;
    if ended.output.lines().any(|line| line == "second-started") { Err(ended.describe()) } else { Ok(()) }
}

/// A directory that the user of the place may write.
struct Scratch(PathBuf);

impl Scratch {
    fn new(lab: &Lab, name: &str) -> Result<Self, String> {
        use std::os::unix::fs::PermissionsExt;
        let name: String = name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let dir = lab.roxie().with_file_name(format!("{name}-capture"));
        let made = fs::create_dir_all(&dir);
        made.and_then(|()| fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)))
            .map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(Self(dir))
    }

    fn file(&self) -> String {
        self.0.join("c.pcapng").display().to_string()
    }

    /// Fails unless the directory has these files only.
    fn has(&self, names: &[&str]) -> Result<(), String> {
        let listed = fs::read_dir(&self.0).map_err(|error| error.to_string())?.flatten();
        let mut found: Vec<String> =
            listed.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        found.sort();
        if found == names { Ok(()) } else { Err(format!("files {found:?}, expected {names:?}")) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// `roxie run --capture FILE OPTIONS -- sh -c SCRIPT`.
fn run(
    lab: &Lab,
    place: &Place,
    name: &str,
    file: &str,
    options: &[&str],
    script: &str,
) -> Result<Ended, String> {
    let shm = if place.ports == [Port::Shm; 2] { "on" } else { "off" };
    let first = ["run", "--netdev", lab.netdev(place), "--shm", shm, "--capture", file];
    roxie(lab, place, Side::Server, name, &[&first[..], options, &["--", "sh", "-c", script]].concat())
}

/// `roxie capture COMMAND FILE`.
fn read(lab: &Lab, place: &Place, name: &str, words: &[&str]) -> Result<String, String> {
    let ended = roxie(lab, place, Side::Server, name, &[&["capture"], words].concat())?;
    Ok(ended.output)
}

/// The number of packets that contain all of `words`.
fn count(packets: &str, words: &[&str]) -> usize {
    packets.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

/// Each packet is in the file when it leaves and when it arrives, in this order, and tshark reads it.
fn every_packet(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    const WRITES: usize = 2000;
    // perftest exchanges its addresses over TCP, with IPv4 only.
    let (scratch, port, address) = (Scratch::new(lab, name)?, lab.port(), "127.0.0.1");
    let gid = match place.family {
        Family::V4 => String::new(),
        Family::V6 => format!("--ipv6 -x {}", gid_index(lab, place, Side::Server)?),
    };
    let tool = format!("ib_write_bw -d roxie0 -p {port} -s 4096 -m 1024 -n {WRITES} {gid}");
    let wait = until_listening(port);
    let script = format!("{tool} >/dev/null & {wait}; {tool} {address} >/dev/null && wait $!");
    let ended = good(run(lab, place, name, &scratch.file(), &["--capture-snap", "headers"], &script)?)?;
    says(&ended, "next: roxie capture analyse")?;
    scratch.has(&["c.pcapng"])?;
    let bytes = fs::read(scratch.file()).map_err(|error| error.to_string())?;
    let peers = bytes.windows(19).filter(|part| part == b"roxie device: peer ").count();
    if peers != 2 {
        return Err(format!("{peers} queue pairs have told their peer"));
    }
    let packets = read(lab, place, name, &["read", &scratch.file()])?;
    // The device sends a WRITE of four packets as four messages.
    let psns = [" out ", " in "].map(|direction| {
        let writes =
            packets.lines().filter(|line| line.contains(direction) && line.contains("RDMA WRITE Only"));
        writes.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("PSN="))).collect()
    });
    let [sent, received]: [BTreeSet<&str>; 2] = psns;
    if sent.len() < 4 * WRITES || sent != received {
        return Err(format!("{} sent, {} received\n{}", sent.len(), received.len(), ended.describe()));
    }
    let times: Vec<&str> = packets.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    if !times.is_sorted() {
        return Err("the packets are not in the order of their times".to_owned());
    }
    let verdict = read(lab, place, name, &["analyse", &scratch.file()])?;
    // An end without a CPU for a while makes the other one retransmit.
    if verdict.contains("capture-loss") || verdict.contains("Inconclusive") { Err(verdict) } else { Ok(()) }
}

/// 100 WRITEs in each of: a process, its child, the program that the child executes, the process again.
fn forked(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (scratch, program) = (Scratch::new(lab, name)?, build(lab, "traced.c", &["-libverbs"])?);
    good(run(lab, place, name, &scratch.file(), &[], program.path())?)?;
    let packets = read(lab, place, name, &["read", &scratch.file()])?;
    let found = [" out ", " in "].map(|direction| count(&packets, &[direction, "RDMA WRITE Only"]));
    // More if an end without a CPU for a while makes the other one retransmit.
    if found.iter().all(|found| (400..500).contains(found)) {
        Ok(())
    } else {
        Err(format!("WRITEs: {found:?}"))
    }
}

fn on_error(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let scratch = Scratch::new(lab, name)?;
    let options = ["-libverbs", "-lpthread"];
    let correct = build(lab, "../misuse/correct_writes.c", &options)?;
    let refused = build(lab, "../misuse/receive_too_small.c", &options)?;
    let file = scratch.file();
    let run = |script: &str| run(lab, place, name, &file, &["--on-error"], script);
    good(run(correct.path())?)?;
    scratch.has(&[])?;
    // A completion is in error, and the program succeeds.
    says(&good(run(refused.path())?)?, "next: roxie capture analyse")?;
    scratch.has(&["c.pcapng"])?;
    let earlier = fs::read(&file).map_err(|error| error.to_string())?;
    // An earlier capture stays until there is another one.
    good(run(correct.path())?)?;
    if fs::read(&file).map_err(|error| error.to_string())? != earlier {
        return Err("the earlier capture has changed".to_owned());
    }
    for (script, code) in [("exit 3", 3), ("kill -9 $$", 137)] {
        let ended = run(&format!("{}; {script}", correct.path()))?;
        if ended.code() != Some(code) {
            return Err(ended.describe());
        }
        says(&ended, "next: roxie capture analyse")?;
    }
    scratch.has(&["c.pcapng"])?;
    // A finding of roxie check is an error, too.
    fs::remove_file(&file).map_err(|error| error.to_string())?;
    let leaking = build(lab, "../misuse/unpolled.c", &options)?;
    let words = ["check", "--netdev", "lo", "--capture", &file, "--on-error", "--", leaking.path()];
    let ended = roxie(lab, place, Side::Server, name, &words)?;
    says(&ended, "next: roxie capture analyse")?;
    scratch.has(&["c.pcapng"])
}

fn no_packets(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let scratch = Scratch::new(lab, name)?;
    let ended = good(run(lab, place, name, &scratch.file(), &[], "true")?)?;
    says(&ended, "nothing was captured: no process of the command started the device")?;
    let missing = ["run", "--netdev", "lo", "--capture", &scratch.file(), "--", "no-such-program"];
    let ended = roxie(lab, place, Side::Server, name, &missing)?;
    says(&ended, "no-such-program: command not found")?;
    scratch.has(&[])
}

fn refused(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let scratch = Scratch::new(lab, name)?;
    let missing = scratch.0.join("missing/c.pcapng").display().to_string();
    for (file, why) in [
        (&*missing, "No such file or directory"),
        ("/dev/null", "not a regular file"),
        ("-", "name a file"),
        ("/", "not a regular"),
    ] {
        let ended = run(lab, place, name, file, &[], "echo has started")?;
        says(&ended, why)?;
        if ended.code() != Some(1) || ended.output.contains("has started") {
            return Err(ended.describe());
        }
    }
    let search = ["--chaos", "seeds=1..2"];
    let ended = run(lab, place, name, &scratch.file(), &search, "echo has started")?;
    says(&ended, "--capture has the packets of one run")?;
    scratch.has(&[])
}

/// The analysis is told that packets are missing, and the program runs to its end.
fn full_disk(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let scratch = Scratch::new(lab, name)?;
    let file = scratch.file();
    let program = build(lab, "../misuse/correct_writes.c", &["-libverbs", "-lpthread"])?;
    // Instead of a full disk: a limit of 20 MB. The memory of a tap has 16 MiB.
    let command = lab.roxie().display().to_string();
    let script = format!(
        "ulimit -f 40000; exec {command} run --netdev lo --capture {file} -- {} 60000",
        program.path()
    );
    let words = ["run", "--netdev", "lo", "--", "sh", "-c", &script];
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    says(&ended, "the capture ends here")?;
    says(&ended, "next: roxie capture analyse")?;
    scratch.has(&["c.pcapng"])?;
    let packets = read(lab, place, name, &["read", &file])?;
    if count(&packets, &["RDMA WRITE Only"]) < 100 {
        return Err(format!("few packets\n{packets}"));
    }
    let verdict = read(lab, place, name, &["analyse", &file])?;
    let is_said = ["Inconclusive", "the file ends inside"].iter().all(|words| verdict.contains(words));
    if is_said && !verdict.contains("damaged") { Ok(()) } else { Err(verdict) }
}

fn interrupted(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (scratch, program) = (Scratch::new(lab, name)?, build(lab, "../misuse/rnr_wait.c", &["-libverbs"])?);
    // The signal arrives at the process that captures; it is the parent of the shell.
    let script = format!("(sleep 2; kill -INT $PPID) & exec {}", program.path());
    let ended = run(lab, place, name, &scratch.file(), &[], &script)?;
    if ended.code() != Some(130) {
        return Err(ended.describe());
    }
    says(&ended, "next: roxie capture analyse")?;
    scratch.has(&["c.pcapng"])?;
    let packets = read(lab, place, name, &["read", &scratch.file()])?;
    if count(&packets, &["RNR NAK"]) > 0 { Ok(()) } else { Err(packets) }
}

/// The device waits for a reader for a tenth of a second at most.
fn reader_killed(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (scratch, port, address) = (Scratch::new(lab, name)?, lab.port(), lab.address(place));
    let done = scratch.0.join("done").display().to_string();
    let tool = format!("ib_write_bw -d roxie0 -p {port} -s 65536 -n 3000");
    let wait = until_listening(port);
    let both = format!("{tool} >/dev/null & {wait}; {tool} {address} >/dev/null && wait $! && >{done}");
    let words = scratch.0.join("words").display().to_string();
    fs::write(&words, format!("kill -9 $PPID; {both}")).map_err(|error| error.to_string())?;
    let (command, file) = (lab.roxie().display().to_string(), scratch.file());
    let captured = format!("{command} run --netdev lo --capture {file} -- sh {words}");
    let script = format!("{captured}; until [ -e {done} ]; do sleep 0.1; done");
    let words = ["run", "--netdev", "lo", "--", "sh", "-c", &script];
    good(roxie(lab, place, Side::Server, name, &words)?).map(drop)
}
