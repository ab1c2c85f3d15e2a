//! What the responder owes the peer, and when: coalesced and deferred ACKs, one NAK per gap, RNR NAKs, and the answers of
//! the replay queue, which come first because answers leave in PSN order (IBA 9.7.5.1).

use wire::{Aeth, AtomicAckEth, NakCode, Syndrome};

use crate::emit::{Buffer, Emitter, Transmit, acknowledge, psn_of, read_response_opcode, response_bth};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::memory::Memory;
use crate::patience::Patience;
use crate::replay::Answer;
use crate::resend::GAP_UNIT;
use crate::responder::Responder;
use crate::rtt::PROBE_MIN_NS;
use crate::time::{Instant, ack_timeout_ns};
use crate::unasked::ack_interval;

/// How long an ACK waits for a request of this side to leave together with. A ping-pong turn of one packet takes 5 to 30 us.
const DEFER_NS: u64 = 50_000;
/// ... in a pattern that has lasted: interrupts and a hypervisor keep programs from answering for as long many times a second, and a
/// peer that gets the ACK alone stops polling and spins on memory. Well before it calls the ACK overdue (`rtt.rs`).
const LASTING_DEFER_NS: u64 = 250_000;
const _: () = assert!(LASTING_DEFER_NS < PROBE_MIN_NS);
/// ... and how long from packet to packet while that leaves, as long as it is,
const MOVE_NS: u64 = 250_000;
/// ... but not longer than this: 8 MiB take 2 ms (two virtual CPUs, Xeon, kernel 6.18). Nor than a part of the retry time-out, which
/// is taken to be the peer's, too.
const DEFER_MAX_NS: u64 = 4_000_000;
const TIMEOUT_PART: u64 = 4;
/// One that is kept back for several turns leaves with the first request after so long: well before a peer calls it overdue
/// (`rtt.rs`).
const KEPT_MAX_NS: u64 = 100_000;
/// Turns (message received, then one posted here) that make a ping-pong pattern.
const TURNS: u8 = 2;
/// ... and that make it last: an ACK that waited in vain does not end it at once. Two sides that send at the same time, and then
/// wait for each other's ACKs each time, never get so far.
const LASTING: u8 = 16;

/// How long an ACK may wait where the retry time-out is this one, and `max_ns` without any.
fn part_of_timeout(timeout: u8, max_ns: u64) -> u64 {
    ack_timeout_ns(timeout).map_or(max_ns, |ns| (ns / TIMEOUT_PART).min(max_ns))
}

/// A plain ACK on its way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ack {
    None,
    /// Until the end of the batch.
    Gathering,
    /// Until this side has sent what it has posted, or that time.
    Deferred(Instant),
    Due,
}

#[derive(Clone, Copy, Debug)]
struct Nak {
    syndrome: Syndrome,
    position: u64,
    /// The last word before the queue pair falls silent.
    last_word: bool,
}

/// ACKs and NAKs that are owed.
#[derive(Debug)]
pub(crate) struct Reply {
    ack: Ack,
    /// Number of the packet that the ACK names.
    ack_at: u64,
    /// Since when it is deferred, and whether a packet has left this side since its deadline was set.
    deferred_at: Option<Instant>,
    moved: bool,
    /// The peer repeats itself: a READ response will not do as acknowledgement.
    repeated: bool,
    nak: Option<Nak>,
    /// A NAK went out (or is about to) and the expected packet has not arrived since.
    nak_sent: bool,
    /// ... and that NAK told the peer to wait.
    waiting: bool,
    /// Times that messages arrived after this side had posted something since those before.
    turns: u8,
    posted: bool,
    /// Messages of this turn, and of the one before. A WRITE of a roxie peer is a message for each packet.
    messages: u32,
    messages_before: u32,
    /// The last message had one packet.
    is_one_packet: bool,
    /// It came after the last request of this side.
    turn_begun: bool,
    patience: Patience,
}

impl Reply {
    pub(crate) fn new() -> Self {
        Self {
            ack: Ack::None,
            ack_at: 0,
            deferred_at: None,
            moved: false,
            repeated: false,
            nak: None,
            nak_sent: false,
            waiting: false,
            turns: 0,
            posted: false,
            messages: 0,
            messages_before: 0,
            is_one_packet: false,
            turn_begun: false,
            patience: Patience::new(),
        }
    }

    /// Whether the peer was told already that something is missing or was not accepted.
    pub(crate) fn is_nak_sent(&self) -> bool {
        self.nak_sent
    }

    /// Whether the peer was told to wait.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// The packet at `expected` is missing.
    pub(crate) fn nak_sequence(&mut self, expected: u64) {
        self.set_nak(Syndrome::Nak(NakCode::PsnSequenceError), expected, false);
    }

    /// The packet at `expected` must be sent again later. What follows it meanwhile is dropped without another NAK,
    /// which would make the peer come back too early.
    pub(crate) fn nak_not_ready(&mut self, expected: u64, timer: u8) {
        self.set_nak(Syndrome::RnrNak(timer), expected, false);
    }

