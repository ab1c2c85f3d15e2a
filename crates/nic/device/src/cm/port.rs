//! RDMA ports: bindings and conflicts (Linux cma.c cma_check_port, cma_alloc_any_port).

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use transport::cm::ServiceId;
use transport::refusal::Os;
use transport::{Errno, QpType, VerbsError, refuse};
use wire::Gid;

use super::host::{Claim, Host};
use crate::registry::ServiceAddress;

/// `enum rdma_port_space`.
#[repr(u16)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PortSpace {
    /// IP over InfiniBand datagrams.
    Ipoib = 0x0002,
    /// Connected services.
    Tcp = 0x0106,
    /// Datagram services.
    Udp = 0x0111,
    /// Any service, by service id.
    Ib = 0x013f,
}

impl PortSpace {
    /// Returns the port space with this value.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        [Self::Ipoib, Self::Tcp, Self::Udp, Self::Ib].into_iter().find(|ps| *ps as u16 == code)
    }

    /// True if its services use datagram QPs.
    #[must_use]
    pub fn is_datagram(self) -> bool {
        matches!(self, Self::Udp | Self::Ipoib)
    }

    /// Returns the default QP type.
    #[must_use]
    pub fn qp_type(self) -> QpType {
        if self.is_datagram() { QpType::Ud } else { QpType::Rc }
    }

    pub(super) fn service(self, port: u16) -> ServiceId {
        ServiceId::from_port(self as u16, port)
    }
}

/// The address of one identifier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) ip: IpAddr,
    /// The address names no device.
    pub(super) is_wildcard: bool,
    /// An IPv6 wildcard does not include IPv4.
    pub(super) af_only: bool,
    pub(super) reuse: bool,
}

impl Binding {
    /// Returns the names to claim in the domain.
    pub(super) fn names(&self) -> Vec<ServiceAddress> {
        match self.ip {
            ip if !self.is_wildcard => vec![ServiceAddress::Gid(Gid::from(ip))],
            IpAddr::V4(_) => vec![ServiceAddress::Any4],
            IpAddr::V6(_) if self.af_only => vec![ServiceAddress::Any6],
            IpAddr::V6(_) => vec![ServiceAddress::Any6, ServiceAddress::Any4],
        }
    }

    fn conflict(&self, other: &Self) -> Option<Errno> {
        let apart = self.af_only && other.af_only && self.ip.is_ipv4() != other.ip.is_ipv4();
        if apart {
            return None;
        }
        if self.is_wildcard || other.is_wildcard {
            return Some(Errno::EADDRNOTAVAIL);
        }
        (self.ip == other.ip).then_some(Errno::EADDRINUSE)
    }
}

/// Identifies a binding.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct BindingId(u64);

/// A binding of a port, and whether its names are claimed in the domain.
type Owner = (BindingId, Binding, bool);

/// The ports of this process.
#[derive(Default)]
pub(super) struct Ports {
    bound: HashMap<(u16, u16), Vec<Owner>>,
    next: u64,
}

impl Ports {
    /// Binds a port, unless a conflicting binding exists.
    pub(super) fn take(
        &mut self,
        ps: PortSpace,
        port: u16,
        binding: Binding,
    ) -> Result<BindingId, VerbsError> {
        let owners = self.bound.entry((ps as u16, port)).or_default();
        let conflicting = owners.iter().filter(|(_, other, _)| !(binding.reuse && other.reuse));
        if let Some(number) = conflicting.filter_map(|(_, other, _)| binding.conflict(other)).next() {
            return Err(taken(number, port));
        }
        self.next += 1;
        let id = BindingId(self.next);
        owners.push((id, binding, false));
        Ok(id)
    }

    /// Fails if a conflicting binding exists. Only one binding may listen, even with address reuse.
    pub(super) fn check_listen(
        &self,
        ps: PortSpace,
        port: u16,
        id: BindingId,
        binding: Binding,
    ) -> Result<(), VerbsError> {
        let owners = self.bound.get(&(ps as u16, port)).into_iter().flatten();
        match owners.filter(|(other, ..)| *other != id).find_map(|(_, other, _)| binding.conflict(other)) {
            Some(number) => Err(taken(number, port)),
            None => Ok(()),
        }
    }

    /// Records that the names of the binding are claimed in the domain.
    pub(super) fn claimed(&mut self, ps: PortSpace, port: u16, id: BindingId) {
        let owners = self.bound.get_mut(&(ps as u16, port)).into_iter().flatten();
        for (_, _, claimed) in owners.filter(|(other, ..)| *other == id) {
            *claimed = true;
        }
    }

    pub(super) fn release(&mut self, ps: PortSpace, port: u16, id: BindingId) {
        if let Some(owners) = self.bound.get_mut(&(ps as u16, port)) {
            owners.retain(|(other, ..)| *other != id);
            if owners.is_empty() {
                self.bound.remove(&(ps as u16, port));
            }
        }
    }
}

/// A bound port, at the device that keeps it.
pub(super) struct Bound {
    pub(super) host: Arc<dyn Host>,
    ps: PortSpace,
    pub(super) port: u16,
    pub(super) id: BindingId,
    pub(super) binding: Binding,
    pub(super) claims: Vec<Claim>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.host.driver().with(|driver| driver.ports.release(self.ps, self.port, self.id));
    }
}

/// Number of random ephemeral ports to try before the bind fails.
const EPHEMERAL_TRIES: usize = 256;

