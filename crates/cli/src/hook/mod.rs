//! Hooks on the command line: those that a program starts with, and `roxie hook` for a running process.

pub(crate) mod args;
pub(crate) mod data;
mod frames;
pub(crate) mod loaded;
pub(crate) mod object;
mod report;

use roxie::verbs::HookConfig;
use roxie_hook::control::{ControlError, Remote};
use roxie_hook::{HookError, HookPlan, HookPoint};

use crate::engines::{device_of, engines_of, unanswered};
use crate::failure::{Failure, Outcome};
use args::{HookArgs, HookCommand, HookToolArgs};

/// Runs the subcommand.
pub(crate) fn run(args: &HookToolArgs) -> Outcome {
    match &args.command {
        HookCommand::Attach(args) => {
            // Load it here first: an error then has all names, and the other process is not disturbed.
            let plan = attachable(&args.hook)?;
            // A device that has a program refuses before another one gets it.
            let [having, others] = engines_by_hook(args.pid, args.point)?;
            let attach = |remote: &Remote| remote.attach(args.point, &plan, args.replace);
            each(args.pid, &having, attach)?;
            each(args.pid, &others, attach)
        }
        HookCommand::Detach(args) => {
            let [having, others] = engines_by_hook(args.pid, args.point)?;
            let asked = if having.is_empty() { others } else { having };
            each(args.pid, &asked, |remote| remote.detach(args.point))
        }
        HookCommand::List(args) => report::list(args),
        HookCommand::Stats(args) => report::stats(args),
        HookCommand::Frames(args) => frames::frames(args),
        HookCommand::Map(args) => crate::bpf_data::run(args),
        HookCommand::Samples(args) => data::samples(args),
        HookCommand::Log(args) => data::log(args),
    }
}

/// The engines of a process with a program at this point, and those without one; a device that the process
/// opened later has none.
fn engines_by_hook(pid: u32, point: HookPoint) -> Outcome<[Vec<Remote>; 2]> {
    let [mut having, mut others] = [Vec::new(), Vec::new()];
    for remote in engines_of(pid)? {
        let hooks = remote.hooks().map_err(|error| unanswered(pid, &error))?;
        let group = if hooks.iter().any(|hook| hook.point == point) { &mut having } else { &mut others };
        group.push(remote);
    }
    Ok([having, others])
}

/// Sends a request to engines of a process; a failure names the device.
fn each(pid: u32, engines: &[Remote], ask: impl Fn(&Remote) -> Result<(), ControlError>) -> Outcome {
    let devices = engines.iter().map(device_of).collect::<Outcome<Vec<_>>>()?;
    engines.iter().zip(devices).try_for_each(|(remote, (device, netdev))| {
        ask(remote).map_err(|error| unanswered(pid, &error).of(&format!("{device} on {netdev}")))
    })
}

impl HookArgs {
    /// Both hooks for the environment; `None` to leave a variable as it is. An invalid hook is an error of
    /// the command line.
    pub(crate) fn texts(&self) -> Outcome<(Option<String>, Option<String>)> {
        let env = HookConfig::from_env();
        let text = |given: &Option<String>, env: &str| {
            let text = given.as_deref().unwrap_or(env);
            // An empty variable means no hook; an empty option is a mistake in a script.
            if given.is_none() && text.is_empty() {
                return Ok(None);
            }
            let plan = sound(text)?;
            // Another `roxie run` may have loaded it already.
            match plan.is_native() || text.starts_with(HookPlan::LOADED) {
                true => Ok(given.clone()),
                false => loaded::text(plan).map(Some),
            }
        };
        Ok((text(&self.ingress, &env.ingress)?, text(&self.egress, &env.egress)?))
    }
}

/// As [`sound`], for a running process: it must accept the hook.
fn attachable(text: &str) -> Outcome<HookPlan> {
    let plan = sound(text)?;
    loaded::encoded(plan.clone()).ok_or_else(loaded::exceeds)?;
    Ok(plan)
}

/// Why a hook cannot be used: exit code 2.
struct Refused(Failure);

impl From<HookError> for Refused {
    fn from(error: HookError) -> Self {
        Self(Failure::new(error.to_string()).hint_if(error.remedy()))
    }
}

/// Loads the hook that `text` names, and its object files; warns of what the kernel would reject.
fn sound(text: &str) -> Outcome<HookPlan> {
    let read = || -> Result<HookPlan, Refused> {
        let plan = HookPlan::read_with(text, |object| object::program(object).map_err(Refused))?;
        plan.build()?;
        Ok(plan)
    };
    let plan = read().map_err(|Refused(failure)| failure.code(2))?;
    for doubt in plan.doubts() {
        say!("roxie: warning: {doubt}");
    }
    Ok(plan)
}
