//! A network namespace with a veth pair, for this thread and its child processes only.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

/// Both ends of the pair.
pub(crate) const ENDS: [&str; 2] = ["veth0", "veth1"];
/// The unprivileged user id 65534.
const UNPRIVILEGED: &str = "65534";

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Moves the thread into a new namespace; returns false, with a message, without the privilege.
pub(crate) fn enter() -> bool {
    if unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).is_err() {
        println!("skipped: needs root");
        return false;
    }
    ip(&["link", "set", "lo", "up"]);
    ip(&["link", "add", ENDS[0], "type", "veth", "peer", "name", ENDS[1]]);
    for end in ENDS {
        // Without a link-local address the kernel sends no packets of its own, which the tests would count.
        ip(&["link", "set", end, "addrgenmode", "none"]);
        ip(&["link", "set", end, "up"]);
    }
    true
}

/// Mounts a bpf file system that only this thread and its children see.
pub(crate) fn mount_bpf_fs() -> PathBuf {
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(Some("none"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).unwrap();
    PathBuf::from("/sys/fs/bpf")
}

pub(crate) fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().unwrap();
    assert!(output.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The `roxie` program under test.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
    command.arg("xdp").args(words).stdin(Stdio::null());
    command
}

/// Runs `roxie` to its end.
pub(crate) fn roxie(words: &[&str]) -> Ended {
    let mut limited = Command::new("timeout");
    limited.args(["--signal=KILL", "60", env!("CARGO_BIN_EXE_roxie"), "xdp"]).args(words);
    ended(&limited.stdin(Stdio::null()).output().unwrap())
}

/// Runs `roxie` as user 65534, from a copy that this user may read.
pub(crate) fn roxie_as_nobody(words: &[&str]) -> Ended {
    let copy = std::env::temp_dir().join(format!("roxie-xdp-test-{}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_roxie"), &copy).unwrap();
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        UNPRIVILEGED,
        "--regid",
        UNPRIVILEGED,
        "--clear-groups",
        "--inh-caps=-all",
        "--",
    ]);
    let output = command.arg(&copy).arg("xdp").args(words).output();
    std::fs::remove_file(&copy).unwrap();
    ended(&output.unwrap())
}

fn ended(output: &Output) -> Ended {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// Runs a command that must succeed; returns its output.
pub(crate) fn good(words: &[&str]) -> String {
    let ended = roxie(words);
    assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    ended.out
}

/// Runs a command that must fail with this exit code and these texts.
pub(crate) fn refused(words: &[&str], code: i32, says: &[&str]) {
    let ended = roxie(words);
    assert_eq!(ended.code, Some(code), "{words:?}: {ended:?}");
    for text in says {
        assert!(ended.err.contains(text), "{words:?} does not say '{text}': {ended:?}");
    }
}

/// The programs of an interface, from `list --json`.
pub(crate) fn programs(netdev: &str) -> Vec<Value> {
    let list: Value = serde_json::from_str(&good(&["list", "--json"])).unwrap();
    let row = list.as_array().unwrap().iter().find(|row| row["interface"] == netdev);
    row.unwrap_or_else(|| panic!("no {netdev} in {list}"))["programs"].as_array().unwrap().clone()
}

/// Compiles C source to an object file; returns `None`, with a message, without clang.
pub(crate) fn object(name: &str, source: &str) -> Option<String> {
    // Each test uses another name; an old file is overwritten.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("xdp-{name}"));
    std::fs::create_dir_all(&dir).unwrap();
    let (input, output) = (dir.join("program.c"), dir.join("program.o"));
    std::fs::write(&input, source).unwrap();
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../xdp");
    let built = Command::new("clang")
        .args(["-O2", "-g", "-target", "bpf", "-Wno-unused-variable", include, "-c"])
        .arg(&input)
        .arg("-o")
        .arg(&output)
        .output();
    let Ok(built) = built else {
        println!("skipped: needs clang");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(output.to_str().unwrap().to_owned())
}

/// Waits until `condition` holds, at most 10 s.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "not {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
