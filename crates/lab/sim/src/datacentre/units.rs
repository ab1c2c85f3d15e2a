//! Quantities of a description with their units: times, rates, bytes, shares.

use std::fmt;

use serde::{Deserialize, Deserializer};

/// Picoseconds of a nanosecond.
pub(crate) const PS_PER_NS: u64 = 1000;

/// A virtual time or the length of one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd)]
pub struct Time {
    /// Picoseconds: a byte takes 80 at 100 Gbit/s.
    pub ps: u64,
}

/// Bits per second.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    /// Bits per second.
    pub bps: u64,
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd)]
pub struct Bytes(
    /// Their number.
    pub u64,
);

/// The units of each quantity, with the factor to its base.
const TIMES: [(&str, f64); 5] = [("ns", 1e3), ("us", 1e6), ("ms", 1e9), ("s", 1e12), ("ps", 1.0)];
const RATES: [(&str, f64); 4] = [("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("Tbit/s", 1e12)];
const SIZES: [(&str, f64); 8] = [
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
    ("GiB", 1073741824.0),
    ("KB", 1e3),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("B", 1.0),
];
/// Largest value in the base unit: far below what sums of them may overflow.
const VALUE_MAX: f64 = 1e18;

/// Parses a number and one of these units.
fn parse(text: &str, units: &[(&str, f64)], example: &str) -> Result<u64, String> {
    let usage = || format!("write a number and a unit, such as {example}, not {text:?}");
    let (unit, factor) = units.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(usage)?;
    let number: f64 = text[..text.len() - unit.len()].trim().parse().map_err(|_| usage())?;
    let value = number * factor;
    if (0.0..=VALUE_MAX).contains(&value) { Ok(value.round() as u64) } else { Err(usage()) }
}

/// The value in the largest unit of these that leaves at least 1.
fn show(value: u64, units: &[(&str, f64)]) -> String {
    let value = value as f64;
    let fitting = units.iter().filter(|(_, factor)| value >= *factor);
    let largest = fitting.max_by(|a, b| a.1.total_cmp(&b.1));
    let (unit, factor) = largest.or(units.first()).copied().unwrap_or(("", 1.0));
    let number = format!("{:.3}", value / factor);
    format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

impl Time {
    /// Seconds.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.ps as f64 / 1e12
    }
}

impl Rate {
    /// Picoseconds for each byte, at least 1.
    pub(crate) fn ps_per_byte(self) -> u64 {
        (8_000_000_000_000 / self.bps.max(1)).max(1)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.ps, &TIMES[..4]))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.bps, &RATES))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.0, &[("B", 1.0), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9)]))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text, &TIMES, "5us").map(|ps| Self { ps }).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let bps = parse(&text, &RATES, "10Gbit/s").map_err(serde::de::Error::custom)?;
        if (100_000..=8_000_000_000_000).contains(&bps) {
            Ok(Self { bps })
        } else {
            Err(serde::de::Error::custom(format!("{text:?} is not between 100kbit/s and 8Tbit/s")))
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text, &SIZES, "64KiB").map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_a_number_and_a_unit() {
        assert_eq!(parse("5us", &TIMES, ""), Ok(5_000_000));
        assert_eq!(parse("1.5 s", &TIMES, ""), Ok(1_500_000_000_000));
        assert_eq!(parse("2.5Gbit/s", &RATES, ""), Ok(2_500_000_000));
        assert_eq!(parse("64KiB", &SIZES, ""), Ok(65_536));
        assert_eq!(parse("7 B", &SIZES, ""), Ok(7));
        for text in ["", "5", "us", "-5us", "5 Gbit", "1e30s", "NaNs", "inf s", "5.5.5us"] {
            assert!(parse(text, &TIMES, "5us").is_err(), "{text}");
        }
    }

    #[test]
    fn a_quantity_is_shown_in_its_largest_unit() {
        assert_eq!(Time { ps: 1_500_000 }.to_string(), "1.5 us");
        assert_eq!(Time { ps: 0 }.to_string(), "0 ns");
        assert_eq!(Rate { bps: 40_000_000_000 }.to_string(), "40 Gbit/s");
        assert_eq!(Bytes(4_000).to_string(), "4 KB");
        assert_eq!(Rate { bps: 10_000_000_000 }.ps_per_byte(), 800);
    }
}
