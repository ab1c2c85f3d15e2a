//! Binding and resolving addresses (rdma_bind_addr(3), rdma_resolve_addr(3), rdma_resolve_route(3)).
//!
//! A GID is an IP address of the device's netdev. So resolving is one lookup in the routing table, which also
//! determines the device, then one of the neighbour (`resolve.rs`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;
use transport::refusal::{Os, ip_halves, ip_of};
use transport::{Errno, VerbsError, refuse};

use wire::Gid;

use super::event::RawEvent;
use super::id::{Id, IdInner};
use super::out_of_phase;
use super::port::{self, Binding};
use super::resolve::{Path, Query};
use super::state::{IdState, Phase};
use crate::gid::GidTable;

/// Refuses a link-local address in the named field without its interface (Linux cma.c `cma_check_linklocal`).
macro_rules! has_scope {
    ($addr:expr, $name:literal) => {
        if scope($addr) == Some(0) {
            let [low, high] = ip_halves($addr.ip());
            Err(refuse!(EINVAL, "identifier", $name; low, high; let ip = ip_of(low, high);
                "the link-local address {ip} has no scope id (sin6_scope_id), so it names no interface"))
        } else {
            Ok(())
        }
    };
}

impl Id {
    /// Binds the identifier to an address and a port; port 0 selects an ephemeral port. After binding to a
    /// wildcard address, the device is known only when a request arrives or a destination is resolved.
    ///
    /// # Errors
    /// `EINVAL` unless unbound; `EADDRNOTAVAIL` for an address that this host does not have, or if a wildcard
    /// binding of the port is in the way; `ENODEV` for an address of another device of this host;
    /// `EADDRINUSE`; `EACCES` for ports below 1024 without CAP_NET_BIND_SERVICE.
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<(), VerbsError> {
        let mut state = self.0.lock();
        if state.phase != Phase::Idle {
            return Err(out_of_phase!(state.phase, "rdma_bind_addr comes first, and once"));
        }
        self.0.bind(&mut state, addr)?;
        drop(state);
        self.0.lose_removed(&*self.0.host()?);
        Ok(())
    }

    /// Finds the local address and the neighbour for a destination. `AddrResolved` or `AddrError` follows.
    /// The error is `ETIMEDOUT` if the neighbour does not answer within `timeout`; the identifier can then
    /// resolve another destination.
    ///
    /// # Errors
    /// `EINVAL` in the wrong state or if the addresses have different families; `ENETUNREACH` without a
    /// route; the errors of [`bind_addr`](Self::bind_addr) for `src`.
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<(), VerbsError> {
        let mut state = self.0.lock();
        let dst = canonical(dst);
        let mut src = src.map_or_else(|| wildcard(dst), canonical);
        match state.phase {
            Phase::Idle if src.is_ipv4() == dst.is_ipv4() => {}
            Phase::Idle => {
                let family = if src.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
                return Err(refuse!(EINVAL, "identifier", "src_addr"; family;
                    "the source and the destination are of two address families"));
            }
            Phase::Bound if state.src.is_some_and(|own| own.is_ipv4() == dst.is_ipv4()) => {
                src = state.src.unwrap_or(src);
            }
            phase => {
                return Err(out_of_phase!(
                    phase,
                    "rdma_resolve_addr needs an identifier without an address, or one that is bound to an \
                     address of the same family"
                ));
            }
        }
        has_scope!(dst, "dst_addr")?;
        let bound = if state.phase == Phase::Idle { self.0.local_of(src)? } else { state.local };
        let target = destination(dst.ip());
        let Some(Resolved { local, path }) = self.0.resolve(target, dst, bound, src.ip())? else {
            state.dst = Some(dst);
            self.0.push(RawEvent::AddrError(libc::ENODEV));
            return Ok(());
        };
        if state.phase == Phase::Idle {
            self.0.take_port(&mut state, src, bound.is_none(), Some(dst))?;
        }
        self.0.set_local(&mut state, local)?;
        if let Some(bound) = &mut state.bound {
            let change = |binding: &mut Binding| (binding.ip, binding.is_wildcard) = (local.ip(), false);
            // If it fails, the port stays claimed for more addresses than the client needs.
            let _claimed = bound.update(change);
        }
        state.peer = Some(Gid::from(target));
        state.src = Some(with_scope_of(dst, SocketAddr::new(local.ip(), state.src_port())));
        state.dst = Some(dst);
        let host = self.0.host()?;
        let Some(path) = path.filter(|path| !host.knows_neighbour(path)) else {
            state.phase = Phase::AddrResolved;
            self.0.push(RawEvent::AddrResolved);
            drop(state);
            self.0.lose_removed(&*host);
            return Ok(());
        };
        state.phase = Phase::AddrQuery;
        drop(state);
        let query = Query::new(&self.0, path, host.now(), timeout);
        host.driver().with(|driver| driver.queries.add(query));
        self.0.flush();
        self.0.lose_removed(&*host);
        Ok(())
    }

