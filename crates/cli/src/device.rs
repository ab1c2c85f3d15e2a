//! The device of a subcommand: from the arguments, and from the environment where arguments are missing.

use roxie::port::PortChoice;
use roxie::registry::DomainConfig;
use roxie::verbs::{DeviceConfig, Engines, Refusal, Traffic};

use crate::args::{DeviceArgs, PortArgs, TrafficArgs};
use crate::failure::{Failure, Outcome};
use crate::netdev;

impl DeviceArgs {
    /// The interface and name of the device to open.
    pub(crate) fn config(&self) -> DeviceConfig {
        let env = DeviceConfig::from_env();
        DeviceConfig {
            name: self.name.clone().unwrap_or(env.name),
            netdev: self.netdev.clone().or(env.netdev),
            ..env
        }
    }

    /// Checks interface, name, `ROXIE_DOMAIN`, `ROXIE_USERS` and `ROXIE_ENGINES`; the failure names valid
    /// values.
    pub(crate) fn check(&self) -> Outcome {
        DomainConfig::from_env().map_err(|bad| Failure::new(bad.to_string()).code(2))?;
        Engines::from_env().map_err(|bad| Failure::new(bad.to_string()).code(2))?;
        let config = self.config();
        config.netdev.as_deref().map_or(Ok(()), netdev::check)?;
        // An empty name in the environment means the default.
        let named = if self.name.as_deref() == Some("") {
            Err(Refusal::BadName(String::new()))
        } else {
            config.check_name()
        };
        named.map_err(|bad| Failure::new(bad.to_string()).hint(bad.remedy()).code(2))
    }
}

impl PortArgs {
    /// The port to open.
    pub(crate) fn choice(&self) -> Outcome<PortChoice> {
        PortChoice::from_words(self.port.as_deref(), self.xdp_mode.as_deref(), self.shm.as_deref())
            .map_err(|bad| Failure::new(bad.to_string()).code(2))
    }
}

impl TrafficArgs {
    /// The environment variables that these options stand for, with their values if given.
    pub(crate) fn words(&self) -> Outcome<[(&'static str, Option<String>); 4]> {
        let variables = [
            ("ROXIE_ECN", self.ecn.then(|| "on".to_owned())),
            ("ROXIE_RATE_LIMIT", self.rate_limit.clone()),
            ("ROXIE_FLUSH_ICRC", self.flush_icrc.clone()),
            ("ROXIE_ENGINES", self.engines.map(|engines| engines.to_string())),
        ];
        let [ecn, rate_limit, flush_icrc, engines] = variables
            .each_ref()
            .map(|(name, word)| word.clone().unwrap_or_else(|| std::env::var(name).unwrap_or_default()));
        Traffic::from_words(&ecn, &rate_limit, &flush_icrc)
            .and_then(|_| Engines::from_word(&engines))
            .map_err(|bad| Failure::new(bad.to_string()).code(2))?;
        Ok(variables)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_checked() {
        let named = |name: &str| DeviceArgs { name: Some(name.to_owned()), netdev: None };
        assert!(DeviceArgs::default().check().is_ok());
        for good in ["mlx5_0", &"x".repeat(DeviceConfig::NAME_MAX)] {
            assert!(named(good).check().is_ok(), "{good}");
        }
        for bad in ["", "a/b", "a b", &"x".repeat(DeviceConfig::NAME_MAX + 1)] {
            assert!(named(bad).check().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_argument_wins_over_the_environment() {
        let args = DeviceArgs { name: Some("rxe0".to_owned()), netdev: Some("lo".to_owned()) };
        let config = args.config();
        assert_eq!((config.name.as_str(), config.netdev.as_deref()), ("rxe0", Some("lo")));
    }
}
