//! RDMA ports: bindings and conflicts (Linux cma.c cma_check_port, cma_port_is_unique).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use transport::cm::ServiceId;
use transport::refusal::Os;
use transport::{Errno, QpType, VerbsError, refuse};
use wire::Gid;

use super::host::{Claim, Host};
use crate::registry::{DomainConfig, ServiceAddress, ServiceRequest};
use sys::{ProcessMutex, read_once};

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
    /// The interface of a link-local address, or 0.
    pub(super) scope: u32,
    /// The address names no device.
    pub(super) is_wildcard: bool,
    /// An address of one family does not exclude wildcards of the other.
    pub(super) af_only: bool,
    pub(super) reuse: bool,
    /// The peer of a client, which tells it from another with the same ephemeral port.
    pub(super) dst: Option<SocketAddr>,
}

impl Binding {
    /// Returns the names to claim in the domain.
    fn names(&self) -> Vec<ServiceAddress> {
        match self.ip {
            ip if !self.is_wildcard => vec![ServiceAddress::at(Gid::from(ip), self.scope)],
            IpAddr::V4(_) => vec![ServiceAddress::Any4],
            IpAddr::V6(_) if self.af_only => vec![ServiceAddress::Any6],
            IpAddr::V6(_) => vec![ServiceAddress::Any6, ServiceAddress::Any4],
        }
    }

    /// Returns why both cannot have a port that the application chose (Linux cma.c cma_check_port).
    fn conflict(&self, other: &Self) -> Option<Errno> {
        let apart = self.af_only && other.af_only && self.ip.is_ipv4() != other.ip.is_ipv4();
        if apart {
            return None;
        }
        if self.is_wildcard || other.is_wildcard {
            return Some(Errno::EADDRNOTAVAIL);
        }
        (self.source() == other.source()).then_some(Errno::EADDRINUSE)
    }

    /// Returns whether both can have an ephemeral port (Linux cma.c cma_port_is_unique).
    fn is_told_from(&self, other: &Self) -> bool {
        fn differ<T: Eq>(one: Option<T>, other: Option<T>) -> bool {
            one.zip(other).is_some_and(|(one, other)| one != other)
        }
        let source = |of: &Self| (!of.is_wildcard).then(|| of.source());
        // A loopback address counts as a wildcard (cma_any_addr).
        let peer =
            |of: &Self| of.dst.map(|dst| dst.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback());
        let peer_port = |of: &Self| of.dst.map(|dst| dst.port()).filter(|port| *port != 0);
        differ(source(self), source(other))
            || differ(peer(self), peer(other))
            || differ(peer_port(self), peer_port(other))
    }

    fn source(&self) -> (IpAddr, u32) {
        (self.ip, self.scope)
    }
}

/// Identifies a binding.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct BindingId(u64);

/// A binding of a port.
struct Owner {
    id: BindingId,
    binding: Binding,
    /// The names that are claimed in the domain for it.
    claimed: Vec<ServiceAddress>,
}

/// The ports of this process.
#[derive(Default)]
pub(super) struct Ports {
    bound: HashMap<(u16, u16), Vec<Owner>>,
    next: u64,
}

/// The ports of this process in one domain, which its devices share. Locked last: under the lock of a driver.
#[derive(Clone, Default)]
pub(crate) struct SharedPorts(Arc<Mutex<Ports>>);

