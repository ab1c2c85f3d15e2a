//! Parameters of native stages: `name=value`, separated by commas.

use super::HookError;

/// The parameters of a native stage: `name=value`, separated by commas.
pub(super) struct Parameters<'a> {
    stage: &'static str,
    rest: &'a str,
    current: &'a str,
    usage: &'static str,
}

impl<'a> Parameters<'a> {
    pub(super) fn new(stage: &'static str, text: &'a str, usage: &'static str) -> Parameters<'a> {
        Parameters { stage, rest: text, current: "", usage }
    }

    pub(super) fn next(&mut self) -> Result<Option<(&'a str, &'a str)>, HookError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        (self.current, self.rest) = self.rest.split_once(',').unwrap_or((self.rest, ""));
        let pair = self.current.split_once('=').ok_or_else(|| self.error())?;
        Ok(Some((pair.0.trim(), pair.1.trim())))
    }

    /// Reports that the current parameter is invalid.
    pub(super) fn error(&self) -> HookError {
        HookError::Parameter { stage: self.stage, text: self.current.to_owned(), usage: self.usage }
    }

    pub(super) fn number(&self, value: &str) -> Result<u64, HookError> {
        value.parse().map_err(|_| self.error())
    }

    /// Parses a number like [`quantity`].
    pub(super) fn quantity(&self, value: &str) -> Result<u64, HookError> {
        quantity(value).ok_or_else(|| self.error())
    }

    /// Parses `1%` or `0.01`.
    pub(super) fn fraction(&self, value: &str) -> Result<f64, HookError> {
        let (digits, unit) = value.strip_suffix('%').map_or((value, 1.0), |digits| (digits, 100.0));
        let fraction = digits.parse::<f64>().map_err(|_| self.error())? / unit;
        if (0.0..=1.0).contains(&fraction) { Ok(fraction) } else { Err(self.error()) }
    }

    /// Parses `10us`, `2ms`, `1.5s`; at most a minute.
    pub(super) fn time_ns(&self, value: &str) -> Result<u64, HookError> {
        const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
        let time =
            UNITS.iter().find_map(|(unit, ns)| Some(value.strip_suffix(unit)?.parse::<f64>().ok()? * ns));
        time.filter(|ns| (0.0..=60e9).contains(ns)).map(|ns| ns as u64).ok_or_else(|| self.error())
    }
}

/// Parses a whole number such as `12`, `12K` (1000), `12Ki` (1024), and so on with M and G. `None` if it
/// is invalid, or does not fit.
#[must_use]
pub fn quantity(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::super::{Chosen, Impair};
    use super::*;

    fn impair(text: &str) -> Result<Impair, String> {
        Impair::parse(text).map_err(|error| error.to_string())
    }

    #[test]
    fn parameters_have_units() {
        let all = impair("loss=1%,duplicate=0.25,delay=1.5ms,jitter=20us,ecn=5%,seed=7").unwrap();
        let expected = Impair {
            loss: 0.01,
            duplicate: 0.25,
            delay_ns: 1_500_000,
            jitter_ns: 20_000,
            ecn: 0.05,
            seed: 7,
            chosen: Chosen::ALL,
        };
        assert_eq!(all, expected);
        let third =
            Impair { chosen: Chosen::ALL.opcode("ack").and_then(|acks| acks.nth(3, 3)).unwrap(), ..all };
        let text = "loss=1%,duplicate=0.25,delay=1.5ms,jitter=20us,ecn=5%,seed=7,nth=3,opcode=ack";
        assert_eq!(impair(text), Ok(third));
        assert_eq!(impair("").unwrap().loss, 0.0);
        for wrong in [
            "loss",
            "loss=",
            "loss=101%",
            "loss=-1%",
            "loss=nan",
            "delay=5",
            "delay=61s",
            "delay=-1s",
            "x=1",
            "seed=-1",
            "loss=1%,loss=2%",
            "opcode=wrte",
            "nth=0",
            ",",
        ] {
            let error = impair(wrong).unwrap_err();
            assert!(error.contains("impair:loss=1%"), "{wrong}: {error}");
        }
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(quantity("12"), Some(12));
        assert_eq!(quantity("3K"), Some(3000));
        assert_eq!(quantity("3Ki"), Some(3072));
        assert_eq!(quantity("2Gi"), Some(1 << 31));
        for wrong in ["", "K", "1k", "1KiB", "-1", "+", "99999999999999999999", "20000000000G"] {
            assert_eq!(quantity(wrong), None, "{wrong}");
        }
    }
}
