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
    /// The service addresses that match a request to `dst`, in order.
    pub(super) fn candidates(dst: Gid) -> [ServiceAddress; 2] {
        [ServiceAddress::Gid(dst), Self::wildcard_of(dst)]
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

    /// True if both cannot be claimed: a wildcard and an address of its family.
    fn excludes(&self, last_part: &str) -> bool {
        match self {
            ServiceAddress::Gid(gid) => last_part == Self::wildcard_of(*gid).to_string(),
            wildcard => parse_gid(last_part).is_some_and(|gid| ServiceAddress::wildcard_of(gid) == *wildcard),
        }
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
    address: ServiceAddress,
) -> io::Result<ServiceClaim> {
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
    if others.iter().filter_map(|n| n.strip_prefix(&prefix)).any(|last| address.excludes(last)) {
        return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
    }
    let (tokens, file) = server.add_service(&name, listener)?;
    Ok(ServiceClaim { server: Arc::clone(server), tokens, file })
}

fn parse_gid(text: &str) -> Option<Gid> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten().map(|v| Gid(v.to_be_bytes()))
}
