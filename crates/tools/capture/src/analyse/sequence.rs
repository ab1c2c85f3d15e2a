//! Checks that consecutive packets fit together: opcodes, lengths, message sequence numbers, and ACKs of
//! requests that were not captured.

use wire::{NakCode, Operation, Packet, Position, Psn, Syndrome};

use super::Analysis;
use super::direction::{Direction, Inside, MsnSeen, Stray};
use super::finding::{At, Kind, packets};
use super::window::WINDOW_MAX;

/// An ACK that was captured before its request by less than this was captured out of order.
const AHEAD_NS: u64 = 20_000_000;
/// Responses that were passed over, kept for each direction.
const PASSED_MAX: usize = 64;

/// Steps after which a responder counts messages, so that a jump of its number says something.
const MSN_STEPS_MIN: u32 = 3;
/// A gap report is an ACK for a packet 1536 or more before the gap. Half of that, because the capture may
/// lack packets.
const GAP_REPORT_AGE: i32 = 768;

impl Analysis {
    /// Checks that the opcode of the packet behind a captured one may follow it.
    pub(super) fn check_opcodes(&mut self, index: usize, at: At, packet: &Packet<'_>) {
        let direction = &self.directions[index];
        let (row, psn) = (packet.row(), packet.bth.psn);
        let refused =
            "A responder should refuse such packets with NAK invalid request, on UC drop their message.";
        let text = match (direction.inside, row.position.starts()) {
            (Inside::Begun, true) => {
                let begun = direction.open.back().map_or(0, |message| message.first.number);
                format!(
                    "Packet {} ({}, PSN {psn}) begins a message, while the message of packet {begun} has no \
                     last packet. {refused}",
                    at.number, row.name,
                )
            }
            (Inside::Ended, false) => format!(
                "Packet {} ({}, PSN {psn}) continues a message, but the message before it ended with the \
                 packet before. {refused}",
                at.number, row.name
            ),
            (Inside::Begun, false) => {
                let Some(message) = direction.open.back() else { return };
                if family(message.operation) == family(row.operation) {
                    return;
                }
                format!(
                    "Packet {} ({}, PSN {psn}) continues the message that packet {} began with another \
                     operation. {refused}",
                    at.number, row.name, message.first.number
                )
            }
            _ => return,
        };
        self.report_doubted(index, Kind::OpcodeSequence, at, psn, at, text);
    }

    /// Checks that the message that has ended has the length that its first packet announced.
    pub(super) fn check_length(&mut self, index: usize, at: At, psn: Psn) {
        let direction = &self.directions[index];
        let Some(message) = direction.open.back() else { return };
        let is_write = matches!(message.operation, Operation::Write | Operation::WriteImm);
        let Some(access) = message.access.filter(|_| is_write) else { return };
        if access.len == message.bytes {
            return;
        }
        let packets = packets(message.first, at);
        let text = format!(
            "The WRITE in {packets} announces {} bytes (DMA length of its RETH), and its packets carry {} \
             bytes. A responder should refuse it with NAK invalid request.",
            access.len, message.bytes
        );
        self.report_doubted(index, Kind::WrongLength, message.first, psn, at, text);
    }

    /// Whether the responses of a READ, all captured until `psn`, have a wrong length. The last one ends the
    /// requested bytes, and no other one does.
    pub(super) fn check_response_length(
        &mut self,
        index: usize,
        at: At,
        psn: Psn,
        position: Position,
    ) -> bool {
        let direction = &mut self.directions[index];
        let name = direction.name();
        let Some(message) = direction.message_at(psn) else { return false };
        if message.operation != Operation::ReadRequest || message.access.is_none() {
            return false;
        }
        let (wanted, there, first) = (message.bytes, message.response_bytes, message.first);
        // The first response to a READ of one packet may be that of another connection with equal numbers.
        let is_doubtful = message.first_psn == message.last_psn && there != wanted;
        let is_inside = is_doubtful || psn.is_before(message.last_psn);
        let is_right = if position.ends() { wanted == there } else { is_inside || there < wanted };
        if is_right || self.is_ambiguous(index) {
            return false;
        }
        let more = if position.ends() { "" } else { ", and more responses follow" };
        self.directions[index].surplus = (!position.ends()).then_some(psn.advance(1));
        let text = format!(
            "The READ in packet {} requests {wanted} bytes, and its responses until packet {} carry {there} \
             bytes{more}. The requester ends the connection for that.",
            first.number, at.number
        );
        self.report(Kind::WrongLength, first, at.number, name, text);
        true
    }

    /// Checks the message sequence number of an ACK: it grows by the messages completed since the last one.
    pub(super) fn check_msn(&mut self, index: usize, at: At, packet: &Packet<'_>) {
        let Some(aeth) = packet.aeth().filter(|aeth| matches!(aeth.syndrome, Syndrome::Ack(_))) else {
            return;
        };
        let direction = &mut self.directions[index];
        let psn = packet.bth.psn;
        let begun = direction.counts.begun() + direction.counts.gaps;
        let open = direction.open.len() as u64 + direction.unknown_requests();
        let now = MsnSeen { msn: aeth.msn, psn, at, begun, open };
        let Some(before) = direction.msn else {
            // A gap report of roxie (docs/deviations.md) has a PSN in the place of the MSN.
            let is_old = psn.distance_from(direction.window.next()) < -GAP_REPORT_AGE;
            direction.msn = (!is_old).then_some(now);
            return;
        };
        if !before.psn.is_before(psn) {
            return;
        }
        direction.msn = Some(now);
        let most = begun - before.begun + before.open;
        let grown = aeth.msn.value().wrapping_sub(before.msn.value()) & 0xff_ffff;
        if u64::from(grown) <= most {
            direction.msn_steps += u32::from(grown > 0);
            return;
        }
        // Some responders leave the number out, or count something else.
        if std::mem::take(&mut direction.msn_steps) < MSN_STEPS_MIN {
            return;
        }
        let text = format!(
            "The message sequence number (MSN) of {} goes from {} to {} between packets {} and {}, while at \
             most {most} messages were completed in between. Either the responder miscounts, or the capture \
             lacks messages.",
            direction.key.dst,
            before.msn.value(),
            aeth.msn.value(),
            before.at.number,
            at.number
        );
        self.report_on(index, Kind::WrongMsn, before.at, at.number, text);
    }