/// Binds to `port`, or to an ephemeral port if it is 0. `claim` also excludes the other processes of the
/// host.
pub(super) fn bind(
    host: &Arc<dyn Host>,
    ps: PortSpace,
    port: u16,
    binding: Binding,
    claim: bool,
) -> Result<Bound, VerbsError> {
    if port != 0 {
        if port < 1024 && !may_bind_low_ports() {
            return Err(refuse!(EACCES, "identifier", "port"; port;
                "port {port} is below 1024 and the process lacks CAP_NET_BIND_SERVICE"));
        }
        return bind_one(host, ps, port, binding, claim && !binding.reuse);
    }
    let (low, high) = ephemeral_range();
    let span = u64::from(high - low) + 1;
    for _ in 0..EPHEMERAL_TRIES {
        let port = low + (host.random_u64() % span) as u16;
        match bind_one(host, ps, port, binding, claim) {
            Ok(bound) => return Ok(bound),
            Err(error) if is_taken(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Err(refuse!(EADDRNOTAVAIL, "identifier", "port"; low, high;
        "{EPHEMERAL_TRIES} random ports of {low} to {high} are in use"))
}

/// Claims the names of a binding, unless they are claimed.
pub(super) fn claim(bound: &mut Bound) -> Result<(), VerbsError> {
    if bound.claims.is_empty() {
        let names = bound.binding.names().into_iter();
        let (ps, port) = (bound.ps, bound.port);
        let claims = names.map(|name| bound.host.claim(ps as u16, port, name)).collect::<io::Result<_>>();
        bound.claims = claims.map_err(|error| taken(Errno::new(Os::from(&error).0), port))?;
        bound.host.driver().with(|state| state.ports.claimed(ps, port, bound.id));
    }
    Ok(())
}

fn bind_one(
    host: &Arc<dyn Host>,
    ps: PortSpace,
    port: u16,
    binding: Binding,
    claims: bool,
) -> Result<Bound, VerbsError> {
    let id = host.driver().with(|state| state.ports.take(ps, port, binding))?;
    let mut bound = Bound { host: Arc::clone(host), ps, port, id, binding, claims: Vec::new() };
    if claims {
        claim(&mut bound)?;
    }
    Ok(bound)
}

fn is_taken(error: &VerbsError) -> bool {
    [Errno::EADDRINUSE, Errno::EADDRNOTAVAIL].contains(&error.kind())
}

/// The refusal of a port that another binding has, or that cannot be claimed for another reason.
#[cold]
fn taken(number: Errno, port: u16) -> VerbsError {
    match number {
        Errno::EADDRINUSE => refuse!(EADDRINUSE, "identifier", "port"; port; "port {port} is in use"),
        Errno::EADDRNOTAVAIL => refuse!(EADDRNOTAVAIL, "identifier", "port"; port;
            "port {port} is in use by a wildcard address, or this would be one"),
        _ => {
            let os = Os(number.number());
            refuse!((number), "identifier", "port"; port, os as Os; "port {port} cannot be claimed: {os}")
        }
    }
}

/// Returns Linux's range of ephemeral ports, or its default.
fn ephemeral_range() -> (u16, u16) {
    let parse = |text: String| {
        let mut numbers = text.split_whitespace().map(str::parse::<u16>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(low)), Some(Ok(high))) if 0 < low && low <= high => Some((low, high)),
            _ => None,
        }
    };
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    text.and_then(parse).unwrap_or((32_768, 60_999))
}

/// True if CAP_NET_BIND_SERVICE is in the effective set.
fn may_bind_low_ports() -> bool {
    const CAP_NET_BIND_SERVICE: u64 = 10;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    effective >> CAP_NET_BIND_SERVICE & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: &str) -> Binding {
        let ip: IpAddr = ip.parse().unwrap();
        Binding { ip, is_wildcard: ip.is_unspecified(), af_only: ip.is_ipv4(), reuse: false }
    }

    #[test]
    fn bindings_conflict_as_in_linux() {
        let mut ports = Ports::default();
        let mut take = |binding| ports.take(PortSpace::Tcp, 7174, binding).map_err(|refused| refused.errno());
        take(at("10.0.0.1")).unwrap();
        take(at("10.0.0.2")).unwrap();
        assert_eq!(take(at("10.0.0.1")), Err(libc::EADDRINUSE));
        assert_eq!(take(at("0.0.0.0")), Err(libc::EADDRNOTAVAIL));
        assert_eq!(take(at("::")), Err(libc::EADDRNOTAVAIL), "the IPv6 wildcard includes IPv4");
        take(Binding { af_only: true, ..at("::") }).unwrap();
        assert_eq!(take(at("::")), Err(libc::EADDRNOTAVAIL), "two wildcards");
    }

    #[test]
    fn only_one_of_several_bindings_with_reuse_may_listen() {
        let mut ports = Ports::default();
        let binding = Binding { reuse: true, ..at("10.0.0.1") };
        let first = ports.take(PortSpace::Tcp, 7174, binding).unwrap();
        let second = ports.take(PortSpace::Tcp, 7174, binding).unwrap();
        assert!(ports.check_listen(PortSpace::Tcp, 7174, first, binding).is_err());
        ports.release(PortSpace::Tcp, 7174, second);
        assert!(ports.check_listen(PortSpace::Tcp, 7174, first, binding).is_ok());
    }

    #[test]
    fn port_spaces_are_separate() {
        let mut ports = Ports::default();
        ports.take(PortSpace::Tcp, 1, at("0.0.0.0")).unwrap();
        ports.take(PortSpace::Udp, 1, at("0.0.0.0")).unwrap();
        assert_eq!(PortSpace::from_code(0x0111), Some(PortSpace::Udp));
        assert_eq!(PortSpace::from_code(7), None);
    }
}
