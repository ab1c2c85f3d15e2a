//! `roxie trace`: the spans of real programs are complete and in order, with and without loss, and the parts
//! of the summary make up the whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::Ended;
use serde_json::Value;

use crate::case::{Case, build, good, roxie, says, until_listening};

/// Moments of a message, in order; those of the other end and of the poll may be unknown.
const MOMENTS: [&str; 7] = ["posted", "left", "last", "executed", "acked", "completed", "polled"];

pub(crate) fn cases() -> Vec<Case> {
    let place = Place::new(Topology::Loopback, Family::V4, User::Ordinary);
    let case = |what: &str, tool, run: fn(&Lab, &Place, &str) -> Result<(), String>| {
        Case::new(place, what, tool, move |lab, name| run(lab, &place, name))
    };
    vec![
        case("a trace has every moment of each WRITE", "ib_write_bw", whole),
        case("a trace shows what loss does to SENDs", "ib_send_bw", lossy),
        case("traces of both ends are merged", "ib_write_lat", merged),
        case("a trace survives a killed program", "ib_write_bw", killed),
        case("a trace has forked and executed programs", "cc", forked),
        case("a trace counts what was not polled apart", "cc", left),
        case("a wrong number of events is told", "cc", wrong_number),
        case("a trace without space for events says so", "cc", cramped),
        case("a trace that cannot be written says so", "ib_write_bw", unwritten),
        case("the probes beside a trace are those of the documentation", "readelf", probes),
    ]
}

/// A file that is removed at the end.
struct File(PathBuf);

