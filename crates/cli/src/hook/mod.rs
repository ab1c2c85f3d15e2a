//! Hooks on the command line: those a program starts with, and `roxie hook` for one that runs.

pub(crate) mod args;
mod frames;
mod report;

use roxie::hook::control::{ControlError, Remote};
use roxie::hook::{self, HookError, HookPlan, HookPoint};
use roxie::verbs::HookConfig;

use crate::engines::{engines, unanswered};
use crate::failure::{Failure, Outcome};
use args::{HookArgs, HookCommand, HookToolArgs, PointArg};

/// Does what was asked.
pub(crate) fn run(args: &HookToolArgs) -> Outcome {
    match &args.command {
        HookCommand::Attach(args) => {
            // What is wrong with it shows here, with all its names, and not in the other process.
            let plan = sound(&args.hook).map_err(|error| refused(error).code(2))?;
            each(args.pid, |remote| remote.attach(args.point.point(), &plan, args.replace))
        }
        HookCommand::Detach(args) => each(args.pid, |remote| remote.detach(args.point.point())),
        HookCommand::List(args) => report::list(args),
        HookCommand::Stats(args) => report::stats(args),
        HookCommand::Frames(args) => frames::frames(args),
    }
}

/// Asks all engines of a process.
fn each(pid: u32, mut ask: impl FnMut(&Remote) -> Result<(), ControlError>) -> Outcome {
    engines(Some(pid))?.iter().try_for_each(|remote| ask(remote).map_err(|error| unanswered(pid, &error)))
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
    /// Both hooks as the environment names them, with paths that mean the same wherever the program goes. What makes no
    /// sense is an error of the command line.
    pub(crate) fn texts(&self) -> Outcome<(Option<String>, Option<String>)> {
        let env = HookConfig::from_env();
        let text = |given: &Option<String>, env: &str| {
            let text = given.as_deref().unwrap_or(env);
            // An empty variable is none; an empty option is a mistake in a script.
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

/// The hook that `text` names, if it can be made; says what the kernel would not take of it.
fn sound(text: &str) -> Result<HookPlan, HookError> {
    let plan = HookPlan::read(text)?;
    plan.build()?;
    for doubt in plan.doubts() {
        eprintln!("roxie: warning: {doubt}");
    }
    Ok(plan)
}
