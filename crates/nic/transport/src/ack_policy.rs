//! ACK policy: when a requester asks for an acknowledgement, and when a responder sends it.
//!
//! # When a requester sets AckReq
//! An acknowledgement costs both sides a small packet, and IBA 9.7.5.1 leaves it to the requester which
//! packets ask for one. READ requests, atomics and retransmissions of single packets always ask. A packet of
//! a SEND or WRITE asks in three cases:
//! - it fills the send window, or uses up the transmit budget, so that no packet can follow it now;
//! - [`ACK_INTERVAL_PKTS`] packets (fewer with a path MTU above 1024) have left since the last AckReq;
//! - it ends a message, no other message follows at once, and an ACK is wanted for something sent since the
//!   last AckReq.
//!
//! An ACK is wanted for a message that is signaled (the application waits for its completion), for a message
//! that does not reply to a request of the peer (it may be the first of many, and the ACK releases the batch
//! behind it), and for a message that go-back-N retransmits. All other messages are unsignaled replies. They
//! leave without AckReq until [`UNSIGNALED_MAX`] of them, or half a send queue, wait for an ACK, or until
//! this side has sent no packet for [`ASK_AFTER_SILENCE_NS`]; then the requester retransmits the newest
//! packet with AckReq.
//!
//! The application may reuse the memory of such a message when the peer's next message shows that it arrived.
//! A retransmission may then have other bytes; the responder has executed the packet and discards them. If
//! the memory cannot be read any more, the retransmission is left out until another packet has left.
//!
//! # When a responder delays an ACK
//! ACKs are coalesced over a receive batch: one ACK leaves at its end. It is delayed further only in a
//! ping-pong: there the ACK leaves directly behind the next request of this side, so that both fit one burst
//! and cost one system call and one walk through the network stack. All of this must hold:
//! - in each of the last [`ROUNDS_MIN`] rounds this side posted a request and then a message of the peer
//!   arrived;
//! - all of the peer's messages were WRITEs without immediate (two programs spin on memory, as `ib_write_lat`
//!   does), or an application thread has received the message by polling, and so sees its completion at once
//!   (`ib_send_lat`, UCX, MPI), and the last round took at most [`ACK_DELAY_MAX_NS`];
//! - all requests that this side posted have left, and no message of the peer is half received;
//! - between the last two packets with AckReq fewer messages than an ACK interval arrived. A roxie peer sends
//!   a long WRITE as one message per packet. It sets AckReq when the interval is over, and needs that ACK at
//!   once to open its window;
//! - the packet with AckReq is not a duplicate.
//!
//! The delayed ACK leaves behind the last packet of the next request. It leaves alone
//! - at its deadline. For programs that spin on memory that is [`ACK_DELAY_MAX_NS`] after the batch with the
//!   first packet that asked for it, otherwise [`POLLED_DELAY_NS`], at the next poll that looks at the clock;
//! - when a duplicate arrives;
//! - when the queue pair is about to leave its connection. Then the ACK covers every executed request, also
//!   one without AckReq, because the peer's requests without an ACK fail when the peer learns of the end.
//!
//! After an ACK that left alone at its deadline, the number of rounds required before the next delay doubles;
//! after [`ROUNDS_STABLE`] rounds or more it halves. So two programs that send at the same time and wait for
//! each other's ACKs lose little, and a long ping-pong survives a pause.
//!
//! The peer sees the reply before the ACK. An application notices that only by the order of a receive
//! completion and a send completion. No standard defines this order, but event-driven programs on one CQ may
//! expect that of hardware, which acknowledges at once. A roxie peer keeps it: a send completion goes before
//! the only receive completion of the same batch
//! ([`Events::push_send`](crate::event::Events::push_send)). A message that the progress thread received,
//! because the application sleeps, is acknowledged at once.
//!
//! # What a foreign peer sees
//! Requests without AckReq, as IBA 9.7.5.1 permits, and late ACKs: at most 250 us after a WRITE without
//! immediate, else with the first poll after 20 us. If the application stops polling, the ACK leaves when the
//! progress thread notices that, after some milliseconds. All of this is far below the Local CA ACK Delay
//! that the device reports (134 ms), from which connection managers derive timeouts; only a small `timeout`
//! (5 is 131 us, 10 is 4 ms) is shorter. A response to a READ or atomic, or a NAK, acknowledges in place of
//! the ACK.

