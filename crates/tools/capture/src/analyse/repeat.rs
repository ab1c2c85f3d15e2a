//! Follows requests that were captured before: duplicates, and retransmissions with their cause.

use std::fmt::Write;

use wire::capture::Seen;
use wire::icrc::{ICRC_LEN, differ_by_id_and_ack_req};
use wire::{Opcode, Operation, Packet, Psn};

use super::Analysis;
use super::copies::Sighting;
use super::direction::{PendingNak, Refused, verb};
use super::finding::{At, Confidence, Kind, packets};
use super::request::{always_answered, read_span};
use super::times::{DUPLICATED_NS, OUT_OF_ORDER_NS, SAME_ID_NS};
use super::window::Slot;
use crate::clock;

/// The same for a retransmission: a requester that gets late answers repeats it soon, and packets in order.
const TWIN_NS: u64 = 20_000;
/// What a duplicate means, unless nearly all packets are duplicated.
const DUPLICATES: &str = " A device between the hosts duplicates them.";
/// Another cause, if the host does not number its packets (IP identification).
const DUPLICATES_OR_RESENDS: &str = " Or the sender repeated one, and both waited in a queue in front of the \
                                     capture point, as if its host or process got no CPU.";
/// What to do about an answer that was captured, and that its receiver did not have in time.
const LOOK: &str = "Look for drops between the capture point and that host, and for programs there that wait \
                    for a CPU.";
/// Fewest duplicates for a statement about nearly all packets.
const DUPLICATES_MIN: u64 = 8;

impl Analysis {
    /// Handles a packet with a number that was captured before.
    pub(super) fn repeated(
        &mut self,
        index: usize,
        at: At,
        seen: &Seen<'_>,
        packet: &Packet<'_>,
        slot: &Slot,
    ) {
        let direction = &mut self.directions[index];
        let psn = packet.bth.psn;
        let is_numbered = direction.numbering.tells(slot.ip_id);
        let Some(before) = direction.window.get_mut(psn) else { return };
        let (first, again, answered) = (before.sent, before.again, before.answered);
        // The time of the other point says nothing.
        let again = match self.sighting {
            Sighting::Again(ns) if before.point != slot.point => At { ns, ..again },
            _ => again,
        };
        let likeness = match likeness(before, slot, seen) {
            Likeness::Unknown if matches!(self.sighting, Sighting::Again(_)) => Likeness::Equal,
            // The same bytes as the latest transmission.
            _ if self.sighting == Sighting::Again(again.ns) => Likeness::Equal,
            other => other,
        };
        let is_newer = is_numbered && slot.ip_id.wrapping_sub(before.ip_id).cast_signed() > 0;
        let is_ahead = direction.second_point == Some(before.point);
        if before.point != slot.point && self.sighting == Sighting::First && !is_newer && !is_ahead {
            // At another point an earlier transmission: the capture lacks its copy at the first point.
            self.totals.seen_twice += 1;
            direction.skipped = Some(psn);
            return;
        }
        // A sender that counts gives a retransmission another identification. Of others only the time tells.
        // The segments of one receive batch have one time and numbers of their own.
        let is_duplicate = match likeness {
            Likeness::Again if at.ns == again.ns => true,
            Likeness::Equal if is_numbered => at.ns.abs_diff(again.ns) < SAME_ID_NS,
            Likeness::Equal => at.ns.abs_diff(again.ns) < DUPLICATED_NS,
            _ => false,
        };
        before.again = at;
        let before_request = std::mem::replace(&mut direction.last_request, at);
        let awaits_answer = direction.awaits_answer();
        if packet.bth.ack_req {
            direction.request_ack(psn);
        }
        let pending_nak = direction.pending_nak.is_some();
        // A packet that the responder reported missing arrives a second time after its retransmission: the
        // first transmission was delayed, not lost.
        let filled = direction.filled.filter(|(filled, when, _)| {
            let is_late = if is_numbered { !is_newer } else { at.ns.abs_diff(when.ns) < OUT_OF_ORDER_NS };
            // The same identification is a copy of the retransmission.
            let is_copy = is_numbered && likeness == Likeness::Equal;
            *filled == psn && !pending_nak && is_late && !is_copy
        });
        if let Some((_, _, finding)) = filled {
            direction.filled = None;
            direction.counts.late += 1;
            direction.note_late(at, psn);
            self.findings.withdraw(finding);
            return self.reordered(index, at, psn, slot.ip_id);
        }
        let is_numbered = is_numbered && likeness == Likeness::Equal;
        let behind = psn.advance(direction.span(psn));
        let is_twin = direction
            .retransmission
            .is_none_or(|next| next.is_before(psn) || next == behind && at.ns.abs_diff(again.ns) < TWIN_NS);
        if is_duplicate && (is_numbered || !pending_nak && is_twin) {
            if let Some(message) = direction.message_at(psn).filter(|_| !is_numbered) {
                message.resent += 1;
            }
            let is_latest = psn.advance(1) == direction.window.next();
            return self.duplicated(index, at, again, is_numbered, is_latest);
        }
        if let Some(how) = likeness.changed() {
            self.changed(index, at, first, psn, &how);
        }
        let transmissions = (first, again, answered);
        self.retransmitted(index, at, packet, transmissions, (before_request, awaits_answer));
    }

