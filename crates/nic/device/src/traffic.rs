//! How connections send: ECN, rate limit and the ICRC of FLUSH.

use wire::FlushIcrc;

use crate::variable::BadVariable;

/// How the connections (RC, UC) of a device send, unless an attribute of a queue pair overrides it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traffic {
    /// Packets are ECN-capable, ECT(0), so that switches mark them instead of dropping them; receivers of
    /// marked packets must send CNPs. A traffic class that has ECN bits stays unchanged.
    pub ecn: bool,
    /// Rate limit of a queue pair in kbit/s on the wire; 0 for no limit.
    pub rate_limit_kbps: u32,
    /// Variant of the ICRC in packets with opcode FLUSH.
    pub flush_icrc: FlushIcrc,
}

/// The last two bits of the traffic class, and ECT(0) in them (RFC 3168, section 5).
const ECN: u8 = 3;
const ECT_0: u8 = 2;

impl Traffic {
    /// Valid values of `ROXIE_ECN`.
    pub const ECN_WORDS: &[&str] = &["off", "on"];
    /// Valid values of `ROXIE_FLUSH_ICRC`.
    pub const FLUSH_ICRC_WORDS: &[&str] = &["iba", "rxe"];
    /// Description of the valid values of `ROXIE_RATE_LIMIT`.
    pub const RATE_WORDS: &[&str] = &["a rate from 1k to 4000G in bits per second, such as 500M"];

    /// Takes the settings from `ROXIE_ECN`, `ROXIE_RATE_LIMIT` and `ROXIE_FLUSH_ICRC`; the defaults are
    /// `off`, no limit and `iba`.
    ///
    /// # Errors
    /// The variable that has an invalid value.
    pub fn from_env() -> Result<Traffic, BadVariable> {
        let get = |name| std::env::var_os(name).unwrap_or_default().to_string_lossy().into_owned();
        Traffic::from_words(&get("ROXIE_ECN"), &get("ROXIE_RATE_LIMIT"), &get("ROXIE_FLUSH_ICRC"))
    }

    /// Parses the values of the three variables.
    ///
    /// # Errors
    /// The variable that has an invalid value.
    pub fn from_words(ecn: &str, rate_limit: &str, flush_icrc: &str) -> Result<Traffic, BadVariable> {
        let ecn = match ecn {
            "" | "off" => false,
            "on" => true,
            _ => return Err(BadVariable::new("ROXIE_ECN", ecn, Self::ECN_WORDS)),
        };
        let bad = || BadVariable::new("ROXIE_RATE_LIMIT", rate_limit, Self::RATE_WORDS);
        let rate_limit_kbps = if rate_limit.is_empty() { 0 } else { kilobits(rate_limit).ok_or_else(bad)? };
        let flush_icrc = match flush_icrc {
            "" | "iba" => FlushIcrc::Iba,
            "rxe" => FlushIcrc::Rxe,
            _ => return Err(BadVariable::new("ROXIE_FLUSH_ICRC", flush_icrc, Self::FLUSH_ICRC_WORDS)),
        };
        Ok(Traffic { ecn, rate_limit_kbps, flush_icrc })
    }

    /// Returns the traffic class to send with, for a connection with this traffic class.
    pub(crate) fn class(self, traffic_class: u8) -> u8 {
        if self.ecn && traffic_class & ECN == 0 { traffic_class | ECT_0 } else { traffic_class }
    }
}

/// Parses `1500k`, `500M`, `2.5G`, `8000000` (bits per second) into kbit/s; at least 1.
fn kilobits(text: &str) -> Option<u32> {
    const UNITS: [(char, f64); 4] = [('k', 1.0), ('K', 1.0), ('M', 1e3), ('G', 1e6)];
    let unit = UNITS.iter().find_map(|(unit, kilo)| Some((text.strip_suffix(*unit)?, *kilo)));
    let (digits, kilo) = unit.unwrap_or((text, 1e-3));
    let kbps = digits.parse::<f64>().ok()? * kilo;
    (1.0..=4e9).contains(&kbps).then_some(kbps as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units_and_bounds() {
        let kbps = |text| Traffic::from_words("", text, "").map(|traffic| traffic.rate_limit_kbps);
        assert_eq!(
            ["", "1k", "1500k", "500M", "2.5G", "8000000", "4000G"].map(|text| kbps(text).unwrap()),
            [0, 1, 1500, 500_000, 2_500_000, 8000, 4_000_000_000]
        );
        for wrong in ["0", "999", "5000G", "-1M", "M", "1MM", "1T", "nan", "500 M"] {
            let error = kbps(wrong).unwrap_err().to_string();
            assert!(error.starts_with(&format!("ROXIE_RATE_LIMIT={wrong} is not a rate")), "{error}");
        }
    }

    #[test]
    fn only_a_traffic_class_without_ecn_bits_is_made_ecn_capable() {
        let on = Traffic::from_words("on", "", "").unwrap();
        assert_eq!([0, 0x68, 0x69, 0x6a].map(|class| on.class(class)), [2, 0x6a, 0x69, 0x6a]);
        assert_eq!(Traffic::from_words("off", "", "").unwrap().class(0x68), 0x68);
        assert_eq!(
            Traffic::from_words("yes", "", "").unwrap_err().to_string(),
            "ROXIE_ECN=yes is none of off, on"
        );
    }

    #[test]
    fn the_icrc_of_flush_follows_the_specification_or_rxe() {
        let flush_icrc = |word| Traffic::from_words("", "", word).map(|traffic| traffic.flush_icrc);
        assert_eq!(["", "iba", "rxe"].map(|word| flush_icrc(word).unwrap()), {
            [FlushIcrc::Iba, FlushIcrc::Iba, FlushIcrc::Rxe]
        });
        let wrong = flush_icrc("right").unwrap_err().to_string();
        assert_eq!(wrong, "ROXIE_FLUSH_ICRC=right is none of iba, rxe");
    }
}