use crate::in_flight::{PROBE_MIN_NS, full_packets};
use crate::time::Instant;

/// At most this many packets leave from one AckReq to the next: two bursts of 62, so that an ACK is in flight
/// while the next burst leaves. At half, every burst costs an ACK; at double, too little of the window (310)
/// is left when the ACK arrives.
const ACK_INTERVAL_PKTS: u64 = 124;
/// The same in payload bytes, which is fewer packets with a path MTU above 1024.
const ACK_INTERVAL_BYTES: u64 = 124 * 1024;
/// This many unsignaled replies may wait for an ACK without AckReq. They hold send queue slots and window
/// space, and are flushed with an error if the connection ends.
const UNSIGNALED_MAX: u32 = 16;
/// When no packet was sent for this long (400 us), the requester asks for the ACK of messages that left
/// without AckReq.
pub(crate) const ASK_AFTER_SILENCE_NS: u64 = PROBE_MIN_NS;
/// No ACK is delayed for longer (250 us) while two programs spin on memory. A ping-pong round takes 5 to 30
/// us, and interrupts or a hypervisor often stop a program for up to 200 us: at half, the ACK leaves alone
/// after each such pause and the peer stops polling. Double would exceed the probe timeout of a roxie peer,
/// which would then retransmit.
pub(crate) const ACK_DELAY_MAX_NS: u64 = 250_000;
const _: () = assert!(ACK_DELAY_MAX_NS < PROBE_MIN_NS);
/// No ACK is delayed for longer (20 us) if an application thread has received the message by polling. A
/// program that waits for the completion of its last send before it replies polls some more times, until the
/// peer's ACK behind its message arrives: 3 to 10 us later. At half, the ACK leaves alone before the reply on
/// a slow machine. At double, a peer that waits for its completion, because no reply comes, waits longer.
const POLLED_DELAY_NS: u64 = 20_000;
/// Ping-pong rounds before the first ACK is delayed.
const ROUNDS_MIN: u16 = 2;
/// A ping-pong of this many rounds is stable: an ACK that leaves alone then halves the required number of
/// rounds instead of doubling it.
const ROUNDS_STABLE: u16 = 64;

/// The most packets from one AckReq to the next at a path MTU.
#[inline]
fn ack_interval(mtu: usize) -> u64 {
    ACK_INTERVAL_PKTS.min(full_packets(ACK_INTERVAL_BYTES, mtu))
}

/// A packet of a SEND or WRITE that is about to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    /// It is the last packet of its message.
    pub(crate) ends_message: bool,
    /// The application waits for the completion of its message.
    pub(crate) is_signaled: bool,
    /// No packet can follow it now: the window or the budget is used up, or the rate demands a pause.
    pub(crate) is_last_allowed: bool,
    /// It was sent before.
    pub(crate) is_retransmission: bool,
    /// Work requests in half a send queue.
    pub(crate) half_queue: u32,
}

/// The requester's side: what was sent since the last AckReq.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckRequests {
    packets: u32,
    /// Messages that end in these packets.
    messages: u32,
    /// One of them is signaled.
    is_signaled: bool,
    /// A request of the peer has arrived since the last message left.
    is_reply: bool,
}

impl AckRequests {
    /// Records that a request of the peer has arrived: the next message counts as a reply.
    #[inline]
    pub(crate) fn peer_request_arrived(&mut self) {
        self.is_reply = true;
    }