    /// Handles a retransmission. `transmissions` are the first and the latest packet with its number before,
    /// and the packet that answered them. `before` is the latest request packet, and whether the requester
    /// waited for an answer.
    fn retransmitted(
        &mut self,
        index: usize,
        at: At,
        packet: &Packet<'_>,
        transmissions: (At, At, u64),
        before: (At, bool),
    ) {
        let psn = packet.bth.psn;
        let (before_request, awaits_answer) = before;
        let (first, again, answered) = transmissions;
        let direction = &mut self.directions[index];
        let pending_nak = direction.pending_nak.is_some();
        direction.not_passed(psn);
        direction.counts.resent += 1;
        if let Some(message) = direction.message_at(psn) {
            message.resent += 1;
        }
        let span = direction.span(psn);
        // The requester discarded the responses so far.
        let count = read_span(packet, direction.path_mtu).unwrap_or(1);
        direction.window.forget_answers(psn, span.min(count));
        if let Some(timeout) = &mut direction.timeout
            && timeout.highest.is_before(psn)
        {
            timeout.highest = psn;
        }
        if direction.retransmission.replace(psn.advance(span)) == Some(psn) && !pending_nak {
            if psn == direction.una && direction.timeout.is_none() {
                // Those before were acknowledged, from here on there is no answer.
                direction.note_timeout(psn, at, false, None);
            }
            return;
        }
        direction.episode(at);
        direction.stalled(before_request, at);
        match direction.pending_nak.take() {
            Some(PendingNak::Missing(..) | PendingNak::NotReady(..)) => {}
            // Retransmissions arrive out of order as well; one finding describes it.
            None if direction.is_reordering(at, psn) => {
                if !psn.is_before(direction.una) {
                    direction.note_timeout(psn, at, false, None);
                }
            }
            // The requester had not requested an ACK for the packet; the retransmission does.
            None if !awaits_answer
                && !psn.is_before(direction.una)
                && direction.timeout.is_none()
                && !always_answered(packet) => {}
            None => self.retransmitted_without_nak(index, at, packet, first, again, answered),
        }
    }

