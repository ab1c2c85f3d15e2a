//! Opens the port of a device, and prints a notice if it is not the requested one.

use std::io;

use crate::gid::GidTable;
use crate::notice;
use crate::port::{
    BurstPath, LocalPath, Port, PortChoice, PortKind, UdpPort, UdpPortConfig, XskError, XskPort,
    XskPortConfig,
};
use crate::refusal::Refusal;
use crate::registry::{Membership, Registry};
use crate::shm::ShmPort;

/// Opens the port of a member of a domain. Prints a notice on standard error, once, if it is not as
/// requested.
///
/// # Errors
/// With [`PortKind::Xsk`], a [`Refusal`] with the reason: a foreign program or socket, missing
/// privileges, or the kernel's error.
pub(crate) fn open(
    choice: PortChoice,
    membership: &Membership,
    netdev: &GidTable,
) -> io::Result<Box<dyn Port>> {
    let network = open_network(choice, membership, netdev)?;
    match choice.local {
        LocalPath::Shm => Ok(Box::new(ShmPort::new(network, membership.rings()))),
        LocalPath::Network => Ok(network),
    }
}

fn open_network(choice: PortChoice, membership: &Membership, netdev: &GidTable) -> io::Result<Box<dyn Port>> {
    let (ifindex, udp_port) = (netdev.ifindex, membership.udp_port());
    let udp = UdpPort::new(UdpPortConfig {
        gsi: membership.gsi_socket()?,
        slot: membership.slot_socket()?,
        udp_port,
        ifindex,
    });
    if choice.kind == PortKind::Udp {
        return Ok(Box::new(udp));
    }
    let name = &netdev.netdev;
    let bursts = BurstPath::from_env().map_err(Refusal::BadVariable)?;
    let slot = membership.slot();
    let config = XskPortConfig { inner: udp, ifindex, slot, udp_port, mode: choice.mode, bursts };
    let (error, udp) = match XskPort::open(config) {
        Ok(port) => {
            if let Some(why) = port.not_native() {
                notice(format_args!("AF_XDP on {name} in generic mode: {why}"));
            }
            if let Some(why) = port.not_zero_copy() {
                notice(format_args!("AF_XDP on {name} with copying: {why}"));
            }
            return Ok(Box::new(port));
        }
        Err(refusal) => *refusal,
    };
    match (&error, choice.kind) {
        (XskError::Owned { .. }, _) => {
            notice(format_args!("AF_XDP on {name}: {error}, so this one uses UDP sockets"));
            Ok(Box::new(udp))
        }
        (_, PortKind::Auto) => {
            notice(format_args!("no AF_XDP on {name}, using UDP sockets: {error}"));
            Ok(Box::new(udp))
        }
        _ => Err(Refusal::NoXsk { netdev: name.clone(), error }.into()),
    }
}
