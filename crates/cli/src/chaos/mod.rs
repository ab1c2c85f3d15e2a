//! `roxie run --chaos`: an adversarial, legal NIC, and the search for a seed that makes a program fail.

pub(crate) mod search;

use std::ops::RangeInclusive;

use clap::Args as ClapArgs;
use roxie::chaos::VARIABLE;
use roxie::transport::chaos::{ChaosPlan, PlanError};

use crate::failure::{Failure, Outcome};

/// The faults of the device.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct ChaosArgs {
    /// Behave as badly as a NIC may: seed=N[,faults=NAME+NAME...][,first=N], or seeds=A..B to search
    ///
    /// Everything that the device then does is legal, so a correct program continues to work: payload
    /// becomes visible in any order and late, send buffers are read late, completions and events come late
    /// and in batches, packets are lost. The seed decides what happens at which message and packet, not
    /// when; so it replays a failure as far as the program does the same again. A line on standard error
    /// says at the end what was injected.
    ///
    /// Faults: placement, visibility, send-reads, windows, completions, cq-order, events, wake-ups, rnr,
    /// loss, order, duplicates; 'all' stands for these. Only if named: datagrams, loss-of-connection.
    /// Without faults= the seed chooses half of the former. first=N injects only the first N faults.
    ///
    /// seeds=1..100 runs COMMAND with each seed until one fails (other exit status than 0, signal,
    /// --timeout), looks for the fewest faults that make it fail, and prints the command that replays it.
    /// The exit status is then 67, and 0 if every seed passed.
    ///
    /// Also: environment variable ROXIE_CHAOS, with one seed.
    #[arg(long, value_name = "PLAN", value_parser = parse)]
    pub(crate) chaos: Option<Chosen>,
    /// With several seeds: a run that takes longer fails [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<f64>,
}

impl ChaosArgs {
    /// Checks the options against each other, and the variable.
    ///
    /// # Errors
    /// `--timeout` with one seed; an invalid `ROXIE_CHAOS`.
    pub(crate) fn check(&self) -> Outcome {
        if self.timeout.is_some() && !matches!(self.chaos, Some(Chosen::Search(_))) {
            return Err(
                Failure::new("--timeout needs --chaos seeds=A..B, or --seeds N of roxie check").code(2)
            );
        }
        let plan =
            roxie::chaos::plan_from_env().map_err(|error| Failure::new(format!("{VARIABLE}: {error}")));
        plan.map(drop)
            .map_err(|failure| failure.hint(format!("use {}, or unset it", ChaosPlan::WORDS)).code(2))
    }

    /// Fails if seeds are to be searched, which takes many runs; `why` there is one.
    pub(crate) fn refuse_search(&self, why: &str, hint: &str) -> Outcome {
        match self.chaos {
            Some(Chosen::Search(_)) => {
                let failure = Failure::new(format!("{why}, so it takes no --chaos seeds=A..B"));
                Err(failure.hint(hint).code(2))
            }
            Some(Chosen::Plan(_)) | None => Ok(()),
        }
    }
}

/// The value of the option.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Chosen {
    /// Run the command with this plan.
    Plan(ChaosPlan),
    /// Run it with each of the seeds, with these faults or those that each seed chooses.
    Search(Search),
}

/// Seeds to search.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Search {
    pub(crate) seeds: RangeInclusive<u64>,
    /// What follows the seed in the text of a plan.
    rest: String,
}

impl Search {
    /// The seeds from 1 to this one; each chooses its faults.
    pub(crate) fn first(seeds: u64) -> Self {
        Self { seeds: 1..=seeds, rest: String::new() }
    }

    /// The plan with this seed.
    pub(crate) fn plan(&self, seed: u64) -> ChaosPlan {
        // The text was parsed with another seed already.
        format!("seed={seed}{}", self.rest).parse().unwrap_or_else(|_| ChaosPlan::of_seed(seed))
    }
}

fn parse(text: &str) -> Result<Chosen, String> {
    let Some(range) = text.strip_prefix("seeds=") else {
        return text.parse().map(Chosen::Plan).map_err(|error: PlanError| error.to_string());
    };
    let (range, rest) = range.split_at(range.find(',').unwrap_or(range.len()));
    let bounds = range.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let (from, to): (u64, u64) =
        bounds.ok_or_else(|| format!("seeds={range} is no range such as seeds=1..100"))?;
    if from > to {
        return Err(format!("seeds={range} has no seed"));
    }
    format!("seed={from}{rest}").parse::<ChaosPlan>().map_err(|error| error.to_string())?;
    Ok(Chosen::Search(Search { seeds: from..=to, rest: rest.to_owned() }))
}

#[cfg(test)]
mod tests {
    use roxie::transport::chaos::Fault;

    use super::*;

    #[test]
    fn a_value_is_a_plan_or_a_search() {
        let Ok(Chosen::Plan(plan)) = parse("seed=7,faults=all") else { panic!("a plan") };
        assert!(Fault::ALL.iter().all(|fault| plan.faults.contains(*fault) == fault.is_default()));
        let Ok(Chosen::Search(search)) = parse("seeds=3..9,faults=rnr,first=2") else { panic!("a search") };
        assert_eq!(search.seeds, 3..=9);
        assert_eq!(search.plan(5).to_string(), "seed=5,faults=rnr,first=2");
        for (wrong, why) in [
            ("seeds=9..3", "seeds=9..3 has no seed"),
            ("seeds=1", "seeds=1 is no range such as seeds=1..100"),
            ("seeds=1..2,faults=x", "faults= names an unknown fault; there are placement"),
            ("7", "a part is none of seed=, faults=, first="),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
