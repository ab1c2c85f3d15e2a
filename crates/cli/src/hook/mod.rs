//! Hooks on the command line: those that a program starts with, and `roxie hook` for a running process.

pub(crate) mod args;
pub(crate) mod data;
mod frames;
pub(crate) mod loaded;
pub(crate) mod object;
mod report;

use roxie::hook::control::{ControlError, Remote};
use roxie::hook::{HookError, HookPlan};
use roxie::verbs::HookConfig;

use crate::engines::{device_of, engines_of, unanswered};
use crate::failure::{Failure, Outcome};
use args::{HookArgs, HookCommand, HookToolArgs};

/// Runs the subcommand.
pub(crate) fn run(args: &HookToolArgs) -> Outcome {
    match &args.command {
        HookCommand::Attach(args) => {
            // Load it here first: an error then has all names, and the other process is not disturbed.
            let plan = attachable(&args.hook)?;
            each(args.pid, |remote| remote.attach(args.point, &plan, args.replace))
        }
        HookCommand::Detach(args) => each(args.pid, |remote| remote.detach(args.point)),
        HookCommand::List(args) => report::list(args),
        HookCommand::Stats(args) => report::stats(args),
        HookCommand::Frames(args) => frames::frames(args),
        HookCommand::Map(args) => crate::bpf_data::run(args),
        HookCommand::Samples(args) => data::samples(args),
        HookCommand::Log(args) => data::log(args),
    }
}

/// Sends a request to all engines of a process; a failure names the device.
fn each(pid: u32, mut ask: impl FnMut(&Remote) -> Result<(), ControlError>) -> Outcome {
    let engines = engines_of(pid)?;
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
