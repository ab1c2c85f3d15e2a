//! What an observer of the application reads about its queues (`roxie check`): nothing here changes them.

use std::sync::Arc;

use transport::Refused;
use wire::Qpn;

use super::{Cq, Qp};
use crate::engine::Engine;
use crate::gid::GidTable;
use crate::status::QpStatus;

/// The status of a queue pair, and the addresses of its device.
fn status(engine: &Engine, qpn: Qpn) -> Option<(QpStatus, Arc<GidTable>)> {
    let mut core = engine.lock();
    let gids = Arc::clone(&core.tables.gids);
    let entry = core.tables.by_qpn(qpn)?;
    Some((QpStatus::of(entry, &gids, engine.now()), gids))
}

impl Qp {
    /// Returns state, attributes, packets in flight and counters.
    #[must_use]
    pub fn status(&self) -> Option<QpStatus> {
        status(self.engine(), self.qpn()).map(|(status, _)| status)
    }

    /// Returns the last request or datagram of a peer that was refused.
    #[must_use]
    pub fn refused(&self) -> Option<Refused> {
        self.engine().lock().tables.by_qpn(self.qpn())?.qp.refused()
    }
}

impl Cq {
    /// Returns one line about the peer that did not answer a queue pair.
    #[must_use]
    pub fn unanswered(&self, qpn: Qpn) -> Option<String> {
        let mut engines = (0..self.engine().count()).map(|n| self.engine().at(n));
        let (status, gids) = engines.find_map(|engine| status(engine, qpn))?;
        let QpStatus { local, remote, dest_qpn, counters, .. } = status;
        let (ip, peer, own) = (remote?, dest_qpn?.value(), qpn.value());
        let netdev = &gids.netdev;
        let why = match counters.rcvd_pkts {
            _ if !gids.has_carrier => format!("{netdev}, the interface of its device, has no link"),
            // Another address may have its row since.
            _ if local.is_none_or(|local| local.is_ipv4() != ip.is_ipv4()) => {
                format!("its address was removed from {netdev} or an interface above it")
            }
            0 => format!(
                "this queue pair received no packet; compare QPN, PSN and GID of both ends, and see \
                 'ping {ip}' and 'roxie interop --via COMMAND {ip}'"
            ),
            n => format!(
                "it sent {n} packets before; its process may have ended or be stopped (see its output), or \
                 the network drops packets (see 'ping {ip}')"
            ),
        };
        let pair = format!("queue pair {own:#08x}: no answer from queue pair {peer:#08x} of {ip}");
        Some(format!("{pair} (IBV_WC_RETRY_EXC_ERR): {why}"))
    }

    /// Returns the number of completions that the application has not polled.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue().waiting()
    }

    /// True if the next completion, or the next solicited one, raises a channel event.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.queue().is_armed()
    }

    /// True if the next solicited completion raises a channel event, and others do not.
    #[must_use]
    pub fn is_armed_for_solicited(&self) -> bool {
        self.queue().is_armed_for_solicited()
    }

    /// True if a completion was lost because the queue was full.
    #[must_use]
    pub fn has_overflowed(&self) -> bool {
        self.queue().has_overflowed()
    }
}
