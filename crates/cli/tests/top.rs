//! `roxie top` on a pseudo terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{Winsize, openpty};

const PATIENCE: Duration = Duration::from_secs(20);

/// The program, and our end of its terminal.
struct Top {
    child: Child,
    terminal: File,
    shown: String,
}

impl Top {
    fn start() -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("a pseudo terminal");
        // A child with a copy of this end would keep the terminal open.
        fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("a flag");
        let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
        // A domain without processes.
        command.arg("top").env("TERM", "xterm").env("ROXIE_DOMAIN", "roxie-top-test");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("roxie runs");
        Self { child, terminal: File::from(pty.master), shown: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).expect("it reads");
    }

    /// Reads until this is shown: a word, as only cells that change are drawn, and spaces do not.
    fn wait_for(&mut self, word: &str) {
        let mut bytes = [0; 4096];
        while !self.shown.contains(word) {
            let len = self.terminal.read(&mut bytes).expect("it writes");
            self.shown.push_str(&String::from_utf8_lossy(&bytes[..len]));
        }
        self.shown.clear();
    }

    fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            if begun.elapsed() > PATIENCE {
                self.child.kill().expect("it is ours");
                panic!("it does not end");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn keys_are_answered_and_the_terminal_is_as_before() {
    let mut top = Top::start();
    top.wait_for("pairs.");
    top.press("?");
    top.wait_for("Ctrl-C");
    top.press("xq");
    // Back from the alternate screen.
    top.wait_for("\x1b[?1049l");
    assert!(top.end().success());
}

#[test]
fn it_ends_with_its_terminal() {
    let mut top = Top::start();
    top.wait_for("pairs.");
    top.terminal = File::open("/dev/null").expect("it is there");
    top.end();
}

#[test]
fn without_a_terminal_there_is_a_table() {
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
        command.arg("top").args(words).env("ROXIE_DOMAIN", "roxie-top-test");
        command.stdin(Stdio::null()).output().expect("roxie runs")
    };
    let refused = run(&[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--once"));
    let table = run(&["--once", "--interval", "0.1"]);
    assert!(table.status.success() && table.stdout.starts_with(b"PID COMMAND"));
    // Without a device the message says how to look elsewhere.
    assert!(String::from_utf8_lossy(&table.stderr).contains("ip netns exec NAME roxie top"));
    let filtered = run(&["--once", "--interval", "0.1", "--filter", "rping"]);
    assert!(String::from_utf8_lossy(&filtered.stderr).contains("no queue pair has 'rping'"));
    let json = run(&["--once", "--interval", "0.1", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(
        (json["summary"].as_str(), json["queue_pairs"].as_array().map(Vec::len)),
        (Some("0 processes"), Some(0))
    );
}
