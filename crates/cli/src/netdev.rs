//! Network interfaces by name, in the network namespace of the caller.

use std::net::IpAddr;

use sys::{Link, Netlink};

use crate::failure::{During, Failure, Outcome};

/// Names of all interfaces, in the kernel's order.
#[must_use]
pub fn names() -> Vec<String> {
    let Ok(list) = nix::net::if_::if_nameindex() else { return Vec::new() };
    list.iter().map(|interface| interface.name().to_string_lossy().into_owned()).collect()
}

/// The interface that has this address.
#[must_use]
pub fn with_address(address: IpAddr) -> Option<String> {
    let mut netlink = Netlink::new().ok()?;
    let index = netlink.addresses().ok()?.into_iter().find(|a| a.ip == address)?.ifindex;
    netlink.link(index).ok().map(|link| link.name)
}

/// Fails with the names of all interfaces if there is none called `name`.
///
/// # Errors
/// If there is no such interface; exit code 1.
pub fn check(name: &str) -> Outcome {
    let names = names();
    if names.iter().any(|n| n == name) {
        return Ok(());
    }
    Err(Failure::new(format!("no network interface called '{name}'"))
        .hint(format!("there are: {}", names.join(", "))))
}

/// All interfaces.
///
/// # Errors
/// Those of netlink.
pub fn links() -> Outcome<Vec<Link>> {
    Netlink::new().and_then(|mut netlink| netlink.links()).during("netlink")
}

/// The interface called `name`.
///
/// # Errors
/// As [`check`], and those of netlink.
pub fn link(name: &str) -> Outcome<Link> {
    check(name)?;
    let link = links()?.into_iter().find(|link| link.name == name);
    link.ok_or_else(|| Failure::new(format!("interface {name} was removed just now")))
}