    /// Handles a retransmission that no NAK requested: the requester has seen no answer in time.
    fn retransmitted_without_nak(
        &mut self,
        index: usize,
        at: At,
        packet: &Packet<'_>,
        first: At,
        again: At,
        answered: u64,
    ) {
        let direction = &mut self.directions[index];
        let (psn, what) = (packet.bth.psn, verb(packet.row().operation));
        let waited = clock::span(at.ns.saturating_sub(again.ns));
        let acked = psn.is_before(direction.una);
        direction.reacknowledged = None;
        let host = direction.key.src;
        // An implied NAK: the requester goes back to an earlier READ or atomic. Its request may be lost, or
        // older than the capture.
        let or = if direction.has_fetches || direction.window.is_near_begin(psn) {
            ", or repeats it with an earlier request that has no answer"
        } else {
            ""
        };
        if answered != 0 {
            let text = format!(
                "The {what} in packet {} was answered in packet {answered}, but requested again from there \
                 in packet {}: the answer did not reach {host} in time, or {host} was slow to process \
                 it{or}. {LOOK}",
                first.number, at.number
            );
            let found = At { number: answered, ns: first.ns };
            self.report_on(index, Kind::LostResponse, found, at.number, text);
            return;
        }
        let refusal = match direction.refused {
            Some(Refused::Fatal(nak)) => Some((nak, "refused", "NAK")),
            Some(Refused::UnknownPsn) | None => None,
        };
        let answer =
            if acked { Some((direction.last_ack, "acknowledged", "acknowledgement")) } else { refusal };
        if let Some((answer, did, name)) = answer {
            let text = format!(
                "The {what} in packet {} was {did} in packet {}, but retransmitted in packet {} after \
                 {waited}: the {name} did not reach {host} in time, or {host} was slow to process it{or}. \
                 {LOOK}",
                first.number, answer.number, at.number
            );
            self.report_on(index, Kind::LostAck, answer, at.number, text);
            return;
        }
        if let Some(timeout) = direction.timeout.as_mut().filter(|timeout| timeout.finding.is_some()) {
            timeout.attempts += 1;
            timeout.last = at;
            if let Some(finding) = self.findings.at(timeout.finding) {
                finding.count += 1;
            }
            return;
        }
        self.no_answer(index, at, packet, first, again);
    }

    /// Reports the first retransmission of a request without an answer so far.
    fn no_answer(&mut self, index: usize, at: At, packet: &Packet<'_>, first: At, again: At) {
        let direction = &mut self.directions[index];
        let (psn, what) = (packet.bth.psn, verb(packet.row().operation));
        let waited = clock::span(at.ns.saturating_sub(again.ns));
        let partly = direction.message_at(psn).filter(|message| message.response != message.first_psn);
        let (kind, lost, text) = if let (Operation::ReadRequest, Some(message)) =
            (packet.row().operation, partly)
        {
            let text = format!(
                "The READ in packet {} is requested again from PSN {psn} on in packet {} after {waited}: \
                 the response with that number was not seen in this capture until then.",
                message.first.number, at.number
            );
            (Kind::LostResponse, message.first, text)
        } else {
            // A lost packet with others behind it makes the responder send a NAK. There is none, so it was
            // the last one.
            let last = direction.window.last_sent().unwrap_or(first);
            let last = if last.number > first.number { last } else { first };
            let which = packets(first, last);
            let text = format!(
                "The {what} in {which} had no answer within {waited} and was retransmitted in packet {}. No \
                 ACK or NAK was seen until then: the last packet or its answer did not arrive, or the answer \
                 was late.{}",
                at.number,
                self.links.paused_since(again.ns).map_or(String::new(), |pause| format!(
                    " A link was paused meanwhile: the last pause frame is packet {}.",
                    pause.number
                ))
            );
            (Kind::LostRequest, last, text)
        };
        let finding = self.report_on(index, kind, lost, at.number, text);
        if kind == Kind::LostRequest {
            self.directions[index].note_timeout(psn, at, first.number == again.number, finding);
        }
    }

    /// Adds a duplicated packet to the finding of its direction.
    /// `is_latest` says that no other packet of the direction is between the two.
    pub(super) fn duplicated(&mut self, index: usize, at: At, first: At, is_certain: bool, is_latest: bool) {
        let direction = &mut self.directions[index];
        direction.counts.duplicates += 1;
        direction.twins += u64::from(is_latest);
        if let Some(finding) = self.findings.at(direction.duplicates) {
            finding.count += 1;
            return;
        }
        let or_resent = if is_certain { "" } else { DUPLICATES_OR_RESENDS };
        let before = match first.number {
            0 => "one before".to_owned(),
            number => format!("packet {number}"),
        };
        let text = format!(
            "Packets arrive twice: packet {} is the same as {before}, {} later.{DUPLICATES}{or_resent}",
            at.number,
            clock::span(at.ns.saturating_sub(first.ns))
        );
        let finding = self.report_on(index, Kind::Duplicated, at, at.number, text);
        if let Some(finding) = self.findings.at(finding).filter(|_| !is_certain) {
            finding.confidence = Confidence::Low;
        }
        self.directions[index].duplicates = finding;
    }

