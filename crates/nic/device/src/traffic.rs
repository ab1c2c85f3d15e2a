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
    pub const ECN_WORDS: &[&str] = &["off", "on", "NAME=VALUE[,NAME=VALUE...]"];
    /// Valid values of `ROXIE_FLUSH_ICRC`.
    pub const FLUSH_ICRC_WORDS: &[&str] = &["iba", "rxe", "NAME=VALUE[,NAME=VALUE...]"];
    /// Description of the valid values of `ROXIE_RATE_LIMIT`.
    pub const RATE_WORDS: &[&str] =
        &["a rate from 1k to 4000G in bits per second, such as 500M, or a list NAME=RATE[,NAME=RATE...]"];

    /// Takes the settings of the device of this name from `ROXIE_ECN`, `ROXIE_RATE_LIMIT` and
    /// `ROXIE_FLUSH_ICRC`; the defaults are `off`, no limit and `iba`.
    ///
    /// # Errors
    /// The variable that has an invalid value.
    pub fn from_env(device: &str) -> Result<Traffic, BadVariable> {
        let get = |name| std::env::var_os(name).unwrap_or_default().to_string_lossy().into_owned();
        Traffic::from_words(device, &get("ROXIE_ECN"), &get("ROXIE_RATE_LIMIT"), &get("ROXIE_FLUSH_ICRC"))
    }

    /// Parses the values of the three variables. Each is a value for all devices, or a list
    /// `NAME=VALUE[,NAME=VALUE...]`; devices that a list does not name have the default.
    ///
    /// # Errors
    /// The variable that has an invalid value, be it that of another device.
    pub fn from_words(
        device: &str,
        ecn: &str,
        rate_limit: &str,
        flush_icrc: &str,
    ) -> Result<Traffic, BadVariable> {
        let is_on = |word: &str| match word {
            "off" => Some(false),
            "on" => Some(true),
            _ => None,
        };
        let icrc = |word: &str| match word {
            "iba" => Some(FlushIcrc::Iba),
            "rxe" => Some(FlushIcrc::Rxe),
            _ => None,
        };
        let bad = |name, words| move |part: &str| BadVariable::new(name, part, words);
        Ok(Traffic {
            ecn: of_device(device, ecn, is_on).map_err(bad("ROXIE_ECN", Self::ECN_WORDS))?,
            rate_limit_kbps: of_device(device, rate_limit, kilobits)
                .map_err(bad("ROXIE_RATE_LIMIT", Self::RATE_WORDS))?,
            flush_icrc: of_device(device, flush_icrc, icrc)
                .map_err(bad("ROXIE_FLUSH_ICRC", Self::FLUSH_ICRC_WORDS))?,
        })
    }

    /// Returns the devices that the value of one of the variables names.
    pub fn named_devices(text: &str) -> impl Iterator<Item = &str> {
        text.split(',').filter_map(|part| Some(part.split_once('=')?.0))
    }

    /// Returns the traffic class to send with, for a connection with this traffic class.
    pub(crate) fn class(self, traffic_class: u8) -> u8 {
        if self.ecn && traffic_class & ECN == 0 { traffic_class | ECT_0 } else { traffic_class }
    }
}

/// Returns the value for a device: `text` is one for all devices, or a list of `NAME=VALUE`. An empty text
/// and a device that the list does not name have the default. The error is the invalid part.
fn of_device<'a, T: Default>(
    device: &str,
    text: &'a str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, &'a str> {
    if text.is_empty() {
        return Ok(T::default());
    }
    if !text.contains('=') {
        return parse(text).ok_or(text);
    }
    let (mut names, mut value) = (Vec::new(), T::default());
    for part in text.split(',') {
        let pair = part.split_once('=').filter(|(name, _)| !name.is_empty() && !names.contains(name));
        let (name, parsed) = pair.and_then(|(name, word)| Some((name, parse(word)?))).ok_or(part)?;
        if name == device {
            value = parsed;
        }
        names.push(name);
    }
    Ok(value)
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
        let kbps = |text| Traffic::from_words("", "", text, "").map(|traffic| traffic.rate_limit_kbps);
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
        let on = Traffic::from_words("", "on", "", "").unwrap();
        assert_eq!([0, 0x68, 0x69, 0x6a].map(|class| on.class(class)), [2, 0x6a, 0x69, 0x6a]);
        assert_eq!(Traffic::from_words("", "off", "", "").unwrap().class(0x68), 0x68);
        assert_eq!(
            Traffic::from_words("", "yes", "", "").unwrap_err().to_string(),
            "ROXIE_ECN=yes is none of off, on, NAME=VALUE[,NAME=VALUE...]"
        );
    }

    #[test]
    fn a_list_has_values_of_single_devices() {
        let of = |device| Traffic::from_words(device, "a=off,b=on", "b=1k", "a=rxe").unwrap();
        let values = |traffic: Traffic| (traffic.ecn, traffic.rate_limit_kbps, traffic.flush_icrc);
        assert_eq!(values(of("a")), (false, 0, FlushIcrc::Rxe));
        assert_eq!(values(of("b")), (true, 1, FlushIcrc::Iba));
        assert_eq!(of("c"), Traffic::default());
        for wrong in ["a=", "=on", "a=on,", "a=on,off", "a=on,a=off", "b=on,a=yes"] {
            assert!(Traffic::from_words("b", wrong, "", "").is_err(), "{wrong}");
        }
        let error = Traffic::from_words("", "", "a=1k,b=5X,c=M", "").unwrap_err();
        assert!(error.to_string().starts_with("ROXIE_RATE_LIMIT=b=5X is not a rate"), "{error}");
        assert_eq!(Traffic::named_devices("a=off,b=on").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(Traffic::named_devices("500M").count(), 0);
    }

    #[test]
    fn the_icrc_of_flush_follows_the_specification_or_rxe() {
        let flush_icrc = |word| Traffic::from_words("", "", "", word).map(|traffic| traffic.flush_icrc);
        assert_eq!(["", "iba", "rxe"].map(|word| flush_icrc(word).unwrap()), {
            [FlushIcrc::Iba, FlushIcrc::Iba, FlushIcrc::Rxe]
        });
        let wrong = flush_icrc("right").unwrap_err().to_string();
        assert_eq!(wrong, "ROXIE_FLUSH_ICRC=right is none of iba, rxe, NAME=VALUE[,NAME=VALUE...]");
    }
}
