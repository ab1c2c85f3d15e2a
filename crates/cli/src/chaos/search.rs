//! The search for a seed that makes a command fail, and for the fewest faults that do.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use roxie::chaos::VARIABLE;
use roxie::transport::chaos::{ChaosPlan, Faults};

use super::Search;
use crate::ending::{Ending, STOPPED};
use crate::env::quote;
use crate::failure::{During, Failure, Outcome};
use crate::terminal;

/// Exit code of a search that found a seed.
const FOUND: u8 = 67;
/// Signals that end the search and the running program.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// Time limit of a run.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Runs of a smaller plan before it counts as passing: the program may be less deterministic than the plan.
const ATTEMPTS: usize = 3;
/// Runs of the smallest plan that tell how often it fails.
const REPLAYS: usize = 5;
/// Largest number of faults that the search for the first ones tries.
const FIRST_MAX: u64 = 1 << 16;
/// Lines of output of a failed run that are shown.
const LINES_MAX: usize = 40;
/// Time that a run which took too long has to end after SIGTERM.
const END_MAX: Duration = Duration::from_secs(3);
/// Interval at which the end of a run is noticed.
const WAIT: Duration = Duration::from_millis(2);

/// A command, and how it is run.
struct Program<'a> {
    command: &'a [OsString],
    variables: &'a [(&'static str, OsString)],
    timeout: Duration,
    ending: &'a Ending,
}

/// How a run ended.
enum Ended {
    Passed,
    Failed { how: How, output: String },
}

enum How {
    Status(ExitStatus),
    TimedOut(Duration),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::TimedOut(limit) => write!(f, "no end after {} s", limit.as_secs_f64()),
            How::Status(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "exit status {code}"),
                (None, Some(signal)) => match Signal::try_from(signal) {
                    Ok(signal) => write!(f, "killed by {signal}"),
                    Err(_) => write!(f, "killed by signal {signal}"),
                },
                (None, None) => f.write_str("no exit status"),
            },
        }
    }
}

/// Runs the command with each seed until one fails; then looks for the fewest faults.
pub(crate) fn search(
    search: &Search,
    command: &[OsString],
    variables: &[(&'static str, OsString)],
    timeout: Option<f64>,
) -> Outcome {
    let timeout = match timeout.map(Duration::try_from_secs_f64) {
        None => TIMEOUT,
        Some(Ok(limit)) if !limit.is_zero() => limit,
        Some(_) => return Err(Failure::new("--timeout is not a positive number of seconds").code(2)),
    };
    let ending = Ending::by(&ENDING)?;
    let program = Program { command, variables, timeout, ending: &ending };
    if let Ended::Failed { how, output } = program.run(None)? {
        show(&output);
        return Err(Failure::new(format!("the command fails without faults, too: {how}")));
    }
    for (passed, seed) in search.seeds.clone().enumerate() {
        let plan = search.plan(seed);
        if let Ended::Failed { how, output } = program.run(Some(&plan))? {
            terminal::print(&format!("seed {seed} fails: {how} ({passed} seeds passed)"));
            let (smallest, output) = program.shrink(plan, output)?;
            show(&output);
            terminal::print(&format!("fewest faults: {} (of {})", smallest.faults, plan.faults));
            let failures = program.failures(&smallest)?;
            terminal::print(&format!("with these: {failures} of {REPLAYS} runs fail"));
            terminal::print(&format!("replay: {}", replay(std::env::args_os(), &smallest)));
            return Err(Failure::new(format!("seed {seed} makes the command fail")).code(FOUND));
        }
    }
    terminal::print(&format!("{} seeds passed", search.seeds.clone().count()));
    Ok(())
}

impl Program<'_> {
    fn run(&self, plan: Option<&ChaosPlan>) -> Outcome<Ended> {
        let (name, arguments) = self.command.split_first().ok_or_else(|| Failure::new("no command given"))?;
        let mut file: File = tempfile()?;
        let output = || file.try_clone().map(Stdio::from).during("output file");
        let mut command = Command::new(name);
        command.args(arguments).envs(self.variables.iter().map(|(key, value)| (key, value)));
        command.env_remove(VARIABLE).envs(plan.map(|plan| (VARIABLE, plan.to_string())));
        command.stdin(Stdio::null()).stdout(output()?).stderr(output()?).process_group(0);
        sys::unblock_signals(&mut command, &ENDING.map(|signal| signal as i32));
        let mut child = command.spawn().during(&name.to_string_lossy())?;
        let group = Pid::from_raw(child.id() as i32);
        let start = Instant::now();
        let how = loop {
            if let Some(status) = child.try_wait().during("wait")? {
                break Some(How::Status(status));
            }
            if self.ending.is_due() {
                break None;
            }
            if start.elapsed() > self.timeout {
                break Some(How::TimedOut(self.timeout));
            }
            std::thread::sleep(WAIT);
        };
        if matches!(how, Some(How::TimedOut(_))) {
            // A `roxie check` of the command reports, and removes its files.
            let _gone = killpg(group, Signal::SIGTERM);
            let end = Instant::now() + END_MAX;
            while child.try_wait().during("wait")?.is_none() && Instant::now() < end {
                std::thread::sleep(WAIT);
            }
        }
        // Processes of the command that still run would disturb the next run. Fails if there are none.
        let _none = killpg(group, Signal::SIGKILL);
        if !matches!(how, Some(How::Status(_))) {
            child.wait().during("wait")?;
        }
        let how = how.ok_or_else(|| Failure::new("the search was ended by a signal").code(STOPPED))?;
        if matches!(&how, How::Status(status) if status.success()) {
            return Ok(Ended::Passed);
        }
        let mut text = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut text)).during("output file")?;
        Ok(Ended::Failed { how, output: String::from_utf8_lossy(&text).into_owned() })
    }

    /// Returns the output of a failed run with this plan, if one of a few runs fails.
    fn fails(&self, plan: &ChaosPlan) -> Outcome<Option<String>> {
        for _ in 0..ATTEMPTS {
            if let Ended::Failed { output, .. } = self.run(Some(plan))? {
                return Ok(Some(output));
            }
        }
        Ok(None)
    }

    /// In how many of [`REPLAYS`] runs the command fails with this plan.
    fn failures(&self, plan: &ChaosPlan) -> Outcome<usize> {
        let mut failures = 0;
        for _ in 0..REPLAYS {
            failures += usize::from(matches!(self.run(Some(plan))?, Ended::Failed { .. }));
        }
        Ok(failures)
    }

    /// Leaves out faults as long as the command still fails; then looks for the smallest number of them.
    fn shrink(&self, plan: ChaosPlan, output: String) -> Outcome<(ChaosPlan, String)> {
        let (mut smallest, mut last) = (plan, output);
        // One alone is the most frequent result.
        for fault in plan.faults.iter() {
            let alone = ChaosPlan { faults: Faults::default().with(fault), ..plan };
            if plan.faults != alone.faults
                && let Some(output) = self.fails(&alone)?
            {
                (smallest, last) = (alone, output);
                break;
            }
        }
        for fault in smallest.faults.iter() {
            let fewer = ChaosPlan { faults: smallest.faults.without(fault), ..smallest };
            if !fewer.faults.is_empty()
                && let Some(output) = self.fails(&fewer)?
            {
                (smallest, last) = (fewer, output);
            }
        }
        let (mut passing, mut failing) = (0, None);
        let limit = smallest.first.unwrap_or(FIRST_MAX);
        while failing.is_none() && passing < limit {
            let first = (passing * 4).max(1).min(limit);
            match self.fails(&ChaosPlan { first: Some(first), ..smallest })? {
                Some(output) => (failing, last) = (Some(first), output),
                None => passing = first,
            }
        }
        let Some(mut failing) = failing else { return Ok((smallest, last)) };
        while failing - passing > 1 {
            let first = passing.midpoint(failing);
            match self.fails(&ChaosPlan { first: Some(first), ..smallest })? {
                Some(output) => (failing, last) = (first, output),
                None => passing = first,
            }
        }
        Ok((ChaosPlan { first: Some(failing), ..smallest }, last))
    }
}

