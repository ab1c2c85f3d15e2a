//! The devices of a process: those of the settings, else those of the rule of
//! [`interfaces`](crate::interfaces).

use transport::chaos::ChaosPlan;

use super::{HookConfig, Refusal, Traffic};
use crate::engine::group::Engines;
use crate::interfaces::Interfaces;
use crate::port::PortChoice;
use crate::refusal::NAME_MAX;
use crate::registry::DomainConfig;
use crate::setting::{BadSetting, DEVICES_MAX, DeviceSetting};

/// Which netdev to use, and the settings of the device on it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DeviceConfig {
    /// Name of the device, `roxie0` if empty.
    pub name: String,
    /// Network interface; `None` takes the first of the [`interfaces`](crate::interfaces) that have a device.
    pub netdev: Option<String>,
    /// Number of this device among those on the interface; each has a GUID of its own.
    pub instance: u8,
    /// The GID table is in the kernel's order: the link-local address of the interface has index 0.
    pub kernel_gids: bool,
    /// Packet backend; `None` takes it from `ROXIE_PORT` and `ROXIE_XDP_MODE`.
    pub port: Option<PortChoice>,
    /// Hooks attached from the start; `None` takes them from `ROXIE_INGRESS` and `ROXIE_EGRESS`.
    pub hooks: Option<HookConfig>,
    /// How connections send; `None` takes it from `ROXIE_ECN`, `ROXIE_RATE_LIMIT` and `ROXIE_FLUSH_ICRC`.
    pub traffic: Option<Traffic>,
    /// Number of engines; `None` takes it from `ROXIE_ENGINES`.
    pub engines: Option<Engines>,
    /// Faults of an adversarial, legal NIC; `None` takes them from `ROXIE_CHAOS`.
    pub chaos: Option<ChaosPlan>,
    /// Domain to join; `None` takes it from `ROXIE_DOMAIN` and `ROXIE_USERS`.
    pub domain: Option<DomainConfig>,
}

impl DeviceConfig {
    /// Longest name in bytes: verbs programs keep the name in 64 bytes with the terminating zero
    /// (`IBV_SYSFS_NAME_MAX`).
    pub const NAME_MAX: usize = NAME_MAX;

    /// Returns the first of [`DeviceSettings::configs`]. Of settings that are refused, name and
    /// netdev are the texts, which [`Device::open`](super::Device::open) refuses too.
    #[must_use]
    pub fn from_env() -> Self {
        let settings = DeviceSettings::from_env();
        let first = settings.configs().ok().and_then(|configs| configs.into_iter().next());
        first.unwrap_or_else(|| {
            let netdev = Some(settings.netdev.value).filter(|netdev| !netdev.is_empty());
            Self { name: settings.name.value, netdev, ..Self::default() }
        })
    }

    /// Checks that programs can use the name as part of a path; `given` is what the user gave.
    ///
    /// # Errors
    /// [`Refusal::BadName`].
    pub(crate) fn check_name(&self, given: impl FnOnce() -> String) -> Result<(), Refusal> {
        let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        // Device files are in a directory with this name. The empty name means the default.
        let is_hidden = self.name.starts_with('.');
        if self.name.len() <= Self::NAME_MAX && self.name.chars().all(good) && !is_hidden {
            return Ok(());
        }
        Err(Refusal::BadName { name: self.name.clone(), given: given() })
    }
}

/// The settings that choose devices.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DeviceSettings {
    /// Interfaces, separated by commas: one device on each (`ROXIE_NETDEV`).
    pub netdev: DeviceSetting,
    /// Names of the devices, separated by commas; further devices count on from the last (`ROXIE_NAME`).
    pub name: DeviceSetting,
    /// Number of devices, distributed over the interfaces in turn (`ROXIE_DEVICES`).
    pub devices: DeviceSetting,
    /// Order of the GID tables, one of [`GID_ORDERS`](Self::GID_ORDERS) (`ROXIE_GIDS`).
    pub gids: DeviceSetting,
}

