//! Hooks on the command line: those that a program starts with, and `roxie hook` for a running process.

pub(crate) mod args;
pub(crate) mod data;
mod frames;
mod report;

use roxie::hook::control::{ControlError, Remote};
use roxie::hook::{self, HookError, HookPlan, HookPoint};
use roxie::verbs::HookConfig;

use crate::engines::{engines_of, unanswered};
use crate::failure::{Failure, Outcome};
use args::{HookArgs, HookCommand, HookToolArgs, PointArg};

/// Runs the subcommand.
pub(crate) fn run(args: &HookToolArgs) -> Outcome {
    match &args.command {
        HookCommand::Attach(args) => {
            // Load it here first: an error then has all names, and the other process is not disturbed.
            let plan = sound(&args.hook).map_err(|error| refused(error).code(2))?;
            each(args.pid, |remote| remote.attach(args.point.point(), &plan, args.replace))
        }
        HookCommand::Detach(args) => each(args.pid, |remote| remote.detach(args.point.point())),
        HookCommand::List(args) => report::list(args),
        HookCommand::Stats(args) => report::stats(args),
        HookCommand::Frames(args) => frames::frames(args),
        HookCommand::Map(args) => crate::bpf_data::run(args),
        HookCommand::Samples(args) => data::samples(args),
        HookCommand::Log(args) => data::log(args),
    }
}

/// Sends a request to all engines of a process.
fn each(pid: u32, mut ask: impl FnMut(&Remote) -> Result<(), ControlError>) -> Outcome {
    engines_of(pid)?.iter().try_for_each(|remote| ask(remote).map_err(|error| unanswered(pid, &error)))
}

impl PointArg {
    fn point(self) -> HookPoint {
        match self {
            PointArg::Ingress => HookPoint::Ingress,
            PointArg::Egress => HookPoint::Egress,
        }
    }
}

impl HookArgs {
    /// Both hooks for the environment, with absolute paths. An invalid hook is an error of the command
    /// line.
    pub(crate) fn texts(&self) -> Outcome<(Option<String>, Option<String>)> {
        let env = HookConfig::from_env();
        let text = |given: &Option<String>, env: &str| {
            let text = given.as_deref().unwrap_or(env);
            // An empty variable means no hook; an empty option is a mistake in a script.
            if given.is_some() || !text.is_empty() {
                sound(text).map_err(|error| refused(error).code(2))?;
            }
            given.as_deref().map(|text| hook::absolute(text).map_err(refused)).transpose()
        };
        Ok((text(&self.ingress, &env.ingress)?, text(&self.egress, &env.egress)?))
    }
}

fn refused(error: HookError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error.remedy() {
        Some(remedy) => failure.hint(remedy),
        None => failure,
    }
}

/// Loads the hook that `text` names; warns of what the kernel would reject.
fn sound(text: &str) -> Result<HookPlan, HookError> {
    let plan = HookPlan::read(text)?;
    plan.build()?;
    for doubt in plan.doubts() {
        say!("roxie: warning: {doubt}");
    }
    Ok(plan)
}