    /// The request at `expected` is refused for good.
    pub(crate) fn nak_finally(&mut self, expected: u64, code: NakCode) {
        self.set_nak(Syndrome::Nak(code), expected, true);
    }

    fn set_nak(&mut self, syndrome: Syndrome, position: u64, last_word: bool) {
        self.nak = Some(Nak { syndrome, position, last_word });
        self.nak_sent = true;
        self.waiting = matches!(syndrome, Syndrome::RnrNak(_));
    }

    /// The expected packet is here: a NAK for it that has not left yet is pointless.
    #[inline]
    pub(crate) fn expected_arrived(&mut self) {
        if self.nak_sent {
            self.nak_sent = false;
            self.nak = None;
        }
    }

    /// The packet at `position` asks for an acknowledgement. One that is due for an earlier packet and has not left counts no more.
    #[inline]
    pub(crate) fn request_ack(&mut self, position: u64) {
        self.ack_at = position;
        self.ack = Ack::Gathering;
    }

    /// A SEND or WRITE that was executed before came again; `position` is the last one executed. An ACK that waits goes on waiting:
    /// a long turn takes longer than what the peer calls overdue.
    pub(crate) fn repeat_ack(&mut self, position: u64) {
        self.ack_at = position;
        self.repeated = true;
        if !self.is_deferred() {
            self.ack = Ack::Gathering;
        }
    }

    /// A READ or atomic was accepted; its answer acknowledges everything before.
    pub(crate) fn answered_by_fetch(&mut self, position: u64) {
        if !self.repeated && self.ack_at < position {
            self.ack = Ack::None;
            self.deferred_at = None;
            self.patience.ack_sent();
        }
    }

    /// A SEND or WRITE message is complete. Only a `silent` one may keep its ACK waiting: it makes no completion, so the
    /// application polls memory and nobody polls the device. Who gets a completion polls, and the ACK costs him nothing.
    #[inline]
    pub(crate) fn message_arrived(&mut self, silent: bool, is_one_packet: bool) {
        (self.is_one_packet, self.turn_begun) = (is_one_packet, true);
        if std::mem::take(&mut self.posted) {
            self.turns = self.turns.saturating_add(1).min(LASTING);
            self.messages_before = std::mem::take(&mut self.messages);
        }
        self.messages = self.messages.saturating_add(1);
        if !silent {
            self.turns = 0;
        }
        self.patience.request_arrived();
    }

    /// This side posted a request.
    #[inline]
    pub(crate) fn request_posted(&mut self) {
        self.posted = true;
    }

    /// The batch is over: what was gathered is due, or in a ping-pong pattern waits for the next request of this side. It
    /// `may_wait` if all that was posted here has left and no message is half received. `timeout` is this side's attribute of that name.
    #[inline]
    pub(crate) fn end_of_batch(&mut self, now: Instant, may_wait: bool, mtu: usize, timeout: u8) {
        if self.ack == Ack::Gathering {
            // In the middle of a turn that is shorter nothing is asked; where a longer one ends the one before tells.
            let short = ack_interval(mtu) as u32;
            let turn_ends = if self.messages_before < short {
                self.messages < short
            } else {
                self.messages == self.messages_before
            };
            let ping_pong = self.turns >= TURNS && turn_ends && may_wait && !self.repeated;
            self.ack = if ping_pong { self.defer(now, timeout) } else { Ack::Due };
        }
    }

    fn defer(&mut self, now: Instant, timeout: u8) -> Ack {
        let first = *self.deferred_at.get_or_insert(now);
        self.moved = false;
        let lasts = self.turns == LASTING;
        let ns = if lasts { part_of_timeout(timeout, LASTING_DEFER_NS) } else { DEFER_NS };
        Ack::Deferred(now.plus_ns(ns).min(first.plus_ns(DEFER_MAX_NS)))
    }

    /// A packet of a request has left.
    #[inline]
    pub(crate) fn request_moved(&mut self) {
        self.moved = true;
    }

