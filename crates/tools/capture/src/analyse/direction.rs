//! One direction of a connection: the packets from one host to a queue pair of another.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

use wire::capture::Seen;
use wire::{Msn, Operation, Psn, Qpn, Service};

use super::copies::Point;
use super::finding::At;
use super::histogram::Histogram;
use super::keys::{Access, Keys};
use super::numbering::Numbering;
use super::window::Window;

/// Most messages in flight that are followed; above it the oldest one counts as completed.
const OPEN_MAX: usize = 1 << 14;

/// Identifies a direction. RoCE packets name the receiving queue pair only.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Key {
    /// Address of the sender.
    pub src: IpAddr,
    /// Address of the receiver.
    pub dst: IpAddr,
    /// The receiver's queue pair.
    pub qp: Qpn,
    /// Network identifier of the VXLAN or GENEVE tunnel, in which the addresses are valid.
    pub vni: Option<u32>,
}

impl Key {
    /// The direction of a packet to the queue pair `qp`.
    pub(super) fn of(seen: &Seen<'_>, qp: Qpn) -> Self {
        Self { src: seen.ip.src(), dst: seen.ip.dst(), qp, vni: seen.vni }
    }
}

impl Default for Key {
    fn default() -> Self {
        let none = Ipv6Addr::UNSPECIFIED.into();
        Self { src: none, dst: none, qp: Qpn::default(), vni: None }
    }
}

/// A message in flight.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its operation, by its latest opcode.
    pub operation: Operation,
    /// First sequence number of its packets; of a READ, of the responses.
    pub first_psn: Psn,
    /// Last sequence number so far.
    pub last_psn: Psn,
    /// Payload bytes; of a READ, the requested ones.
    pub bytes: u64,
    /// Request packets without retransmissions.
    pub packets: u32,
    /// Its first request packet.
    pub first: At,
    /// Its last request packet.
    pub last: At,
    /// Packets retransmitted.
    pub resent: u32,
    /// Nanoseconds without packets of the requester before retransmissions inside the message.
    pub stalled_ns: u64,
    /// Its last packet was captured.
    pub ended: bool,
    /// The access to the responder's memory; `None` for SENDs.
    pub access: Option<Access>,
    /// Sequence number of the next expected response.
    pub response: Psn,
    /// Payload bytes of the responses captured in sequence.
    pub response_bytes: u64,
    /// Its last response was captured.
    pub responded: bool,
    /// Its latest response.
    pub response_at: At,
}

impl Message {
    /// Whether one of its packets or responses has this number.
    pub(super) fn has(&self, psn: Psn) -> bool {
        !psn.is_before(self.first_psn) && !self.last_psn.is_before(psn)
    }

    /// Whether a response of its own completes it, not an ACK.
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

    /// Nanoseconds from its last request packet to its answer at `done_ns`, and the waits for retransmissions
    /// before that packet.
    #[must_use]
    pub fn latency_ns(&self, done_ns: u64) -> u64 {
        done_ns.saturating_sub(self.last.ns).saturating_add(self.stalled_ns)
    }

    /// Verb and size: `WRITE of 300 bytes`.
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

/// The name of an operation.
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

/// A NAK that the requester has not reacted to so far, and the packet with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PendingNak {
    /// NAK sequence error: the responder expects this number.
    Missing(Psn, At),
    /// RNR NAK for this number.
    NotReady(Psn, At),
}

/// A request that was retransmitted because no answer arrived in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeout {
    /// Index of the finding about it.
    pub(super) finding: Option<usize>,
    /// Transmissions so far, of the latest ones.
    pub(super) attempts: u32,
    /// The first one was not a retransmission itself.
    pub(super) is_first: bool,
    /// The latest one.
    pub(super) last: At,
    /// The lowest retransmitted number.
    pub(super) lowest: Psn,
    /// The highest retransmitted number.
    pub(super) highest: Psn,
}

/// A gap of a UC connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unseen {
    /// Index of the finding about it.
    pub(super) finding: usize,
    /// Its first number, and how many there are.
    pub(super) first: Psn,
    pub(super) count: u32,
    /// Those not captured since.
    pub(super) left: u32,
}

/// ACKs for a request that was retransmitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reacknowledged {
    pub(super) timeout: Timeout,
    pub(super) psn: Psn,
    pub(super) first: At,
    pub(super) count: u32,
}

