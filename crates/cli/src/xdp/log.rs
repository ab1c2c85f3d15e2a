//! `roxie xdp log`: lines that programs in the kernel print.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::json;

use super::args::LogArgs;
use crate::failure::{During, Failure, Outcome};
use crate::terminal;

/// Where tracefs is mounted; the second place is that of kernels before 4.1.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// What the kernel puts before the text of bpf_printk.
const MARK: &str = "bpf_trace_printk: ";

/// Prints lines until enough have arrived.
pub(super) fn log(args: &LogArgs) -> Outcome {
    let pipe = PLACES.iter().map(|place| Path::new(place).join("trace_pipe")).find(|pipe| pipe.exists());
    let pipe = pipe.ok_or_else(|| {
        Failure::new("the kernel's log of programs is not there")
            .hint("needs root and a mounted tracefs: mount -t tracefs none /sys/kernel/tracing")
    })?;
    let file = File::open(&pipe).during(&format!("{} (needs root)", pipe.display()))?;
    let mut left = args.count.unwrap_or(u64::MAX);
    for line in BufReader::new(file).split(b'\n') {
        let line = line.during("reading the log")?;
        let line = String::from_utf8_lossy(&line);
        let Some((head, text)) = line.split_once(MARK) else { continue };
        // TASK-PID [CPU] FLAGS SECONDS:
        let time = head.split_whitespace().last().unwrap_or_default().trim_end_matches(':');
        if args.json {
            terminal::json(&json!({ "time": time, "line": text }));
        } else {
            terminal::print(&format!("{time:>16} {text}"));
        }
        left -= 1;
        if left == 0 {
            break;
        }
    }
    Ok(())
}
