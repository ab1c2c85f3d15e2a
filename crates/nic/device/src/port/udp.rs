//! The default, unprivileged port: ordinary UDP sockets, bursts by UDP_SEGMENT, batches by UDP_GRO.
//!
//! The ICRC covers the IPv4 identification, which the kernel chooses: with an unconnected socket and
//! `IP_PMTUDISC_PROBE` it is the index of the packet in its burst. That is why no socket here is ever
//! connected, and why a burst that has to be split differently gets new ICRCs.
//!
//! There is one sending socket per local address and class of destination slots, so that a GRO batch
//! rarely contains packets for two processes of the receiver.

mod receive;
mod transmit;

pub use receive::{RECEIVE_BUFFER, receive_socket};

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use super::{
    Destination, FlowId, FlowKey, Headers, Port, PortCounters, PortProperties, PortReport, RefusedKind,
    RxBatch, RxQueue, RxScope, TxRoom, TxState,
};
use receive::Receiver;
use sys;
use transmit::Transmitter;

/// The parts of a [`UdpPort`].
#[derive(Debug)]
pub struct UdpPortConfig {
    /// Receive socket shared by all processes of the domain, see [`receive_socket`].
    pub gsi: OwnedFd,
    /// Receive socket of this engine's first slot.
    pub slot: OwnedFd,
    /// Destination port of all sent packets, to which the receive sockets are bound too.
    pub udp_port: u16,
    /// Interface index of the netdev, needed for link-local IPv6 addresses.
    pub ifindex: u32,
}

/// The default, unprivileged port.
#[derive(Debug)]
pub struct UdpPort {
    tx: Transmitter,
    rx: Receiver,
}

impl UdpPort {
    /// Creates a port on two receive sockets; sending sockets are opened as flows need them.
    #[must_use]
    pub fn new(config: UdpPortConfig) -> UdpPort {
        let UdpPortConfig { gsi, slot, udp_port, ifindex } = config;
        UdpPort { tx: Transmitter::new(udp_port, ifindex), rx: Receiver::new(gsi, slot, udp_port) }
    }

    /// Whether no queueing discipline or driver holds packets of this flow's socket.
    pub(super) fn has_sent_all(&mut self, key: &FlowKey) -> bool {
        self.tx.has_sent_all(key)
    }
}

impl Port for UdpPort {
    fn open_flow(&mut self, key: &FlowKey, _to: Destination) -> io::Result<FlowId> {
        self.tx.open_flow(key)
    }

    fn close_flow(&mut self, flow: FlowId) {
        self.tx.close_flow(flow);
    }

    fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        self.tx.datagram_flow(key)
    }

    fn headers(&mut self, flow: FlowId) -> Option<Headers> {
        self.tx.headers(flow)
    }

    fn tx_slot(&mut self) -> &mut [u8] {
        self.tx.tx_slot()
    }

    fn identification(&mut self, flow: FlowId, len: usize) -> u16 {
        self.tx.identification(flow, len)
    }

    fn tx_commit(&mut self, flow: FlowId, len: usize) {
        self.tx.tx_commit(flow, len);
    }

    fn tx_state(&mut self, _flow: Option<FlowId>) -> TxState {
        TxState { room: TxRoom::of_port(self.tx.has_room()), ..TxState::default() }
    }

    fn flush(&mut self) -> usize {
        self.tx.flush()
    }

    fn has_unsent(&self) -> bool {
        self.tx.has_unsent()
    }

    fn recv(&mut self, scope: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        self.tx.resume();
        let slot = if scope.queues.slot { self.rx.recv(RxQueue::Slot, f) } else { 0 };
        let gsi = if scope.queues.gsi { self.rx.recv(RxQueue::Gsi, f) } else { 0 };
        slot + gsi
    }

    fn take_refused(&mut self, kind: RefusedKind, f: &mut dyn FnMut(IpAddr, &[u8])) {
        self.tx.take_refused(kind, f);
    }

    fn hear_groups(&mut self, hear: bool) -> io::Result<()> {
        sys::hear_all_groups(self.rx.slot.as_fd(), hear)
    }

    fn add_slot(&mut self, _slot: u16, queue: OwnedFd) -> io::Result<()> {
        self.rx.add_slot(queue)
    }

    fn properties(&self) -> PortProperties {
        PortProperties {
            poll_fds: self.rx.poll_fds(),
            prefers_equal_packets: true,
            ..PortProperties::default()
        }
    }

    fn report(&self) -> PortReport {
        PortReport { description: "udp".to_owned(), counters: self.counters(), rows: Vec::new() }
    }
}

impl UdpPort {
    /// The counters of both directions, and the drops of the slot's socket.
    pub(super) fn counters(&self) -> PortCounters {
        let PortCounters { rx_batches, rx_packets, rx_bytes, rx_malformed, rx_errors, rx_last_errno, .. } =
            self.rx.counters;
        PortCounters {
            rx_no_buffer: self.rx.drops(),
            rx_batches,
            rx_packets,
            rx_bytes,
            rx_malformed,
            rx_errors,
            rx_last_errno,
            ..self.tx.counters
        }
    }
}

#[cfg(test)]
mod tests;
