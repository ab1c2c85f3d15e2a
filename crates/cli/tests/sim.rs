//! `roxie sim`: its report matches the run, a seed determines the whole run, and invalid options are
//! refused.

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const ROXIE: &str = env!("CARGO_BIN_EXE_roxie");

fn roxie<S: AsRef<OsStr>>(words: &[S]) -> Output {
    Command::new(ROXIE).args(words).output().expect("roxie runs")
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

fn json(words: &[&str]) -> Value {
    let output = roxie(&[&["sim", "--json"], words].concat());
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn every_frame_is_in_the_report() {
    let report = json(&["--seed", "7", "--seeds", "20", "--threads", "2"]);
    let frames = &report["frames"];
    let count = |value: &Value| value.as_u64().expect("a count");
    let lost: u64 = frames["lost"].as_object().expect("by cause").values().map(count).sum();
    let appeared = ["sent", "duplicated", "forged"].map(|kind| count(&frames[kind]));
    assert_eq!(appeared.iter().sum::<u64>(), count(&frames["delivered"]) + lost);
    assert_eq!((&report["ok"], &report["violation"]), (&Value::Bool(true), &Value::Null));
    assert_eq!(count(&report["fabrics"]), 20);
    let lines = text(&roxie(&["sim", "--seed", "7", "--seeds", "20"]));
    for says in ["No violation", &frames["sent"].to_string(), &frames["delivered"].to_string(), "goodput"] {
        assert!(lines.contains(says), "{says} in {lines}");
    }
}

#[test]
fn a_seed_determines_the_whole_run() {
    let words = ["--seed", "0x5eed", "--nodes", "5", "--faults", "drop=1%,kth=7,burst"];
    let [mut one, mut two] = [json(&words), json(&words)];
    (one["seconds"], two["seconds"]) = (Value::Null, Value::Null);
    assert_eq!(one, two);
    assert_eq!(one["nodes"], 5);
    assert_ne!(one["frames"]["lost"]["kth"], 0);
    assert_eq!(one["frames"]["lost"]["corrupt"], 0, "only what was asked for");
}

#[test]
fn a_run_ends_after_the_wanted_number_of_frames() {
    let report = json(&["--packets", "2e4"]);
    assert!(report["frames"]["sent"].as_u64().expect("a count") >= 20_000);
}

/// Number of frames in a text trace.
fn sent(lines: &str) -> usize {
    lines.lines().filter(|line| line.contains(" to node ")).count()
}

#[test]
fn a_trace_is_text_or_a_capture_file() {
    // Some seeds end before every kind of event; which seeds depends on the random draws.
    let all_of_it = |lines: &String| {
        let says = ["node 0", "is lost (drop)", "takes RC", "completes send", "completes receive"];
        sent(lines) > 100 && says.iter().all(|says| lines.contains(says))
    };
    let words = |seed: &str| {
        ["sim", "--seed", seed, "--nodes", "2", "--faults", "drop=5%,corrupt=1%", "--trace"]
            .map(str::to_owned)
    };
    let lines = |seed: &String| text(&roxie(&[&words(seed)[..], &["-".to_owned()]].concat()));
    let seed = (1..20).map(|seed| seed.to_string()).find(|seed| all_of_it(&lines(seed)));
    let seed = seed.expect("a seed with everything");
    let (words, lines) = (words(&seed), lines(&seed));
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("roxie-sim-{}.pcapng", std::process::id()));
    let file = path.to_str().expect("UTF-8");
    let written = roxie(&[&words[..], &[file.to_owned()]].concat());
    let read = roxie(&["capture", "read", file]);
    let analysed = roxie(&["capture", "analyse", file]);
    let bytes = std::fs::read(&path).expect("written");
    std::fs::remove_file(&path).expect("ours");
    assert!(written.status.success(), "{}", text(&written));
    let verdict = text(&written);
    assert!(verdict.starts_with("No violation: 2 nodes, "), "{verdict}");
    assert_eq!(lines.lines().last(), Some(verdict.trim_end()), "the same at the end of the words");
    assert!(text(&read).lines().count() >= sent(&lines), "each frame is there");
    assert!(text(&analysed).contains("): First, at packet "), "{}", text(&analysed));
    let comment = b"(drop)";
    assert!(bytes.windows(comment.len()).any(|there| there == comment));
}

/// Exit code 1 would mean a violation.
#[test]
fn a_trace_that_cannot_be_written_is_no_violation() {
    for file in ["/dev/full", "/nowhere/trace", "/dev/full/trace.pcapng"] {
        let output = roxie(&["sim", "--seed", "1", "--trace", file]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(&format!("roxie: writing {file}: ")), "{}", text(&output));
    }
}

/// Apart from the real time, a seed of devices gives equal reports, also with other tunables.
#[test]
fn a_seed_determines_a_run_of_devices() {
    let count = |value: &Value| value.as_u64().expect("a count");
    for tuning in [&[][..], &["--tuning", "quantum_pkts=x0.5,batch_pkts=x2"]] {
        let words = [&["--devices", "--seed", "7", "--seeds", "10"], tuning].concat();
        let [mut one, mut two] = [json(&words), json(&words)];
        (one["seconds"], two["seconds"]) = (Value::Null, Value::Null);
        assert_eq!(one, two);
        assert_eq!((&one["ok"], &one["violation"]), (&Value::Bool(true), &Value::Null));
        assert_eq!(count(&one["runs"]), 10);
        assert!(count(&one["processes"]) >= 20 && count(&one["packets"]["sent"]) > 0, "{one}");
    }
    let lines = text(&roxie(&["sim", "--devices", "--seeds", "3", "--threads", "2"]));
    for says in ["No violation\n  runs ", "packets sent", "thread switches", "virtual time"] {
        assert!(lines.contains(says), "{says} in {lines}");
    }
}

/// A report that cannot be written is no violation either; an interrupted run shows its results until then.
#[test]
fn an_interrupted_run_shows_its_results() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let unwritten = Command::new(ROXIE).args(["sim", "--seed", "1"]).stdout(full).output().unwrap();
    assert_eq!(unwritten.status.code(), Some(2), "{}", text(&unwritten));
    for (json, devices) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut sim = Command::new(ROXIE);
        sim.args(["sim", "--packets", "1e15", "--threads", "1"]).args(json.then_some("--json"));
        sim.args(devices.then_some("--devices"));
        let sim = sim.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(700));
        kill(Pid::from_raw(sim.id() as i32), Signal::SIGINT).unwrap();
        let output = sim.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", text(&output));
        let seen = match (json, devices) {
            (true, _) => "\"interrupted\": true",
            (false, false) => "No violation\n  fabrics",
            (false, true) => "No violation\n  runs",
        };
        assert!(text(&output).contains(seen), "{}", text(&output));
        assert!(text(&output).contains("interrupted; no violation until then"), "{}", text(&output));
    }
}

