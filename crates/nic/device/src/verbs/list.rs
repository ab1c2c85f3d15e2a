//! The devices of a process (ibv_get_device_list(3)).

use std::io;

use super::{Device, DeviceConfig, DeviceSettings};
use crate::interfaces::Interfaces;

/// The devices that a process has, in a stable order. A device stays in the list as long as its interface
/// exists; devices of interfaces that come later follow at the end.
#[derive(Default)]
pub struct DeviceList(Vec<Device>);

impl DeviceList {
    /// An empty list: no interface has been looked at.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the devices of the last [`refresh`](Self::refresh), without those that were removed since.
    #[must_use]
    pub fn known(&self) -> Vec<Device> {
        self.0.iter().filter(|device| !device.is_removed()).cloned().collect()
    }

    /// Looks at the interfaces of the host, and returns the devices.
    ///
    /// # Errors
    /// Those of [`Device::open`], if there is no device.
    pub fn refresh(&mut self) -> io::Result<Vec<Device>> {
        let known = &mut self.0;
        let interfaces = Interfaces::read()?;
        let mut list: Vec<Device> = Vec::new();
        let mut refusal = None;
        for config in configs(&interfaces, !known.is_empty())? {
            match Device::open_on(&config, &interfaces) {
                Ok(found) => list.push(known_or_new(known, &list, found)),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        let new: Vec<Device> = list.iter().filter(|device| !known.contains(device)).cloned().collect();
        // A device that is no longer chosen stays while its interface exists.
        known.retain(|device| {
            list.contains(device)
                || !device.is_removed() && interfaces.of_index(device.gids().ifindex).is_some()
        });
        known.extend(new);
        match refusal.filter(|_| known.is_empty()) {
            Some(error) => Err(error),
            None => Ok(known.clone()),
        }
    }
}

/// Returns the known device on the interface of `found` that is not in `list` yet, or else `found`, with a
/// name that no known device has.
fn known_or_new(known: &[Device], list: &[Device], found: Device) -> Device {
    let ifindex = found.gids().ifindex;
    let is_same =
        |device: &&Device| device.gids().ifindex == ifindex && !device.is_removed() && !list.contains(device);
    if let Some(device) = known.iter().find(is_same) {
        device.0.gids.renew(&found.gids());
        return device.clone();
    }
    let is_named = |device: &Device, name: &str| device.name() == name && !device.is_removed();
    let taken = |name: &str| known.iter().chain(list).any(|device| is_named(device, name));
    if !taken(found.name()) {
        return found;
    }
    let base = found.name().trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    let free = (0..).map(|number| format!("{base}{number}")).find(|name| !taken(name));
    free.map_or(found.clone(), |name| found.renamed(name))
}

/// Returns the configurations of the devices. A process that has devices already keeps them if an interface
/// of the settings does not exist any more, and gets no more if their number is set.
fn configs(interfaces: &Interfaces, has_devices: bool) -> io::Result<Vec<DeviceConfig>> {
    let settings = DeviceSettings::from_env();
    match settings.configs_on(interfaces) {
        Ok(_) if has_devices && !settings.devices.is_empty() => Ok(Vec::new()),
        Err(_) if has_devices => Ok(Vec::new()),
        configs => Ok(configs?),
    }
}