    /// Reports a retransmission that carries other bytes than the first transmission.
    fn changed(&mut self, index: usize, at: At, first: At, psn: Psn, how: &str) {
        let text = format!(
            "Packet {} repeats PSN {psn} of packet {} with the same opcode{how}: the application changed its \
             buffer before the completion, or the queue pair number belongs to another connection by now.",
            at.number, first.number
        );
        self.report_on(index, Kind::ChangedBytes, first, at.number, text);
    }

    /// Says that the capture point sees each packet twice, if nearly all packets of a direction are
    /// duplicated.
    pub(super) fn conclude_duplicates(&mut self, index: usize) {
        let direction = &self.directions[index];
        let counts = &direction.counts;
        let single = counts.packets - counts.duplicates;
        let is_resent = direction.twins * 2 < counts.duplicates;
        let is_twice = (single * 9..=single * 11).contains(&(counts.duplicates * 10));
        if counts.duplicates < DUPLICATES_MIN || !is_twice || is_resent {
            return;
        }
        let (count, packets) = (counts.duplicates, counts.packets);
        let Some(finding) = self.findings.at(direction.duplicates) else { return };
        let said = finding.text.find(DUPLICATES).unwrap_or(finding.text.len());
        finding.text.truncate(said);
        finding.confidence = Kind::Duplicated.confidence();
        let _ = write!(
            finding.text,
            " Nearly all packets are there twice ({count} copies in {packets}): probably the capture point \
             sees each packet twice (a mirror of both directions of a switch port, or of two interfaces)."
        );
    }
}

/// How a packet compares with the first one with its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Likeness {
    /// The same packet, with its IPv4 identification.
    Equal,
    /// The same bytes in another packet.
    Again,
    /// The same opcode and length, and other bytes.
    OtherBytes,
    /// The same opcode, and other bytes of UDP payload: before, and now.
    OtherLength(u16, u16),
    /// Not comparable: another form, or not captured completely.
    Unknown,
}

impl Likeness {
    /// What changed since the first packet with the number.
    fn changed(self) -> Option<String> {
        match self {
            Likeness::OtherBytes => Some(" and length, but other bytes".to_owned()),
            Likeness::OtherLength(before, now) => {
                Some(format!(", but {now} instead of {before} bytes of UDP payload"))
            }
            _ => None,
        }
    }
}

fn likeness(before: &Slot, now: &Slot, seen: &Seen<'_>) -> Likeness {
    let is_whole = before.icrc != 0 && now.icrc != 0;
    let form = |slot: &Slot| (slot.opcode, slot.len, slot.sport);
    let same_kind = (before.opcode, before.sport) == (now.opcode, now.sport);
    if same_kind && before.len != now.len && before.sent.number != 0 && !seen.is_fragment {
        return Likeness::OtherLength(before.len, now.len);
    }
    // Linux computes the ICRC of FLUSH in a form of its own.
    if !is_whole || form(before) != form(now) || now.opcode == Opcode::RC_FLUSH {
        return Likeness::Unknown;
    }
    let (difference, ids) = (before.icrc ^ now.icrc, before.ip_id ^ now.ip_id);
    let len = seen.udp_payload_len.saturating_sub(ICRC_LEN);
    if difference == 0 && ids == 0 {
        Likeness::Equal
    } else if differ_by_id_and_ack_req(difference, ids, before.ack_req != now.ack_req, len) {
        Likeness::Again
    } else if matches!(now.opcode, Opcode::RC_READ_REQUEST | Opcode::XRC_READ_REQUEST)
        || seen.has_options && ids != 0
    {
        // The requester may request the rest of a READ only. No ICRC is specified with IP options, so what
        // another identification changes in it is unknown.
        Likeness::Unknown
    } else {
        Likeness::OtherBytes
    }
}
