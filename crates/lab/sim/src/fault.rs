//! Faults of a run: a random subset (swarm testing), or those that the user names.

use std::fmt;
use std::str::FromStr;

use crate::rng::Rng;

/// Meaning of a fault's parameter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Unit {
    /// Rate in parts per million: the largest that is drawn, and the largest that the user may choose.
    Rate(u32, u32),
    /// A number from 1 on: the largest that is drawn, and the largest that the user may choose.
    Count(u32, u32),
    /// No parameter.
    Nothing,
}

macro_rules! faults {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal, $unit:expr;)*) => {
        /// A fault that can happen in a run.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum Fault {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Fault {
            /// All faults; `fault as usize` is the index.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name, as it is written in a list.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            const fn unit(self) -> Unit {
                match self { $(Self::$variant => $unit,)* }
            }
        }
    };
}

faults! {
    /// Frames are lost at random.
    Drop = "drop", Unit::Rate(50_000, 100_000);
    /// The k-th frame of one kind (requests, acknowledgements, responses, ...) to each queue pair is lost.
    Kth = "kth", Unit::Count(24, 1_000_000);
    /// A link loses most of several consecutive frames; the parameter is the rate at which that begins.
    Burst = "burst", Unit::Rate(5_000, 20_000);
    /// Frames are duplicated.
    Duplicate = "duplicate", Unit::Rate(50_000, 100_000);
    /// Frames are delayed, so that later frames overtake them.
    Reorder = "reorder", Unit::Rate(100_000, 200_000);
    /// A link stands still for up to a millisecond; the parameter is the rate.
    Delay = "delay", Unit::Rate(3_000, 10_000);
    /// Bits of frames are flipped.
    Corrupt = "corrupt", Unit::Rate(20_000, 100_000);
    /// Frames are cut.
    Truncate = "truncate", Unit::Rate(20_000, 100_000);
    /// For some time no frame gets from one set of nodes to the other.
    Partition = "partition", Unit::Nothing;
    /// A node stops sending and receiving for good.
    Vanish = "vanish", Unit::Nothing;
    /// Applications post their receives late.
    Rnr = "rnr", Unit::Nothing;
    /// Queues of the switch and receive rings of the nodes are short.
    FullRing = "full-ring", Unit::Nothing;
    /// From time to time nodes have no buffers for arriving frames.
    EmptyPool = "empty-pool", Unit::Nothing;
    /// A forger off the path sends requests, responses, CNPs and CM messages in the names of the nodes.
    Forge = "forge", Unit::Nothing;
    /// Queue pairs change their UDP source port; the parameter is the rate. Not together with `forge`: after
    /// many guesses a connection believes no other port for a minute.
    Rebind = "rebind", Unit::Rate(5_000, 20_000);
}

impl Fault {
    fn draw(self, rng: &mut Rng) -> u32 {
        let number = rng.next();
        match self.unit() {
            // Small rates are as likely as large ones.
            Unit::Rate(max, _) => 1 + ((number % u64::from(max)) >> ((number >> 32) % 8)) as u32,
            Unit::Count(max, _) => 1 + (number % u64::from(max)) as u32,
            Unit::Nothing => 1,
        }
    }

    /// Parses the parameter of `drop=1.5%` or `kth=7`.
    fn parse(self, text: &str) -> Option<u32> {
        match self.unit() {
            Unit::Rate(_, max) => {
                let percent: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
                let ppm = (percent * 10_000.0).round();
                (ppm >= 1.0 && ppm <= f64::from(max)).then_some(ppm as u32)
            }
            Unit::Count(_, max) => text.parse().ok().filter(|count| (1..=max).contains(count)),
            Unit::Nothing => None,
        }
    }

    /// Returns the valid values after `=` as text.
    fn range(self) -> String {
        match self.unit() {
            Unit::Rate(_, max) => format!("0.0001% to {}%", f64::from(max) / 10_000.0),
            Unit::Count(_, max) => format!("1 to {max}"),
            Unit::Nothing => String::new(),
        }
    }
}

