//! Libraries, network interfaces, and the device itself.

use roxie::interfaces::{Interfaces, Standing};
use roxie::verbs::{Device, DeviceConfig, DeviceSettings, remedy};
use sys::Link;

use super::Check;
use crate::library::{AUDIT, Libraries, PRELOAD};
use crate::nic_args::DeviceArgs;

pub(super) fn checks(args: &DeviceArgs) -> Vec<Check> {
    let configs = args.configs();
    let mut checks = vec![libraries()];
    match Interfaces::read() {
        Ok(all) => {
            checks.extend(all.links().iter().map(|link| {
                interface(link, &reason(args, configs.as_deref().unwrap_or_default(), &all, link))
            }))
        }
        Err(error) => checks.push(Check::note("interface", format!("they cannot be read: {error}"))),
    }
    match configs {
        Ok(configs) => checks.extend(configs.iter().map(device)),
        Err(failure) => checks.push(Check::bad("device", failure.what, failure.hint.unwrap_or_default())),
    }
    checks
}

fn libraries() -> Check {
    const NAME: &str = "libraries";
    match Libraries::find().and_then(|found| found.link().map(|_links| found)) {
        Ok(found) => Check::ok(
            NAME,
            format!("libibverbs.so.1, librdmacm.so.1, {AUDIT} and {PRELOAD} in {}", found.dir.display()),
        ),
        Err(missing) => Check::bad(
            NAME,
            format!("{}: 'roxie run' does not work, 'roxie demo' does", missing.what),
            missing.hint.unwrap_or_default(),
        ),
    }
}

/// Why an interface has devices or none.
fn reason(args: &DeviceArgs, configs: &[DeviceConfig], all: &Interfaces, link: &Link) -> String {
    let on_it = configs.iter().filter(|config| config.netdev.as_deref() == Some(&link.name));
    let names: Vec<&str> = on_it.map(|config| config.name.as_str()).collect();
    let standing = all.standing(link);
    let DeviceSettings { netdev, devices, .. } = args.settings();
    match (!netdev.value.is_empty(), standing) {
        _ if !names.is_empty() => format!("has {}", names.join(", ")),
        (true, _) => format!("no device, because {} names others", netdev.given),
        (false, Standing::Device | Standing::LastResort) => {
            format!("no device, because {} is a smaller number", devices.given)
        }
        (false, standing) => standing.to_string(),
    }
}

fn interface(link: &Link, reason: &str) -> Check {
    const NAME: &str = "interface";
    let name = &link.name;
    let config = DeviceConfig { netdev: Some(name.clone()), ..DeviceConfig::default() };
    match Device::open(&config).and_then(|device| device.context()) {
        Ok(context) => {
            let (port, netdev) = (context.query_port(), context.device().gids());
            let text = format!(
                "{name}: MTU {}, path MTU {}, {} GIDs{}{}; {reason}",
                netdev.mtu,
                port.active_mtu.bytes(),
                netdev.rows().count(),
                match netdev.beyond.len() {
                    0 => String::new(),
                    more => format!(" and {more} addresses for which the GID table has no row"),
                },
                if port.active { "" } else { ", down" }
            );
            if port.active { Check::ok(NAME, text) } else { Check::note(NAME, text) }
        }
        Err(error) => {
            let later = reason.strip_prefix("has ").map(|names| format!("{names} may come later"));
            Check::note(NAME, format!("{name}: {error}; {}", later.as_deref().unwrap_or(reason)))
        }
    }
}

fn device(config: &DeviceConfig) -> Check {
    const NAME: &str = "device";
    match Device::open(config) {
        Ok(device) => {
            let gids = device.gids();
            let text = format!("{} on {}", device.name(), gids.netdev);
            if gids.up {
                return Check::ok(NAME, text);
            }
            let remedy = format!("as root: ip link set {} up, or choose another interface", gids.netdev);
            Check::bad(NAME, format!("{text}, which is down"), remedy)
        }
        Err(error) => Check::bad(NAME, error.to_string(), remedy(&error).unwrap_or_default()),
    }
}
