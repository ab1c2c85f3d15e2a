//! The search for a seed that makes a command fail, and for the fewest faults that do.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use roxie::chaos::VARIABLE;
use roxie::transport::chaos::{ChaosPlan, Faults};

use super::Search;
use crate::cpu;
use crate::ending::{Ending, STOPPED};
use crate::failure::{During, Failure, Outcome};
use crate::terminal;
use roxie_capture::shell::quote;

/// Exit code of a search that found a seed.
const FOUND: u8 = 67;
/// Signals that end the search and the running program.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// Time limit of a run.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Runs of a smaller plan that all must fail: the program may be less deterministic than the plan.
const ATTEMPTS: usize = 3;
/// A plan replays a failure if so many of so many runs fail.
const REPLAYS: (usize, usize) = (8, 10);
/// Failing seeds that do not replay, before the search ends. Half: a rarer failure hides one that replays.
/// Double: the search for a failure that no seed decides takes twice as long.
const RARE_MAX: usize = 5;
/// Largest number of faults that the search for the first ones tries.
const FIRST_MAX: u64 = 1 << 16;
/// Lines of output of a failed run that are shown.
const LINES_MAX: usize = 40;
/// Time that a run which took too long has to end after SIGTERM.
const END_MAX: Duration = Duration::from_secs(3);
/// Interval at which the end of a run is noticed.
const WAIT: Duration = Duration::from_millis(2);

/// A command, and how it is run.
#[derive(Clone, Copy)]
struct Program<'a> {
    command: &'a [OsString],
    /// The only one that it may use.
    cpu: Option<u32>,
    variables: &'a [(&'static str, OsString)],
    timeout: Duration,
    ending: &'a Ending,
}

/// How a run ended.
enum Ended {
    Passed,
    Failed { how: How, output: String },
}

/// Runs of one plan.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Tally {
    failed: usize,
    runs: usize,
}

impl Tally {
    fn is_reliable(self) -> bool {
        self.failed >= REPLAYS.0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} runs", self.failed, self.runs)
    }
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
    let program = Program { command, cpu: None, variables, timeout, ending: &ending };
    if let Ended::Failed { how, output } = program.run(None)? {
        show(&output);
        return Err(Failure::new(format!("the command fails without faults, too: {how}")));
    }
    let [first_cpu, _] = cpu::pair();
    let mut rare = None;
    let (mut passed, mut failed) = (0, 0);
    for seed in search.seeds.clone() {
        let plan = search.plan(seed);
        let Ended::Failed { how, output } = program.run(Some(&plan))? else {
            passed += 1;
            continue;
        };
        terminal::print(&format!("seed {seed} fails: {how} ({passed} seeds passed)"));
        let one_cpu = Program { cpu: Some(first_cpu), ..program };
        for program in [program, one_cpu] {
            let tally = program.tally(Some(&plan))?;
            if tally.is_reliable() {
                return program.conclude(plan, output, tally);
            }
            let where_ = if program.cpu.is_some() { "on one CPU" } else { "again" };
            terminal::print(&format!("seed {seed} does not replay: {tally} fail {where_}"));
        }
        failed += 1;
        rare.get_or_insert((plan, output));
        if failed == RARE_MAX {
            break;
        }
    }
    let Some((plan, output)) = rare else {
        terminal::print(&format!("{passed} seeds passed"));
        return Ok(());
    };
    show(&output);
    let alone = program.tally(None)?;
    terminal::print(&match alone.failed {
        0 => format!(
            "no seed that failed replays the failure: it may depend on the moment at which the threads run, \
             or on what other programs do; {alone} fail without faults"
        ),
        _ => {
            format!("no seed that failed replays the failure; the command fails without faults, too: {alone}")
        }
    });
    terminal::print(&format!("repeat until it fails: while {}; do :; done", program.replay(&plan)));
    Err(Failure::new(format!("{failed} seeds make the command fail now and then")).code(FOUND))
}

