//! Binding and resolving addresses (rdma_bind_addr(3), rdma_resolve_addr(3), rdma_resolve_route(3)).
//!
//! A GID is an IP address of the device's netdev. So resolving is one lookup in the routing table, then one
//! of the neighbour (`resolve.rs`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use transport::refusal::{Os, ip_halves, ip_of};
use transport::{Errno, VerbsError, refuse};

use wire::Gid;

use super::event::RawEvent;
use super::id::{Id, IdInner, IdState, Phase};
use super::out_of_phase;
use super::port::{self, Binding};
use super::resolve::{Path, Query};

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
        self.0.bind(&mut state, addr, true)
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
        match state.phase {
            Phase::Idle => {
                let src = src.map_or_else(|| wildcard(dst), canonical);
                if src.is_ipv4() != dst.is_ipv4() {
                    let family = if src.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
                    return Err(refuse!(EINVAL, "identifier", "src_addr"; family;
                        "the source and the destination are of two address families"));
                }
                // A client's port needs no claim in the domain; servers claim theirs, see `bind_addr`.
                self.0.bind(&mut state, src, false)?;
            }
            Phase::Bound if state.src_ip().is_some_and(|ip| ip.is_ipv4() == dst.is_ipv4()) => {}
            phase => {
                return Err(out_of_phase!(
                    phase,
                    "rdma_resolve_addr needs an identifier without an address, or one that is bound to an \
                     address of the same family"
                ));
            }
        }
        let target = destination(dst.ip());
        let Some((local, path)) = self.0.path_to(target, dst, state.local)? else {
            drop(state);
            self.0.push(RawEvent::AddrError(libc::ENODEV));
            return Ok(());
        };
        state.local = Some(local);
        state.peer = Some(Gid::from(target));
        state.src = Some(SocketAddr::new(local.ip(), state.src_port()));
        state.dst = Some(dst);
        let Some(path) = path.filter(|path| !self.0.host.knows_neighbour(path)) else {
            state.phase = Phase::AddrResolved;
            drop(state);
            self.0.push(RawEvent::AddrResolved);
            return Ok(());
        };
        state.phase = Phase::AddrQuery;
        drop(state);
        let query = Query::new(&self.0, path, self.0.now(), timeout);
        self.0.host.driver().with(|driver| driver.queries.add(query));
        self.0.flush();
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
        drop(state);
        self.0.push(RawEvent::RouteResolved);
        Ok(())
    }
}

impl IdInner {
    pub(super) fn bind(
        self: &Arc<Self>,
        state: &mut IdState,
        addr: SocketAddr,
        claim: bool,
    ) -> Result<(), VerbsError> {
        let addr = canonical(addr);
        let ip = addr.ip();
        let local = if ip.is_unspecified() { None } else { Some(self.own_address(ip)?) };
        let af_only = state.af_only.unwrap_or(ip.is_ipv4());
        let binding = Binding { ip, af_only, reuse: state.reuse };
        let bound = port::bind(&*self.host, self.port_space, addr.port(), binding, claim)?;
        state.src = Some(SocketAddr::new(ip, bound.port));
        state.local = local;
        state.bound = Some(bound);
        state.phase = Phase::Bound;
        Ok(())
    }

    fn own_address(&self, ip: IpAddr) -> Result<Gid, VerbsError> {
        let gid = Gid::from(ip);
        if self.host.gids().index_of(&gid).is_some() {
            return Ok(gid);
        }
        let on_this_host = self.host.route(ip, 0).is_ok_and(|route| route.is_local);
        let [low, high] = ip_halves(ip);
        Err(if on_this_host {
            refuse!(ENODEV, "identifier", "src_addr"; low, high; let ip = ip_of(low, high);
                "{ip} is an address of this host, and not in the device's GID table")
        } else {
            refuse!(EADDRNOTAVAIL, "identifier", "src_addr"; low, high; let ip = ip_of(low, high);
                "{ip} is not an address of this host")
        })
    }

    /// Returns the source address of packets to `target` (`bound` if given), and their path if they leave
    /// this host. Returns `None` if the route does not use the device.
    fn path_to(
        &self,
        target: IpAddr,
        dst: SocketAddr,
        bound: Option<Gid>,
    ) -> Result<Option<(Gid, Option<Path>)>, VerbsError> {
        let gids = self.host.gids();
        let own = |ip: IpAddr| Some(Gid::from(ip)).filter(|gid| gids.index_of(gid).is_some());
        let source = || gids.source_for(target).and_then(|index| gids.address(index)).map(Gid::from);
        if let Some(gid) = own(target) {
            return Ok(Some((bound.unwrap_or(gid), None)));
        }
        if target.is_multicast() {
            // The device sends to groups itself: no route is needed, and no neighbour has to answer.
            return Ok(bound.or_else(source).map(|gid| (gid, None)));
        }
        let oif = match dst {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => match v6.scope_id() {
                0 => gids.ifindex,
                scope => scope,
            },
            _ => 0,
        };
        let route = self.host.route(target, oif).map_err(|error| {
            let ([low, high], os) = (ip_halves(target), Os::from(&error));
            refuse!((Errno::new(os.0)), "identifier", "dst_addr"; low, high, os as Os;
                let ip = ip_of(low, high); "no route to {ip}: {os} (ip route get {ip})")
        })?;
        if oif != 0 && oif != gids.ifindex {
            return Ok(None);
        }
        let local = match (bound, route.prefsrc) {
            (Some(gid), _) => Some(gid),
            (None, Some(src)) => own(src),
            (None, None) if route.oif == gids.ifindex => source(),
            (None, None) => None,
        };
        let next_hop = route.gateway.unwrap_or(target);
        Ok(local.map(|local| {
            let path = Path { src: local.ip(), dst: target, ifindex: route.oif, next_hop };
            (local, Some(path).filter(|_| !route.is_local && route.oif == gids.ifindex))
        }))
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
