//! Service names: which process listens on which (port space, port, address).

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use wire::Gid;

use super::join::BACKLOG;
use super::meeting::{self, SocketFile};
use super::names::GroupNames;
use super::serve::Server;

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

impl ServiceAddress {
    /// One local address; a link-local one, which several interfaces may have, at the interface `scope`.
    pub(crate) fn at(gid: Gid, scope: u32) -> ServiceAddress {
        let mut bytes = gid.0;
        if matches!(gid.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            // Zero in such an address (RFC 4291 2.5.6).
            bytes[4..8].copy_from_slice(&scope.to_be_bytes());
        }
        ServiceAddress::Gid(Gid(bytes))
    }

    /// The service addresses that match a request to `dst` through an interface, in order.
    pub(super) fn candidates(dst: Gid, ifindex: u32) -> [ServiceAddress; 2] {
        [Self::at(dst, ifindex), Self::wildcard_of(dst)]
    }

    pub(super) fn name(&self, group: &GroupNames, ps: u16, port: u16) -> String {
        format!("{}{self}", group.services(ps, port))
    }

    fn wildcard_of(gid: Gid) -> ServiceAddress {
        match gid.ip() {
            IpAddr::V4(_) => ServiceAddress::Any4,
            IpAddr::V6(_) => ServiceAddress::Any6,
        }
    }

    /// The address with this last part of a name.
    fn parse(last_part: &str) -> Option<Self> {
        let wildcard = [Self::Any4, Self::Any6].into_iter().find(|any| any.to_string() == last_part);
        wildcard.or_else(|| parse_gid(last_part).map(Self::Gid))
    }

    fn is_wildcard(self) -> bool {
        !matches!(self, Self::Gid(_))
    }

    fn is_ipv4(self) -> bool {
        match self {
            Self::Gid(gid) => gid.ip().is_ipv4(),
            wildcard => wildcard == Self::Any4,
        }
    }
}

/// A service address to claim, and what decides which others collide with it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServiceRequest {
    /// The address.
    pub address: ServiceAddress,
    /// The address is for its own family only (RDMA_OPTION_ID_AFONLY).
    pub af_only: bool,
    /// Claims of this process for the same port that do not collide.
    pub compatible: Vec<ServiceAddress>,
}

impl From<ServiceAddress> for ServiceRequest {
    /// The address as without an option: an IPv6 address is for both families (net.ipv6.bindv6only is 0). A
    /// wildcard for both claims both.
    fn from(address: ServiceAddress) -> Self {
        let af_only = address.is_wildcard() || address.is_ipv4();
        Self { address, af_only, compatible: Vec::new() }
    }
}

impl ServiceRequest {
    /// True if another claim collides, of which only the address is known (Linux cma.c cma_check_port; two
    /// equal addresses have one name).
    pub(crate) fn collides(&self, other: ServiceAddress) -> bool {
        let are_apart =
            self.af_only && Self::from(other).af_only && self.address.is_ipv4() != other.is_ipv4();
        !are_apart
            && (self.address.is_wildcard() || other.is_wildcard())
            && self.address != other
            && !self.compatible.contains(&other)
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceAddress::Gid(gid) => write!(f, "{:032x}", u128::from_be_bytes(gid.0)),
            ServiceAddress::Any4 => f.write_str("any4"),
            ServiceAddress::Any6 => f.write_str("any6"),
        }
    }
}

/// A claimed service; dropping it releases the name.
#[derive(Debug)]
pub struct ServiceClaim {
    server: Arc<Server>,
    tokens: Vec<u64>,
    /// That of the private socket.
    file: Option<SocketFile>,
}

impl Drop for ServiceClaim {
    fn drop(&mut self) {
        // While the name is still taken: its next owner makes a file with the same path.
        drop(self.file.take());
        self.tokens.iter().rev().for_each(|token| self.server.remove(*token));
    }
}

/// Claims a name. The check for collisions between a wildcard and an address follows the claim, so if two
/// processes race at least one of them fails.
pub(super) fn claim(
    server: &Arc<Server>,
    ps: u16,
    port: u16,
    request: &ServiceRequest,
) -> io::Result<ServiceClaim> {
    let address = request.address;
    let name = address.name(&server.group, ps, port);
    let listener = meeting::listen(&name, BACKLOG).map_err(|error| match address {
        // As in Linux (cma.c, cma_check_port).
        ServiceAddress::Any4 | ServiceAddress::Any6 if error.kind() == io::ErrorKind::AddrInUse => {
            io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)
        }
        _ => error,
    })?;
    let prefix = server.group.services(ps, port);
    let others = sys::abstract_names(&prefix);
    let others = others.iter().filter_map(|name| ServiceAddress::parse(name.strip_prefix(&prefix)?));
    if others.into_iter().any(|other| request.collides(other)) {
        return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
    }
    let (tokens, file) = server.add_service(&name, listener)?;
    Ok(ServiceClaim { server: Arc::clone(server), tokens, file })
}

fn parse_gid(text: &str) -> Option<Gid> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten().map(|v| Gid(v.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_addresses_of_two_interfaces_are_two_services() {
        let of = |ip: &str| Gid::from(ip.parse::<IpAddr>().unwrap());
        let [link_local, global] = [of("fe80::1"), of("fd00::1")];
        let [first, second] = [5, 6].map(|scope| ServiceAddress::at(link_local, scope));
        assert_ne!(first, second);
        assert_eq!(ServiceAddress::candidates(link_local, 6), [second, ServiceAddress::Any6]);
        assert_eq!(
            ServiceAddress::candidates(global, 6),
            [ServiceAddress::Gid(global), ServiceAddress::Any6]
        );
        assert_eq!(ServiceAddress::parse(&first.to_string()), Some(first));
        assert!(ServiceRequest::from(first).collides(ServiceAddress::Any6));
        assert!(!ServiceRequest::from(first).collides(second));
    }
}
