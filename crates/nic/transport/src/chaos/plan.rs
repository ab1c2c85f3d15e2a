//! A plan: the seed, the kinds of faults, and how many of them. As text `seed=7,faults=loss+rnr,first=3`.

use std::fmt;
use std::str::FromStr;

use super::Draw;
use super::fault::{Fault, Faults};

/// What a seed stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ChaosPlan {
    /// The seed of all decisions.
    pub seed: u64,
    /// The kinds of faults. Without a list in its text, a plan has a subset of the default ones that the seed
    /// chooses, so that some seeds are calm and others brutal.
    pub faults: Faults,
    /// Only so many faults are injected; `None` for no limit.
    pub first: Option<u64>,
}

/// What is wrong with the text of a plan.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PlanError {
    /// It has no seed.
    NoSeed,
    /// This part is there two times.
    Repeated(&'static str),
    /// The value of this part is no number.
    NotANumber(&'static str),
    /// A part has another name.
    UnknownPart,
    /// `faults=` has a name that no fault has.
    UnknownFault,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::NoSeed => f.write_str("seed= is missing"),
            PlanError::Repeated(key) => write!(f, "{key}= is given two times"),
            PlanError::NotANumber(key) => write!(f, "the value of {key}= is not a number"),
            PlanError::UnknownPart => f.write_str("a part is none of seed=, faults=, first="),
            PlanError::UnknownFault => {
                write!(f, "faults= names an unknown fault; there are {}", Fault::NAMES.join(", "))
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// Positions of draws that concern a whole run.
const SUBSET: u64 = u64::MAX;
const SHARE: u64 = u64::MAX - 1;

impl ChaosPlan {
    /// Description of the valid texts.
    pub const WORDS: &str = "seed=N[,faults=NAME+NAME...][,first=N]";

    /// The plan of a seed: each default fault with a probability of one half, at least one.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let defaults = || Fault::ALL.into_iter().filter(|fault| fault.is_default());
        let chosen = |fault: &Fault| Draw::new(seed, *fault, 0, SUBSET).below(2) == 0;
        let faults: Faults = defaults().filter(chosen).collect();
        let faults = if faults.is_empty() { defaults().collect() } else { faults };
        Self { seed, faults, first: None }
    }

    /// How many of 256 positions a fault strikes in this run.
    pub(super) fn share(&self, fault: Fault) -> u64 {
        // Each retransmission costs a round trip or a timer; with more of them a run is slow, not harder.
        let shares: [u64; 3] = match fault {
            Fault::Loss | Fault::Datagrams => [2, 6, 16],
            Fault::Rnr | Fault::Order | Fault::Duplicates => [4, 16, 48],
            Fault::ConnectionLoss => [256; 3],
            _ => [24, 96, 224],
        };
        shares[Draw::new(self.seed, fault, 0, SHARE).below(3) as usize]
    }
}

impl FromStr for ChaosPlan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let (mut seed, mut faults, mut first) = (None, None, None);
        for part in text.split(',') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let number = |key| value.parse().map_err(|_| PlanError::NotANumber(key));
            let (key, is_new) = match key {
                "seed" => ("seed", seed.replace(number("seed")?).is_none()),
                "first" => ("first", first.replace(number("first")?).is_none()),
                "faults" => ("faults", faults.replace(parse_faults(value)?).is_none()),
                _ => return Err(PlanError::UnknownPart),
            };
            if !is_new {
                return Err(PlanError::Repeated(key));
            }
        }
        let seed = seed.ok_or(PlanError::NoSeed)?;
        let plan = Self::of_seed(seed);
        Ok(Self { faults: faults.unwrap_or(plan.faults), first, ..plan })
    }
}

fn parse_faults(text: &str) -> Result<Faults, PlanError> {
    let parse = |name: &str| {
        // `all` stands for the default faults.
        let named = |fault: &Fault| fault.name() == name || (name == "all" && fault.is_default());
        let found: Vec<Fault> = Fault::ALL.into_iter().filter(named).collect();
        if found.is_empty() { Err(PlanError::UnknownFault) } else { Ok(found) }
    };
    let parts: Vec<Vec<Fault>> = text.split('+').map(parse).collect::<Result<_, _>>()?;
    Ok(parts.into_iter().flatten().collect())
}

impl fmt::Display for ChaosPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={},faults={}", self.seed, self.faults)?;
        self.first.map_or(Ok(()), |first| write!(f, ",first={first}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_text() {
        for text in ["seed=7,faults=loss+rnr", "seed=0,faults=placement,first=12"] {
            // The order of names in the text is that of the list.
            let plan: ChaosPlan = text.parse().expect("a plan");
            assert_eq!(plan.to_string().parse(), Ok(plan), "{text}");
        }
        for seed in 0..200 {
            let plan: ChaosPlan = format!("seed={seed}").parse().expect("a plan");
            assert_eq!(plan.to_string().parse(), Ok(plan));
            assert!(plan.faults.iter().all(Fault::is_default) && !plan.faults.is_empty());
        }
    }

    #[test]
    fn seeds_have_different_faults_and_every_default_fault_has_a_seed() {
        let plans: Vec<ChaosPlan> = (0..32).map(ChaosPlan::of_seed).collect();
        for fault in Fault::ALL {
            let with = plans.iter().filter(|plan| plan.faults.contains(fault)).count();
            assert_eq!(with > 4 && with < 28, fault.is_default(), "{fault}: {with}");
        }
    }

    #[test]
    fn a_wrong_plan_says_what_is_wrong() {
        let error = |text: &str| text.parse::<ChaosPlan>().expect_err("wrong").to_string();
        assert_eq!(error("faults=loss"), "seed= is missing");
        assert_eq!(error("seed=x"), "the value of seed= is not a number");
        assert_eq!(error("seed=1,seed=2"), "seed= is given two times");
        assert_eq!(error("seed=1,rate=3"), "a part is none of seed=, faults=, first=");
        let unknown = error("seed=1,faults=los");
        assert!(
            unknown.starts_with("faults= names an unknown fault; there are placement, visibility"),
            "{unknown}"
        );
    }
}