/// The name of the first device unless a setting says otherwise.
const FIRST_NAME: &str = "roxie0";
impl DeviceSettings {
    /// The environment variables of the settings.
    pub const VARIABLES: [&str; 4] = ["ROXIE_NETDEV", "ROXIE_NAME", "ROXIE_DEVICES", "ROXIE_GIDS"];
    /// Values of `ROXIE_GIDS`: IPv4 addresses first, or the link-local address first, as the kernel.
    pub const GID_ORDERS: [&str; 2] = ["ipv4", "kernel"];

    /// Takes the settings from the environment.
    #[must_use]
    pub fn from_env() -> DeviceSettings {
        Self::VARIABLES.map(DeviceSetting::from_env).into()
    }

    /// Returns the configurations of the devices, the first of which a program takes that names none.
    /// Interfaces that come later are in the result of a later call.
    ///
    /// # Errors
    /// A setting is invalid, an interface of it does not exist, or the kernel does not list the interfaces.
    pub fn configs(&self) -> Result<Vec<DeviceConfig>, Refusal> {
        self.configs_beside(None, &Interfaces::read().map_err(Refusal::NoInterfaces)?)
    }

    /// Returns the configurations of the devices that come beside those that the process `has`, by name and
    /// interface index; `None` at its start. An interface of the settings that does not exist any more has no
    /// device until it is there again. Without such settings the names that are free go to the interfaces
    /// that have no device.
    ///
    /// # Errors
    /// A setting is invalid, or an interface of it does not exist at the start.
    pub(super) fn configs_beside(
        &self,
        has: Option<&[(String, u32)]>,
        interfaces: &Interfaces,
    ) -> Result<Vec<DeviceConfig>, Refusal> {
        let (is_start, has) = (has.is_none(), has.unwrap_or_default());
        let given = parts(&self.netdev)?;
        let exists = |name: &str| interfaces.named(name).is_some();
        if let Some(unknown) = given.iter().find(|name| is_start && !exists(name)) {
            return Err(interfaces.unknown(unknown, &self.netdev.given));
        }
        let own_name = |name| interfaces.named(name).map_or(name, |link| link.name.as_str());
        let named: Vec<&str> = given.into_iter().map(own_name).collect();
        if let Some((_, twice)) = named.iter().enumerate().find(|(at, name)| named[..*at].contains(name)) {
            return Err(BadSetting::NetdevTwice(self.netdev.given.clone(), (*twice).to_owned()).into());
        }
        let count = self.count()?;
        let mut netdevs = named.clone();
        if named.is_empty() {
            let mut links = interfaces.with_devices();
            // A fixed number of devices waits for its interfaces, and does not move to the last resort.
            links.retain(|link| is_start || count.is_none() || interfaces.has_device(link));
            links.retain(|link| has.iter().all(|(_, ifindex)| *ifindex != link.index));
            netdevs.extend(links.iter().map(|link| link.name.as_str()));
        }
        if is_start && netdevs.is_empty() {
            return Err(interfaces.unknown("lo", ""));
        }
        let all = if named.is_empty() { has.len() + netdevs.len() } else { named.len() };
        let devices = count.unwrap_or(all.min(DEVICES_MAX));
        let mut names = self.names(devices, count.is_some())?;
        // Interfaces of the rule may come later, and take the names that are left.
        if names.len() > devices && (count.is_some() || !named.is_empty()) {
            return Err(BadSetting::NamesLeft(self.name.given.clone(), names.len(), devices).into());
        }
        let is_free = |name: &String| has.iter().all(|(known, _)| known != name);
        names.retain(|name| !named.is_empty() || is_free(name));
        let configs = names.into_iter().zip(netdevs.iter().cycle()).enumerate();
        let missing = configs.filter(|(_, (name, netdev))| is_free(name) && exists(netdev));
        let kernel_gids = self.gid_order()?;
        let configs = missing.map(|(number, (name, netdev))| DeviceConfig {
            netdev: Some((*netdev).to_owned()),
            instance: (number / netdevs.len()) as u8,
            kernel_gids,
            name,
            ..DeviceConfig::default()
        });
        Ok(configs.take(devices.saturating_sub(has.len())).collect())
    }

