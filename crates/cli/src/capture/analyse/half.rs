//! One direction of a connection: the packets from one host to a queue pair of another, and what became of them.

use std::collections::VecDeque;
use std::net::IpAddr;

use wire::{Operation, Psn, Qpn, Service};

use super::finding::At;
use super::histogram::Histogram;
use super::keys::{Access, Keys};
use super::window::Window;

/// Messages open at a time that are followed; older ones are taken for done.
const OPEN_MAX: usize = 1 << 14;

/// What names a direction: RoCE packets carry the receiving queue pair only.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Key {
    /// Sender.
    pub src: IpAddr,
    /// Receiver.
    pub dst: IpAddr,
    /// The receiver's queue pair.
    pub qp: Qpn,
}

/// A message under way.
#[derive(Clone, Debug)]
pub struct Message {
    /// What its opcode says.
    pub operation: Operation,
    /// Its packets' numbers, or those of its responses.
    pub first_psn: Psn,
    /// The last of them so far.
    pub last_psn: Psn,
    /// Payload bytes; of a READ, those asked for.
    pub bytes: u64,
    /// Request packets, repetitions not counted.
    pub packets: u32,
    /// Its first request packet.
    pub first: At,
    /// Its last.
    pub last: At,
    /// Packets sent again.
    pub resent: u32,
    /// The last packet of it was seen.
    pub ended: bool,
    /// What it asks for in the responder's memory.
    pub access: Option<Access>,
    /// The next response awaited.
    pub response: Psn,
}

impl Message {
    /// Whether only a response of its own, not an acknowledgement, completes it.
    #[must_use]
    pub fn wants_response(&self) -> bool {
        matches!(
            self.operation,
            Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Flush
                | Operation::AtomicWrite
        )
    }

    /// `WRITE of 300 bytes`.
    #[must_use]
    pub fn words(&self) -> String {
        let name = verb(self.operation);
        match self.operation {
            Operation::CompareSwap | Operation::FetchAdd | Operation::Flush | Operation::AtomicWrite => {
                name.to_owned()
            }
            _ => format!("{name} of {} bytes", self.bytes),
        }
    }
}

/// The name of a verb.
#[must_use]
pub(super) fn verb(operation: Operation) -> &'static str {
    match operation {
        Operation::Send => "SEND",
        Operation::SendImm => "SEND with immediate",
        Operation::SendInv => "SEND with invalidate",
        Operation::Write => "WRITE",
        Operation::WriteImm => "WRITE with immediate",
        Operation::ReadRequest => "READ",
        Operation::CompareSwap => "compare-and-swap",
        Operation::FetchAdd => "fetch-and-add",
        Operation::Flush => "FLUSH",
        Operation::AtomicWrite => "ATOMIC WRITE",
        Operation::ReadResponse => "READ response",
        Operation::Ack => "acknowledgement",
        Operation::AtomicAck => "atomic response",
        Operation::Resync => "RESYNC",
        Operation::Cnp => "congestion notification",
    }
}

/// What the requester was told and has not yet reacted to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Told {
    /// A packet is missing from this number on.
    Missing(Psn, At),
    /// Not ready for this number.
    NotReady(Psn, At),
}

/// Packets sent again in one go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Episode {
    /// The number that would continue it.
    pub(super) next: Psn,
}

/// A request that was repeated, since no answer came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeout {
    /// Index of the finding about it.
    pub(super) finding: Option<usize>,
    /// How often it was sent.
    pub(super) attempts: u32,
    /// The highest number that was repeated.
    pub(super) highest: Psn,
}

/// Numbers of one direction.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Packets of any kind.
    pub packets: u64,
    /// Payload bytes of requests and responses.
    pub bytes: u64,
    /// Messages begun, by verb.
    pub messages: Vec<(Operation, u64)>,
    /// Bytes of messages begun.
    pub message_bytes: u64,
    /// Smallest and largest message.
    pub sizes: Option<(u64, u64)>,
    /// Request packets sent again.
    pub resent: u64,
    /// Times the requester went back.
    pub episodes: u64,
    /// Packets that came twice.
    pub duplicates: u64,
    /// Packets that were overtaken.
    pub late: u64,
    /// Numbers left out at first.
    pub gaps: u64,
    /// Acknowledgements, responses not counted.
    pub acks: u64,
    /// Messages they completed.
    pub acked_messages: u64,
    /// NAKs.
    pub naks: u64,
    /// RNR NAKs.
    pub rnr_naks: u64,
    /// Packets that a router marked.
    pub ce: u64,
    /// Congestion notifications for the *sender* of this direction's requests.
    pub cnps: u64,
    /// From the last request packet of a message to its answer.
    pub latency: Histogram,
}