fn tempfile() -> Outcome<File> {
    let name = nix::sys::memfd::memfd_create(c"roxie-output", nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
    name.map(File::from).during("output file")
}

/// Shows the last lines of the output of a failed run.
fn show(output: &str) {
    let lines: Vec<&str> = output.lines().collect();
    for line in &lines[lines.len().saturating_sub(LINES_MAX)..] {
        terminal::print(&format!("    {}", line.replace('\t', "        ")));
    }
}

/// The command line that runs the command once, with this plan.
fn replay(words: impl Iterator<Item = OsString>, plan: &ChaosPlan) -> String {
    let words: Vec<OsString> = words.collect();
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let (options, command) = words.split_at(end);
    let mut line = seeded(options, Some(plan));
    line.extend_from_slice(command);
    line.iter().map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// The options without the time limit of a run; `--chaos` with this plan is in the place of those that choose
/// seeds. Without a plan these are left out.
pub(crate) fn seeded(options: &[OsString], plan: Option<&ChaosPlan>) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut options = options.iter();
    while let Some(word) = options.next() {
        let text = word.to_string_lossy();
        let (name, has_value) = text.split_once('=').map_or((&*text, false), |(name, _)| (name, true));
        if !["--chaos", "--seeds", "--timeout"].contains(&name) {
            words.push(word.clone());
            continue;
        }
        if !has_value {
            options.next();
        }
        match plan.filter(|_| name != "--timeout") {
            Some(plan) if has_value => words.push(format!("--chaos={plan}").into()),
            Some(plan) => words.extend(["--chaos".into(), plan.to_string().into()]),
            None => {}
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_replays_has_the_plan_and_no_timeout() {
        let plan: ChaosPlan = "seed=4,faults=rnr,first=1".parse().unwrap();
        let replayed = |line: &str| replay(line.split(' ').map(OsString::from), &plan);
        let expected = "roxie run -i lo --chaos seed=4,faults=rnr,first=1 -- prog --chaos x";
        assert_eq!(replayed("roxie run -i lo --chaos seeds=1..9 --timeout 5 -- prog --chaos x"), expected);
        let expected = "roxie check --chaos seed=4,faults=rnr,first=1 --hang 3 -- prog --seeds 7";
        assert_eq!(replayed("roxie check --seeds 9 --hang 3 -- prog --seeds 7"), expected);
        let expected = "roxie run --chaos=seed=4,faults=rnr,first=1 prog";
        assert_eq!(replayed("roxie run --chaos=seeds=1..9 --timeout=5 prog"), expected);
    }

    fn shell(script: &str) -> Vec<OsString> {
        ["sh", "-c", script].map(OsString::from).to_vec()
    }

    fn program<'a>(command: &'a [OsString], timeout: Duration, ending: &'a Ending) -> Program<'a> {
        Program { command, variables: &[], timeout, ending }
    }

    #[test]
    fn a_failing_plan_shrinks_to_the_faults_that_matter() {
        // Fails if `rnr` and `loss` are in the plan, and at least five faults are injected.
        let command = shell("case $ROXIE_CHAOS in *rnr+loss*first=[1-4]) ;; *rnr+loss*) exit 3 ;; esac");
        let ending = Ending::by(&[]).unwrap();
        let program = program(&command, TIMEOUT, &ending);
        let plan: ChaosPlan = "seed=1,faults=placement+rnr+loss+order".parse().unwrap();
        let (smallest, _) = program.shrink(plan, String::new()).unwrap();
        assert_eq!(smallest.to_string(), "seed=1,faults=rnr+loss,first=5");
    }

    #[test]
    fn each_run_of_the_smallest_plan_is_counted() {
        let count = std::env::temp_dir().join(format!("roxie-runs-{}", std::process::id()));
        // Fails in its first, third and fifth run.
        let script = format!("echo >>{0}; exit $(($(wc -l <{0}) % 2))", count.display());
        let (command, ending) = (shell(&script), Ending::by(&[]).unwrap());
        let plan: ChaosPlan = "seed=1,faults=rnr,first=1".parse().unwrap();
        assert_eq!(program(&command, TIMEOUT, &ending).failures(&plan).unwrap(), 3);
        std::fs::remove_file(count).unwrap();
    }

    #[test]
    fn no_smaller_plan_has_more_faults_than_the_given_one() {
        // Fails if at least seven faults are injected. No plan with more of them is tried.
        let command =
            shell("case $ROXIE_CHAOS in *first=7) exit 3 ;; *first=[1-6]) ;; *) echo more; exit 4 ;; esac");
        let ending = Ending::by(&[]).unwrap();
        let plan: ChaosPlan = "seed=1,faults=rnr,first=7".parse().unwrap();
        let (smallest, output) = program(&command, TIMEOUT, &ending).shrink(plan, String::new()).unwrap();
        assert_eq!((smallest, &*output), (plan, ""));
    }

    #[test]
    fn a_signal_ends_the_search_and_the_program() {
        // The number of seconds names the process.
        let command = shell("sleep 61.7215 & sleep 61.7215");
        let ending = Ending::by(&[Signal::SIGUSR1]).unwrap();
        // Sent to this thread only: other threads have not blocked the signal.
        nix::sys::signal::raise(Signal::SIGUSR1).unwrap();
        let start = Instant::now();
        let failure = program(&command, TIMEOUT, &ending).run(None).err().expect("ended");
        assert_eq!((&*failure.what, failure.code), ("the search was ended by a signal", STOPPED));
        assert!(start.elapsed() < TIMEOUT);
        let runs = || {
            let lines = std::fs::read_dir("/proc").unwrap().flatten();
            let lines = lines.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
            lines.filter(|line| line.contains("61.7215")).count()
        };
        // The kernel ends a killed process a little later.
        while runs() > 0 {
            assert!(start.elapsed() < TIMEOUT, "{} processes still run", runs());
            std::thread::sleep(WAIT);
        }
    }

    #[test]
    fn the_program_does_not_inherit_blocked_signals() {
        let ending = Ending::by(&ENDING).unwrap();
        let command = shell("kill -TERM $$; sleep 60");
        let Ended::Failed { how, .. } = program(&command, TIMEOUT, &ending).run(None).unwrap() else {
            panic!("it passed")
        };
        assert_eq!(how.to_string(), "killed by SIGTERM");
    }

    #[test]
    fn a_run_that_takes_too_long_and_a_signal_are_failures() {
        for (script, how) in [
            ("sleep 60", "no end after 0.1 s"),
            ("kill -ABRT $$", "killed by SIGABRT"),
            ("echo out; echo err >&2; exit 5", "exit status 5"),
        ] {
            let (command, ending) = (shell(script), Ending::by(&[]).unwrap());
            let timeout = Duration::from_millis(if script == "sleep 60" { 100 } else { 9000 });
            let ended = program(&command, timeout, &ending).run(None).unwrap();
            let Ended::Failed { how: seen, output } = ended else { panic!("{script} passed") };
            assert_eq!(seen.to_string(), how);
            assert!(!script.starts_with("echo") || output == "out\nerr\n", "{output}");
        }
    }
}