impl SharedPorts {
    /// Returns the ports in a domain.
    pub(crate) fn of(domain: &DomainConfig) -> Self {
        static DOMAINS: ProcessMutex<Vec<(DomainConfig, Weak<Mutex<Ports>>)>> = ProcessMutex::new();
        let mut domains = DOMAINS.lock();
        domains.retain(|(_, ports)| ports.strong_count() > 0);
        let known = domains.iter().find(|(known, _)| known == domain).and_then(|(_, ports)| ports.upgrade());
        Self(known.unwrap_or_else(|| {
            let new = Arc::default();
            domains.push((domain.clone(), Arc::downgrade(&new)));
            new
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ports {
    /// Binds a port that the application chose, unless a conflicting binding exists.
    fn take(&mut self, ps: PortSpace, port: u16, binding: Binding) -> Result<BindingId, VerbsError> {
        let is_reused = |other: &Owner| binding.reuse && other.binding.reuse;
        let mut others = self.owners(ps, port).filter(|other| !is_reused(other));
        let conflict = others.find_map(|other| binding.conflict(&other.binding));
        drop(others);
        match conflict {
            Some(number) => Err(taken(number, port)),
            None => Ok(self.add(ps, port, binding)),
        }
    }

    /// Binds an ephemeral port, unless another binding cannot be told from this one.
    fn take_ephemeral(
        &mut self,
        ps: PortSpace,
        port: u16,
        binding: Binding,
    ) -> Result<BindingId, VerbsError> {
        if self.owners(ps, port).all(|other| binding.is_told_from(&other.binding)) {
            return Ok(self.add(ps, port, binding));
        }
        Err(taken(Errno::EADDRNOTAVAIL, port))
    }

    /// Changes a binding that listens from now on: another with address reuse conflicts with it as well.
    fn listen(&mut self, ps: PortSpace, port: u16, id: BindingId) -> Result<(), VerbsError> {
        let Some(own) = self.owners(ps, port).find(|owner| owner.id == id).map(|owner| owner.binding) else {
            return Ok(());
        };
        let mut others = self.owners(ps, port).filter(|other| own.reuse && other.id != id);
        let conflict = others.find_map(|other| own.conflict(&other.binding));
        drop(others);
        match conflict {
            Some(number) => Err(taken(number, port)),
            None => {
                self.update(ps, port, id, |owner| owner.binding.reuse = false);
                Ok(())
            }
        }
    }

    fn update(&mut self, ps: PortSpace, port: u16, id: BindingId, change: impl FnOnce(&mut Owner)) {
        let mut owners = self.bound.get_mut(&(ps as u16, port)).into_iter().flatten();
        if let Some(owner) = owners.find(|owner| owner.id == id) {
            change(owner);
        }
    }

    /// The names that this process has claimed for a port.
    fn claimed(&self, ps: PortSpace, port: u16) -> Vec<ServiceAddress> {
        self.owners(ps, port).flat_map(|owner| &owner.claimed).copied().collect()
    }

    fn release(&mut self, ps: PortSpace, port: u16, id: BindingId) {
        if let Some(owners) = self.bound.get_mut(&(ps as u16, port)) {
            owners.retain(|owner| owner.id != id);
            if owners.is_empty() {
                self.bound.remove(&(ps as u16, port));
            }
        }
    }

    fn owners(&self, ps: PortSpace, port: u16) -> impl Iterator<Item = &Owner> {
        self.bound.get(&(ps as u16, port)).into_iter().flatten()
    }

    fn add(&mut self, ps: PortSpace, port: u16, binding: Binding) -> BindingId {
        self.next += 1;
        let id = BindingId(self.next);
        self.bound.entry((ps as u16, port)).or_default().push(Owner { id, binding, claimed: Vec::new() });
        id
    }
}

/// A bound port, at the device that claims it.
pub(super) struct Bound {
    pub(super) host: Arc<dyn Host>,
    ps: PortSpace,
    pub(super) port: u16,
    id: BindingId,
    pub(super) binding: Binding,
    claims: Vec<(ServiceAddress, Claim)>,
}

impl Bound {
    /// Claims the names of the binding that are missing, then releases the other ones. If a name cannot be
    /// claimed, the claims stay as they are.
    fn claim(&mut self) -> Result<(), VerbsError> {
        let (ps, port, names) = (self.ps, self.port, self.binding.names());
        let mut compatible = self.ports(|ports| ports.claimed(ps, port));
        compatible.extend(&names);
        let request = |address| ServiceRequest {
            address,
            af_only: self.binding.af_only,
            compatible: compatible.clone(),
        };
        let missing = names.iter().filter(|name| self.claims.iter().all(|(claimed, _)| claimed != *name));
        let claims = missing.map(|&name| Ok((name, self.host.claim(ps as u16, port, request(name))?)));
        let claims: io::Result<Vec<_>> = claims.collect();
        self.claims.extend(claims.map_err(|error| taken(Errno::new(Os::from(&error).0), port))?);
        self.claims.retain(|(name, _)| names.contains(name));
        self.ports(|ports| ports.update(ps, port, self.id, |owner| owner.claimed = names));
        Ok(())
    }

    /// Changes the binding, and its claims if it has any.
    ///
    /// # Errors
    /// A name of the changed binding cannot be claimed: nothing is changed.
    pub(super) fn update(&mut self, change: impl FnOnce(&mut Binding)) -> Result<(), VerbsError> {
        let before = self.binding;
        change(&mut self.binding);
        let claimed = if self.claims.is_empty() { Ok(()) } else { self.claim() };
        if claimed.is_err() {
            self.binding = before;
        }
        self.ports(|ports| ports.update(self.ps, self.port, self.id, |owner| owner.binding = self.binding));
        claimed
    }

    /// Prepares the port for a listener: claims it.
    pub(super) fn listen(&mut self) -> Result<(), VerbsError> {
        self.ports(|ports| ports.listen(self.ps, self.port, self.id))?;
        self.claim()
    }

    fn ports<R>(&self, f: impl FnOnce(&mut Ports) -> R) -> R {
        self.host.driver().with(|driver| f(&mut driver.ports.lock()))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.ports(|ports| ports.release(self.ps, self.port, self.id));
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
    let bind_one = |port, claims, is_ephemeral| {
        let take = if is_ephemeral { Ports::take_ephemeral } else { Ports::take };
        let id = host.driver().with(|state| take(&mut state.ports.lock(), ps, port, binding))?;
        let mut bound = Bound { host: Arc::clone(host), ps, port, id, binding, claims: Vec::new() };
        if claims {
            bound.claim()?;
        }
        Ok(bound)
    };
    if port != 0 {
        if port < 1024 && !may_bind_low_ports() {
            return Err(refuse!(EACCES, "identifier", "port"; port;
                "port {port} is below 1024 and the process lacks CAP_NET_BIND_SERVICE"));
        }
        return bind_one(port, claim && !binding.reuse, false);
    }
    let (low, high) = ephemeral_range();
    let span = u64::from(high - low) + 1;
    for _ in 0..EPHEMERAL_TRIES {
        let port = low + (host.random_u64() % span) as u16;
        match bind_one(port, claim, true) {
            Ok(bound) => return Ok(bound),
            Err(error) if is_taken(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Err(refuse!(EADDRNOTAVAIL, "identifier", "port"; low, high;
        "{EPHEMERAL_TRIES} random ports of {low} to {high} are in use"))
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

/// Returns Linux's range of ephemeral ports, or its default. Read once: each connection needs a port.
fn ephemeral_range() -> (u16, u16) {
    static RANGE: AtomicU64 = AtomicU64::new(0);
    let packed = read_once(&RANGE, || {
        let (low, high) = read_ephemeral_range();
        u64::from(low) << 16 | u64::from(high)
    });
    ((packed >> 16) as u16, packed as u16)
}

fn read_ephemeral_range() -> (u16, u16) {
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

/// True if an IPv6 address is for IPv6 only unless an option says otherwise (net.ipv6.bindv6only). Read once:
/// each identifier with an IPv6 address needs it.
pub(super) fn is_bound_v6_only() -> bool {
    // 1 for false and 2 for true.
    static IS_V6_ONLY: AtomicU64 = AtomicU64::new(0);
    let read = || std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    read_once(&IS_V6_ONLY, || 1 + u64::from(read().is_ok_and(|text| text.trim() == "1"))) == 2
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
        let (is_wildcard, af_only) = (ip.is_unspecified(), ip.is_ipv4());
        Binding { ip, scope: 0, is_wildcard, af_only, reuse: false, dst: None }
    }

    /// An address; `only`: with the option AFONLY, `both`: with that option set to 0.
    fn parse(text: &str) -> Binding {
        let mut words = text.split(' ');
        let mut binding = at(words.next().unwrap());
        for word in words {
            match word {
                "only" => binding.af_only = true,
                "both" => binding.af_only = false,
                "reuse" => binding.reuse = true,
                _ => binding.scope = word.parse().unwrap(),
            }
        }
        binding
    }

    /// A binding, another of the same port, and what Linux answers to the second (cma.c cma_check_port). The
    /// addresses are those of any devices: the kernel does not look at the device.
    const CHECKED: &[(&str, &str, i32)] = &[
        ("10.0.0.1", "10.0.0.1", libc::EADDRINUSE),
        ("10.0.0.1", "10.0.0.2", 0),
        ("10.0.0.1", "0.0.0.0", libc::EADDRNOTAVAIL),
        ("10.0.0.1", "fd00::1", 0),
        ("10.0.0.1", "::", libc::EADDRNOTAVAIL),
        ("10.0.0.1", ":: only", 0),
        ("10.0.0.1 both", ":: only", libc::EADDRNOTAVAIL),
        ("10.0.0.1 both", "fd00::1", 0),
        ("0.0.0.0", "0.0.0.0", libc::EADDRNOTAVAIL),
        ("0.0.0.0", "fd00::1", libc::EADDRNOTAVAIL),
        ("0.0.0.0", "fd00::1 only", 0),
        ("0.0.0.0", "::", libc::EADDRNOTAVAIL),
        ("0.0.0.0", ":: only", 0),
        ("0.0.0.0 both", ":: only", libc::EADDRNOTAVAIL),
        ("0.0.0.0 both", "fd00::1 only", libc::EADDRNOTAVAIL),
        ("fd00::1", "fd00::1", libc::EADDRINUSE),
        ("fd00::1", "fd00::2", 0),
        ("fd00::1", "::", libc::EADDRNOTAVAIL),
        ("fd00::1", ":: only", libc::EADDRNOTAVAIL),
        ("fd00::1 only", ":: only", libc::EADDRNOTAVAIL),
        ("::", "::", libc::EADDRNOTAVAIL),
        (":: only", "::", libc::EADDRNOTAVAIL),
        ("fe80::1 2", "fe80::1 2", libc::EADDRINUSE),
        ("fe80::1 2", "fe80::1 3", 0),
        ("10.0.0.1 reuse", "10.0.0.1", libc::EADDRINUSE),
        ("10.0.0.1 reuse", "10.0.0.1 reuse", 0),
        ("10.0.0.1 reuse", "0.0.0.0 reuse", 0),
        ("0.0.0.0 reuse", "::", libc::EADDRNOTAVAIL),
        ("0.0.0.0 reuse", ":: reuse", 0),
    ];

    #[test]
    fn bindings_conflict_as_in_linux() {
        for (first, second, want) in CHECKED {
            for (first, second) in [(first, second), (second, first)] {
                let mut ports = Ports::default();
                ports.take(PortSpace::Tcp, 7174, parse(first)).unwrap();
                let got = ports.take(PortSpace::Tcp, 7174, parse(second)).map_or_else(|it| it.errno(), |_| 0);
                assert_eq!(got, *want, "{second} beside {first}");
            }
        }
    }

    #[test]
    fn ephemeral_ports_are_shared_as_in_linux() {
        let to = |ip: &str, dst: Option<&str>| Binding { dst: dst.map(|dst| dst.parse().unwrap()), ..at(ip) };
        for (first, second, is_shared) in [
            (to("10.0.0.1", None), to("10.0.0.1", None), false),
            (to("10.0.0.1", None), to("10.0.0.2", None), true),
            (to("10.0.0.1", None), to("fd00::1", None), true),
            (to("10.0.0.1", None), to("0.0.0.0", None), false),
            (to("10.0.0.1", None), to("::", None), false),
            (to("10.0.0.1", Some("10.0.0.9:1")), to("10.0.0.1", Some("10.0.0.9:1")), false),
            (to("10.0.0.1", Some("10.0.0.9:1")), to("10.0.0.1", Some("10.0.0.9:2")), true),
            (to("10.0.0.1", Some("10.0.0.9:1")), to("10.0.0.1", Some("10.0.0.8:1")), true),
            (to("10.0.0.1", Some("10.0.0.9:1")), to("10.0.0.1", Some("127.0.0.1:1")), false),
            (to("10.0.0.1", Some("10.0.0.9:1")), to("10.0.0.1", None), false),
            (to("0.0.0.0", Some("10.0.0.9:1")), to("10.0.0.1", Some("10.0.0.9:2")), true),
        ] {
            for (first, second) in [(first, second), (second, first)] {
                let mut ports = Ports::default();
                ports.take_ephemeral(PortSpace::Tcp, 40_000, first).unwrap();
                let shares = ports.take_ephemeral(PortSpace::Tcp, 40_000, second).is_ok();
                assert_eq!(shares, is_shared, "{second:?} beside {first:?}");
            }
        }
    }

    #[test]
    fn a_binding_that_listens_shares_its_port_no_more() {
        let mut ports = Ports::default();
        let binding = parse("10.0.0.1 reuse");
        let first = ports.take(PortSpace::Tcp, 7174, binding).unwrap();
        let second = ports.take(PortSpace::Tcp, 7174, binding).unwrap();
        assert!(ports.listen(PortSpace::Tcp, 7174, first).is_err());
        ports.release(PortSpace::Tcp, 7174, second);
        ports.listen(PortSpace::Tcp, 7174, first).unwrap();
        let third = ports.take(PortSpace::Tcp, 7174, binding);
        assert_eq!(third.map_err(|refused| refused.errno()), Err(libc::EADDRINUSE));
    }

    #[test]
    fn the_devices_of_a_domain_share_their_ports() {
        let domains = ["ports-a:24801", "ports-a:24801", "ports-b:24802"];
        let [one, same, other] = domains.map(|text| SharedPorts::of(&DomainConfig::parse(text).unwrap()));
        one.lock().take(PortSpace::Tcp, 1, at("0.0.0.0")).unwrap();
        assert!(same.lock().take(PortSpace::Tcp, 1, at("fd00::1")).is_err());
        assert!(other.lock().take(PortSpace::Tcp, 1, at("fd00::1")).is_ok());
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