impl Program<'_> {
    /// Tells how to replay the failure with the fewest faults.
    fn conclude(&self, plan: ChaosPlan, output: String, tally: Tally) -> Outcome {
        let (smallest, output, tally) = self.shrink(plan, output, tally)?;
        show(&output);
        terminal::print(&format!("fewest faults: {} (of {})", smallest.faults, plan.faults));
        let only =
            if self.cpu.is_some() { " on one CPU: it depends on which threads run at a time" } else { "" };
        terminal::print(&format!("with these: {tally} fail{only}"));
        terminal::print(&format!("replay: {}", self.replay(&smallest)));
        Err(Failure::new(format!("seed {} makes the command fail", plan.seed)).code(FOUND))
    }

    /// The command line that runs the command once, with this plan.
    fn replay(&self, plan: &ChaosPlan) -> String {
        let on_one = self.cpu.map(|cpu| format!("taskset -c {cpu} ")).unwrap_or_default();
        on_one + &replay(std::env::args_os(), plan)
    }

    fn run(&self, plan: Option<&ChaosPlan>) -> Outcome<Ended> {
        let (name, arguments) = self.command.split_first().ok_or_else(|| Failure::new("no command given"))?;
        let mut file: File = tempfile()?;
        let output = || file.try_clone().map(Stdio::from).during("output file");
        let mut command = Command::new(name);
        command.args(arguments).envs(self.variables.iter().map(|(key, value)| (key, value)));
        command.env_remove(VARIABLE).envs(plan.map(|plan| (VARIABLE, plan.to_string())));
        command.stdin(Stdio::null()).stdout(output()?).stderr(output()?).process_group(0);
        sys::unblock_signals(&mut command, &ENDING.map(|signal| signal as i32));
        let spawn = || {
            self.cpu.into_iter().for_each(cpu::stay_on);
            command.spawn()
        };
        // In a thread of its own: the process inherits the CPU of the thread, and this thread keeps all.
        let spawned = thread::scope(|scope| scope.spawn(spawn).join());
        let spawned = spawned.map_err(|_| Failure::new("the thread that starts the command has panicked"))?;
        let mut child = spawned.during(&name.to_string_lossy())?;
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
            thread::sleep(WAIT);
        };
        if matches!(how, Some(How::TimedOut(_))) {
            // A `roxie check` of the command reports, and removes its files.
            let _gone = killpg(group, Signal::SIGTERM);
            let end = Instant::now() + END_MAX;
            while child.try_wait().during("wait")?.is_none() && Instant::now() < end {
                thread::sleep(WAIT);
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

    /// Returns the output of the last of a few runs with this plan, if all of them fail.
    fn fails(&self, plan: &ChaosPlan) -> Outcome<Option<String>> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let Ended::Failed { output, .. } = self.run(Some(plan))? else { return Ok(None) };
            last = Some(output);
        }
        Ok(last)
    }

    /// How often the command fails with this plan, until that is enough or too rare for a replay. Without a
    /// plan each of the runs counts.
    fn tally(&self, plan: Option<&ChaosPlan>) -> Outcome<Tally> {
        let (enough, most) = REPLAYS;
        let mut tally = Tally::default();
        let is_open = |tally: Tally| tally.failed < enough && tally.runs - tally.failed <= most - enough;
        while tally.runs < most && (plan.is_none() || is_open(tally)) {
            tally.failed += usize::from(matches!(self.run(plan)?, Ended::Failed { .. }));
            tally.runs += 1;
        }
        Ok(tally)
    }

    /// The smallest plan that replays the failure, as the given one does.
    fn shrink(&self, plan: ChaosPlan, output: String, tally: Tally) -> Outcome<(ChaosPlan, String, Tally)> {
        let mut smaller = self.smaller(plan)?;
        while let Some((plan, output)) = smaller.pop() {
            let tally = self.tally(Some(&plan))?;
            if tally.is_reliable() {
                return Ok((plan, output, tally));
            }
        }
        Ok((plan, output, tally))
    }

    /// Leaves out faults as long as the command still fails; then looks for the smallest number of them.
    /// Returns the plans with which it does, each smaller than the one before, and the output of a run.
    fn smaller(&self, plan: ChaosPlan) -> Outcome<Vec<(ChaosPlan, String)>> {
        let (mut smallest, mut found) = (plan, Vec::new());
        let mut fails = |plan: ChaosPlan| -> Outcome<bool> {
            let output = self.fails(&plan)?;
            let fails = output.is_some();
            found.extend(output.map(|output| (plan, output)));
            Ok(fails)
        };
        // One alone is the most frequent result.
        for fault in plan.faults.iter() {
            let alone = ChaosPlan { faults: Faults::default().with(fault), ..plan };
            if plan.faults != alone.faults && fails(alone)? {
                smallest = alone;
                break;
            }
        }
        for fault in smallest.faults.iter() {
            let fewer = ChaosPlan { faults: smallest.faults.without(fault), ..smallest };
            if !fewer.faults.is_empty() && fails(fewer)? {
                smallest = fewer;
            }
        }
        let (mut passing, mut failing) = (0, None);
        let limit = smallest.first.unwrap_or(FIRST_MAX);
        while failing.is_none() && passing < limit {
            let first = (passing * 4).max(1).min(limit);
            match fails(ChaosPlan { first: Some(first), ..smallest })? {
                true => failing = Some(first),
                false => passing = first,
            }
        }
        while let Some(least) = failing.filter(|least| least - passing > 1) {
            let first = passing.midpoint(least);
            match fails(ChaosPlan { first: Some(first), ..smallest })? {
                true => failing = Some(first),
                false => passing = first,
            }
        }
        Ok(found)
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
        Program { command, cpu: None, variables: &[], timeout, ending }
    }

    #[test]
    fn a_failing_plan_shrinks_to_the_faults_that_matter() {
        // Fails if `rnr` and `loss` are in the plan, and at least five faults are injected.
        let command = shell("case $ROXIE_CHAOS in *rnr+loss*first=[1-4]) ;; *rnr+loss*) exit 3 ;; esac");
        let ending = Ending::by(&[]).unwrap();
        let program = program(&command, TIMEOUT, &ending);
        let plan: ChaosPlan = "seed=1,faults=placement+rnr+loss+order".parse().unwrap();
        let (smallest, _, tally) = program.shrink(plan, String::new(), Tally::default()).unwrap();
        assert_eq!(smallest.to_string(), "seed=1,faults=rnr+loss,first=5");
        assert_eq!(tally.to_string(), "8 of 8 runs");
    }

    /// A command that counts its runs in a file, then does the rest with the number of the run in `n`.
    fn counting(name: &str, rest: &str) -> (std::path::PathBuf, Vec<OsString>) {
        let file = std::env::temp_dir().join(format!("roxie-runs-{name}-{}", std::process::id()));
        let command = shell(&format!("echo >>{0}; n=$(wc -l <{0}); {rest}", file.display()));
        (file, command)
    }

    #[test]
    fn a_plan_replays_if_eight_of_ten_runs_fail() {
        let plan: ChaosPlan = "seed=1,faults=rnr,first=1".parse().unwrap();
        let all = [("8 of 8 runs", "exit 1", true), ("3 of 6 runs", "exit $((n % 2))", false)];
        let some = ("8 of 10 runs", "test $n -ne 3 -a $n -ne 6 && exit 1 || exit 0", true);
        for (expected, rest, is_reliable) in all.into_iter().chain([some]) {
            let ((file, command), ending) = (counting("replay", rest), Ending::by(&[]).unwrap());
            let tally = program(&command, TIMEOUT, &ending).tally(Some(&plan)).unwrap();
            assert_eq!((&*tally.to_string(), tally.is_reliable()), (expected, is_reliable));
            std::fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn a_smaller_plan_that_fails_now_and_then_is_not_the_replay() {
        // Fails with both faults; with `rnr` alone in the first three runs of it.
        let rest =
            "case $ROXIE_CHAOS in *rnr+loss*) exit 3 ;; *rnr*) echo >>$0; test $(wc -l <$0) -gt 3 ;; esac";
        let alone = std::env::temp_dir().join(format!("roxie-alone-{}", std::process::id()));
        let mut command = shell(rest);
        command.push(alone.clone().into_os_string());
        let ending = Ending::by(&[]).unwrap();
        let plan: ChaosPlan = "seed=1,faults=rnr+loss".parse().unwrap();
        let program = program(&command, TIMEOUT, &ending);
        let (smallest, ..) = program.shrink(plan, String::new(), Tally::default()).unwrap();
        assert_eq!(smallest.faults, plan.faults, "{smallest}");
        std::fs::remove_file(alone).unwrap();
    }

    #[test]
    fn a_failure_that_no_seed_replays_is_told_without_a_replay() {
        // Every third run fails: not the one without faults, and no plan in eight of ten runs.
        let (file, command) = counting("rare", "test $((n % 3)) -ne 2");
        let failure = search(&Search::first(9), &command, &[], None).unwrap_err();
        assert!(failure.what.ends_with("make the command fail now and then"), "{}", failure.what);
        assert_eq!(failure.code, FOUND);
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn no_smaller_plan_has_more_faults_than_the_given_one() {
        // Fails if at least seven faults are injected. No plan with more of them is tried.
        let command =
            shell("case $ROXIE_CHAOS in *first=7) exit 3 ;; *first=[1-6]) ;; *) echo more; exit 4 ;; esac");
        let ending = Ending::by(&[]).unwrap();
        let plan: ChaosPlan = "seed=1,faults=rnr,first=7".parse().unwrap();
        let program = program(&command, TIMEOUT, &ending);
        let (smallest, output, _) = program.shrink(plan, String::new(), Tally::default()).unwrap();
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
            thread::sleep(WAIT);
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
