//! Listening (rdma_listen(3)): on one device, or on a wildcard address on each device of the process (Linux
//! cma.c cma_listen_on_all).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use transport::cm::{ListenAddress, ListenParams, ServiceId};
use transport::{VerbsError, refuse};
use wire::Gid;

use super::connect::transport;
use super::driver::Listening;
use super::host::Host;
use super::id::{Id, IdInner};
use super::out_of_phase;
use super::place::Place;
use super::state::{IdState, Listener, Phase};
use crate::gid::{GidRow, GidTable};

/// For how long requests to an address without a device are rejected without another look at the interfaces.
/// Half: a flood of them costs twice the CPU time. Double: clients of a new interface wait longer.
const NO_DEVICE_NS: u64 = 500_000_000;
/// Addresses for which that is remembered.
const NO_DEVICE_MAX: usize = 16;

/// The destination of a request, and the interface that received it if the destination is link-local.
pub(crate) type RequestTarget = (Gid, Option<u32>);

impl GidTable {
    /// True if a request is for the device of the table.
    pub(crate) fn takes(&self, (gid, scope): RequestTarget) -> bool {
        match scope {
            Some(ifindex) => self.entries.contains(&GidRow { gid, ifindex }),
            None => self.index_of(&gid).is_some(),
        }
    }
}

/// Where a request to an address of another device of this process is handled.
pub(crate) enum RequestHost {
    /// The device.
    At(Arc<dyn Host>),
    /// The device is being opened: the request waits.
    Opening,
}

/// Ends listening at devices.
pub(super) fn unlisten(listeners: Vec<Listener>) {
    for (host, listener) in listeners {
        let listening = host.driver().with(|driver| {
            driver.cm.unlisten(listener);
            driver.listeners.remove(&listener)
        });
        drop(listening);
    }
}

impl Id {
    /// Listens for requests. At most `backlog` unread requests are kept; 0 or less means 1024.
    ///
    /// # Errors
    /// `EINVAL` in the wrong state; `EADDRINUSE` or `EADDRNOTAVAIL` if an identifier of this or another
    /// process of the host has a conflicting binding.
    pub fn listen(&self, backlog: i32) -> Result<(), VerbsError> {
        let inner = &self.0;
        let mut state = inner.lock();
        if state.phase == Phase::Idle {
            inner.bind(&mut state, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        }
        if state.phase != Phase::Bound {
            return Err(out_of_phase!(state.phase, "rdma_listen needs a bound identifier, or a new one"));
        }
        let Some(bound) = state.bound.as_mut() else {
            return Err(out_of_phase!(Phase::Idle, "rdma_listen needs a bound identifier, or a new one"));
        };
        let (ps, port, binding) = (inner.port_space, bound.port, bound.binding);
        let place = inner.place().ok_or_else(|| out_of_phase!(Phase::Idle, "rdma_listen needs a device"))?;
        bound.listen()?;
        let address = match binding.ip {
            ip if !binding.is_wildcard => ListenAddress::Gid(Gid::from(ip)),
            IpAddr::V4(_) => ListenAddress::AnyV4,
            IpAddr::V6(_) if binding.af_only => ListenAddress::AnyV6,
            IpAddr::V6(_) => ListenAddress::Any,
        };
        let params = ListenParams {
            service_id: ps.service(port),
            address,
            backlog: u32::try_from(backlog).unwrap_or(0),
            transport: transport(inner.qp_type),
        };
        inner.listen_on(&mut state, place, params)?;
        state.listening = Some(params);
        state.phase = Phase::Listen;
        Ok(())
    }
}

impl IdInner {
    /// Makes one device accept requests.
    pub(super) fn listen_on(
        self: &Arc<Self>,
        state: &mut IdState,
        place: Place,
        params: ListenParams,
    ) -> Result<(), VerbsError> {
        let (host, id) = (Arc::clone(&place.host), Arc::downgrade(self));
        let listener = host.driver().with(|driver| {
            let listener = driver.cm.listen(params).map_err(|_| {
                let port = params.service_id.port();
                refuse!(EADDRINUSE, "identifier", "port"; port; "another identifier listens on port {port}")
            })?;
            driver.listeners.insert(listener, Listening { id, service: params.service_id, place });
            Ok::<_, VerbsError>(listener)
        })?;
        state.listeners.push((host, listener));
        Ok(())
    }

    /// Returns where a request is handled, if the identifier listens for `service` on a wildcard
    /// address. A device that is not open yet is opened by a thread of its own: it joins the domain by the
    /// answers of other members, which the calling thread may have to give.
    pub(super) fn listen_at(self: &Arc<Self>, service: ServiceId, to: RequestTarget) -> Option<RequestHost> {
        self.places.as_ref()?;
        let mut state = self.lock();
        let params = state.listening?;
        if params.service_id != service || !params.address.covers(to.0) || state.local.is_some() {
            return None;
        }
        let has = |host: &dyn Host| host.gids().takes(to);
        if let Some((host, _)) = state.listeners.iter().find(|(host, _)| has(&**host)) {
            return Some(RequestHost::At(Arc::clone(host)));
        }
        let host = self.host().ok()?;
        if state.is_opening {
            return Some(RequestHost::Opening);
        }
        let now = host.now();
        state.no_device.retain(|(_, until)| now < *until);
        if state.no_device.iter().any(|(known, _)| *known == to) {
            return None;
        }
        let id = Arc::clone(self);
        host.driver().spawn("roxie-listen", move || id.listen_also_at(to)).ok()?;
        state.is_opening = true;
        Some(RequestHost::Opening)
    }

    /// Opens the device with the address, and listens there.
    fn listen_also_at(self: &Arc<Self>, to: RequestTarget) {
        let wanted = &mut |gids: &GidTable| gids.takes(to);
        let place = self.places.as_ref().and_then(|places| places.find(wanted).ok()?);
        let mut state = self.lock();
        state.is_opening = false;
        let (listening, has_place) = (state.listening, place.is_some());
        if let (Some(params), Some(place), Phase::Listen) = (listening, place, state.phase) {
            let host = Arc::clone(&place.host);
            // Fails if another identifier listens there; the request is then rejected.
            let _other_listens = self.listen_on(&mut state, place, params);
            drop(state);
            self.lose_removed(&*host);
        } else if !has_place && let Ok(host) = self.host() {
            let until = host.now().plus_ns(NO_DEVICE_NS);
            state.no_device.truncate(NO_DEVICE_MAX - 1);
            state.no_device.push((to, until));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_a_link_local_address_is_for_the_device_of_its_interface() {
        let gid = Gid::from("fe80::1".parse::<IpAddr>().unwrap());
        let rows = [2, 3].map(|ifindex| GidRow { gid, ifindex });
        let table = GidTable { ifindex: 2, entries: rows.to_vec(), ..GidTable::without_addresses() };
        assert_eq!([2, 3, 4].map(|ifindex| table.takes((gid, Some(ifindex)))), [true, true, false]);
        assert!(table.takes((gid, None)) && !table.takes((Gid::from(Ipv4Addr::LOCALHOST), None)));
    }
}
