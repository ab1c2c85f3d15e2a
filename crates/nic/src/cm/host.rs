//! What connection management needs from the rest of the device.

use std::any::Any;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use transport::Instant;
use transport::cm::{MadBytes, WillChange};
use wire::Gid;

use super::CmDriver;
use crate::bag::ServiceAddress;
use crate::engine::{self, Engine};
use crate::gid::GidTable;
use crate::sys::{Netlink, Route};

/// Where output goes: one MAD from QP1, or into the book of wills.
pub(crate) trait GsiLink {
    fn send_mad(&self, src: Gid, dst: Gid, mad: &MadBytes);
    /// Others shall say this should the process die.
    fn change_will(&self, change: WillChange);
}

/// A claimed service name; dropping it releases the name.
pub(crate) type Claim = Box<dyn Any + Send>;

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
}

impl GsiLink for Engine {
    fn send_mad(&self, src: Gid, dst: Gid, mad: &MadBytes) {
        Engine::send_mad(self, src, dst, mad);
    }

    fn change_will(&self, change: WillChange) {
        // Without memory for it the peer learns of our death from its timeouts.
        let _unwritten = self.bag.change_will(change);
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
        engine::now()
    }

    fn wake_before(&self, deadline: Option<Instant>) {
        Engine::wake_before(self, deadline);
    }

    fn gids(&self) -> Arc<GidTable> {
        self.gids.get()
    }

    fn claim(&self, port_space: u16, port: u16, address: ServiceAddress) -> io::Result<Claim> {
        Ok(Box::new(self.bag.claim_service(port_space, port, address)?))
    }

    fn route(&self, dst: IpAddr, oif: u32) -> io::Result<Route> {
        Netlink::new()?.route(dst, None, oif)
    }
}