/// Counters of one direction.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Packets of any kind.
    pub packets: u64,
    /// Payload bytes of requests and responses.
    pub bytes: u64,
    /// Messages begun, by operation.
    pub messages: Vec<(Operation, u64)>,
    /// Bytes of messages begun.
    pub message_bytes: u64,
    /// Bytes of the smallest and the largest message.
    pub sizes: Option<(u64, u64)>,
    /// Request packets retransmitted.
    pub resent: u64,
    /// Times the requester began to retransmit.
    pub episodes: u64,
    /// Packets duplicated in transit.
    pub duplicates: u64,
    /// Packets out of order.
    pub late: u64,
    /// Sequence numbers missing when later ones were captured.
    pub gaps: u64,
    /// ACKs, without responses.
    pub acks: u64,
    /// Messages completed by ACKs.
    pub acked_messages: u64,
    /// NAKs.
    pub naks: u64,
    /// RNR NAKs.
    pub rnr_naks: u64,
    /// Packets with a congestion mark (ECN CE).
    pub ce: u64,
    /// Congestion notification packets in this direction.
    pub cnps: u64,
    /// The first packet with a congestion mark.
    pub first_ce: At,
    /// The first congestion notification packet.
    pub first_cnp: At,
    /// Packets that were not captured although the responder or the requester has them.
    pub uncaptured: u64,
    /// Packets with a correct ICRC.
    pub intact: u64,
    /// Packets with a wrong ICRC.
    pub damaged: u64,
    /// [`Message::latency_ns`] of all messages.
    pub latency: Histogram,
}

/// What is known of the message at the end of the packets so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Inside {
    /// The capture began, or a packet is missing.
    #[default]
    Unknown,
    /// A message has begun and not ended.
    Begun,
    /// The last message has ended.
    Ended,
}

/// The state of a direction.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// Addresses and queue pair.
    pub key: Key,
    /// RC, UC, UD or XRC.
    pub service: Service,
    /// UDP source port of the first packet; both directions of a connection often have the same.
    pub sport: u16,
    /// Index of the opposite direction, once known.
    pub peer: Option<usize>,
    /// First packet.
    pub first: At,
    /// Latest packet.
    pub last: At,
    /// Its counters.
    pub counts: Counts,
    pub(super) window: Window,
    /// First unacknowledged number.
    pub(super) una: Psn,
    pub(super) last_ack: At,
    pub(super) open: VecDeque<Message>,
    pub(super) inside: Inside,
    /// Packets missing so far.
    pub(super) holes: u64,
    /// The packet behind the first missing one.
    pub(super) first_hole: At,
    /// First and last number of responses that were passed over, by the packet that did.
    pub(super) passed: Vec<(Psn, Psn, At)>,
    /// Steps by which the responder was seen to count messages.
    pub(super) msn_steps: u32,
    /// The latest message sequence number of the responder, its packet, and the messages that it may count
    /// beyond.
    pub(super) msn: Option<MsnSeen>,
    /// The latest ACK for a number that was not captured so far, and the index of the finding about it.
    pub(super) ahead: Option<(Psn, At, Option<usize>)>,
    pub(super) unknown_ack: Option<usize>,
    /// The next response beyond the end of a READ that has more than were requested.
    pub(super) surplus: Option<Psn>,
    /// Answers without a known request: the first one, and their number.
    pub(super) strays: Option<Stray>,
    /// Index of the finding about damaged packets, and the number of those captured so far.
    pub(super) damaged: Option<usize>,
    pub(super) pauses: Pauses,
    pub(super) path_mtu: Option<u32>,
    /// It is from a full packet of its own, or from the connection setup.
    pub(super) has_own_mtu: bool,
    /// A READ with an unknown number of responses, because the path MTU is unknown: its first number, and the
    /// largest possible number of responses.
    pub(super) unsized_read: Option<(Psn, u32)>,
    pub(super) pending_nak: Option<PendingNak>,
    /// The number that continues consecutive retransmissions.
    pub(super) retransmission: Option<Psn>,
    pub(super) keys: Keys,
    /// A request that was retransmitted without NAK and is unanswered.
    pub(super) timeout: Option<Timeout>,
    pub(super) reacknowledged: Option<Reacknowledged>,
    /// The highest number of a request with AckReq.
    pub(super) ack_requested: Option<Psn>,
    /// Index of the finding about RNR NAKs without progress since, and their number.
    pub(super) rnr: Option<(Option<usize>, u64)>,
    pub(super) duplicates: Option<usize>,
    /// Duplicates that directly followed the same packet.
    pub(super) twins: u64,
    /// Requests with responses of their own were captured.
    pub(super) has_fetches: bool,
    /// The identifications of the answers.
    pub(super) answer_numbering: Numbering,
    pub(super) reordered: Option<usize>,
    /// The latest gap of a UC connection.
    pub(super) unseen: Option<Unseen>,
    pub(super) slow: Option<usize>,
    /// The latest number that a retransmission supplied for a gap, its packet, and the index of the finding.
    pub(super) filled: Option<(Psn, At, Option<usize>)>,
    /// The packet with which the requester last began to retransmit.
    pub(super) episode: At,
    pub(super) mtu_finding: bool,
    /// The packet behind the latest gap, its IP identification, and where it was captured.
    pub(super) hole: (At, u16, Point),
    pub(super) numbering: Numbering,
    /// A point where packets are captured that another point has captured before.
    pub(super) second_point: Option<Point>,
    /// The number of the latest packet that was taken for an earlier transmission, captured at another point.
    pub(super) skipped: Option<Psn>,
    /// Findings that an acknowledgement of their packet refutes: its number, the packet, and the index.
    pub(super) doubts: Vec<(Psn, At, usize)>,
    /// Time of the latest packet out of order, and the lowest number of those before it.
    pub(super) late: Option<(u64, Psn)>,
    pub(super) q_key: Option<u32>,
    pub(super) wrong_key: bool,
    /// Partition (P_Key without the membership bit), and the first packet with it.
    pub(super) p_key: Option<(u16, At)>,
    pub(super) wrong_p_key: bool,
    /// The number of the first captured request since the numbers last restarted.
    pub(super) begins: Psn,
    /// The first answer.
    pub(super) first_answer: At,
    /// The first request packet and its number.
    pub(super) first_request: (At, Psn),
    /// The latest request packet.
    pub(super) last_request: At,
    /// The first NAK that refuses the requests; further ones are not reported.
    pub(super) refused: Option<Refused>,
    /// A finding says that the last request had no answer.
    pub(super) is_silent: bool,
}