    /// Resolves the route, which on RoCE takes no lookup; `RouteResolved` follows.
    ///
    /// # Errors
    /// `EINVAL` unless the address is resolved.
    pub fn resolve_route(&self) -> Result<(), VerbsError> {
        let mut state = self.0.lock();
        if state.phase != Phase::AddrResolved {
            return Err(out_of_phase!(
                state.phase,
                "rdma_resolve_route comes after RDMA_CM_EVENT_ADDR_RESOLVED"
            ));
        }
        state.phase = Phase::RouteResolved;
        self.0.push(RawEvent::RouteResolved);
        Ok(())
    }
}

/// What resolving a destination finds.
struct Resolved {
    /// The local address.
    local: Gid,
    /// How packets leave this host; `None` if they do not, or if no neighbour has to answer.
    path: Option<Path>,
}

impl IdInner {
    pub(super) fn bind(self: &Arc<Self>, state: &mut IdState, addr: SocketAddr) -> Result<(), VerbsError> {
        let addr = canonical(addr);
        has_scope!(addr, "addr")?;
        let local = self.local_of(addr)?;
        if local.is_none() {
            // The first device keeps the port.
            self.choose(|_| Some(()))?.ok_or_else(no_device)?;
        }
        self.take_port(state, addr, local.is_none(), None)?;
        local.map_or(Ok(()), |local| self.set_local(state, local))?;
        state.phase = Phase::Bound;
        Ok(())
    }

    fn take_port(
        &self,
        state: &mut IdState,
        addr: SocketAddr,
        is_wildcard: bool,
        dst: Option<SocketAddr>,
    ) -> Result<(), VerbsError> {
        let (ip, scope) = (addr.ip(), scope(addr).unwrap_or(0));
        let af_only = state.af_only.unwrap_or_else(|| ip.is_ipv4() || port::is_bound_v6_only());
        let binding = Binding { ip, scope, is_wildcard, af_only, reuse: state.reuse, dst };
        // A client's port needs no claim in the domain.
        let bound = port::bind(&self.host()?, self.port_space, addr.port(), binding, dst.is_none())?;
        state.src = Some(with_scope_of(addr, SocketAddr::new(ip, bound.port)));
        state.bound = Some(bound);
        Ok(())
    }

    /// Chooses the device with a local address; `None` for an address that names no device: also a loopback
    /// address, as in Linux (cma.c `cma_any_addr`), unless there is a device on the loopback interface.
    fn local_of(&self, addr: SocketAddr) -> Result<Option<Gid>, VerbsError> {
        let (ip, gid) = (addr.ip(), Gid::from(addr.ip()));
        match ip {
            _ if ip.is_unspecified() => Ok(None),
            _ if ip.is_loopback() => self.choose(|gids| gids.has(&gid, None).then_some(gid)),
            _ => self.own_address(addr).map(Some),
        }
    }

    /// Chooses the device with a local address.
    fn own_address(&self, addr: SocketAddr) -> Result<Gid, VerbsError> {
        let (ip, gid) = (addr.ip(), Gid::from(addr.ip()));
        let scope = scope(addr);
        if let Some(gid) = self.choose(|gids| gids.has(&gid, scope).then_some(gid))? {
            return Ok(gid);
        }
        let on_this_host = self.route(ip, None, scope.unwrap_or(0)).is_ok_and(|route| route.is_local);
        let [low, high] = ip_halves(ip);
        Err(if on_this_host {
            refuse!(ENODEV, "identifier", "src_addr"; low, high; let ip = ip_of(low, high);
                "{ip} is an address of this host, and in no device's GID table")
        } else {
            refuse!(EADDRNOTAVAIL, "identifier", "src_addr"; low, high; let ip = ip_of(low, high);
                "{ip} is not an address of this host")
        })
    }