/// The faults of a run, each with its parameter.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Faults {
    /// Parameter of each fault; 0 if it does not happen.
    numbers: [u32; Fault::ALL.len()],
}

impl Faults {
    /// Draws a random subset, so that some runs have few faults and some many.
    pub(crate) fn swarm(rng: &mut Rng) -> Self {
        let mut faults = Self::default();
        // The probability of each fault differs between runs; otherwise runs with few faults would be rare.
        let likely = rng.pick(&[0, 100, 300, 500, 500]);
        for &fault in Fault::ALL {
            let number = fault.draw(rng);
            // A vanished node ends the activity of its peers early.
            let likely = if fault == Fault::Vanish { likely / 3 } else { likely };
            if rng.chance(likely) {
                faults.numbers[fault as usize] = number;
            }
        }
        faults
    }

    /// Returns whether the fault happens.
    #[must_use]
    pub fn has(&self, fault: Fault) -> bool {
        self.number(fault) > 0
    }

    /// Returns the parameter: parts per million, or a count.
    #[must_use]
    pub fn number(&self, fault: Fault) -> u64 {
        u64::from(self.numbers[fault as usize])
    }

    /// Returns whether no fault happens except those in `named`.
    pub(crate) fn only(&self, named: &[Fault]) -> bool {
        Fault::ALL.iter().all(|fault| named.contains(fault) || !self.has(*fault))
    }
}

/// Writes the form that [`FaultList`] reads.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        FaultList::from(*self).fmt(f)
    }
}

/// Faults as the user names them: `drop=1%,kth=7,burst`. Missing parameters are drawn; `none` is the empty
/// list.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FaultList(Vec<(Fault, Option<u32>)>);

impl FaultList {
    /// Draws the missing parameters.
    pub(crate) fn resolve(&self, rng: &mut Rng) -> Faults {
        let mut faults = Faults::default();
        for &fault in Fault::ALL {
            let drawn = fault.draw(rng);
            if let Some((_, number)) = self.0.iter().find(|(named, _)| *named == fault) {
                faults.numbers[fault as usize] = number.unwrap_or(drawn);
            }
        }
        faults
    }
}

impl From<Faults> for FaultList {
    fn from(faults: Faults) -> Self {
        let numbers = Fault::ALL.iter().zip(faults.numbers);
        Self(numbers.filter(|(_, n)| *n > 0).map(|(fault, n)| (*fault, Some(n))).collect())
    }
}

/// Writes the form that `from_str` reads.
impl fmt::Display for FaultList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let mut comma = "";
        for (fault, number) in &self.0 {
            write!(f, "{comma}{}", fault.name())?;
            match (fault.unit(), number) {
                (Unit::Rate(..), Some(ppm)) => write!(f, "={}%", f64::from(*ppm) / 10_000.0)?,
                (Unit::Count(..), Some(count)) => write!(f, "={count}")?,
                _ => {}
            }
            comma = ",";
        }
        Ok(())
    }
}

/// Reason why a list of faults is invalid.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FaultListError {
    /// No fault has this name.
    Unknown(String),
    /// The parameter has no unit, or is out of range.
    Number(Fault, String),
    /// The fault takes no parameter.
    NoNumber(Fault),
    /// The fault is named twice.
    Twice(Fault),
    /// `none` is combined with other faults.
    NoneAndOthers,
}

impl fmt::Display for FaultListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(word) => {
                let names: Vec<_> = Fault::ALL.iter().map(|fault| fault.name()).collect();
                let all = names.join(", ");
                write!(f, "unknown fault '{word}': use {all}, or 'none' alone")
            }
            Self::Number(fault, text) => {
                write!(
                    f,
                    "'{text}' is not a valid number for {0}: write {0}={1}",
                    fault.name(),
                    fault.range()
                )
            }
            Self::NoNumber(fault) => write!(f, "{0} takes no number: write just '{0}'", fault.name()),
            Self::Twice(fault) => write!(f, "{} is named twice: name it once", fault.name()),
            Self::NoneAndOthers => f.write_str("'none' excludes other faults: remove it, or the others"),
        }
    }
}

