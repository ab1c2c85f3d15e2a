//! stub
use crate::port::RxTrain;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use wire::Gid;

/// Which domain to join.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DomainConfig {
    /// First part of every abstract name, `roxie/1` by default.
    pub name: String,
    /// The UDP port the domain receives on.
    pub udp_port: u16,
    /// Users besides our own and root that may be members.
    pub allow_uids: Vec<u32>,
}
impl DomainConfig {
    /// The default domain, or the one named by `ROXIE_DOMAIN=name[:port]`.
    ///
    /// # Errors
    /// `EINVAL` if the variable makes no sense.
    pub fn from_env() -> io::Result<DomainConfig> {
        unimplemented!()
    }
}
/// The address a service listens on.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ServiceAddress {
    /// One local address.
    Gid(Gid),
    /// Every IPv4 address.
    Any4,
    /// Every IPv6 address.
    Any6,
}
/// A claimed service name; dropping it releases the name.
#[derive(Debug)]
pub struct ServiceClaim {}
/// This process's membership in a domain: a slot and its receive queue. All methods may be called by any thread.
#[derive(Debug)]
pub struct Membership {}
impl Membership {
    /// Joins the domain, or founds it.
    ///
    /// # Errors
    /// `EADDRINUSE` with a message that says who has the port.
    pub fn join(_config: &DomainConfig) -> io::Result<Membership> {
        unimplemented!()
    }
    /// This process's slot: bits 23..16 of its QPNs, 31..24 of its communication ids.
    #[must_use]
    pub fn slot(&self) -> u8 {
        unimplemented!()
    }
    /// A duplicate of the socket shared by all members.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn gsi_socket(&self) -> io::Result<OwnedFd> {
        unimplemented!()
    }
    /// A duplicate of this slot's socket.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn slot_socket(&self) -> io::Result<OwnedFd> {
        unimplemented!()
    }
    /// Readable when [`poll_listener`](Membership::poll_listener) has something to do (an epoll descriptor).
    #[must_use]
    pub fn listener_fd(&self) -> RawFd {
        unimplemented!()
    }
    /// Serves other members without waiting: answers JOIN and PING, hands forwarded trains to `f`. Returns trains.
    pub fn poll_listener(&self, _f: &mut dyn FnMut(&RxTrain<'_>)) -> usize {
        unimplemented!()
    }
    /// Hands a train to the member with `slot`; false if there is none or it does not keep up.
    ///
    /// # Errors
    /// Unexpected ones only.
    pub fn forward(&self, _slot: u8, _train: &RxTrain<'_>) -> io::Result<bool> {
        unimplemented!()
    }
    /// Hands a train to all other members; returns how many took it.
    pub fn forward_to_all(&self, _train: &RxTrain<'_>) -> usize {
        unimplemented!()
    }
    /// Claims a service (port space, port, address) for this process.
    ///
    /// # Errors
    /// `EADDRINUSE` if the same name is taken, `EADDRNOTAVAIL` if a wildcard and an address collide.
    pub fn claim_service(&self, _ps: u16, _port: u16, _address: ServiceAddress) -> io::Result<ServiceClaim> {
        unimplemented!()
    }
    /// Hands a train to whoever listens on (`ps`, `port`) at `dst` or at its wildcard; false if nobody does.
    ///
    /// # Errors
    /// Unexpected ones only.
    pub fn forward_to_service(&self, _ps: u16, _port: u16, _dst: Gid, _train: &RxTrain<'_>) -> io::Result<bool> {
        unimplemented!()
    }
}