    /// Finds the source address of packets to `target` (`bound` if given), and chooses the device that has
    /// it. Returns `None` if no device has the address that the route says. A loopback address as the source
    /// names no device, but the kernel has no route from it to another host (Linux addr.c addr4_resolve).
    fn resolve(
        &self,
        target: IpAddr,
        dst: SocketAddr,
        bound: Option<Gid>,
        src: IpAddr,
    ) -> Result<Option<Resolved>, VerbsError> {
        let (gid, scope) = (Gid::from(target), scope(dst));
        let within = |local| Ok(Some(Resolved { local, path: None }));
        let on = |gids: &GidTable, oif| if gids.ifindex == oif { gids.source_address(target) } else { None };
        if target.is_loopback() {
            let has = |gids: &GidTable| gids.index_of(&gid).is_some();
            let mut local = bound;
            if local.is_none() {
                local = self.choose(|gids| (gids.has_carrier && has(gids)).then_some(gid))?;
            }
            if local.is_none() {
                local = self.choose(|gids| has(gids).then_some(gid))?;
            }
            if let Some(local) = local {
                return within(local);
            }
        }
        if let Some(bound) = bound {
            let gids = self.host()?.gids();
            if gids.has(&gid, scope) || target.is_multicast() {
                return within(bound);
            }
            if scope.is_some() && !gids.has(&bound, scope) {
                return Ok(None);
            }
        }
        let is_loopback = bound.is_none() && src.is_loopback() && !target.is_multicast();
        let from = if is_loopback { Some(src) } else { bound.map(|gid| gid.ip()) };
        let route = self.route(target, from, scope.unwrap_or(0));
        if target.is_multicast() {
            // The device sends to groups itself: no route is needed, and no neighbour has to answer.
            let oif = route.map_or(0, |route| route.oif);
            let any = |gids: &GidTable| gids.source_address(target).or_else(|| gids.first_like(target));
            let local = match self.choose(|gids| on(gids, oif))? {
                Some(local) => Some(local),
                None => self.choose(any)?,
            };
            return local.map_or(Ok(None), within);
        }
        let route = route.map_err(|error| {
            let ([low, high], os) = (ip_halves(target), Os::from(&error));
            refuse!((Errno::new(os.0)), "identifier", "dst_addr"; low, high, os as Os;
                let ip = ip_of(low, high); "no route to {ip}: {os} (ip route get {ip})")
        })?;
        if is_loopback && !route.is_local {
            // IPv6 has a route, and no device has the address (cma.c addr_handler).
            return Ok(None);
        }
        let source = if route.is_local { Some(target) } else { route.prefsrc }.map(Gid::from);
        let local = match (bound, source) {
            (Some(bound), _) => Some(bound),
            (None, Some(source)) => self.choose(|gids| gids.has(&source, scope).then_some(source))?,
            (None, None) => self.choose(|gids| on(gids, route.oif))?,
        };
        let next_hop = route.gateway.unwrap_or(target);
        Ok(local.map(|local| {
            let path = Path { src: local.ip(), dst: target, ifindex: route.oif, next_hop };
            Resolved { local, path: Some(path).filter(|_| !route.is_local) }
        }))
    }
}

#[cold]
fn no_device() -> VerbsError {
    let devices = 0;
    refuse!(ENODEV, "device", "netdev"; devices; "there is no device"; "'roxie doctor' may know why")
}

/// The interface of a link-local address.
pub(super) fn scope(addr: SocketAddr) -> Option<u32> {
    match addr {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => Some(v6.scope_id()),
        _ => None,
    }
}

/// Returns `addr` with the scope of `from`, if both are link-local addresses.
fn with_scope_of(from: SocketAddr, addr: SocketAddr) -> SocketAddr {
    match (scope(from), addr) {
        (Some(scope), SocketAddr::V6(v6)) if v6.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()
        }
        _ => addr,
    }
}

fn wildcard(like: SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// A wildcard destination means this host, as with TCP.
fn destination(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(addr.ip().to_canonical(), addr.port())
        }
        addr => addr,
    }
}
