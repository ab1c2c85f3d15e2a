//! `roxie metrics` as a program: how it begins and how it ends.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A script's shell starts `command &` with SIGINT ignored.
#[test]
fn signals_end_it_in_the_background_of_a_script_too() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut roxie = Command::new("sh")
            .args(["-c", "trap '' INT; exec \"$0\" metrics --listen 127.0.0.1:0"])
            .arg(env!("CARGO_BIN_EXE_roxie"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let mut line = String::new();
        BufReader::new(roxie.stderr.take().expect("a pipe")).read_line(&mut line).expect("text");
        assert!(line.starts_with("roxie: http://127.0.0.1:"), "{line}");
        kill(Pid::from_raw(roxie.id() as i32), signal).expect("it runs");
        assert_eq!(roxie.wait().expect("it ends").code(), Some(0), "{signal}");
    }
}
