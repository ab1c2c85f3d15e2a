//! `roxie sim fabric`: variants stand side by side, a seed determines a run, the page is whole, and wrong
//! descriptions are refused with what is wrong.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const SMALL: &str = "topology = \"star\"\nhosts = 4\nrate = \"10Gbit/s\"\ndelay = \"1us\"\nbuffer = \"1MB\"\n\
                     duration = \"10ms\"\n[[workload]]\nkind = \"incast\"\nsize = \"100KB\"\n";

fn roxie(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roxie")).args(["sim", "fabric"]).args(words).output().expect("it runs")
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

/// A file with this content, for one test.
fn file(name: &str, content: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    fs::write(&path, content).expect("the directory is there");
    path
}

#[test]
fn variants_of_a_file_stand_side_by_side() {
    let path = file("side.toml", SMALL);
    let name = path.to_str().expect("UTF-8");
    let words = [name, "--vary", "ecn=on,off", "--vary", "workload.size=100KB,200KB", "--seeds", "2"];
    let shown = text(&roxie(&words));
    for says in ["ecn=on workload.size=100KB  ", "  ecn=off workload.size=200KB", "slow-down", "8 runs in"] {
        assert!(shown.contains(says), "{says} in {shown}");
    }
    let json = || {
        let output = roxie(&[&words[..], &["--json"]].concat());
        let mut report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["seconds"] = Value::Null;
        report
    };
    let report = json();
    assert_eq!(report, json(), "the seeds determine the runs");
    let variants = report["variants"].as_array().expect("a list");
    assert_eq!(variants.len(), 4);
    let run = &variants[3]["runs"][1];
    assert_eq!((&run["seed"], &run["received_bytes"]), (&Value::from(2), &Value::from(600_000)));
    fs::remove_file(path).expect("ours");
}

#[test]
fn the_page_has_plots_and_the_table() {
    let output = roxie(&["incast", "--vary", "ecn=on,off", "--html", "-"]);
    let page = text(&output);
    assert!(output.status.success() && page.starts_with("<!doctype html>"), "{page}");
    assert_eq!(page.matches("<svg ").count(), 4, "goodput, queues, and the flows of each variant");
    for says in ["ecn=off", "fairness (Jain)", "</body></html>"] {
        assert!(page.contains(says), "{says}");
    }
}

#[test]
fn wrong_descriptions_are_refused_with_what_is_wrong() {
    let with = |from: &str, to: &str| SMALL.replace(from, to);
    let rows = [
        (with("hosts = 4", "hots = 4"), "line 2, column 1"),
        (with("\"1us\"", "\"1\""), "such as 5us"),
        (with("\"star\"", "\"ring\""), "unknown variant `ring`"),
        (with("\"1us\"", "\"1us"), "line 4"),
        (with("size = \"100KB\"", "senders = 4"), "use 1 to 3"),
        (with("[[workload]]\nkind = \"incast\"\nsize = \"100KB\"\n", ""), "add a [[workload]]"),
        ("\u{1b}[2J = 1".to_owned(), "is no description"),
    ];
    for (content, says) in rows {
        let path = file("wrong.toml", &content);
        let output = roxie(&[path.to_str().expect("UTF-8")]);
        fs::remove_file(path).expect("ours");
        let told = text(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(says) && !told.contains('\u{1b}'), "{says} in {told}");
    }
    for (words, says) in [
        (&["/nowhere/x.toml"][..], "give a file, or a preset: incast, "),
        (&["/"], "reading /"),
        (&["incast", "--vary", "ecn"], "ecn=on,off"),
        (&["incast", "--seeds", "2000"], "more than 1000 runs"),
        (&["/dev/zero"], "larger than 1 MiB"),
        (&["incast", "--vary", "worklod.load=0.3,0.5"], "no list 'worklod'"),
        (
            &["leaf-spine", "--vary", "leaves=4096", "--vary", "spines=4096", "--vary", "hosts-per-leaf=1"],
            "routes are more than",
        ),
        (&["incast", "--html", "/nowhere/page"], "can be created"),
    ] {
        let output = roxie(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output));
        assert!(text(&output).contains(says), "{words:?}: {}", text(&output));
    }
}

#[test]
fn an_interrupted_run_shows_its_results() {
    let endless = SMALL.replace("10ms", "1000s").replace("size = \"100KB\"\n", "");
    let path = file("long.toml", &endless);
    for json in [false, true] {
        let mut sim = Command::new(env!("CARGO_BIN_EXE_roxie"));
        sim.args(["sim", "fabric"]).arg(&path).args(json.then_some("--json"));
        let sim = sim.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(700));
        kill(Pid::from_raw(sim.id() as i32), Signal::SIGINT).expect("it is ours");
        let output = sim.wait_with_output().expect("it ends");
        let shown = text(&output);
        assert_eq!(output.status.code(), Some(130), "{shown}");
        let says = if json { "\"interrupted\": true" } else { "goodput" };
        assert!(shown.contains(says) && shown.contains("until then"), "{shown}");
    }
    fs::remove_file(path).expect("ours");
}
