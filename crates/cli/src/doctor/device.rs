//! Libraries, network interfaces, and the device itself.

use roxie::verbs::{Device, DeviceConfig, remedy};

use super::Check;
use crate::args::DeviceArgs;
use crate::library::Libraries;
use crate::netdev;

pub(super) fn checks(args: &DeviceArgs) -> Vec<Check> {
    let mut checks = vec![libraries()];
    checks.extend(netdev::names().iter().map(|name| interface(name)));
    checks.push(device(args));
    checks
}

fn libraries() -> Check {
    const NAME: &str = "libraries";
    match Libraries::find() {
        Ok(found) => Check::ok(
            NAME,
            format!("libibverbs.so.1, librdmacm.so.1 and libroxie_audit.so in {}", found.dir.display()),
        ),
        Err(missing) => Check::warn(
            NAME,
            format!("{}: 'roxie run' does not work without them, 'roxie demo' does", missing.what),
            missing.hint.unwrap_or_default(),
        ),
    }
}

fn interface(name: &str) -> Check {
    const NAME: &str = "interface";
    let config = DeviceConfig { netdev: Some(name.to_owned()), ..DeviceConfig::default() };
    match Device::open(&config).and_then(|device| device.context()) {
        Ok(context) => {
            let (port, netdev) = (context.query_port(), context.device().gids());
            let text = format!(
                "{name}: MTU {}, path MTU {}, {} GIDs{}",
                netdev.mtu,
                port.active_mtu.bytes(),
                port.gid_tbl_len,
                if port.active { "" } else { ", down" }
            );
            if port.active { Check::ok(NAME, text) } else { Check::note(NAME, text) }
        }
        Err(error) => Check::note(NAME, format!("{name}: {error}")),
    }
}

fn device(args: &DeviceArgs) -> Check {
    const NAME: &str = "device";
    match Device::open(&args.config()) {
        Ok(device) => {
            let gids = device.gids();
            let text = format!("{} on {}", device.name(), gids.netdev);
            if gids.up {
                return Check::ok(NAME, text);
            }
            let remedy = format!("as root: ip link set {} up, or choose another with --netdev", gids.netdev);
            Check::bad(NAME, format!("{text}, which is down"), remedy)
        }
        Err(error) => Check::bad(NAME, error.to_string(), remedy(&error).unwrap_or_default()),
    }
}