    /// Returns the name of the first device, which depends on no interface.
    ///
    /// # Errors
    /// The name or the number of devices is invalid.
    pub fn first_name(&self) -> Result<String, Refusal> {
        Ok(self.names(1, self.count()?.is_some())?.swap_remove(0))
    }

    /// True for the kernel's order.
    fn gid_order(&self) -> Result<bool, BadSetting> {
        let DeviceSetting { value, given } = &self.gids;
        match Self::GID_ORDERS.iter().position(|order| order == value) {
            Some(order) => Ok(order == 1),
            None if value.is_empty() => Ok(false),
            None => Err(BadSetting::NoGidOrder(given.clone())),
        }
    }

    fn count(&self) -> Result<Option<usize>, BadSetting> {
        let DeviceSetting { value, given } = &self.devices;
        if value.is_empty() {
            return Ok(None);
        }
        let count = value.parse().ok().filter(|count| (1..=DEVICES_MAX).contains(count));
        count.map(Some).ok_or_else(|| BadSetting::NoNumber(given.clone()))
    }

    /// The names of the setting, continued up to `count`: the number at the end of the last one counts on. A
    /// name without a number gets one from 0 on if `is_counted`, else from 1 on behind the name itself.
    fn names(&self, count: usize, is_counted: bool) -> Result<Vec<String>, Refusal> {
        let listed = parts(&self.name)?;
        let (last, before) = listed.split_last().unwrap_or((&FIRST_NAME, &[]));
        let mut names: Vec<String> = before.iter().map(|name| (*name).to_owned()).collect();
        let stem = last.trim_end_matches(|c: char| c.is_ascii_digit());
        let first: Option<u64> = last[stem.len()..].parse().ok();
        for number in 0..count.saturating_sub(names.len()).max(1) {
            names.push(match (first, number) {
                (Some(first), _) => {
                    let width = last.len() - stem.len();
                    format!("{stem}{:0width$}", first.saturating_add(number as u64))
                }
                (None, 0) if !is_counted => (*last).to_owned(),
                (None, number) => format!("{last}{number}"),
            });
        }
        for (index, name) in names.iter().enumerate() {
            let given = || self.name.given.clone();
            DeviceConfig { name: name.clone(), ..DeviceConfig::default() }.check_name(given)?;
            if names[..index].contains(name) {
                return Err(BadSetting::NameTwice(given(), name.clone()).into());
            }
        }
        Ok(names)
    }
}

impl From<[DeviceSetting; 4]> for DeviceSettings {
    fn from([netdev, name, devices, gids]: [DeviceSetting; 4]) -> DeviceSettings {
        DeviceSettings { netdev, name, devices, gids }
    }
}

