//! Hooks on the command line: checked here, so that a program does not start without what was asked for.

use roxie::hook::{self, Hook, HookError};
use roxie::verbs::HookConfig;

use crate::args::HookArgs;
use crate::failure::{Failure, Outcome};

impl HookArgs {
    /// Both hooks as the environment names them, with paths that mean the same wherever the program goes.
    pub(crate) fn texts(&self) -> Outcome<(Option<String>, Option<String>)> {
        let env = HookConfig::from_env();
        let text = |given: &Option<String>, env: &str| {
            let text = given.as_deref().unwrap_or(env);
            if !text.is_empty() {
                Hook::parse(text).map_err(refused)?;
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