impl std::error::Error for FaultListError {}

impl FromStr for FaultList {
    type Err = FaultListError;

    fn from_str(text: &str) -> Result<Self, FaultListError> {
        let mut list = Vec::new();
        if text.trim() == "none" {
            return Ok(Self(list));
        }
        for word in text.split(',').map(str::trim) {
            let (name, number) = match word.split_once('=') {
                Some((name, number)) => (name.trim(), Some(number.trim())),
                None => (word, None),
            };
            if name == "none" {
                return Err(FaultListError::NoneAndOthers);
            }
            let fault = Fault::ALL.iter().copied().find(|fault| fault.name() == name);
            let fault = fault.ok_or_else(|| FaultListError::Unknown(name.to_owned()))?;
            if list.iter().any(|(named, _)| *named == fault) {
                return Err(FaultListError::Twice(fault));
            }
            let wrong = |text: &str| match fault.unit() {
                Unit::Nothing => FaultListError::NoNumber(fault),
                Unit::Rate(..) | Unit::Count(..) => FaultListError::Number(fault, text.to_owned()),
            };
            let number = number.map(|text| fault.parse(text).ok_or_else(|| wrong(text))).transpose()?;
            list.push((fault, number));
        }
        Ok(Self(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_list_survives_parsing_and_display() {
        let list: FaultList = "drop=1%,kth=7,burst".parse().unwrap();
        let faults = list.resolve(&mut Rng(1));
        assert_eq!(list.to_string(), "drop=1%,kth=7,burst");
        assert_eq!((faults.number(Fault::Drop), faults.number(Fault::Kth)), (10_000, 7));
        assert!(faults.has(Fault::Burst) && !faults.has(Fault::Vanish));
        assert!(faults.to_string().starts_with("drop=1%,kth=7,burst="), "{faults}");
        assert_eq!(FaultList::from_str("none").unwrap().resolve(&mut Rng(1)), Faults::default());
        assert_eq!(Faults::default().to_string(), "none");
    }

    /// The command that replays a run names the drawn faults.
    #[test]
    fn displayed_faults_parse_to_the_same_faults() {
        let mut seen = [false; Fault::ALL.len()];
        for seed in 0..500 {
            let faults = Faults::swarm(&mut Rng(seed));
            let list: FaultList = faults.to_string().parse().unwrap();
            assert_eq!(list.resolve(&mut Rng(!seed)), faults, "{faults}");
            assert_eq!(FaultList::from(faults).resolve(&mut Rng(!seed)), faults);
            for &fault in Fault::ALL {
                seen[fault as usize] |= faults.has(fault);
            }
        }
        assert_eq!(seen, [true; Fault::ALL.len()]);
    }

    #[test]
    fn an_invalid_list_is_refused_with_the_valid_choices() {
        for (text, expected) in [
            ("drip", "unknown fault 'drip': use drop, kth"),
            ("", "unknown fault ''"),
            ("drop=1", "'1' is not a valid number for drop: write drop=0.0001% to 10%"),
            ("drop=0%", "'0%'"),
            ("drop=11%", "'11%'"),
            ("drop=NaN%", "'NaN%'"),
            ("kth=0", "1 to 1000000"),
            ("vanish=1", "vanish takes no number: write just 'vanish'"),
            ("burst,burst", "burst is named twice"),
            ("none,drop", "'none' excludes other faults"),
            ("drop,none", "'none' excludes other faults"),
            ("none=1", "'none' excludes other faults"),
        ] {
            let error = FaultList::from_str(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
