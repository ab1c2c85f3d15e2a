//! A suite of named cases: what a case needs, the checks that most cases share, and the run of all of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::binaries;
use crate::durations::Durations;
use crate::harness::{Skipped, is_chosen, logs, without_binaries};
use crate::lab::{Lab, is_root};
use crate::place::{Place, Topology, User};
use crate::process::Ended;

/// One case.
#[expect(missing_debug_implementations, reason = "its function has none")]
pub struct Case {
    name: String,
    needs: Vec<(Need, &'static str)>,
    place: Place,
    beside: bool,
    run: Run,
}

/// Function of a case, which gets its name; an error has the reason and the outputs.
pub type Run = Box<dyn Fn(&Lab, &str) -> Result<(), String> + Send>;

/// What a case cannot run without.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Need {
    /// A program in `PATH`.
    Program(&'static str),
    /// A file.
    File(&'static str),
    /// Something that was looked for already, and whether it is there.
    Found(bool),
}

impl Case {
    /// A case called `place/what` that needs `program`.
    #[must_use]
    pub fn new(
        place: Place,
        what: &str,
        program: &'static str,
        run: impl Fn(&Lab, &str) -> Result<(), String> + Send + 'static,
    ) -> Self {
        let needs = vec![(Need::Program(program), program)];
        Self { name: format!("{place}/{what}"), needs, place, beside: false, run: Box::new(run) }
    }

    /// Lets the case run beside others: its programs do not keep both CPUs busy, and it measures nothing.
    #[must_use]
    pub fn beside_others(self) -> Self {
        Self { beside: true, ..self }
    }

    /// Adds something that the case needs, under the name of its package or program.
    #[must_use]
    pub fn with(mut self, need: Need, name: &'static str) -> Self {
        self.needs.push((need, name));
        self
    }

    /// Gives the case another function.
    #[must_use]
    pub fn running(mut self, run: impl Fn(&Lab, &str) -> Result<(), String> + Send + 'static) -> Self {
        self.run = Box::new(run);
        self
    }

    /// Adds programs that the case needs.
    #[must_use]
    pub fn with_programs(self, programs: &[&'static str]) -> Self {
        programs.iter().fold(self, |case, program| case.with(Need::Program(program), program))
    }

    /// What this machine lacks for the case.
    fn missing(&self) -> Option<&'static str> {
        let lacks = |need: Need| match need {
            Need::Program(program) => binaries::find(program).is_none(),
            Need::File(file) => !Path::new(file).exists(),
            Need::Found(found) => !found,
        };
        if let Some((_, name)) = self.needs.iter().find(|(need, _)| lacks(*need)) {
            return Some(name);
        }
        let anywhere = self.place.topology == Topology::Loopback && self.place.user == User::Ordinary;
        (!is_root() && !anywhere).then_some("root (network namespaces)")
    }
}

/// What the cases of a run share.
struct Shared {
    lab: Lab,
    /// Labs with namespaces that no case uses at the moment.
    idle: Mutex<Vec<Lab>>,
    /// Locked for writing by a case that runs alone: most programs poll, some on every CPU.
    quiet: RwLock<()>,
    durations: Durations,
}

impl Shared {
    fn run(&self, beside: bool, name: &str, run: &Run) -> Result<(), String> {
        let (others, alone) = match beside && is_root() {
            true => (Some(self.quiet.read().unwrap_or_else(PoisonError::into_inner)), None),
            false => (None, Some(self.quiet.write().unwrap_or_else(PoisonError::into_inner))),
        };
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let last = idle().pop();
        let lab = last.unwrap_or_else(|| self.lab.apart());
        let result = self.durations.measure(name, beside, || run(&lab, name));
        idle().push(lab);
        drop((others, alone));
        result
    }
}

/// Cases that run at the same time, of those that may run beside others: their programs sleep for a third of
/// their time.
const AT_ONCE: usize = 3;

/// Runs the cases that `args` choose, three at a time if all of them may run beside others, unless `args` say
/// otherwise. `name` is the directory of the outputs, and of the file `durations`.
#[must_use]
pub fn run(name: &str, mut args: Arguments, mut cases: Vec<Case>) -> ExitCode {
    // Two cases of one name would write to the same files at the same time.
    let mut names = BTreeSet::new();
    let twice = cases.iter().find(|case| !names.insert(case.name.as_str()));
    assert!(twice.is_none(), "two cases are called {:?}", twice.map(|case| &case.name));
    args.test_threads = args.test_threads.or(Some(AT_ONCE));
    if args.list {
        let listed = cases.into_iter().map(|case| Trial::test(case.name, || Ok(())));
        return libtest_mimic::run(&args, listed.collect()).exit_code();
    }
    let mut skipped = Skipped::default();
    cases.retain(|case| is_chosen(&args, &case.name));
    // Those that run beside others first: each change between the two kinds waits for running cases.
    cases.sort_by_key(|case| !case.beside);
    let lab = match Lab::new(logs(name)) {
        Ok(lab) => lab,
        Err(error) => return without_binaries(&error.to_string(), cases.len()),
    };
    let (idle, quiet) = (Mutex::default(), RwLock::default());
    let shared = Arc::new(Shared { lab, idle, quiet, durations: Durations::default() });
    let trials = cases.into_iter().map(|case| trial(case, &shared, &mut skipped)).collect();
    let conclusion = libtest_mimic::run(&args, trials);
    let logs = shared.lab.logs();
    match shared.durations.write(logs) {
        Ok(longest) => println!("the longest cases (all: {}/durations):\n{longest}", logs.display()),
        Err(error) => println!("{}/durations: {error}", logs.display()),
    }
    skipped.summary(&conclusion)
}

fn trial(case: Case, shared: &Arc<Shared>, skipped: &mut Skipped) -> Trial {
    let need = case.missing();
    let shared = Arc::clone(shared);
    let ignored = need.is_some();
    if let Some(need) = need {
        skipped.add(need);
    }
    let name = case.name.clone();
    let run = move || shared.run(case.beside, &name, &case.run).map_err(Failed::from);
    Trial::test(case.name, run).with_ignored_flag(ignored)
}

/// Requires exit code 0.
///
/// # Errors
/// A description with the command line and the output.
pub fn good(ended: Ended) -> Result<Ended, String> {
    if ended.succeeded() { Ok(ended) } else { Err(ended.describe()) }
}

/// Requires `needle` in the output.
///
/// # Errors
/// A description with the command line and the output.
pub fn says(ended: &Ended, needle: &str) -> Result<(), String> {
    if ended.output.contains(needle) {
        return Ok(());
    }
    Err(format!("'{needle}' is not in the output\n{}", ended.describe()))
}