    /// When a deferred ACK becomes due.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.ack {
            Ack::Deferred(deadline) => Some(deadline),
            Ack::None | Ack::Gathering | Ack::Due => None,
        }
    }

    /// Waits on while a request of this side leaves packet by packet, else gives up; unless it has lasted the pattern must prove itself
    /// anew then. `timeout` is this side's attribute of that name.
    pub(crate) fn handle_timeout(&mut self, now: Instant, timeout: u8) {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let latest = self.deferred_at.unwrap_or(now).plus_ns(part_of_timeout(timeout, DEFER_MAX_NS));
        if std::mem::take(&mut self.moved) && now < latest {
            self.ack = Ack::Deferred(now.plus_ns(MOVE_NS).min(latest));
        } else {
            self.ack = Ack::Due;
            // One that was kept back says nothing against the pattern: the peer waits for it before its turn.
            if !self.patience.time_is_over() {
                self.turns = if self.turns == LASTING { TURNS } else { 0 };
            }
        }
    }

    /// Whether an ACK waits for a request to leave with.
    #[inline]
    pub(crate) fn is_deferred(&self) -> bool {
        matches!(self.ack, Ack::Deferred(_))
    }

    /// The request that it waits for has left: it follows, unless it may wait for the next turn. Returns whether it follows.
    /// `timeout` is this side's attribute of that name.
    #[inline]
    pub(crate) fn request_left(&mut self, now: Instant, timeout: u8) -> bool {
        if !std::mem::take(&mut self.turn_begun) && self.patience.is_keeping() {
            // Another request of the same turn.
            return false;
        }
        let latest = self.deferred_at.unwrap_or(now).plus_ns(part_of_timeout(timeout, KEPT_MAX_NS));
        // What takes more packets fills the peer's window.
        if self.messages == 1
            && self.is_one_packet
            && now < latest
            && let Some(ns) = self.patience.keep()
        {
            self.ack = Ack::Deferred(now.plus_ns(ns).min(latest));
            self.moved = false;
            return false;
        }
        self.ack = Ack::Due;
        true
    }

    /// Makes such an ACK due.
    #[inline]
    pub(crate) fn release_deferred(&mut self) {
        if self.is_deferred() {
            self.ack = Ack::Due;
        }
    }

    /// Whether an ACK or NAK is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.ack == Ack::Due || self.nak.is_some()
    }

    /// Whether there is something to say even in the error state.
    pub(crate) fn has_last_word(&self) -> bool {
        self.nak.is_some_and(|nak| nak.last_word)
    }
}

impl Responder {
    /// Whether an answer is due.
    #[inline]
    pub(crate) fn has_reply(&self) -> bool {
        self.reply.is_due() || self.replay.is_pending() || self.ahead.has_report()
    }

    /// Writes the next answer: READ responses and atomic acks in order, then a NAK, then an ACK, then reports of gaps.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Result<Option<Transmit>, Fault> {
        if self.replay.is_pending() {
            return self.transmit_answer(mem, ep, buf);
        }
        let reply = &mut self.reply;
        let (syndrome, position) = if let Some(nak) = reply.nak.take() {
            // It acknowledges everything before it.
            (nak.syndrome, nak.position)
        } else if reply.ack == Ack::Due {
            (Syndrome::ACK, reply.ack_at)
        } else if let Some((first, packets)) = self.ahead.next_gap(self.expected) {
            // See `resend.rs`: to all others this is an old ACK.
            ep.counters.send_gap_report += 1;
            (Syndrome::ACK, first.wrapping_sub(packets * GAP_UNIT))
        } else {
            return Ok(None);
        };
        reply.ack = Ack::None;
        reply.deferred_at = None;
        reply.repeated = false;
        reply.patience.ack_sent();
        let len = acknowledge(buf, ep, syndrome, psn_of(position), self.msn);
        Ok(Some(Transmit { len, is_datagram: false }))
    }

    /// The next packet of a READ response, or an atomic ack. A fault is the memory's, gone since the request came.
    fn transmit_answer(
        &mut self,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Result<Option<Transmit>, Fault> {
        let Some((entry, cursor)) = self.replay.current() else { return Ok(None) };
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: entry.msn };
        let mut packet = Emitter::new(buf);
        let opcode = match entry.answer {
            Answer::Atomic { original } => {
                aeth.emit(packet.header());
                AtomicAckEth { original }.emit(packet.header());
                wire::Opcode::RC_ATOMIC_ACKNOWLEDGE
            }
            Answer::Done => {
                aeth.emit(packet.header());
                wire::Opcode::RC_READ_RESPONSE_ONLY
            }
            Answer::Read { pd, va, r_key, .. } => {
                let (starts, ends) = (cursor.at == cursor.start, cursor.at + 1 == cursor.end);
                if starts || ends {
                    aeth.emit(packet.header());
                }
                let offset = (cursor.at - entry.first) * ep.mtu as u64;
                let bytes = u64::from(cursor.end_byte).saturating_sub(offset).min(ep.mtu as u64);
                let payload = packet.payload(bytes as usize);
                if !payload.is_empty() {
                    mem.read_remote(pd, ep.qpn, r_key, va.wrapping_add(offset), payload)
                        .map_err(Fault::from_access)?;
                }
                ep.counters.sent_bytes += bytes;
                read_response_opcode(starts, ends)
            }
        };
        self.replay.advance();
        let len = packet.finish(response_bth(opcode, ep, psn_of(cursor.at)));
        Ok(Some(Transmit { len, is_datagram: false }))
    }

    /// Number of the packet that is being answered.
    pub(crate) fn answering(&self) -> u64 {
        self.replay.current().map_or(self.expected, |(_, cursor)| cursor.at)
    }
}
