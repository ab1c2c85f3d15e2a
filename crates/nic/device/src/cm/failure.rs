//! Why a connection was not made, for people: what is known of the peer and the route, and what to do.

use sys::Netlink;
use wire::cm::RejReason;

use super::event::{CmEvent, CmEventKind};

impl CmEvent {
    /// Says in one line why this connection was not made; `None` for an event that is no such failure.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let to = self.id.peer_addr()?;
        let (ip, port, status) = (to.ip(), to.port(), self.status);
        let route = || self.id.0.route(ip, None, 0).ok();
        let netdev = |oif| Netlink::new().and_then(|mut netlink| netlink.link(oif)).map(|link| link.name);
        let netdev = |oif| netdev(oif).unwrap_or_else(|_| "an interface".to_owned());
        let (event, why) = match (self.kind, -status) {
            (CmEventKind::Rejected, _) => {
                let reason = RejReason(u16::try_from(status).ok()?);
                let cause = reason.usual_cause().unwrap_or("'roxie explain' knows the reason");
                let start =
                    if reason == RejReason::INVALID_SERVICE_ID { "; start the server first" } else { "" };
                ("RDMA_CM_EVENT_REJECTED", format!("{cause}{start}"))
            }
            (CmEventKind::AddrError, libc::ETIMEDOUT) => {
                let route = route()?;
                let hop = route.gateway.unwrap_or(ip);
                (
                    "RDMA_CM_EVENT_ADDR_ERROR",
                    format!("no answer from {hop} on {}; 'ping {hop}' must pass", netdev(route.oif)),
                )
            }
            (CmEventKind::AddrError, libc::ENODEV) => {
                let netdev = netdev(route()?.oif);
                let why = format!(
                    "the route leaves through {netdev}, where no device has the source address; use --netdev \
                     {netdev}, or see 'roxie doctor'"
                );
                ("RDMA_CM_EVENT_ADDR_ERROR", why)
            }
            (CmEventKind::Unreachable, libc::ECONNREFUSED) => {
                let why = "the host answers, and no process there has the UDP port of RoCE; start the server \
                           under 'roxie run'";
                ("RDMA_CM_EVENT_UNREACHABLE", why.to_owned())
            }
            (CmEventKind::Unreachable, libc::ETIMEDOUT) => {
                let why = format!(
                    "no answer to the request; a firewall drops UDP port 4791, or the host is \
                                   off: see 'ping {ip}' and 'roxie interop {ip}'"
                );
                ("RDMA_CM_EVENT_UNREACHABLE", why)
            }
            _ => return None,
        };
        Some(format!("no connection to {ip} port {port} ({event}, {status}): {why}"))
    }
}