impl File {
    /// An empty file that the user of the place may write.
    fn new(lab: &Lab, name: &str, part: &str) -> Result<Self, String> {
        let name: String = name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let file = Self(lab.roxie().with_file_name(format!("{name}-{part}.json")));
        let made =
            fs::write(&file.0, "").and_then(|()| fs::set_permissions(&file.0, Permissions::from_mode(0o666)));
        made.map_err(|error| format!("{}: {error}", file.path()))?;
        Ok(file)
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    fn events(&self) -> Result<Vec<Value>, String> {
        let text = fs::read(&self.0).map_err(|error| format!("{}: {error}", self.path()))?;
        let file: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        file["traceEvents"].as_array().cloned().ok_or_else(|| "no events".to_owned())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

/// `roxie trace -o FILE OPTIONS -- sh -c SCRIPT`.
fn trace(
    lab: &Lab,
    place: &Place,
    name: &str,
    file: &str,
    options: &[&str],
    script: &str,
) -> Result<Ended, String> {
    let first = ["trace", "--netdev", lab.netdev(place), "-o", file];
    roxie(lab, place, Side::Server, name, &[&first[..], options, &["--", "sh", "-c", script]].concat())
}

/// A tool as server and client; the status is the client's.
fn both(lab: &Lab, place: &Place, tool: &str, words: &str) -> String {
    let (port, address) = (lab.port(), lab.address(place));
    let tool = format!("{tool} -d roxie0 -p {port} {words}");
    format!("{tool} >/dev/null & {}; {tool} {address} && wait", until_listening(port))
}

/// The messages of a trace, each with its parts: name and length in microseconds.
fn messages(events: &[Value]) -> Vec<(Value, Vec<(String, f64)>)> {
    let mut messages: Vec<(Value, Vec<(String, f64)>)> = Vec::new();
    let mut begin = 0.0;
    for event in events.iter().filter(|event| event["cat"] == "message") {
        let (name, at) = (event["name"].as_str().unwrap_or_default(), event["ts"].as_f64().unwrap_or(-1.0));
        match event["ph"].as_str() {
            Some("b") if event.get("args").is_some() => messages.push((event["args"].clone(), Vec::new())),
            Some("b") => begin = at,
            Some("e") if !name.starts_with("QP ") => {
                messages.iter_mut().last().into_iter().for_each(|(_, parts)| {
                    parts.push((name.to_owned(), at - begin));
                });
            }
            _ => {}
        }
    }
    messages
}

/// Checks the order of the moments, and that the parts make up the time from the post to the end.
fn check(message: &Value, parts: &[(String, f64)]) -> Result<(), String> {
    let moments: Vec<u64> = MOMENTS.iter().filter_map(|moment| message[*moment].as_u64()).collect();
    // The batch with the ACK may have begun before the peer's.
    let in_order = MOMENTS.iter().filter(|moment| **moment != "executed");
    let ordered: Vec<u64> = in_order.filter_map(|moment| message[*moment].as_u64()).collect();
    let departure = message["last"].as_u64().zip(message["executed"].as_u64());
    let is_ordered = ordered.is_sorted() && departure.is_none_or(|(last, executed)| last <= executed);
    let (Some(first), Some(last)) = (moments.first(), moments.last()) else {
        return Err(format!("no moments: {message}"));
    };
    let (whole, sum) = ((last - first) as f64 / 1e3, parts.iter().map(|(_, part)| part).sum::<f64>());
    if !is_ordered || (sum - whole).abs() > 0.05 * whole {
        return Err(format!("{whole} us, parts of {sum} us: {message} {parts:?}"));
    }
    Ok(())
}

/// The messages of the side that sends, all of them checked: `count`, and nearly all with both ends.
fn complete(events: &[Value], count: usize) -> Result<Vec<Value>, String> {
    let messages = messages(events);
    messages.iter().try_for_each(|(message, parts)| check(message, parts))?;
    let is_whole = |message: &Value| {
        let known = ["left", "last", "executed", "acked", "completed"];
        known.iter().all(|moment| message[*moment].is_u64())
    };
    let whole = messages.iter().filter(|(message, _)| is_whole(message)).count();
    // The peer may end before its progress thread has recorded the last batch.
    if messages.len() != count || whole < count - count / 100 {
        return Err(format!("{} messages, {whole} of them with both ends; expected {count}", messages.len()));
    }
    Ok(messages.into_iter().map(|(message, _)| message).collect())
}

/// The parts of the summary make up its totals within 5 %.
fn check_summary(ended: &Ended) -> Result<(), String> {
    let line = ended.output.lines().find(|line| line.starts_with("{\"processes\""));
    let line = line.ok_or_else(|| format!("no summary: {}", ended.output))?;
    let summary: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let groups = summary["groups"].as_array().filter(|groups| !groups.is_empty()).ok_or(line)?;
    for share in groups.iter().flat_map(|group| [&group["median"], &group["p99"]]) {
        let parts = share["parts_ns"].as_array().ok_or(line)?;
        let sum: u64 = parts.iter().filter_map(Value::as_u64).sum();
        let total = share["total_ns"].as_u64().ok_or(line)?;
        if total == 0 || sum.abs_diff(total) * 20 > total {
            return Err(format!("parts of {sum} ns, total {total} ns: {line}"));
        }
    }
    Ok(())
}

fn whole(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let file = File::new(lab, name, "trace")?;
    let script = both(lab, place, "ib_write_bw", "-s 65536 -n 1000");
    let ended = good(trace(lab, place, name, &file.path(), &["--json"], &script)?)?;
    check_summary(&ended)?;
    let messages = complete(&file.events()?, 1000)?;
    let polled = messages.iter().filter(|message| message["polled"].is_u64()).count();
    if polled != 1000 {
        return Err(format!("{polled} completions were polled"));
    }
    Ok(())
}

fn lossy(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let file = File::new(lab, name, "trace")?;
    let script = both(lab, place, "ib_send_bw", "-s 65536 -n 1000");
    let options = ["--json", "--egress", "impair:loss=1%,seed=7"];
    let ended = good(trace(lab, place, name, &file.path(), &options, &script)?)?;
    check_summary(&ended)?;
    let events = file.events()?;
    let messages = complete(&events, 1000)?;
    let retransmitted: u64 = messages.iter().filter_map(|message| message["retransmitted"].as_u64()).sum();
    let naks = events.iter().filter(|event| event["name"] == "sequence NAK received").count();
    if retransmitted == 0 || naks == 0 {
        return Err(format!("{retransmitted} retransmitted packets, {naks} NAKs"));
    }
    let receives = events.iter().filter(|event| event["name"] == "receive polled").count();
    if receives < 1000 {
        return Err(format!("{receives} receives were polled"));
    }
    Ok(())
}

fn merged(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let file = |part| File::new(lab, name, part);
    let files = [file("server")?, file("client")?, file("both")?];
    let [server, client, joined] = files.each_ref().map(File::path);
    let port = lab.port();
    let tool = format!("ib_write_lat -d roxie0 -R -p {port} -n 1000");
    let words = ["trace", "--netdev", lab.netdev(place), "-o", &server, "--", "sh", "-c", &tool];
    let log = format!("{name} server");
    let mut other =
        lab.roxie_command(place, Side::Server, &log, &words).map_err(|error| error.to_string())?;
    let script = format!("{}; {tool} {}", until_listening(port), lab.address(place));
    good(trace(lab, place, name, &client, &[], &script)?)?;
    good(other.wait(crate::case::SHORT))?;
    let has_peer = |file: &File| -> Result<usize, String> {
        let messages = messages(&file.events()?);
        messages.iter().try_for_each(|(message, parts)| check(message, parts))?;
        Ok(messages.iter().filter(|(message, _)| message["executed"].is_u64()).count())
    };
    let words = ["trace", "merge", "--json", "-o", &joined, &server, &client];
    check_summary(&good(roxie(lab, place, Side::Server, &format!("{name} merge"), &words)?)?)?;
    let counts = [has_peer(&files[0])?, has_peer(&files[1])?, has_peer(&files[2])?];
    if counts[..2] != [0, 0] || counts[2] < 2000 {
        return Err(format!("messages with both ends in server's, client's and joined trace: {counts:?}"));
    }
    let events = files[2].events()?;
    for (name, count) in [("connect", 4), ("REQ sent", 1), ("REQ received", 1)] {
        let found = events.iter().filter(|event| event["name"] == name).count();
        if found < count {
            return Err(format!("{found} events '{name}'"));
        }
    }
    Ok(())
}

/// Exit code of a shell after its last command got SIGKILL.
const KILLED: i32 = 128 + 9;

fn killed(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let file = File::new(lab, name, "trace")?;
    let (port, address) = (lab.port(), lab.address(place));
    let tool = format!("ib_write_bw -d roxie0 -p {port} -s 65536 -n 5000000");
    let script = format!(
        "{tool} >/dev/null & server=$!; {}; {tool} {address} >/dev/null & client=$!; sleep 3
        kill -9 $server $client; wait $client",
        until_listening(port)
    );
    // The ends do not die at once: with 4096 events, what is left of both may not overlap in time.
    let ended = trace(lab, place, name, &file.path(), &["--events", "16384"], &script)?;
    if ended.code() != Some(KILLED) {
        return Err(ended.describe());
    }
    says(&ended, "older events were replaced")?;
    let messages = messages(&file.events()?);
    messages.iter().try_for_each(|(message, parts)| check(message, parts))?;
    match messages.len() {
        0..100 => Err(format!("{} messages", messages.len())),
        _ => Ok(()),
    }
}

/// The file of each process has its events, and the parent's are those before and after the fork. What the
/// child executes counts as a process of its own.
fn forked(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let file = File::new(lab, name, "trace")?;
    let program = build(lab, "traced.c", &["-libverbs"])?;
    good(trace(lab, place, name, &file.path(), &[], program.path())?)?;
    let mut pids: BTreeMap<u64, usize> = BTreeMap::new();
    for message in complete(&file.events()?, 400)? {
        *pids.entry(message["pid"].as_u64().unwrap_or_default()).or_default() += 1;
    }
    let counts: Vec<usize> = pids.into_values().collect();
    if counts != [200, 100, 100] { Err(format!("messages of each process: {counts:?}")) } else { Ok(()) }
}

fn left(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let file = File::new(lab, name, "trace")?;
    let program = build(lab, "left.c", &["-libverbs"])?;
    let ended = trace(lab, place, name, &file.path(), &[], program.path())?;
    says(&ended, "5 WRITE of 8 bytes")?;
    says(&ended, "completed, not polled: 3")
}

/// The variable of the number of events is not one that `roxie trace` has set.
fn wrong_number(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let file = File::new(lab, name, "trace")?;
    let program = build(lab, "traced.c", &["-libverbs"])?;
    let script = format!("ROXIE_TRACE_EVENTS=many exec {} last", program.path());
    let ended = good(trace(lab, place, name, &file.path(), &[], &script)?)?;
    says(&ended, "ROXIE_TRACE_EVENTS=many is no number of events: each thread keeps 65536")
}

/// A limit of file sizes would end a process that writes beyond it.
fn cramped(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let file = File::new(lab, name, "trace")?;
    let program = build(lab, "traced.c", &["-libverbs"])?;
    let script = format!("ulimit -f 100; exec {} last", program.path());
    let ended = good(trace(lab, place, name, &file.path(), &[], &script)?)?;
    says(&ended, "the events of a thread are not traced: File too large")?;
    says(&ended, "nothing was traced")
}

fn unwritten(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ended = trace(lab, place, name, "/no/such/directory", &[], "touch /no/such/file")?;
    says(&ended, "/no/such/directory: No such file or directory")?;
    let script = both(lab, place, "ib_write_bw", "-s 64 -n 1000");
    let full = trace(lab, place, name, "/dev/full", &[], &script)?;
    says(&full, "/dev/full: No space left on device")?;
    match (ended.code(), full.code()) {
        (Some(1), Some(1)) => Ok(()),
        codes => Err(format!("exit codes {codes:?}")),
    }
}

/// The probes of docs/trace.md are the notes of the library, each with the same semaphore, and perf computes
/// their places in the file from a section in the segment of the code.
fn probes(lab: &Lab, _: &Place, _: &str) -> Result<(), String> {
    let library = lab.roxie().with_file_name("libibverbs.so");
    let (notes, sections) = (readelf("-nW", &library)?, readelf("-SW", &library)?);
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/trace.md"));
    let page = page.map_err(|error| error.to_string())?;
    let (_, table) = page.split_once("| probe | arguments |").ok_or("no table of probes")?;
    let documented = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let names = notes.lines().filter_map(|line| line.trim().strip_prefix("Name: "));
    let (documented, names): (BTreeSet<&str>, BTreeSet<&str>) = (documented.collect(), names.collect());
    let semaphores = notes.lines().filter_map(|line| line.split("Semaphore: ").nth(1));
    let semaphores: BTreeSet<&str> = semaphores.collect();
    if documented != names || semaphores.len() != 1 || !notes.contains("Provider: roxie") {
        return Err(format!("documented: {documented:?}, in the library: {names:?}, {semaphores:?}"));
    }
    match (distance(&sections, ".text"), distance(&sections, ".stapsdt.base")) {
        (Some(code), Some(base)) if code == base => Ok(()),
        distances => Err(format!("address less offset of code and base section: {distances:?}")),
    }
}

fn readelf(option: &str, file: &Path) -> Result<String, String> {
    let ended = Command::new("readelf").arg(option).arg(file).output().map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// The address of a section less its offset in the file.
fn distance(sections: &str, name: &str) -> Option<i64> {
    let line = sections.lines().find(|line| line.contains(&format!(" {name} ")))?;
    let mut words = line.split(']').nth(1)?.split_whitespace().skip(2);
    let mut hex = || i64::from_str_radix(words.next()?, 16).ok();
    Some(hex()? - hex()?)
}