/// What a NAK said that refuses requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// It ends the connection.
    Fatal(At),
    /// It expects numbers that no request in the capture has; the requester tries again.
    UnknownPsn,
}

impl Counts {
    /// Messages begun.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.messages.iter().map(|(_, count)| count).sum()
    }
}

impl Direction {
    /// Unacknowledged numbers that belong to no captured message: those of gaps, also of filled ones.
    pub(super) fn unknown_requests(&self) -> u64 {
        if self.counts.gaps == 0 {
            return 0;
        }
        let open =
            self.open.iter().map(|message| i64::from(message.last_psn.distance_from(message.first_psn)) + 1);
        let all = i64::from(self.window.next().distance_from(self.una));
        u64::try_from(all - open.sum::<i64>()).unwrap_or(0)
    }

    /// A direction with this first packet, at `at`.
    #[must_use]
    pub fn new(key: Key, service: Service, sport: u16, at: At) -> Self {
        Self { key, service, sport, first: at, last: at, ..Self::default() }
    }

    /// Its name: `10.0.0.1 > 10.0.0.2 QP 0x000011`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} > {} QP {}", self.key.src, self.key.dst, self.key.qp)
    }

    /// Name of the service: `RC`.
    #[must_use]
    pub fn service_name(&self) -> &'static str {
        self.service.name()
    }

    /// The number of messages of each operation: `3 WRITE`.
    #[must_use]
    pub fn verbs(&self) -> Vec<String> {
        self.counts
            .messages
            .iter()
            .map(|(operation, count)| format!("{count} {}", verb(*operation)))
            .collect()
    }

    /// Whether requests were captured in this direction.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.last_request.number != 0
    }

    /// Forgets the requests so far; returns the findings about them that waited for an answer.
    pub(super) fn forget(&mut self) -> Vec<(Psn, At, usize)> {
        self.window = Window::default();
        self.open.clear();
        (self.unsized_read, self.path_mtu, self.p_key, self.ack_requested) = (None, None, None, None);
        self.has_own_mtu = false;
        std::mem::take(&mut self.doubts)
    }

    /// Notes that the request `psn` demands an answer.
    pub(super) fn request_ack(&mut self, psn: Psn) {
        self.ack_requested = self.ack_requested.filter(|requested| !requested.is_before(psn)).or(Some(psn));
    }

    /// Whether a demanded answer is outstanding.
    #[must_use]
    pub(super) fn awaits_answer(&self) -> bool {
        self.ack_requested.is_some_and(|requested| !requested.is_before(self.una))
    }

    /// Notes that the requester begins to retransmit with packet `at`.
    pub(super) fn episode(&mut self, at: At) {
        self.counts.episodes += 1;
        self.episode = at;
    }

    /// Notes that a retransmission begins at `now`, after a wait since packet `before` inside the message
    /// that is being sent.
    pub(super) fn stalled(&mut self, before: At, now: At) {
        let waited = now.ns.saturating_sub(before.ns);
        if let Some(message) = self.open.back_mut().filter(|message| !message.ended) {
            message.stalled_ns = message.stalled_ns.saturating_add(waited);
        }
    }

    /// Handles a packet with this number that another point has captured before: it may be a retransmission.
    pub(super) fn copied(&mut self, psn: Psn) {
        if let Some(timeout) = self.timeout.as_mut().filter(|_| self.retransmission == Some(psn)) {
            timeout.highest = psn;
            self.retransmission = Some(psn.advance(1));
        }
    }

    /// Notes that the request `psn` has no answer so far, and is retransmitted in packet `at`; `is_first`:
    /// for the first time.
    pub(super) fn note_timeout(&mut self, psn: Psn, at: At, is_first: bool, finding: Option<usize>) {
        let (lowest, highest) = (psn, psn);
        let fresh = Timeout { finding, attempts: 1, is_first, last: at, lowest, highest };
        // One that no finding tells of may be about other packets.
        let timeout = match &mut self.timeout {
            Some(timeout) if timeout.finding.is_some() || timeout.lowest == psn => timeout,
            other => other.insert(fresh),
        };
        timeout.attempts += 1;
        timeout.last = at;
        timeout.finding = timeout.finding.or(finding);
    }

    /// The first captured packet with this number; 0 if there is none.
    pub(super) fn sent(&self, psn: Psn) -> u64 {
        self.window.get(psn).map_or(0, |slot| slot.sent.number)
    }

    /// The message in flight with this number.
    pub(super) fn message_at(&mut self, psn: Psn) -> Option<&mut Message> {
        self.open.iter_mut().find(|message| message.has(psn))
    }

    /// Adds a message in flight.
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

    /// Adds the size of a message to the counters.
    pub(super) fn size(&mut self, bytes: u64) {
        let (low, high) = self.counts.sizes.unwrap_or((bytes, bytes));
        self.counts.sizes = Some((low.min(bytes), high.max(bytes)));
    }
}

/// The latest message sequence number of a responder.
#[derive(Clone, Copy, Debug)]
pub(super) struct MsnSeen {
    pub(super) msn: Msn,
    pub(super) psn: Psn,
    pub(super) at: At,
    /// Messages begun, and packets missing, until then.
    pub(super) begun: u64,
    /// Messages that were open: the responder may have counted them or not.
    pub(super) open: u64,
}

/// Answers of a direction to requests that are not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stray {
    /// The first one.
    pub(super) at: At,
    /// Its sequence number.
    pub(super) psn: Psn,
    /// It is a NAK: the number is the one that the responder expects.
    pub(super) is_nak: bool,
    /// It is an RNR NAK or a NAK that ends the connection: its number says nothing.
    pub(super) is_refusal: bool,
    /// One of them was such a NAK, and is reported.
    pub(super) has_refusal: bool,
    pub(super) count: u64,
}

/// The longest times between two requests of a direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pauses {
    pub(super) longest: u64,
    pub(super) second: u64,
    /// The request packets around the longest one.
    pub(super) around: (At, At),
    /// Request packets before the longest one, and all.
    pub(super) before: u64,
    pub(super) requests: u64,
    /// A request was unanswered during the longest one.
    pub(super) was_open: bool,
}