/// The command must not sleep until the next progress line.
#[test]
fn a_run_ends_with_its_last_fabric() {
    let took = || {
        let start = Instant::now();
        assert!(roxie(&["sim", "--seed", "1", "--faults", "none", "--nodes", "2"]).status.success());
        start.elapsed()
    };
    // At least one of several runs is quick, whatever else the machine does.
    let quickest = (0..10).map(|_| took()).min();
    assert!(quickest < Some(Duration::from_millis(150)), "{quickest:?}");
}

#[test]
fn invalid_options_are_refused() {
    let table: [(&[&str], &str); 17] = [
        (&["--seed", "x"], "decimal or 0x"),
        (&["--nodes", "1"], "from 2 to 64"),
        (&["--nodes", "65"], "from 2 to 64"),
        (&["--seeds", "0"], "0 is not in"),
        (&["--packets", "1e30"], "1e6"),
        (&["--packets", "1e3", "--seeds", "2"], "cannot be used with"),
        (&["--faults", "drip"], "use drop, kth"),
        (&["--faults", "none,drop"], "'none' excludes other faults"),
        (&["--faults", "vanish=3"], "write just 'vanish'"),
        (&["--threads", "0"], "a number from 1 on"),
        (&["--faults", "drop=50%"], "0.0001% to 10%"),
        (&["--devices", "--nodes", "3"], "'--devices' cannot be used with '--nodes"),
        (&["--devices", "--faults", "drop"], "'--devices' cannot be used with '--faults"),
        (&["--devices", "--trace", "-"], "'--devices' cannot be used with '--trace"),
        (&["--devices", "--tuning", "quantum_pkts"], "such as quantum_pkts=x0.5"),
        (&["--devices", "--tuning", "quantum=x2"], "use one of quantum_pkts, "),
        (&["--tuning", "quantum_pkts=x2"], "--devices"),
    ];
    for (words, says) in table {
        let output = roxie(&[&["sim"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output));
        assert!(text(&output).contains(says), "{words:?}: {}", text(&output));
    }
}