    /// Whether a request of the peer has arrived since the last message left.
    #[inline]
    pub(crate) fn is_reply(&self) -> bool {
        self.is_reply
    }

    /// A mid-message packet leaves without AckReq.
    #[inline]
    pub(crate) fn packet_sent(&mut self) {
        self.packets += 1;
    }

    /// A packet with AckReq leaves.
    #[inline]
    pub(crate) fn asked(&mut self) {
        *self = Self { is_reply: self.is_reply, ..Self::default() };
    }

    /// Packets that may still leave before the interval ends with one that asks.
    #[inline]
    pub(crate) fn packets_left(&self, mtu: usize) -> u64 {
        ack_interval(mtu).saturating_sub(self.packets.into())
    }

    /// Counts a packet that leaves now and decides whether it sets AckReq. `is_followed` tells whether
    /// another message follows at once.
    #[inline]
    pub(crate) fn decide(
        &mut self,
        packet: Outgoing,
        is_followed: impl FnOnce() -> bool,
        mtu: usize,
    ) -> bool {
        self.packets += 1;
        if packet.ends_message {
            self.messages += 1;
            self.is_signaled |= packet.is_signaled;
        }
        let is_wanted = self.is_signaled
            || !self.is_reply
            || packet.is_retransmission
            || self.messages >= UNSIGNALED_MAX.min(packet.half_queue);
        let asks = packet.is_last_allowed
            || (packet.ends_message && is_wanted && !is_followed())
            || self.packets_left(mtu) == 0;
        self.is_reply &= !packet.ends_message;
        if asks {
            self.asked();
        }
        asks
    }
}

/// A plain ACK that is owed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Owed {
    #[default]
    Nothing,
    /// Asked for in the present receive batch.
    InBatch,
    /// Leaves with the next request of this side, or at the deadline.
    Delayed,
    Now,
}

/// The responder's side: the ACK that is owed, and whether the two sides exchange ping-pong rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckDelay {
    owed: Owed,
    /// Number of the packet that the ACK names.
    position: u64,
    /// When a delayed ACK leaves at the latest. Later packets with AckReq do not move this deadline; an ACK
    /// that leaves clears it.
    deadline: Option<Instant>,
    /// The ACK is for a duplicate: only an explicit ACK counts.
    is_duplicate: bool,
    /// Rounds in a row, those in a row in which the peer's messages were silent, and how many are required
    /// for a delay.
    rounds: u16,
    silent_rounds: u16,
    /// When the last batch that asked for an ACK was over.
    asked_at: Instant,
    rounds_required: u16,
    /// This side has posted a request since the last message of the peer.
    has_posted: bool,
    /// Messages of the peer since the last packet that asked, and how many there were before that packet.
    messages: u32,
    messages_before_ask: u32,
}

impl AckDelay {
    pub(crate) fn new() -> Self {
        Self { rounds_required: ROUNDS_MIN, ..Self::default() }
    }

    /// This side posted a request.
    #[inline]
    pub(crate) fn request_posted(&mut self) {
        self.has_posted = true;
    }

    /// A SEND or WRITE of the peer is complete. `is_silent`: it produces no completion here, so the
    /// application learns of it only from its memory.
    #[inline]
    pub(crate) fn message_arrived(&mut self, is_silent: bool) {
        if std::mem::take(&mut self.has_posted) {
            self.rounds = self.rounds.saturating_add(1);
            self.silent_rounds = self.silent_rounds.saturating_add(1);
        }
        self.messages = self.messages.saturating_add(1);
        if !is_silent {
            self.silent_rounds = 0;
        }
    }

    /// The packet at `position` asks for an acknowledgement, which covers every earlier packet that asked.
    #[inline]
    pub(crate) fn asked(&mut self, position: u64) {
        self.position = position;
        self.messages_before_ask = std::mem::take(&mut self.messages);
        self.owed = Owed::InBatch;
    }

