//! Two ports and the cable between them, which records what it carries.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use wire::{Operation, Packet};

use crate::port::{
    Destination, FlowId, FlowKey, Headers, Icrc, MAX_PACKET, Port, PortCounters, PortProperties, PortReport,
    RxBatch, RxQueue, RxScope, TxRoom, TxState, icrc_header,
};

const SOURCE_PORT: u16 = 0xc123;
const ROCE_PORT: u16 = 4791;

/// What the cable does with a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    Arrives,
    ArrivesTwice,
    /// The next packet arrives before it.
    IsOvertaken,
    IsLost,
    /// The kernel of the sender refuses it: the packet is lost, and the port counts it.
    IsRefused,
}

/// Decides the fate of a packet and may change it. Arguments: the end that sent it, and its bytes from the
/// BTH to the pad.
pub(super) type Judge = Box<dyn FnMut(usize, &mut Vec<u8>) -> Fate + Send>;

#[derive(Clone)]
struct Frame {
    key: FlowKey,
    /// From the BTH to the ICRC.
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Wires {
    /// Packets in flight to each end.
    towards: [VecDeque<Frame>; 2],
    /// The packets that each end has sent, as [`words`] describes them.
    described: [Vec<String>; 2],
    /// The same packets, byte for byte.
    sent: [Vec<Frame>; 2],
    /// Packets in each batch that an end has handed to its port.
    handed_over: [Vec<usize>; 2],
    overtaken: [Option<Frame>; 2],
    judge: Option<Judge>,
    /// A receive call delivers one packet instead of all.
    delivers_one_by_one: bool,
    /// Ports report a full transmit queue.
    is_full: bool,
    /// Window of every flow (bytes), if it is not the default.
    window_bytes: Option<usize>,
}

/// The cable. Both ports share it.
#[derive(Clone, Default)]
pub(super) struct Cable(Arc<Mutex<Wires>>);

impl Cable {
    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.0.lock().expect("a test that panicked is over")
    }

    pub(super) fn plug(&self, end: usize, address: IpAddr) -> Plug {
        Plug {
            cable: self.clone(),
            end,
            address,
            flows: Vec::new(),
            slot: vec![0; MAX_PACKET],
            queued: Vec::new(),
            counters: PortCounters::default(),
        }
    }

    pub(super) fn judge(&self, judge: Judge) {
        self.wires().judge = Some(judge);
    }

    /// From now on a port delivers one packet per batch.
    pub(super) fn deliver_one_by_one(&self) {
        self.wires().delivers_one_by_one = true;
    }

    /// From now on ports report that their transmit queue is full, or that it is not.
    pub(super) fn set_full(&self, is_full: bool) {
        self.wires().is_full = is_full;
    }

    /// From now on ports give each flow a window of `window_bytes`.
    pub(super) fn set_window(&self, window_bytes: usize) {
        self.wires().window_bytes = Some(window_bytes);
    }

    /// From now on every packet arrives.
    pub(super) fn deliver_all(&self) {
        self.wires().judge = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wires().towards.iter().all(VecDeque::is_empty)
    }

    /// The packets that an end has sent, as [`words`] describes them.
    pub(super) fn described_by(&self, end: usize) -> Vec<String> {
        self.wires().described[end].clone()
    }

    /// The packets that an end has sent, with their ICRCs.
    pub(super) fn sent_by(&self, end: usize) -> Vec<Vec<u8>> {
        self.wires().sent[end].iter().map(|frame| frame.bytes.clone()).collect()
    }

    /// The size of each batch that an end has handed to its port.
    pub(super) fn handed_over_by(&self, end: usize) -> Vec<usize> {
        self.wires().handed_over[end].clone()
    }

    /// Delivers the `nth` packet that an end has sent once more.
    pub(super) fn deliver_again(&self, end: usize, nth: usize) {
        let mut wires = self.wires();
        let frame = wires.sent[end][nth].clone();
        wires.towards[1 - end].push_back(frame);
    }
}

