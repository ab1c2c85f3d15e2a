//! The interval of the probes to hosts with established connections.

use crate::sched::Tuning;
use crate::variable::BadVariable;

/// Description of the valid values of `ROXIE_KEEPALIVE`.
const WORDS: &[&str] = &["off", "a number of milliseconds from 100 to 3600000"];

/// Takes the interval (nanoseconds, 0 for no probes) from `ROXIE_KEEPALIVE`; the default is that of
/// [`Tuning`].
///
/// # Errors
/// The variable, if it has an invalid value.
pub(crate) fn interval_from_env() -> Result<u64, BadVariable> {
    interval(&std::env::var_os("ROXIE_KEEPALIVE").unwrap_or_default().to_string_lossy())
}

fn interval(word: &str) -> Result<u64, BadVariable> {
    match word {
        "" => Ok(Tuning::default().keepalive_ns),
        "off" => Ok(0),
        _ => {
            let ms = word.parse().ok().filter(|ms| (100..=3_600_000).contains(ms));
            ms.map(|ms: u64| ms * 1_000_000).ok_or_else(|| BadVariable::new("ROXIE_KEEPALIVE", word, WORDS))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_bounds_and_may_be_off() {
        assert_eq!(["", "off", "250"].map(|word| interval(word).unwrap()), [1_000_000_000, 0, 250_000_000]);
        for wrong in ["0", "99", "3600001", "1s", "on"] {
            let error = interval(wrong).unwrap_err().to_string();
            assert!(error.starts_with(&format!("ROXIE_KEEPALIVE={wrong} is none of off")), "{error}");
        }
    }
}