    /// A SEND or WRITE that was executed before arrived again; `position` is the last one executed.
    pub(crate) fn asked_by_duplicate(&mut self, position: u64) {
        self.position = position;
        self.owed = Owed::Now;
        self.is_duplicate = true;
    }

    /// The response to the READ or atomic at `position` will acknowledge everything before it.
    pub(crate) fn covered_by_response(&mut self, position: u64) {
        if !self.is_duplicate && self.position < position {
            self.sent();
        }
    }

    /// Ends a receive batch: the ACK that was asked for is due, or delayed in a ping-pong. `may_delay`: the
    /// queue pair is in RTS, all its posted requests have left, and no message of the peer is half received.
    /// `is_polled`: an application thread received the batch by polling.
    #[inline]
    pub(crate) fn end_of_batch(&mut self, now: Instant, may_delay: bool, is_polled: bool, mtu: usize) {
        if self.owed != Owed::InBatch {
            return;
        }
        let is_interval_ask = u64::from(self.messages_before_ask) >= ack_interval(mtu);
        // A program that computes for longer between two polls would keep the peer waiting.
        let is_quick = self.asked_at.plus_ns(ACK_DELAY_MAX_NS) >= now;
        self.asked_at = now;
        let delay_ns = if is_interval_ask || !may_delay || self.is_duplicate {
            None
        } else if self.silent_rounds >= self.rounds_required {
            Some(ACK_DELAY_MAX_NS)
        } else {
            (is_polled && is_quick && self.rounds >= self.rounds_required).then_some(POLLED_DELAY_NS)
        };
        self.owed = match delay_ns {
            Some(delay_ns) => {
                self.deadline.get_or_insert(now.plus_ns(delay_ns));
                Owed::Delayed
            }
            None => Owed::Now,
        };
    }

    /// Everything that this side posted has left: a delayed ACK follows it. Returns whether there is one.
    #[inline]
    pub(crate) fn requests_left(&mut self) -> bool {
        let is_delayed = self.is_delayed();
        self.release();
        is_delayed
    }

    /// Makes a delayed ACK due.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.is_delayed() {
            self.owed = Owed::Now;
        }
    }

    /// The queue pair is about to leave its connection: an ACK of everything up to `position` becomes due,
    /// unless one has left. That is the last packet that was executed; the peer may not have asked for it.
    pub(crate) fn finish(&mut self, position: u64) {
        if self.owed != Owed::Nothing || self.position < position {
            self.position = self.position.max(position);
            self.owed = Owed::Now;
        }
    }

    /// Whether a delayed ACK waits for the next request.
    #[inline]
    pub(crate) fn is_delayed(&self) -> bool {
        self.owed == Owed::Delayed
    }

    /// When a delayed ACK must leave.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.filter(|_| self.is_delayed())
    }

    /// Time has passed: a delayed ACK leaves alone when its deadline is reached.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.owed = Owed::Now;
            let is_stable = self.rounds >= ROUNDS_STABLE;
            let required = if is_stable { self.rounds_required / 2 } else { self.rounds_required * 2 };
            self.rounds_required = required.clamp(ROUNDS_MIN, ROUNDS_STABLE);
            (self.rounds, self.silent_rounds) = (0, 0);
        }
    }

    /// Number of the packet that the ACK which is due now names.
    #[inline]
    pub(crate) fn due(&self) -> Option<u64> {
        (self.owed == Owed::Now).then_some(self.position)
    }

    /// An acknowledgement of everything leaves: an ACK, or a NAK in its place.
    #[inline]
    pub(crate) fn sent(&mut self) {
        self.owed = Owed::Nothing;
        self.deadline = None;
        self.is_duplicate = false;
    }
}

#[cfg(test)]
#[path = "ack_policy_requester_tests.rs"]
mod requester_tests;
#[cfg(test)]
#[path = "ack_policy_responder_tests.rs"]
mod responder_tests;