    /// Handles an ACK for a number behind all captured requests.
    pub(super) fn ack_ahead(&mut self, index: usize, at: At, psn: Psn) {
        // The number of packets of a READ may be unknown, and the requests of a poor capture too.
        if self.directions[index].unsized_read.is_some() || self.is_ambiguous(index) {
            return;
        }
        if let Some(finding) =
            self.findings.at(self.directions[index].unknown_ack).filter(|finding| finding.count > 0)
        {
            finding.count += 1;
            return;
        }
        let last = self.directions[index].window.next().advance(0xff_ffff);
        let text = format!(
            "Packet {} answers PSN {psn}, and no request with that number was seen in this capture: \
             the last one before it has PSN {last}. Either the capture lacks requests, or the responder \
             counts from another number (its rq_psn is not the requester's sq_psn).",
            at.number
        );
        let finding = self.report_on(index, Kind::UnknownAck, at, at.number, text);
        let direction = &mut self.directions[index];
        direction.unknown_ack = finding;
        direction.ahead = Some((psn, at, finding));
    }

    /// Withdraws the finding about an ACK if its request was captured just behind it.
    pub(super) fn not_ahead(&mut self, index: usize, at: At, psn: Psn) {
        let direction = &mut self.directions[index];
        let Some((acked, ack, finding)) = direction.ahead else { return };
        if at.ns.saturating_sub(ack.ns) > AHEAD_NS {
            direction.ahead = None;
        } else if !psn.is_before(acked) {
            direction.ahead = None;
            self.findings.withdraw(finding);
            self.acknowledged(index, ack, acked, false);
        }
    }

    /// Notes an answer to a request that is not known.
    pub(super) fn stray(&mut self, direction: usize, at: At, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
        let is_nak = syndrome == Some(Syndrome::Nak(NakCode::PsnSequenceError));
        let said = match syndrome {
            Some(Syndrome::RnrNak(_)) => {
                Some((Kind::ReceiverNotReady, "had no receive posted for", "RNR NAK".into()))
            }
            Some(Syndrome::Nak(code)) if !is_nak => Some((refusal(code), "refused", format!("NAK {code}"))),
            _ => None,
        };
        let is_refusal = said.is_some();
        let has_refusal = self.directions[direction].strays.is_some_and(|stray| stray.has_refusal);
        if let Some((kind, did, why)) = said.filter(|_| !has_refusal) {
            let text = format!(
                "{} {did} a request that was not captured: {why} in packet {}, for PSN {psn}.",
                self.directions[direction].key.src, at.number
            );
            self.report_on(direction, kind, at, at.number, text);
        }
        let has_refusal = has_refusal || is_refusal;
        let first = Stray { at, psn, is_nak, is_refusal, has_refusal, count: 0 };
        let stray = self.directions[direction].strays.get_or_insert(first);
        // A NAK says more, and a refusal less.
        let kept = if is_nak && !stray.is_nak || stray.is_refusal && !is_refusal { first } else { *stray };
        *stray = Stray { has_refusal, count: stray.count + 1, ..kept };
    }
}

impl Direction {
    /// Notes that the answer in packet `at` passed over the responses `first` to `last`, as far as they were
    /// not captured. Of more responses than the window holds none counts as captured.
    pub(super) fn pass_over(&mut self, first: Psn, last: Psn, at: At) {
        if !last.is_before(first.advance(WINDOW_MAX as u32)) {
            if self.passed.len() < PASSED_MAX {
                self.passed.push((first, last, at));
            }
            return;
        }
        let mut from = first;
        while !last.is_before(from) && self.passed.len() < PASSED_MAX {
            let mut next = from;
            while !last.is_before(next) && !self.is_answered(next) {
                next = next.advance(1);
            }
            if next != from {
                self.passed.push((from, next.advance(0xff_ffff), at));
            }
            from = next.advance(1);
        }
    }

    fn is_answered(&mut self, psn: Psn) -> bool {
        self.window.get_mut(psn).is_some_and(|slot| slot.answered != 0)
    }

    /// Notes that the response `psn` was captured, or requested again: it was missing for the requester too.
    pub(super) fn not_passed(&mut self, psn: Psn) {
        self.passed.retain(|(first, last, _)| psn.is_before(*first) || last.is_before(psn));
    }
}

/// The kind of finding of a NAK that ends a connection.
pub(super) fn refusal(code: NakCode) -> Kind {
    match code {
        NakCode::RemoteAccessError => Kind::AccessRefused,
        NakCode::RemoteOperationalError => Kind::ResponderFailed,
        _ => Kind::RequestRefused,
    }
}

/// The operation without its immediate data or invalidation, which only the last packet has.
fn family(operation: Operation) -> Operation {
    match operation {
        Operation::SendImm | Operation::SendInv => Operation::Send,
        Operation::WriteImm => Operation::Write,
        other => other,
    }
}
