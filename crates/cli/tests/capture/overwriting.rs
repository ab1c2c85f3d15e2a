//! Subcommands that write a file do not overwrite their input.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::golden;

/// A temporary directory with a capture in it.
fn directory(name: &str) -> (PathBuf, PathBuf) {
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("roxie-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("writable");
    let input = directory.join("in.pcap");
    fs::write(&input, golden::file("loss-send-middle-v4")).expect("writable");
    (directory, input)
}

fn run(command: &str, input: &Path, output: &Path, stdin: Stdio) -> Output {
    let mut roxie = Command::new(env!("CARGO_BIN_EXE_roxie"));
    roxie.args(["capture", command]).arg(input).arg("-o").arg(output).stdin(stdin);
    roxie.output().expect("roxie runs")
}

#[test]
fn an_output_that_is_another_name_of_the_input_is_refused() {
    let (directory, input) = directory("spared");
    let (hard, soft) = (directory.join("hard.svg"), directory.join("soft.html"));
    fs::hard_link(&input, &hard).expect("a file system with links");
    symlink(&input, &soft).expect("a file system with links");
    let refused = |output: &Output| {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("would overwrite the input"), "{said}");
        assert!(fs::read(&input).expect("it is there") == golden::file("loss-send-middle-v4"));
    };
    for command in ["annotate", "report"] {
        for output in [&hard, &soft] {
            refused(&run(command, &input, output, Stdio::null()));
        }
    }
    refused(&run("annotate", &input, &input, Stdio::null()));
    refused(&run("report", Path::new("-"), &hard, File::open(&input).expect("it is there").into()));
    fs::remove_dir_all(&directory).expect("it was made");
}
