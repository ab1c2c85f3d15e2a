//! The devices of a process (ibv_get_device_list(3)).

use std::io;

use super::{Device, DeviceSettings};
use crate::gid::GidTable;
use crate::interfaces::Interfaces;
use crate::notice::notice;

/// The devices that a process has, in a stable order. A device stays in the list as long as its interface
/// exists; devices of interfaces that come later follow at the end.
#[derive(Default)]
pub struct DeviceList {
    devices: Vec<Device>,
    /// There has been a device.
    is_started: bool,
}

impl DeviceList {
    /// An empty list: no interface has been looked at.
    #[must_use]
    pub const fn new() -> Self {
        Self { devices: Vec::new(), is_started: false }
    }

    /// Returns the devices of the last [`refresh`](Self::refresh), without those that were removed since.
    #[must_use]
    pub fn known(&self) -> Vec<Device> {
        self.devices.iter().filter(|device| !device.is_removed()).cloned().collect()
    }

    /// Looks at the interfaces of the host, and returns the devices.
    ///
    /// # Errors
    /// Those of [`Device::open`], if there is no device.
    pub fn refresh(&mut self) -> io::Result<Vec<Device>> {
        let interfaces = Interfaces::read()?;
        let known = &mut self.devices;
        // A device that is no longer chosen stays while its interface exists.
        known.retain(|device| {
            let link = interfaces.of_index(device.gids().ifindex).filter(|_| !device.is_removed());
            link.inspect(|link| device.0.gids.renew(&GidTable::of(link, &interfaces))).is_some()
        });
        let has: Vec<_> = known.iter().map(|it| (it.name().to_owned(), it.gids().ifindex)).collect();
        let has = self.is_started.then_some(&has[..]);
        let settings = DeviceSettings::from_env();
        let configs = match settings.configs_beside(has, &interfaces) {
            // The program has changed its settings.
            Err(_) if self.is_started => Vec::new(),
            Err(refusal) => {
                // An interface has gone since the user named it.
                let others = settings.configs_beside(Some(&[]), &interfaces).unwrap_or_default();
                if others.is_empty() {
                    return Err(refusal.into());
                }
                notice(refusal);
                others
            }
            Ok(configs) => configs,
        };
        let mut left_out = Vec::new();
        for config in configs {
            match Device::open_on(&config, &interfaces) {
                Ok(new) => known.push(new),
                Err(error) => left_out.push((config.name, error)),
            }
        }
        if known.is_empty()
            && let Some((_, error)) = left_out.pop()
        {
            return Err(error);
        }
        if !self.is_started {
            left_out
                .iter()
                .for_each(|(name, error)| notice(format_args!("there is no device {name}: {error}")));
        }
        self.is_started |= !known.is_empty();
        Ok(known.clone())
    }
}