/// A port at one end of the cable.
pub(super) struct Plug {
    cable: Cable,
    end: usize,
    address: IpAddr,
    flows: Vec<FlowKey>,
    slot: Vec<u8>,
    queued: Vec<(FlowKey, Vec<u8>)>,
    counters: PortCounters,
}

impl Port for Plug {
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
        Headers::new(self.flows.get(flow.0 as usize)?, SOURCE_PORT, ROCE_PORT)
    }

    fn tx_slot(&mut self) -> &mut [u8] {
        &mut self.slot
    }

    fn tx_commit(&mut self, flow: FlowId, len: usize) {
        self.queued.push((self.flows[flow.0 as usize], self.slot[..len].to_vec()));
    }

    fn tx_state(&mut self, _flow: Option<FlowId>) -> TxState {
        let wires = self.cable.wires();
        let window_bytes = wires.window_bytes.unwrap_or(TxState::default().window_bytes);
        TxState { room: TxRoom::of_port(!wires.is_full), window_bytes }
    }

    fn flush(&mut self) -> usize {
        let mut taken = 0;
        let mut wires = self.cable.wires();
        if !self.queued.is_empty() {
            wires.handed_over[self.end].push(self.queued.len());
        }
        for (key, mut packet) in self.queued.drain(..) {
            let fate = match &mut wires.judge {
                Some(judge) => judge(self.end, &mut packet),
                None => Fate::Arrives,
            };
            if fate == Fate::IsRefused {
                self.counters.tx_no_buffer += 1;
                continue;
            }
            taken += 1;
            let icrc = icrc_header(key.src, key.dst, SOURCE_PORT, ROCE_PORT)
                .expect("both addresses are of one family");
            packet.extend(icrc.icrc(0, &packet).to_le_bytes());
            wires.described[self.end].push(words(&packet));
            let frame = Frame { key, bytes: packet };
            wires.sent[self.end].push(frame.clone());
            let late = wires.overtaken[self.end].take();
            let arriving = match fate {
                Fate::Arrives => vec![frame],
                Fate::ArrivesTwice => vec![frame.clone(), frame],
                Fate::IsOvertaken => {
                    wires.overtaken[self.end] = Some(frame);
                    Vec::new()
                }
                Fate::IsLost | Fate::IsRefused => Vec::new(),
            };
            wires.towards[1 - self.end].extend(arriving.into_iter().chain(late));
        }
        taken
    }

    fn recv(&mut self, _scope: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let mut wires = self.cable.wires();
        let delivers_one_by_one = wires.delivers_one_by_one;
        let waiting = &mut wires.towards[self.end];
        let batch = if delivers_one_by_one { waiting.len().min(1) } else { waiting.len() };
        let frames: Vec<Frame> = waiting.drain(..batch).collect();
        drop(wires);
        for Frame { key, bytes } in &frames {
            f(&RxBatch {
                src: key.src,
                src_port: SOURCE_PORT,
                dst: key.dst,
                dst_port: ROCE_PORT,
                ifindex: 0,
                tos: key.tos,
                ttl: key.ttl,
                segment: bytes.len(),
                macs: None,
                ip_id: None,
                bytes,
                queue: RxQueue::Slot,
                icrc: Icrc::Present,
            });
        }
        frames.len()
    }

    fn properties(&self) -> PortProperties {
        PortProperties::default()
    }

    fn report(&self) -> PortReport {
        PortReport { description: "a cable".to_owned(), counters: self.counters, rows: Vec::new() }
    }
}

/// Describes a packet by its operation and its PSN: `SEND Only 100`, `NAK Invalid request 100`.
pub(super) fn words(bytes: &[u8]) -> String {
    let packet = Packet::parse(bytes).expect("devices send well-formed packets");
    let psn = packet.bth.psn;
    if packet.row().operation == Operation::Ack
        && let Some(aeth) = packet.aeth()
    {
        return format!("{} {psn}", aeth.syndrome);
    }
    let name = packet.row().name;
    let name = name.split_once(' ').map_or(name, |(_service, operation)| operation);
    format!("{} {psn}", name.trim_start_matches("RDMA "))
}
