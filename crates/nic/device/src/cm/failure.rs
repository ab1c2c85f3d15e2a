//! Why a connection was not made, for people: what is known of the peer and the route, and what to do.

use sys::{Netlink, Route};
use wire::cm::RejReason;

use super::address::scope;
use super::event::{CmEvent, CmEventKind};

impl CmEvent {
    /// Says in one line why this connection was not made; `None` for an event that is no such failure, for a
    /// request of a peer, and for a rejection in which the peer's program says more to this one: libfabric
    /// rejects one of two requests that cross.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let to = self.id.peer_addr()?;
        let (ip, port, status) = (to.ip(), to.port(), self.status);
        // The identifier of a request has no port of its own.
        let is_active = || self.id.0.lock().bound.is_some();
        let why = match (self.kind, status.wrapping_neg()) {
            (CmEventKind::Rejected, _) if is_active() => {
                let reason = RejReason(u16::try_from(status).ok()?);
                if reason == RejReason::CONSUMER_DEFINED && self.private_data.iter().any(|byte| *byte != 0) {
                    return None;
                }
                let cause = reason.usual_cause().unwrap_or("'roxie explain' knows the reason");
                let start =
                    if reason == RejReason::INVALID_SERVICE_ID { "; start the server first" } else { "" };
                format!("{cause}{start}")
            }
            (CmEventKind::AddrError, libc::ETIMEDOUT) => match self.route() {
                Some((Route { gateway, .. }, netdev)) => {
                    let hop = gateway.unwrap_or(ip);
                    format!("no answer from {hop} on {netdev}; 'ping {hop}' must pass")
                }
                None => "no answer, and there is no route to it now".to_owned(),
            },
            (CmEventKind::AddrError, libc::ENODEV) => {
                let route = self.route();
                let netdev = route.map_or_else(String::new, |(_, netdev)| {
                    format!("; the route leaves through {netdev} (--netdev {netdev} chooses it)")
                });
                format!("no device has an address for this destination{netdev}; see 'roxie doctor'")
            }
            (CmEventKind::Unreachable, libc::ECONNREFUSED) if is_active() => {
                "the host answers, and refuses the UDP port of RoCE; start the server under 'roxie run'"
                    .to_owned()
            }
            (CmEventKind::Unreachable, libc::ETIMEDOUT) if is_active() => format!(
                "no answer to the request: the host is off, a firewall drops the UDP port of RoCE, or the \
                 server does not accept; see 'ping {ip}' and 'roxie interop --via COMMAND {ip}'"
            ),
            _ => return None,
        };
        let event = match self.kind {
            CmEventKind::Rejected => "RDMA_CM_EVENT_REJECTED",
            CmEventKind::AddrError => "RDMA_CM_EVENT_ADDR_ERROR",
            _ => "RDMA_CM_EVENT_UNREACHABLE",
        };
        Some(format!("no connection to {ip} port {port} ({event}, {status}): {why}"))
    }

    /// The route to the peer, and the name of its interface.
    fn route(&self) -> Option<(Route, String)> {
        let to = self.id.peer_addr()?;
        let route = self.id.0.route(to.ip(), None, scope(to).unwrap_or(0)).ok()?;
        let link = Netlink::new().and_then(|mut netlink| netlink.link(route.oif));
        Some((route, link.map_or_else(|_| "an interface".to_owned(), |link| link.name)))
    }
}
