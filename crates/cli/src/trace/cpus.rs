//! How long the threads of the command waited for a CPU, as the kernel's scheduler says (schedstat of
//! proc(5)). It is read while they run, so the last 200 ms of a process are missing.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use serde::Serialize;
use sys::Dir;
use wire::text::Printable;

/// Shortest wait that is told, in nanoseconds, and its smallest percentage.
const WAITED_NS: u64 = 10_000_000;
const PERCENT: u64 = 10;

/// Nanoseconds for which threads ran and waited for a CPU, by process and thread.
#[derive(Debug, Default)]
pub(super) struct Cpus(BTreeMap<u32, BTreeMap<u32, (u64, u64)>>);

/// A process of which the threads waited for a CPU.
#[derive(Debug, Serialize)]
pub(super) struct Waited {
    process: u32,
    command: String,
    /// Of the time in which they ran or could have run.
    percent: u64,
}

impl Cpus {
    /// Reads the times of the processes that record events in a directory: `PROCESS-TOKEN.ring`.
    pub(super) fn sample(&mut self, dir: &Dir) {
        let names = dir.names().unwrap_or_default();
        let number = |name: &std::ffi::OsString| name.to_str()?.split_once('-')?.0.parse::<u32>().ok();
        for process in names.iter().filter_map(number) {
            let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
            for task in tasks {
                let name = task.file_name();
                let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
                let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat"));
                let text = text.unwrap_or_default();
                let mut times = text.split_whitespace().map_while(|word| word.parse().ok());
                if let (Some(ran), Some(waited)) = (times.next(), times.next()) {
                    self.0.entry(process).or_default().insert(thread, (ran, waited));
                }
            }
        }
    }

    /// The processes that waited for long; `commands` are theirs.
    pub(super) fn waited(&self, commands: impl Fn(u32) -> String) -> Vec<Waited> {
        let waited = |(process, threads): (&u32, &BTreeMap<u32, (u64, u64)>)| {
            let sum = |of: fn(&(u64, u64)) -> u64| threads.values().map(of).sum::<u64>();
            let (ran, waited) = (sum(|times| times.0), sum(|times| times.1));
            let percent = waited * 100 / (ran + waited).max(1);
            let is_long = waited >= WAITED_NS && percent >= PERCENT;
            is_long.then(|| Waited { process: *process, command: commands(*process), percent })
        };
        self.0.iter().filter_map(waited).collect()
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, command, percent } = self;
        let command = Printable(command);
        write!(f, "process {process} ({command}): waited for a CPU for {percent} % of its time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_waits_for_long_is_told() {
        let threads = |ran, waited| BTreeMap::from([(1, (ran, waited)), (2, (0, 0))]);
        let second = 1_000_000_000;
        let times =
            [(1, threads(second, second)), (2, threads(second, 50_000_000)), (3, threads(10, 9_000_000))];
        let waited = Cpus(BTreeMap::from(times)).waited(|process| format!("prog {process}"));
        let texts: Vec<String> = waited.iter().map(Waited::to_string).collect();
        assert_eq!(texts, ["process 1 (prog 1): waited for a CPU for 50 % of its time"]);
    }
}