/// A direction.
#[derive(Clone, Debug)]
pub struct Half {
    /// Its name.
    pub key: Key,
    /// RC, UC, UD or XRC.
    pub service: Service,
    /// UDP source port of the first packet; both directions of a connection often have the same.
    pub sport: u16,
    /// The other direction.
    pub peer: Option<usize>,
    /// First packet.
    pub first: At,
    /// Latest packet.
    pub last: At,
    /// Its numbers.
    pub counts: Counts,
    pub(super) window: Window,
    /// First number not acknowledged.
    pub(super) una: Psn,
    pub(super) last_ack: At,
    pub(super) open: VecDeque<Message>,
    /// The message that has begun and not ended.
    pub(super) inside: bool,
    pub(super) path_mtu: Option<u32>,
    /// A READ whose span is not known, because the path MTU is not.
    pub(super) elastic: Option<(Psn, u32)>,
    pub(super) told: Option<Told>,
    pub(super) episode: Option<Episode>,
    pub(super) keys: Keys,
    /// A request that was repeated and is not answered yet.
    pub(super) timeout: Option<Timeout>,
    /// The highest number of a request that asks for an answer.
    pub(super) asked: Option<Psn>,
    pub(super) rnr: Option<(Option<usize>, u64)>,
    pub(super) duplicates: Option<usize>,
    pub(super) reordered: Option<usize>,
    pub(super) slow: Option<usize>,
    /// The latest hole that a repetition filled, and the finding about it.
    pub(super) filled: Option<(Psn, Option<usize>)>,
    pub(super) mtu_finding: bool,
    /// Where the latest hole opened, and the identification of the packet that opened it.
    pub(super) hole: Option<(At, u16)>,
    /// Of the latest packet in order.
    pub(super) ip_id: u16,
    /// Identifications begin anew now and then (they count the packets of a burst), so they tell nothing.
    pub(super) ids_restart: bool,
    /// When a packet was overtaken last.
    pub(super) late_ns: u64,
    pub(super) q_key: Option<u32>,
    pub(super) wrong_key: bool,
    /// Without its highest bit, the membership, and where it was seen first.
    pub(super) p_key: Option<(u16, At)>,
    pub(super) wrong_p_key: bool,
    /// The latest request, whatever it was.
    pub(super) last_request: At,
    /// The peer refused for good; what follows is not looked at.
    pub(super) refused: bool,
}

impl Half {
    /// A direction that begins with this packet.
    #[must_use]
    pub fn new(key: Key, service: Service, sport: u16, at: At) -> Self {
        Self {
            key,
            service,
            sport,
            peer: None,
            first: at,
            last: at,
            counts: Counts::default(),
            window: Window::default(),
            una: Psn::new(0),
            last_ack: At::default(),
            open: VecDeque::new(),
            inside: false,
            path_mtu: None,
            elastic: None,
            told: None,
            episode: None,
            keys: Keys::default(),
            timeout: None,
            asked: None,
            rnr: None,
            duplicates: None,
            reordered: None,
            slow: None,
            filled: None,
            mtu_finding: false,
            hole: None,
            ip_id: 0,
            ids_restart: false,
            late_ns: 0,
            q_key: None,
            wrong_key: false,
            p_key: None,
            wrong_p_key: false,
            last_request: At::default(),
            refused: false,
        }
    }

    /// `10.0.0.1 > 10.0.0.2 QP 0x000011`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} > {} QP {}", self.key.src, self.key.dst, self.key.qp)
    }

    /// `RC`.
    #[must_use]
    pub fn service_name(&self) -> &'static str {
        self.service.name()
    }

    /// `3 WRITE`, for each verb.
    #[must_use]
    pub fn verbs(&self) -> Vec<String> {
        self.counts
            .messages
            .iter()
            .map(|(operation, count)| format!("{count} {}", verb(*operation)))
            .collect()
    }

    /// Whether requests were seen in this direction.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.last_request.number != 0
    }

    /// A request asks for an answer, at the latest now.
    pub(super) fn ask(&mut self, psn: Psn) {
        self.asked = self.asked.filter(|asked| !asked.is_before(psn)).or(Some(psn));
    }

    /// Whether an answer was asked for and has not come.
    #[must_use]
    pub(super) fn awaits_answer(&self) -> bool {
        self.asked.is_some_and(|asked| !asked.is_before(self.una))
    }

    /// The open message that has this number.
    pub(super) fn message_at(&mut self, psn: Psn) -> Option<&mut Message> {
        self.open.iter_mut().find(|m| !psn.is_before(m.first_psn) && !m.last_psn.is_before(psn))
    }

    pub(super) fn begin(&mut self, message: Message) {
        let bytes = message.bytes;
        match self.counts.messages.iter_mut().find(|(operation, _)| *operation == message.operation) {
            Some((_, count)) => *count += 1,
            None => self.counts.messages.push((message.operation, 1)),
        }
        if self.open.len() >= OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back(message);
        self.counts.message_bytes += bytes;
    }

    /// A message is complete: its size counts.
    pub(super) fn size(&mut self, bytes: u64) {
        let (low, high) = self.counts.sizes.unwrap_or((bytes, bytes));
        self.counts.sizes = Some((low.min(bytes), high.max(bytes)));
    }
}
