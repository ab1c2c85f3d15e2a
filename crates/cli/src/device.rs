//! The devices of a subcommand: from the arguments, and from the environment where arguments are missing.

use roxie::port::PortChoice;
use roxie::registry::DomainConfig;
use roxie::verbs::{BadSetting, DeviceConfig, DeviceSetting, DeviceSettings, Engines, Refusal, Traffic};

use crate::args::{DeviceArgs, PortArgs, TrafficArgs};
use crate::failure::{Failure, Outcome};

impl DeviceArgs {
    /// The environment variables that these options stand for, with their values if given.
    pub(crate) fn words(&self) -> [(DeviceSetting, Option<String>); 3] {
        let [netdev, name, devices] = match &self.device {
            // Each name is given, so no number is: names would be numbered.
            Some(pairs) => [pairs.netdevs.clone(), pairs.names.clone(), String::new()].map(Some),
            None => [&self.netdev, &self.name, &self.devices].map(Clone::clone),
        };
        [(DeviceSetting::Netdev, netdev), (DeviceSetting::Name, name), (DeviceSetting::Devices, devices)]
    }

    /// The devices to open, the first of which a program takes that names none.
    pub(crate) fn configs(&self) -> Outcome<Vec<DeviceConfig>> {
        self.chosen().map_err(|refusal| failed(&refusal))
    }

    fn chosen(&self) -> Result<Vec<DeviceConfig>, Refusal> {
        let words = self.words();
        // An empty variable means the default; an empty option is a mistake.
        let empty = words.iter().find(|(_, word)| word.as_deref() == Some(""));
        if let Some((setting, _)) = empty.filter(|_| self.device.is_none()) {
            return Err(BadSetting::EmptyPart(*setting, String::new()).into());
        }
        let [netdev, name, devices] = words.map(|(_, word)| word);
        let env = DeviceSettings::from_env();
        let settings = DeviceSettings {
            netdev: netdev.unwrap_or(env.netdev),
            name: name.unwrap_or(env.name),
            devices: devices.unwrap_or(env.devices),
        };
        settings.configs()
    }

    /// The name of the first device where only these options are set, no variables.
    pub(crate) fn first_name(&self) -> Outcome<String> {
        let [netdev, name, devices] = self.words().map(|(_, word)| word.unwrap_or_default());
        DeviceSettings { netdev, name, devices }.first_name().map_err(|refusal| failed(&refusal))
    }

    /// Whether a setting names the interfaces.
    pub(crate) fn names_interfaces(&self) -> bool {
        let [(_, netdev), ..] = self.words();
        netdev.is_some() || !DeviceSettings::from_env().netdev.is_empty()
    }

    /// Checks interfaces, names, `ROXIE_DOMAIN`, `ROXIE_USERS` and `ROXIE_ENGINES`; the failure names valid
    /// values.
    pub(crate) fn check(&self) -> Outcome {
        DomainConfig::from_env().map_err(|bad| Failure::new(bad.to_string()).code(2))?;
        Engines::from_env().map_err(|bad| Failure::new(bad.to_string()).code(2))?;
        match self.chosen() {
            // A program that needs no device starts all the same.
            Ok(_) | Err(Refusal::NoInterfaces(_)) => Ok(()),
            Err(refusal) => Err(failed(&refusal)),
        }
    }
}

fn failed(refusal: &Refusal) -> Failure {
    let is_usage = matches!(refusal, Refusal::BadName(_) | Refusal::BadSetting(_));
    Failure::new(refusal.to_string()).hint(refusal.remedy()).code(if is_usage { 2 } else { 1 })
}

impl PortArgs {
    /// The port to open.
    pub(crate) fn choice(&self) -> Outcome<PortChoice> {
        PortChoice::from_words(self.port.as_deref(), self.xdp_mode.as_deref(), self.shm.as_deref())
            .map_err(|bad| Failure::new(bad.to_string()).code(2))
    }
}

impl TrafficArgs {
    /// The environment variables that these options stand for, with their values if given; lists may name
    /// these `devices`.
    pub(crate) fn words(&self, devices: &DeviceArgs) -> Outcome<[(&'static str, Option<String>); 4]> {
        let variables = [
            ("ROXIE_ECN", self.ecn.clone()),
            ("ROXIE_RATE_LIMIT", self.rate_limit.clone()),
            ("ROXIE_FLUSH_ICRC", self.flush_icrc.clone()),
            ("ROXIE_ENGINES", self.engines.map(|engines| engines.to_string())),
        ];
        let [ecn, rate_limit, flush_icrc, engines] = variables
            .each_ref()
            .map(|(name, word)| word.clone().unwrap_or_else(|| std::env::var(name).unwrap_or_default()));
        Traffic::from_words("", &ecn, &rate_limit, &flush_icrc)
            .and_then(|_| Engines::from_word(&engines))
            .map_err(|bad| Failure::new(bad.to_string()).code(2))?;
        let lists = [ecn, rate_limit, flush_icrc];
        let named = lists.iter().flat_map(|list| Traffic::named_devices(list)).collect::<Vec<_>>();
        // Without interfaces there is no device, which the program finds out.
        if !named.is_empty()
            && let Ok(devices) = devices.configs()
        {
            let names = devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>();
            if let Some(unknown) = named.iter().find(|name| !names.contains(name)) {
                let what =
                    format!("--ecn, --rate-limit or --flush-icrc names '{unknown}', which is no device");
                return Err(Failure::new(what).hint(format!("devices: {}", names.join(", "))).code(2));
            }
        }
        Ok(variables)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Pairs;

    #[test]
    fn device_names_are_checked() {
        let named = |name: &str| DeviceArgs { name: Some(name.to_owned()), ..DeviceArgs::default() };
        assert!(DeviceArgs::default().check().is_ok());
        for good in ["mlx5_0", &"x".repeat(DeviceConfig::NAME_MAX - 2)] {
            assert!(named(good).check().is_ok(), "{good}");
        }
        for bad in ["", "a/b", "a b", &"x".repeat(DeviceConfig::NAME_MAX + 1)] {
            assert_eq!(named(bad).check().unwrap_err().code, 2, "{bad}");
        }
    }

    #[test]
    fn an_argument_wins_over_the_environment() {
        let args = DeviceArgs {
            name: Some("rxe".to_owned()),
            netdev: Some("lo".to_owned()),
            devices: Some("2".to_owned()),
            device: None,
        };
        let configs = args.configs().unwrap();
        let names: Vec<_> =
            configs.iter().map(|config| (config.name.as_str(), config.netdev.as_deref())).collect();
        assert_eq!(names, [("rxe0", Some("lo")), ("rxe1", Some("lo"))]);
        let pairs = |names: &str, netdevs: &str| {
            let pairs = Pairs { names: names.to_owned(), netdevs: netdevs.to_owned() };
            DeviceArgs { device: Some(pairs), ..DeviceArgs::default() }
        };
        let pair = pairs("B", "lo");
        assert_eq!(pair.configs().unwrap()[0].name, "B", "the name is not numbered");
        assert_eq!(pair.first_name().unwrap(), "B");
        assert_eq!(pairs("A,B", "lo,lo").check().unwrap_err().code, 2);
        let unknown = DeviceArgs { netdev: Some("nonesuch".to_owned()), ..DeviceArgs::default() };
        assert_eq!(unknown.check().unwrap_err().code, 1);
    }
}
