//! How long the cases of a suite take, and how much of it their programs compute.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// Cases that the summary names.
const SHOWN: usize = 10;

/// The durations of the cases that have ended.
#[derive(Debug, Default)]
pub struct Durations(Mutex<Vec<Row>>);

#[derive(Clone, Debug)]
struct Row {
    name: String,
    beside: bool,
    took: Duration,
    computed: Duration,
}

impl Durations {
    /// Runs a case and measures it. The CPU time is that of processes that ended in the meantime, which
    /// includes those of cases that run beside it.
    pub fn measure<T>(&self, name: &str, beside: bool, case: impl FnOnce() -> T) -> T {
        let (start, before) = (Instant::now(), computed());
        let result = case();
        let (took, computed) = (start.elapsed(), computed().saturating_sub(before));
        let row = Row { name: name.to_owned(), beside, took, computed };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(row);
        result
    }

    /// Writes all to the file `durations` of this directory: seconds, CPU seconds, whether others may run
    /// beside it, and name of each case, the longest first. Returns the first lines of it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, logs: &Path) -> io::Result<String> {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        rows.sort_by_key(|row| std::cmp::Reverse(row.took));
        let line = |row: &Row| {
            format!(
                "{:7.2} s {:7.2} s CPU  {}  {}\n",
                row.took.as_secs_f64(),
                row.computed.as_secs_f64(),
                if row.beside { "beside" } else { "alone " },
                row.name
            )
        };
        fs::create_dir_all(logs)?;
        let lines: Vec<String> = rows.iter().map(line).collect();
        fs::write(logs.join("durations"), lines.concat())?;
        Ok(lines[..lines.len().min(SHOWN)].concat())
    }
}

/// CPU time of the processes that have ended and that this process or its children waited for.
fn computed() -> Duration {
    let time = |time: nix::sys::time::TimeVal| {
        Duration::new(time.tv_sec().unsigned_abs(), 1000 * u32::try_from(time.tv_usec()).unwrap_or_default())
    };
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .map_or(Duration::ZERO, |usage| time(usage.user_time()) + time(usage.system_time()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_longest_case_is_first_and_only_processes_that_compute_use_the_cpu() {
        let durations = Durations::default();
        let sh = |script: &str| assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
        durations.measure("computes", true, || sh("n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done"));
        let computed = durations.0.lock().unwrap()[0].computed;
        durations.measure("sleeps", true, || sh("sleep 1"));
        durations.measure("is short", false, || ());
        let logs = std::env::temp_dir().join(format!("roxie-durations-{}", std::process::id()));
        let shown = durations.write(&logs).unwrap();
        assert_eq!(fs::read_to_string(logs.join("durations")).unwrap(), shown);
        fs::remove_dir_all(logs).unwrap();
        assert!(shown.trim_end().ends_with("alone   is short"), "{shown}");
        let asleep = durations.0.lock().unwrap()[1].clone();
        assert!(asleep.took >= Duration::from_secs(1) && asleep.computed < computed, "{shown}");
    }
}
