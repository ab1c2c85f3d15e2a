//! The devices of a subcommand: from the arguments, and from the environment where arguments are missing.

use roxie::port::PortChoice;
use roxie::registry::DomainConfig;
use roxie::verbs::{BadSetting, DeviceConfig, DeviceSetting, DeviceSettings, Engines, Refusal, Traffic};

use crate::failure::{Failure, Outcome};
use crate::nic_args::{DeviceArgs, Pairs, PortArgs, TrafficArgs};

impl DeviceArgs {
    /// The environment variables that these options stand for, with their values if given.
    pub(crate) fn words(&self) -> [(&'static str, Option<String>); 4] {
        let mut variables = DeviceSettings::VARIABLES.into_iter();
        self.given().map(|given| (variables.next().unwrap_or_default(), given.map(|setting| setting.value)))
    }

    /// The settings of these options.
    fn given(&self) -> [Option<DeviceSetting>; 4] {
        let gids = ("--gids", &self.gids);
        let setting =
            |(option, value): (_, &Option<String>)| Some(DeviceSetting::of_option(option, value.clone()?));
        if let Some(Pairs { names, netdevs, given }) = &self.device {
            let of_pairs = |value| Some(DeviceSetting { value, given: format!("--device '{given}'") });
            // Each device has its name: none is to count on.
            let [netdevs, names, devices] = [netdevs.clone(), names.clone(), String::new()].map(of_pairs);
            return [netdevs, names, devices, setting(gids)];
        }
        [("--netdev", &self.netdev), ("--name", &self.name), ("--devices", &self.devices), gids].map(setting)
    }

    /// The settings of these options, and of the variables where options are missing.
    pub(crate) fn settings(&self) -> DeviceSettings {
        let DeviceSettings { netdev, name, devices, gids } = DeviceSettings::from_env();
        let mut variables = [netdev, name, devices, gids].into_iter();
        self.given().map(|given| given.unwrap_or(variables.next().unwrap_or_default())).into()
    }

    /// The devices to open, the first of which a program takes that names none.
    pub(crate) fn configs(&self) -> Outcome<Vec<DeviceConfig>> {
        self.chosen().map_err(|refusal| failed(&refusal))
    }

    fn chosen(&self) -> Result<Vec<DeviceConfig>, Refusal> {
        // An empty variable means the default; an empty option is a mistake.
        let mut given = self.given().into_iter().flatten().filter(|_| self.device.is_none());
        if let Some(empty) = given.find(|setting| setting.value.is_empty()) {
            return Err(BadSetting::EmptyPart(empty.given).into());
        }
        self.settings().configs()
    }

    /// The name of the first device where only these options are set, no variables.
    pub(crate) fn first_name(&self) -> Outcome<String> {
        let settings = DeviceSettings::from(self.given().map(Option::unwrap_or_default));
        settings.first_name().map_err(|refusal| failed(&refusal))
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
    let is_usage = matches!(refusal, Refusal::BadName { .. } | Refusal::BadSetting(_));
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
            ("ROXIE_ECN", "--ecn", self.ecn.clone()),
            ("ROXIE_RATE_LIMIT", "--rate-limit", self.rate_limit.clone()),
            ("ROXIE_FLUSH_ICRC", "--flush-icrc", self.flush_icrc.clone()),
            ("ROXIE_ENGINES", "--engines", self.engines.map(|engines| engines.to_string())),
        ];
        let settings = variables.each_ref().map(|(variable, option, word)| match word {
            Some(word) => DeviceSetting::of_option(option, word.clone()),
            None => DeviceSetting::from_env(variable),
        });
        let [ecn, rate_limit, flush_icrc, engines] = settings.each_ref().map(|setting| &*setting.value);
        Traffic::from_words("", ecn, rate_limit, flush_icrc)
            .and_then(|_| Engines::from_word(engines))
            .map_err(|bad| Failure::new(bad.to_string()).code(2))?;
        let named = |setting: &DeviceSetting| {
            Traffic::named_devices(&setting.value)
                .map(|name| (setting.given.clone(), name.to_owned()))
                .collect::<Vec<_>>()
        };
        let named: Vec<(String, String)> = settings.iter().flat_map(named).collect();
        // Without interfaces there is no device, which the program finds out.
        if !named.is_empty()
            && let Ok(devices) = devices.configs()
        {
            let names = devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>();
            if let Some((given, unknown)) = named.iter().find(|(_, name)| !names.contains(&&**name)) {
                let what = format!("{given} names '{unknown}', which is no device");
                return Err(Failure::new(what).hint(format!("devices: {}", names.join(", "))).code(2));
            }
        }
        Ok(variables.map(|(variable, _, word)| (variable, word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic_args::pairs;

    #[test]
    fn device_names_are_checked() {
        let named = |name: &str| DeviceArgs { name: Some(name.to_owned()), ..DeviceArgs::default() };
        assert!(DeviceArgs::default().check().is_ok());
        for good in ["mlx5_0", &"x".repeat(DeviceConfig::NAME_MAX - 2)] {
            assert!(named(good).check().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", &"x".repeat(DeviceConfig::NAME_MAX + 1)] {
            assert_eq!(named(bad).check().unwrap_err().code, 2, "{bad}");
        }
    }

    #[test]
    fn a_refusal_names_the_option_as_given() {
        let device = |list: &str| DeviceArgs { device: Some(pairs(list).unwrap()), ..DeviceArgs::default() };
        let refused = |list: &str| device(list).check().unwrap_err().what;
        assert_eq!(refused("a/b=lo"), "'a/b' cannot name a device (--device 'a/b=lo')");
        assert_eq!(refused("a=lo,b=lo"), "--device 'a=lo,b=lo' has 'lo' twice");
        assert_eq!(refused("a=no"), "no network interface called 'no' (--device 'a=no')");
        let empty = DeviceArgs { name: Some(String::new()), ..DeviceArgs::default() };
        assert_eq!(empty.check().unwrap_err().what, "--name '' has an empty part");
        let ecn = TrafficArgs { ecn: Some("a=off".to_owned()), ..TrafficArgs::default() };
        assert!(ecn.words(&device("a=lo")).is_ok());
        let other = ecn.words(&device("b=lo")).unwrap_err();
        assert_eq!(other.what, "--ecn 'a=off' names 'a', which is no device");
    }

    #[test]
    fn an_argument_wins_over_the_environment() {
        let args = DeviceArgs {
            name: Some("rxe".to_owned()),
            netdev: Some("lo".to_owned()),
            devices: Some("2".to_owned()),
            ..DeviceArgs::default()
        };
        let configs = args.configs().unwrap();
        let names: Vec<_> =
            configs.iter().map(|config| (config.name.as_str(), config.netdev.as_deref())).collect();
        assert_eq!(names, [("rxe0", Some("lo")), ("rxe1", Some("lo"))]);
        let pair = DeviceArgs { device: Some(pairs("B=lo").unwrap()), ..DeviceArgs::default() };
        assert_eq!(pair.configs().unwrap()[0].name, "B", "the name is not numbered");
        assert_eq!(pair.first_name().unwrap(), "B");
        let unknown = DeviceArgs { netdev: Some("nonesuch".to_owned()), ..DeviceArgs::default() };
        assert_eq!(unknown.check().unwrap_err().code, 1);
    }
}
