//! A poll collects here, under the engine's lock, what it delivers after it has released the lock: management
//! datagrams and packets for other processes. It also notes which connections got their first packet, and
//! whether a peer is silent.

use wire::Qpn;

use crate::port::{OwnedPacket, RxBatch};
use crate::stages::Redirected;

/// Management datagrams kept until the next delivery; more are dropped, and their senders retransmit them.
const MADS_MAX: usize = 1024;
/// Packets for other processes kept until the next delivery; more are dropped, and the transport retransmits
/// them.
const MISROUTED_MAX: usize = 256;

/// A management datagram that arrived on QP1, with its packet in case it must be forwarded.
#[derive(Clone)]
pub(crate) struct Mad {
    pub(crate) bytes: [u8; wire::mad::MAD_LEN],
    pub(crate) packet: OwnedPacket,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(super) mads: Vec<Mad>,
    /// Packets for other processes, each with the slot of its process.
    pub(super) misrouted: Vec<(u16, OwnedPacket)>,
    /// Packets that hooks redirect to other processes.
    pub(super) redirected: Vec<Redirected>,
    /// Queue pairs that received their first packet.
    pub(super) established: Vec<Qpn>,
    /// A peer has left probes unanswered: its host may have refused them.
    pub(super) is_peer_silent: bool,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.mads.is_empty()
            && self.misrouted.is_empty()
            && self.redirected.is_empty()
            && self.established.is_empty()
            && !self.is_peer_silent
    }

    /// Keeps a management datagram, unless there are too many.
    pub(super) fn push_mad(&mut self, bytes: [u8; wire::mad::MAD_LEN], packet: OwnedPacket) {
        if self.mads.len() < MADS_MAX {
            self.mads.push(Mad { bytes, packet });
        }
    }

    /// Keeps a packet for the process with `slot`; false if there are too many.
    pub(super) fn push_misrouted(&mut self, slot: u16, batch: &RxBatch<'_>, bytes: &[u8]) -> bool {
        let has_room = self.misrouted.len() < MISROUTED_MAX;
        if has_room {
            self.misrouted.push((slot, OwnedPacket::new(batch, bytes)));
        }
        has_room
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
