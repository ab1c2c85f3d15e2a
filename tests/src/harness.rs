//! Common parts of suites with named cases: which cases run, where their outputs are kept, and the summary
//! lines, which `./check` adds up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Conclusion};

/// Removes `--full` from the command line; returns whether it was there.
#[must_use]
pub fn is_full(words: &mut Vec<String>) -> bool {
    let before = words.len();
    words.retain(|word| word != "--full");
    words.len() < before
}

/// Chooses as libtest-mimic does, so that only selected cases count as skipped.
#[must_use]
pub fn is_chosen(args: &Arguments, name: &str) -> bool {
    let matches =
        |pattern: &String| if args.exact { name == pattern } else { name.contains(pattern.as_str()) };
    args.filter.as_ref().is_none_or(matches) && !args.skip.iter().any(matches)
}

/// Directory for a suite's outputs: `ROXIE_LOG_DIR`, or a directory of this user.
#[must_use]
pub fn logs(suite: &str) -> PathBuf {
    match std::env::var_os("ROXIE_LOG_DIR") {
        Some(dir) => PathBuf::from(dir).join(suite),
        None => std::env::temp_dir().join(format!("roxie-{suite}-{}", nix::unistd::Uid::effective())),
    }
}

/// Number of cases that cannot run here, by what they need.
#[derive(Debug, Default)]
pub struct Skipped(BTreeMap<String, usize>);

impl Skipped {
    /// Counts one more case.
    pub fn add(&mut self, need: &str) {
        *self.0.entry(need.to_owned()).or_default() += 1;
    }

    /// Prints the summary lines of a suite.
    #[must_use]
    pub fn summary(&self, conclusion: &Conclusion) -> ExitCode {
        for (need, count) in &self.0 {
            println!("skipped: needs {need}: {count} cases");
        }
        let Conclusion { num_passed, num_failed, num_ignored, .. } = conclusion;
        println!("{num_passed} passed, {num_failed} failed, {num_ignored} skipped");
        conclusion.exit_code()
    }
}

/// Ends a suite without binaries: all cases are skipped, or fail if `ROXIE_BIN_DIR` is set.
#[must_use]
pub fn without_binaries(error: &str, cases: usize) -> ExitCode {
    if std::env::var_os("ROXIE_BIN_DIR").is_some() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    println!("skipped: needs cargo build --release ({error}): {cases} cases");
    println!("\n0 passed, 0 failed, {cases} skipped");
    ExitCode::SUCCESS
}
