//! Network interfaces by name, in the network namespace of the caller.

use std::net::IpAddr;

use sys::{Link, Netlink};

use crate::failure::{During, Failure, Outcome};

/// The interface that has this address.
#[must_use]
pub fn with_address(address: IpAddr) -> Option<String> {
    let mut netlink = Netlink::new().ok()?;
    let index = netlink.addresses().ok()?.into_iter().find(|a| a.ip == address)?.ifindex;
    netlink.link(index).ok().map(|link| link.name)
}

/// All interfaces.
///
/// # Errors
/// Those of netlink.
pub fn links() -> Outcome<Vec<Link>> {
    Netlink::new().and_then(|mut netlink| netlink.links()).during("netlink")
}

/// The interface of this name or alternative name.
///
/// # Errors
/// If there is none, with the names of all; those of netlink.
pub fn link(name: &str) -> Outcome<Link> {
    let mut links = links()?;
    let found = links.iter().position(|link| link.name == name || link.altnames.iter().any(|it| it == name));
    found.map(|at| links.swap_remove(at)).ok_or_else(|| {
        let names: Vec<String> = links.into_iter().map(|link| link.name).collect();
        Failure::new(format!("no network interface called '{name}'"))
            .hint(format!("there are: {}", names.join(", ")))
    })
}