/// The parts of a list.
fn parts(setting: &DeviceSetting) -> Result<Vec<&str>, BadSetting> {
    let DeviceSetting { value, given } = setting;
    if value.is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<&str> = value.split(',').collect();
    if parts.contains(&"") {
        return Err(BadSetting::EmptyPart(given.clone()));
    }
    if parts.len() > DEVICES_MAX {
        return Err(BadSetting::TooMany(given.clone(), parts.len()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interfaces::tests::{address, link};

    fn settings(netdev: &str, name: &str, devices: &str) -> DeviceSettings {
        let given = [("--netdev", netdev), ("--name", name), ("--devices", devices), ("--gids", "")];
        given.map(|(option, value)| DeviceSetting::of_option(option, value.to_owned())).into()
    }

    /// eth0 and eth1, which have devices by the rule, and eth2, which has no address.
    fn interfaces() -> Interfaces {
        let links = vec![link(1, "lo"), link(2, "eth0"), link(3, "eth1"), link(4, "eth2")];
        Interfaces::new(links, vec![address(2, "10.0.0.1"), address(3, "10.0.1.1")], None)
    }

    /// The devices as NAME=IF or NAME=IF/INSTANCE.
    fn devices(netdev: &str, name: &str, devices: &str) -> Result<Vec<String>, Refusal> {
        let configs = settings(netdev, name, devices).configs_beside(None, &interfaces())?;
        let text = |config: DeviceConfig| {
            let instance = if config.instance > 0 { format!("/{}", config.instance) } else { String::new() };
            format!("{}={}{instance}", config.name, config.netdev.unwrap_or_default())
        };
        Ok(configs.into_iter().map(text).collect())
    }

    #[test]
    fn settings_choose_interfaces_names_and_the_number() {
        let is = |given: [&str; 3], expected: &[&str]| {
            assert_eq!(devices(given[0], given[1], given[2]).unwrap(), expected, "{given:?}");
        };
        is(["", "", ""], &["roxie0=eth0", "roxie1=eth1"]);
        is(["eth2,lo", "", ""], &["roxie0=eth2", "roxie1=lo"]);
        is(["eth1", "rxe0", ""], &["rxe0=eth1"]);
        is(["eth1-alt,lo", "", ""], &["roxie0=eth1", "roxie1=lo"]);
        is(["", "mlx5_0", ""], &["mlx5_0=eth0", "mlx5_1=eth1"]);
        is(["", "a,b7,c,d", ""], &["a=eth0", "b7=eth1"]);
        is(["", "nic", ""], &["nic=eth0", "nic1=eth1"]);
        is(["eth0,eth1,eth2", "x,ib08", ""], &["x=eth0", "ib08=eth1", "ib09=eth2"]);
        is(["", "", "1"], &["roxie0=eth0"]);
        is(["", "mlx5_", "4"], &["mlx5_0=eth0", "mlx5_1=eth1", "mlx5_2=eth0/1", "mlx5_3=eth1/1"]);
        is(["eth0", "mlx5_9", "3"], &["mlx5_9=eth0", "mlx5_10=eth0/1", "mlx5_11=eth0/2"]);
        assert_eq!(devices("", "", "32").unwrap().len(), DEVICES_MAX);
        for (name, devices, first) in [
            ("", "", "roxie0"),
            ("mlx5_", "8", "mlx5_0"),
            ("nic", "", "nic"),
            ("a,b", "", "a"),
            ("b7", "2", "b7"),
        ] {
            assert_eq!(settings("eth9", name, devices).first_name().unwrap(), first);
        }
    }

    #[test]
    fn the_order_of_gids_is_a_setting() {
        let orders = |name: &str, gids: &str| {
            let gids = DeviceSetting::of_option("--gids", gids.to_owned());
            let configs =
                DeviceSettings { gids, ..settings("", name, "") }.configs_beside(None, &interfaces())?;
            Ok::<_, Refusal>(configs.iter().map(|config| config.kernel_gids).collect::<Vec<_>>())
        };
        for (name, gids, expected) in
            [("", "", [false, false]), ("mlx5_0", "ipv4", [false, false]), ("", "kernel", [true, true])]
        {
            assert_eq!(orders(name, gids).unwrap(), expected, "{name} {gids}");
        }
        assert_eq!(orders("", "rxe").unwrap_err().to_string(), "--gids 'rxe' is no order of the GID table");
    }

    #[test]
    fn a_device_follows_its_interface_in_a_running_process() {
        let beside = |given: [&str; 3], has: &[(&str, u32)], expected: &[&str]| {
            let has: Vec<_> = has.iter().map(|(name, ifindex)| ((*name).to_owned(), *ifindex)).collect();
            let settings = settings(given[0], given[1], given[2]);
            let configs = settings.configs_beside(Some(&has), &interfaces()).unwrap();
            let text = |config: &DeviceConfig| {
                format!("{}={}/{}", config.name, config.netdev.clone().unwrap_or_default(), config.instance)
            };
            let configs: Vec<String> = configs.iter().map(text).collect();
            assert_eq!(configs, expected, "{given:?} beside {has:?}");
        };
        // eth0 has come back with index 2.
        beside(["eth0,eth1", "A,B", ""], &[("B", 3)], &["A=eth0/0"]);
        beside(["eth0,eth1", "A,B", ""], &[], &["A=eth0/0", "B=eth1/0"]);
        beside(["eth0,eth1", "A,B", ""], &[("A", 2), ("B", 3)], &[]);
        beside(["eth9,eth1", "A,B", ""], &[], &["B=eth1/0"]);
        beside(["eth9,eth1", "A,B", ""], &[("B", 3)], &[]);
        beside(["eth0,eth1", "", "4"], &[("roxie0", 2), ("roxie2", 2)], &["roxie1=eth1/0", "roxie3=eth1/1"]);
        beside(["eth0,eth1", "", ""], &[("roxie0", 2)], &["roxie1=eth1/0"]);
        // The device on an interface that has another name by now keeps its own.
        beside(["eth0,eth1", "", ""], &[("roxie0", 8), ("roxie1", 3)], &[]);
        // Devices that only have a number go to interfaces without one.
        beside(["", "", "2"], &[("roxie1", 3)], &["roxie0=eth0/0"]);
        beside(["", "m", "5"], &[("m1", 3), ("m3", 3)], &["m0=eth0/0", "m2=eth0/1", "m4=eth0/2"]);
        beside(["", "", "2"], &[("roxie0", 2), ("roxie1", 3)], &[]);
        beside(["", "", "4"], &[("roxie0", 2), ("roxie2", 2)], &["roxie1=eth1/0", "roxie3=eth1/1"]);
        beside(["", "", "4"], &[("roxie0", 2), ("roxie2", 3)], &[]);
        // The rule.
        beside(["", "", ""], &[("roxie1", 3)], &["roxie0=eth0/0"]);
        beside(["", "", ""], &[("roxie0", 9)], &["roxie1=eth0/0", "roxie2=eth1/0"]);
        beside(["", "", ""], &[("roxie0", 2), ("roxie1", 3)], &[]);
        let alone = Interfaces::new(vec![link(1, "lo")], vec![address(1, "127.0.0.1")], None);
        assert_eq!(settings("", "", "2").configs_beside(Some(&[]), &alone).unwrap(), []);
        assert_eq!(settings("", "", "2").configs_beside(None, &alone).unwrap().len(), 2);
    }

    #[test]
    fn wrong_settings_are_refused_with_the_setting_and_the_value() {
        let many = vec!["eth0"; DEVICES_MAX + 1].join(",");
        let long = "x".repeat(DeviceConfig::NAME_MAX);
        for (given, expected) in [
            (["eth0,,eth1", "", ""], "--netdev 'eth0,,eth1' has an empty part"),
            (["eth0,", "", ""], "--netdev 'eth0,' has an empty part"),
            (["eth0,eth0", "", ""], "--netdev 'eth0,eth0' has 'eth0' twice"),
            ([&many, "", ""], &format!("--netdev '{many}' lists 33 devices")),
            (["eth0,eth9", "", ""], "no network interface called 'eth9' (--netdev 'eth0,eth9')"),
            (["eth0,eth0-alt", "", ""], "--netdev 'eth0,eth0-alt' has 'eth0' twice"),
            (["", "a,b,a", ""], "--name 'a,b,a' gives two devices the name 'a'"),
            (["", "a1,a0", "3"], "--name 'a1,a0' gives two devices the name 'a1'"),
            (["", "a,,b", ""], "--name 'a,,b' has an empty part"),
            (["", "a/b", ""], "'a/b' cannot name a device (--name 'a/b')"),
            (["", &long, "2"], &format!("'{long}0' cannot name a device (--name '{long}')")),
            (["eth0", "a,b", ""], "--name 'a,b' has 2 names for 1 device(s)"),
            (["", "a,b", "1"], "--name 'a,b' has 2 names for 1 device(s)"),
            (["", "", "0"], "--devices '0' is not a number of devices"),
            (["", "", "33"], "--devices '33' is not a number of devices"),
            (["", "", "two"], "--devices 'two' is not a number of devices"),
        ] {
            let refusal = devices(given[0], given[1], given[2]).unwrap_err();
            assert_eq!(refusal.to_string(), expected, "{given:?}");
            assert!(!refusal.remedy().is_empty(), "{given:?}");
        }
    }

    #[test]
    fn the_first_of_this_machine_is_what_a_program_without_settings_has() {
        let first = settings("", "", "").configs().unwrap().remove(0);
        let table = crate::gid::GidTable::read(None).unwrap();
        assert_eq!((first.name.as_str(), first.netdev), (FIRST_NAME, Some(table.netdev)));
    }
}
