//! Two ports and the cable between them, which writes down what it carries.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use wire::{Operation, Packet};

use crate::port::{
    FlowId, FlowKey, Headers, MAX_PACKET, Port, PortCounters, PortProperties, PortReport, RxBatch, RxQueue,
    RxScope, TxState, icrc_header,
};

const SOURCE_PORT: u16 = 0xc123;
const ROCE_PORT: u16 = 4791;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    Arrives,
    ArrivesTwice,
    /// The next one arrives before it.
    IsOvertaken,
    IsLost,
    /// The sender's kernel does not take it: as lost as on the way, but the port knows.
    IsRefused,
}

/// Looks at a packet, BTH to pad, and may change it. The number is that of the end it comes from.
pub(super) type Judge = Box<dyn FnMut(usize, &mut Vec<u8>) -> Fate + Send>;

#[derive(Clone)]
struct Frame {
    key: FlowKey,
    /// With the ICRC.
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Lines {
    /// What goes to each end and has not arrived.
    towards: [VecDeque<Frame>; 2],
    /// What each end has sent, in words.
    said: [Vec<String>; 2],
    /// ... and as it was.
    sent: [Vec<Frame>; 2],
    /// ... and how many packets at once.
    handed_over: [Vec<usize>; 2],
    overtaken: [Option<Frame>; 2],
    judge: Option<Judge>,
    /// A receive call hands over one packet, not all there are.
    one_by_one: bool,
    /// Ports say that they have no room.
    is_full: bool,
    /// Window of every flow (bytes), if it is not the default.
    window_bytes: Option<usize>,
}

/// The cable, of which both ports hold one end.
#[derive(Clone, Default)]
pub(super) struct Cable(Arc<Mutex<Lines>>);

impl Cable {
    fn lines(&self) -> MutexGuard<'_, Lines> {
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
        self.lines().judge = Some(judge);
    }

    /// From here on a port hands over one packet a batch.
    pub(super) fn hand_over_one_by_one(&self) {
        self.lines().one_by_one = true;
    }

    /// From here on ports say that they have no room, or have again.
    pub(super) fn set_full(&self, is_full: bool) {
        self.lines().is_full = is_full;
    }

    /// From here on ports give each flow a window of so many bytes.
    pub(super) fn set_window(&self, window_bytes: usize) {
        self.lines().window_bytes = Some(window_bytes);
    }

    /// From here on every packet arrives.
    pub(super) fn mend(&self) {
        self.lines().judge = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines().towards.iter().all(VecDeque::is_empty)
    }

    /// What an end has said, in words.
    pub(super) fn said_by(&self, end: usize) -> Vec<String> {
        self.lines().said[end].clone()
    }

    /// What an end has sent, ICRCs included.
    pub(super) fn sent_by(&self, end: usize) -> Vec<Vec<u8>> {
        self.lines().sent[end].iter().map(|frame| frame.bytes.clone()).collect()
    }

    /// How many packets an end has handed to its port at once, each time.
    pub(super) fn handed_over_by(&self, end: usize) -> Vec<usize> {
        self.lines().handed_over[end].clone()
    }

    /// A packet that an end has sent before arrives once more; `nth` counts what it has sent.
    pub(super) fn deliver_again(&self, end: usize, nth: usize) {
        let mut lines = self.lines();
        let frame = lines.sent[end][nth].clone();
        lines.towards[1 - end].push_back(frame);
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
    fn open_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
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
        self.open_flow(key)
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
        let lines = self.cable.lines();
        let window_bytes = lines.window_bytes.unwrap_or(TxState::default().window_bytes);
        TxState { has_room: !lines.is_full, window_bytes }
    }

    fn flush(&mut self) -> usize {
        let mut taken = 0;
        let mut lines = self.cable.lines();
        if !self.queued.is_empty() {
            lines.handed_over[self.end].push(self.queued.len());
        }
        for (key, mut packet) in self.queued.drain(..) {
            let fate = match &mut lines.judge {
                Some(judge) => judge(self.end, &mut packet),
                None => Fate::Arrives,
            };
            if fate == Fate::IsRefused {
                self.counters.tx_no_buffer += 1;
                continue;
            }
            taken += 1;
            let icrc = icrc_header(key.src, key.dst, SOURCE_PORT, ROCE_PORT).expect("one family");
            packet.extend(icrc.icrc(0, &packet).to_le_bytes());
            lines.said[self.end].push(words(&packet));
            let frame = Frame { key, bytes: packet };
            lines.sent[self.end].push(frame.clone());
            let late = lines.overtaken[self.end].take();
            let arriving = match fate {
                Fate::Arrives => vec![frame],
                Fate::ArrivesTwice => vec![frame.clone(), frame],
                Fate::IsOvertaken => {
                    lines.overtaken[self.end] = Some(frame);
                    Vec::new()
                }
                Fate::IsLost | Fate::IsRefused => Vec::new(),
            };
            lines.towards[1 - self.end].extend(arriving.into_iter().chain(late));
        }
        taken
    }

    fn recv(&mut self, _scope: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let mut lines = self.cable.lines();
        let one_by_one = lines.one_by_one;
        let waiting = &mut lines.towards[self.end];
        let batch = if one_by_one { waiting.len().min(1) } else { waiting.len() };
        let frames: Vec<Frame> = waiting.drain(..batch).collect();
        drop(lines);
        for Frame { key, bytes } in &frames {
            f(&RxBatch {
                src: key.src,
                src_port: SOURCE_PORT,
                dst: key.dst,
                dst_port: ROCE_PORT,
                tos: key.tos,
                ttl: key.ttl,
                segment: bytes.len(),
                macs: None,
                ip_id: None,
                bytes,
                queue: RxQueue::Slot,
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

/// A packet without its service, its destination and its addresses: `SEND Only 100`, `NAK Invalid request
/// 100`.
pub(super) fn words(bytes: &[u8]) -> String {
    let packet = Packet::parse(bytes).expect("we send whole packets");
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
