//! What connection management needs from the rest of the device.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;

use transport::Instant;
use transport::cm::{MadBytes, WillChange};
use wire::Gid;

use super::CmDriver;
use super::resolve::Path;
use crate::engine::Engine;
use crate::gid::GidTable;
use crate::registry::ServiceAddress;
use sys::{Netlink, Route, SockAddr};

/// Where output goes: one MAD from QP1, or into the book of wills.
pub(crate) trait GsiLink {
    fn send_mad(&self, src: Gid, dst: Gid, mad: &MadBytes);
    /// Others shall say this should the process die.
    fn update_journal(&self, change: WillChange);
}

pub(crate) use crate::registry::ClaimedService as Claim;

/// The device under an identifier: the engine, or what a test puts in its place.
pub(crate) trait Host: GsiLink + Send + Sync {
    fn driver(&self) -> &CmDriver;
    fn link(&self) -> &dyn GsiLink;
    fn now(&self) -> Instant;
    /// Somebody must call [`CmDriver::poll`] by then.
    fn wake_before(&self, deadline: Option<Instant>);
    fn gids(&self) -> Arc<GidTable>;
    fn claim(&self, port_space: u16, port: u16, address: ServiceAddress) -> io::Result<Claim>;
    /// How this host would reach `dst`, through interface `oif` if not 0.
    fn route(&self, dst: IpAddr, oif: u32) -> io::Result<Route>;
    /// Whether packets can take this way now; true as well where there is nobody to ask, or no way to find out.
    fn knows_neighbour(&self, path: &Path) -> bool;
    /// Has the kernel ask.
    fn ask_neighbour(&self, path: &Path);
}

/// RFC 863.
const DISCARD_PORT: u16 = 9;

impl GsiLink for Engine {
    fn send_mad(&self, src: Gid, dst: Gid, mad: &MadBytes) {
        Engine::send_mad(self, src, dst, mad);
    }

    fn update_journal(&self, change: WillChange) {
        // Without memory for it the peer learns of our death from its timeouts.
        let _unwritten = self.registry.update_journal(change);
    }
}

impl Host for Engine {
    fn driver(&self) -> &CmDriver {
        &self.cm
    }

    fn link(&self) -> &dyn GsiLink {
        self
    }

    fn now(&self) -> Instant {
        Engine::now(self)
    }

    fn wake_before(&self, deadline: Option<Instant>) {
        Engine::wake_before(self, deadline);
    }

    fn gids(&self) -> Arc<GidTable> {
        self.gids.get()
    }

    fn claim(&self, port_space: u16, port: u16, address: ServiceAddress) -> io::Result<Claim> {
        self.registry.claim_service(port_space, port, address)
    }

    fn route(&self, dst: IpAddr, oif: u32) -> io::Result<Route> {
        Netlink::new()?.route(dst, None, oif)
    }

    fn knows_neighbour(&self, path: &Path) -> bool {
        let known = || -> io::Result<bool> {
            let mut netlink = Netlink::new()?;
            if !netlink.link(path.ifindex)?.has_neighbours || is_to_many(path.next_hop) {
                return Ok(true);
            }
            Ok(netlink.neighbour(path.ifindex, path.next_hop)?.is_some_and(|row| row.mac.is_some()))
        };
        // In a sandbox without netlink the connection request finds out.
        known().unwrap_or(true)
    }

    fn ask_neighbour(&self, path: &Path) {
        let to = match path.dst {
            IpAddr::V6(ip) => SocketAddrV6::new(ip, DISCARD_PORT, 0, path.ifindex).into(),
            ip => SocketAddr::new(ip, DISCARD_PORT),
        };
        let ask = || {
            let socket = sys::udp_socket(path.src.is_ipv6())?;
            sys::bind(socket.as_fd(), &SockAddr::ip(path.src, 0, path.ifindex))?;
            UdpSocket::from(socket).send_to(&[], to)
        };
        // A kernel that will not send it has no answer either, and the deadline passes.
        let _unsent = ask();
    }
}

/// Nobody has this address alone.
fn is_to_many(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    }
}
