//! The interface of connection management to the rest of the device.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;

use transport::Instant;
use transport::cm::{JournalChange, MadBytes};
use transport::numbering::slot_of;
use wire::{Gid, Qpn};

use super::CmDriver;
use super::resolve::Path;
use crate::engine::Engine;
use crate::engine::outbox::Mad;
use crate::gid::GidTable;
use crate::port::Destination;
use crate::registry::ServiceRequest;
use crate::runtime::Runtime;
use sys::{Route, SockAddr};

/// Receives the driver's output: MADs to send from QP1, and changes of the disconnect journal.
pub(crate) trait GsiLink {
    fn send_mad(&self, src: Gid, dst: Gid, mad: &MadBytes);
    /// Records a change of the disconnect notices that other processes send if this one dies.
    fn update_journal(&self, change: JournalChange);
    /// Tells the other processes of this host that the host `dst` answers no probes from `src`.
    fn tell_silent_host(&self, src: Gid, dst: Gid);
}

pub(crate) use crate::registry::ClaimedService as Claim;

/// The device below an identifier: the engine, or a substitute in tests.
pub(crate) trait Host: GsiLink + Send + Sync {
    fn driver(&self) -> &CmDriver;
    fn link(&self) -> &dyn GsiLink;
    fn now(&self) -> Instant;
    /// Makes sure that a thread calls [`CmDriver::poll`] at the deadline.
    fn wake_before(&self, deadline: Option<Instant>);
    /// 64 random bits.
    fn random_u64(&self) -> u64 {
        sys::random_u64()
    }
    fn gids(&self) -> Arc<GidTable>;
    fn claim(&self, port_space: u16, port: u16, request: ServiceRequest) -> io::Result<Claim>;
    /// Takes a request for this device that another device of this process has received.
    fn take_mad(&self, mad: Mad);
    /// Returns the route from `src` to `dst`, through interface `oif` if it is not 0.
    fn route(&self, dst: IpAddr, src: Option<IpAddr>, oif: u32) -> io::Result<Route>;
    /// True if packets can take this path now; also if no neighbour resolution is needed or its state is
    /// unknown. The destination may be on this host by now: the kernel adds the local route of an IPv6
    /// address in a work queue, after `ip address add` has returned.
    fn knows_neighbour(&self, path: &Path) -> bool;
    /// Makes the kernel solicit the neighbour.
    fn solicit_neighbour(&self, path: &Path);
}

/// UDP port of the discard service (RFC 863).
const DISCARD_PORT: u16 = 9;

impl GsiLink for Engine {
    fn send_mad(&self, src: Gid, dst: Gid, mad: &MadBytes) {
        Engine::send_mad(self, src, dst, mad);
    }

    fn update_journal(&self, change: JournalChange) {
        // If memory is short, the peer notices the death by its timeouts.
        let _unwritten = self.services.registry.update_journal(change);
    }

    fn tell_silent_host(&self, src: Gid, dst: Gid) {
        self.services.registry.tell_silent_host(src, dst);
    }
}

impl Host for Engine {
    fn driver(&self) -> &CmDriver {
        &self.services.cm
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

    fn random_u64(&self) -> u64 {
        self.runtime().random_u64()
    }

    fn gids(&self) -> Arc<GidTable> {
        self.services.gids.get()
    }

    fn claim(&self, port_space: u16, port: u16, request: ServiceRequest) -> io::Result<Claim> {
        self.services.registry.claim_service(port_space, port, request)
    }

    fn take_mad(&self, mad: Mad) {
        self.deliver_mad(mad);
        self.services.cm.poll(self.now(), self);
        self.wake_before(self.services.cm.poll_timeout());
    }

    fn route(&self, dst: IpAddr, src: Option<IpAddr>, oif: u32) -> io::Result<Route> {
        if let Runtime::Virtual(_) = self.runtime() {
            // Every host of a simulation is on one link, and every neighbour is known.
            let gids = self.services.gids.get();
            let is_local = gids.index_of(&Gid::from(dst)).is_some();
            return Ok(Route { oif: gids.ifindex, prefsrc: None, gateway: None, is_local });
        }
        self.services.routes.ask(|netlink| netlink.route(dst, src, oif))
    }

    fn knows_neighbour(&self, path: &Path) -> bool {
        if let Runtime::Virtual(_) = self.runtime() {
            return true;
        }
        let known = || -> io::Result<bool> {
            if is_group_address(path.next_hop) {
                return Ok(true);
            }
            self.services.routes.ask(|netlink| {
                let row = netlink.neighbour(path.ifindex, path.next_hop)?;
                Ok(row.is_some_and(|row| row.mac.is_some())
                    || !netlink.link(path.ifindex)?.has_neighbours
                    || netlink.route(path.dst, None, path.ifindex).is_ok_and(|route| route.is_local))
            })
        };
        // In a sandbox without netlink, the connection request finds out.
        known().unwrap_or(true)
    }

    fn solicit_neighbour(&self, path: &Path) {
        solicit(path);
    }
}

impl Engine {
    /// Where an address is, or a queue pair at it. Asks the kernel, so the caller does not hold the lock.
    pub(crate) fn destination(&self, ip: IpAddr, qpn: Option<Qpn>) -> Destination {
        let may_be_here = |qpn| self.services.registry.has_member(slot_of(qpn));
        if !self.tells_destinations_apart() || !qpn.is_none_or(may_be_here) {
            return Destination::Elsewhere;
        }
        match self.route(ip, None, 0) {
            Ok(route) if route.is_local => Destination::ThisHost,
            // In a sandbox without netlink, packets go through the kernel.
            Ok(_) | Err(_) => Destination::Elsewhere,
        }
    }
}

/// Makes the kernel solicit the neighbour of a path: sends a datagram to the destination.
pub(crate) fn solicit(path: &Path) {
    let to = match path.dst {
        IpAddr::V6(ip) => SocketAddrV6::new(ip, DISCARD_PORT, 0, path.ifindex).into(),
        ip => SocketAddr::new(ip, DISCARD_PORT),
    };
    let send = || {
        let socket = sys::udp_socket(path.src.is_ipv6())?;
        sys::bind(socket.as_fd(), &SockAddr::ip(path.src, 0, path.ifindex))?;
        UdpSocket::from(socket).send_to(&[], to)
    };
    // If the kernel does not send it, the neighbour stays unknown.
    let _unsent = send();
}

/// True for broadcast and multicast addresses.
fn is_group_address(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    }
}
