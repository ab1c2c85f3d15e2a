//! A port on the simulated network.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use roxie::port::{
    Destination, FlowId, FlowKey, Headers, Icrc, MAX_PACKET, Port, PortCounters, PortProperties, PortReport,
    RefusedKind, RxBatch, RxScope, TxRoom, TxState,
};
use roxie::runtime::World;

use super::frame::{Frame, ROCE_PORT, icrc_header};
use super::network::Network;
use super::threads::Threads;

const SOURCE_PORT: u16 = 0xc000;

/// The source port of a flow: one for each process of the destination, and one for QP1.
fn source_port(key: &FlowKey) -> u16 {
    SOURCE_PORT + key.dst_slot.min(0xff)
}
/// Most frames that one receive call hands over.
const RECEIVE_MAX: usize = 64;

/// See the module documentation.
pub(super) struct SimPort {
    threads: Arc<Threads>,
    network: Arc<Network>,
    process: usize,
    address: IpAddr,
    flows: Vec<FlowKey>,
    slot: Vec<u8>,
    queued: Vec<(FlowKey, Vec<u8>)>,
    /// The link may be this far behind (nanoseconds) before the port is full.
    limit_ns: u64,
    window_bytes: usize,
    prefers_equal_packets: bool,
    counters: PortCounters,
}

impl SimPort {
    pub(super) fn new(
        threads: &Arc<Threads>,
        process: usize,
        address: IpAddr,
        limit_ns: u64,
        window_bytes: usize,
    ) -> Self {
        Self {
            threads: Arc::clone(threads),
            network: Arc::clone(&threads.network),
            process,
            address,
            flows: Vec::new(),
            slot: vec![0; MAX_PACKET],
            queued: Vec::new(),
            limit_ns,
            window_bytes,
            prefers_equal_packets: process.is_multiple_of(2),
            counters: PortCounters::default(),
        }
    }
}

impl Port for SimPort {
    fn open_flow(&mut self, key: &FlowKey, _to: Destination) -> io::Result<FlowId> {
        if key.src != self.address {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let at = self.flows.iter().position(|known| known == key).unwrap_or_else(|| {
            self.flows.push(*key);
            self.flows.len() - 1
        });
        Ok(FlowId(at as u32))
    }

    fn close_flow(&mut self, _flow: FlowId) {}

    fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        self.open_flow(key, Destination::Elsewhere)
    }

    fn headers(&mut self, flow: FlowId) -> Option<Headers> {
        let key = self.flows.get(flow.0 as usize)?;
        Headers::new(key, source_port(key), ROCE_PORT)
    }

    fn tx_state(&mut self, _flow: Option<FlowId>) -> TxState {
        let has_room = self.network.backlog_ns(self.process, self.threads.now_ns()) < self.limit_ns;
        TxState { room: TxRoom::of_port(has_room), window_bytes: self.window_bytes }
    }

    fn tx_slot(&mut self) -> &mut [u8] {
        &mut self.slot
    }

    fn tx_commit(&mut self, flow: FlowId, len: usize) {
        self.queued.push((self.flows[flow.0 as usize], self.slot[..len].to_vec()));
        self.network.set_unflushed(self.process, self.queued.len());
    }

    fn flush(&mut self) -> usize {
        let now = self.threads.now_ns();
        let sent = self.queued.len();
        for (key, mut bytes) in self.queued.drain(..) {
            let src_port = source_port(&key);
            let icrc = icrc_header(key.src, key.dst, src_port).icrc(0, &bytes);
            bytes.extend(icrc.to_le_bytes());
            let FlowKey { src, dst, tos, ttl, .. } = key;
            let sender = Some(self.process);
            self.network.send(self.process, now, Frame { sender, src, dst, src_port, tos, ttl, bytes });
        }
        self.network.set_unflushed(self.process, 0);
        self.counters.tx_packets += sent as u64;
        sent
    }

    fn recv(&mut self, scope: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let frames = self.network.receive(self.process, RECEIVE_MAX, scope.queues);
        self.counters.rx_packets += frames.len() as u64;
        for (queue, frame) in &frames {
            f(&RxBatch {
                src: frame.src,
                src_port: frame.src_port,
                dst: frame.dst,
                dst_port: ROCE_PORT,
                ifindex: 0,
                tos: frame.tos,
                ttl: frame.ttl,
                segment: frame.bytes.len(),
                macs: None,
                ip_id: None,
                bytes: &frame.bytes,
                queue: *queue,
                icrc: Icrc::Present,
            });
        }
        frames.len()
    }

    fn take_refused(&mut self, kind: RefusedKind, f: &mut dyn FnMut(IpAddr, &[u8])) {
        self.network.take_refused(self.process, self.threads.now_ns(), kind, f);
    }

    fn is_quiet(&mut self) -> bool {
        !self.network.has_frames(self.process)
    }

    fn properties(&self) -> PortProperties {
        let poll_fds = self.network.fds(self.process);
        PortProperties {
            poll_fds,
            prefers_equal_packets: self.prefers_equal_packets,
            ..PortProperties::default()
        }
    }

    fn report(&self) -> PortReport {
        PortReport { description: "sim".to_owned(), counters: self.counters, rows: Vec::new() }
    }
}
