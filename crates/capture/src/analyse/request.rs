//! Follows requests: new ones, and retransmissions with their cause.

use wire::capture::Seen;
use wire::icrc::{ICRC_LEN, differ_by_id};
use wire::{Ip, Operation, Packet, Position, Psn, Service};

use super::Analysis;
use super::direction::{Direction, Message, PendingNak, Retransmission, Timeout, verb};
use super::finding::{At, Kind};
use super::keys::Access;
use super::window::{Order, Slot};
use crate::clock;

/// An identical copy within this time was duplicated in transit, and is not a retransmission. Shorter than
/// the time after which roxie sends a probe.
const DUPLICATED_NS: u64 = 200_000;
/// Longest delay of a packet that counts as out of order and not as retransmitted, if IP identifications do
/// not tell.
const OUT_OF_ORDER_NS: u64 = 20_000_000;
/// A NAK or a retransmission within this time after an out-of-order packet is its consequence.
const REORDERING_NS: u64 = 50_000_000;
/// Payload bytes of a full packet, for each path MTU of the IBA.
const PATH_MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

impl Analysis {
    /// Handles a request packet of direction `index`, captured at the point `place`.
    pub(super) fn request(&mut self, index: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>, place: u32) {
        let psn = packet.bth.psn;
        let slot = Slot {
            sent: at,
            again: at,
            icrc: icrc(seen, packet),
            ip_id: ip_id(seen),
            place,
            ..Slot::default()
        };
        self.size_read(index, psn);
        let direction = &mut self.directions[index];
        match direction.window.order(psn) {
            Order::Repeated => return self.repeated(index, at, seen, packet, &slot),
            Order::FillsGap => return self.fill_gap(index, at, packet, slot),
            Order::TooOld if direction.window.reach_back(psn) => {
                direction.hole.get_or_insert((direction.first, direction.ip_id));
                if direction.last_ack.number == 0 {
                    direction.una = psn;
                }
                return self.fill_gap(index, at, packet, slot);
            }
            Order::TooOld => direction.counts.resent += 1,
            Order::First | Order::Restart => {
                direction.window.restart(psn);
                direction.una = psn;
                direction.open.clear();
                direction.refused = false;
                self.in_order(index, at, seen, packet, slot);
            }
            Order::Next => self.in_order(index, at, seen, packet, slot),
            Order::Gap(count) => {
                self.gap(index, at, count, &slot);
                self.in_order(index, at, seen, packet, slot);
            }
        }
        let direction = &mut self.directions[index];
        if packet.bth.ack_req || always_answered(packet) {
            direction.request_ack(psn);
        }
        direction.last_request = at;
    }

    /// Derives how many numbers a READ has from the number of the next request, while the path MTU is
    /// unknown.
    fn size_read(&mut self, index: usize, psn: Psn) {
        let direction = &mut self.directions[index];
        let Some((read, most)) = direction.unsized_read else { return };
        let span = psn.distance_from(read);
        if span > 1 && span <= most.cast_signed() {
            let missing = psn.distance_from(direction.window.next());
            direction.lengthen(read, missing.max(0).cast_unsigned());
        }
        if span >= 1 {
            direction.unsized_read = None;
        }
    }

    /// Handles a request packet with the next number in sequence.
    fn in_order(&mut self, index: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>, slot: Slot) {
        let direction = &mut self.directions[index];
        let (psn, row) = (packet.bth.psn, packet.row());
        let len = seen.payload_len() as u64;
        direction.retransmission = None;
        direction.ids_restart |=
            slot.ip_id.wrapping_sub(direction.ip_id).cast_signed() < 0 && direction.ip_id != 0;
        direction.ip_id = slot.ip_id;
        let mut span = 1;
        let access = Access::of(packet);
        if row.operation == Operation::ReadRequest {
            let bytes = access.map_or(0, |access| access.len);
            let packets = |mtu: u32| bytes.div_ceil(mtu.into()).clamp(1, 1 << 23) as u32;
            match direction.path_mtu {
                Some(mtu) => span = packets(mtu),
                None if packets(256) > 1 => direction.unsized_read = Some((psn, packets(256))),
                None => {}
            }
        }
        direction.window.push(slot, span);
        if row.position.starts() || !direction.inside {
            let bytes =
                if row.operation == Operation::ReadRequest { access.map_or(0, |a| a.len) } else { len };
            direction.begin(Message {
                operation: row.operation,
                first_psn: psn,
                last_psn: psn.advance(span - 1),
                bytes,
                packets: 1,
                first: at,
                last: at,
                resent: 0,
                ended: row.position.ends(),
                access,
                response: psn,
            });
        } else if let Some(message) = direction.open.back_mut() {
            // The opcode of the last packet tells whether the message has immediate data.
            message.operation = row.operation;
            message.last_psn = psn;
            message.bytes += len;
            message.packets += 1;
            message.last = at;
            message.ended = row.position.ends();
            direction.counts.message_bytes += len;
        }
        direction.inside = !row.position.ends();
        if let Some(key) = packet.ieth() {
            direction.keys.invalidated(key, at);
        }
        let bytes = direction.open.back().map_or(0, |message| message.bytes);
        if row.position.ends() {
            direction.size(bytes);
        }
        // A UC responder sends no ACKs: the last packet completes the message.
        if row.service == Service::Uc && row.position.ends() {
            direction.una = direction.window.next();
            let message = direction.open.pop_back();
            self.done(index, message, at);
        }
        let direction = &mut self.directions[index];
        direction.window.trim(direction.una);
        self.check_mtu(index, at, seen, row.position);
    }

    /// Checks that full packets have the size of the path MTU.
    fn check_mtu(&mut self, index: usize, at: At, seen: &Seen<'_>, position: Position) {
        if !matches!(position, Position::First | Position::Middle) {
            return;
        }
        let len = seen.payload_len() as u32;
        let direction = &mut self.directions[index];
        let known = *direction.path_mtu.get_or_insert(len);
        if known == len && PATH_MTUS.contains(&len) || direction.mtu_finding {
            return;
        }
        direction.mtu_finding = true;
        let text = if known == len {
            format!(
                "Full packets carry {len} bytes, which is not a path MTU (256, 512, 1024, 2048 or 4096): \
                 the receiver refuses such packets."
            )
        } else {
            format!(
                "Packet {} carries {len} bytes, while the path MTU of the connection is {known}: the \
                 receiver refuses such packets. Configure the same path MTU at both ends.",
                at.number
            )
        };
        let subject = direction.name();
        self.report(Kind::WrongMtu, at, at.number, subject, text);
    }

    /// Handles `count` numbers missing before the packet.
    fn gap(&mut self, index: usize, at: At, count: u32, slot: &Slot) {
        let direction = &mut self.directions[index];
        direction.window.push(Slot::default(), count);
        direction.counts.gaps += u64::from(count);
        direction.hole = Some((at, slot.ip_id));
        direction.inside = false;
        if direction.service == Service::Uc {
            let subject = direction.name();
            let text = format!(
                "{count} packets before packet {} were not seen in this capture. A UC requester does not \
                 repeat them: the receiver drops their message.",
                at.number
            );
            self.report(Kind::LostUnreliable, at, at.number, subject, text);
        }
    }

    /// Handles a packet that was missing before: it is out of order, or a retransmission of a packet that was
    /// lost before the capture point.
    fn fill_gap(&mut self, index: usize, at: At, packet: &Packet<'_>, slot: Slot) {
        let direction = &mut self.directions[index];
        let psn = packet.bth.psn;
        let (opened, opener_id) = direction.hole.unwrap_or_default();
        let id_distance = slot.ip_id.wrapping_sub(opener_id).cast_signed();
        let pending_nak =
            matches!(direction.pending_nak, Some(PendingNak::Missing(missing, _)) if missing == psn);
        // A host numbers its packets in the order in which it makes them.
        let ids_tell = slot.ip_id != 0 && opener_id != 0 && !direction.ids_restart;
        let late = if ids_tell {
            id_distance < 0
        } else {
            !pending_nak && at.ns.abs_diff(opened.ns) < OUT_OF_ORDER_NS
        };
        if let Some(place) = direction.window.get_mut(psn) {
            *place = Slot { late, ..slot };
        }
        if let Some(message) = direction.message_at(psn) {
            message.packets += 1;
        }
        direction.last_request = at;
        if late {
            direction.counts.late += 1;
            direction.late_ns = at.ns;
            return self.reordered(index, at, psn);
        }
        direction.counts.resent += 1;
        let subject = direction.name();
        let why = match direction.pending_nak.take() {
            Some(PendingNak::Missing(_, nak)) => {
                format!("the responder's NAK in packet {} requested it", nak.number)
            }
            _ => "no acknowledgement arrived in time".to_owned(),
        };
        direction.retransmission = Some(Retransmission { next: psn.advance(1) });
        direction.counts.episodes += 1;
        let text = format!(
            "The packet with PSN {psn} was not captured before packet {}, where it is retransmitted because \
             {why}. The first transmission did not reach the capture point: look for drops between the \
             requester and the capture.",
            at.number
        );
        let finding = self.report(Kind::LostRequest, opened, at.number, subject, text);
        self.directions[index].filled = Some((psn, finding));
    }

    /// Adds an out-of-order packet to the finding of its direction.
    pub(super) fn reordered(&mut self, index: usize, at: At, psn: Psn) {
        let direction = &mut self.directions[index];
        if let Some(finding) = self.findings.at(direction.reordered) {
            finding.count += 1;
            return;
        }
        let text = format!(
            "Packets arrive out of order: packet {} (PSN {psn}) was captured after packets with higher \
             numbers. A go-back-N responder requests a retransmission. Look for several paths or queues \
             between the hosts.",
            at.number
        );
        let subject = direction.name();
        self.directions[index].reordered = self.report(Kind::Reordered, at, at.number, subject, text);
    }

    /// Handles a packet with a number that was captured before.
    fn repeated(&mut self, index: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>, slot: &Slot) {
        let direction = &mut self.directions[index];
        let psn = packet.bth.psn;
        let Some(before) = direction.window.get_mut(psn) else { return };
        let (first, again, answered) = (before.sent, before.again, before.answered);
        // A retransmission has another IP identification than the first transmission.
        let ids = slot.ip_id ^ before.ip_id;
        let len = seen.udp_payload_len.saturating_sub(ICRC_LEN);
        let same = slot.icrc != 0 && before.icrc != 0 && differ_by_id(slot.icrc ^ before.icrc, ids, len);
        if same && slot.place != before.place && at.ns.abs_diff(again.ns) < DUPLICATED_NS {
            self.totals.seen_twice += 1;
            return;
        }
        before.again = at;
        direction.last_request = at;
        let awaits_answer = direction.awaits_answer();
        if packet.bth.ack_req {
            direction.request_ack(psn);
        }
        let pending_nak = direction.pending_nak.is_some();
        // A packet that the responder reported missing arrives a second time after its retransmission: the
        // first transmission was delayed, not lost.
        if let Some((_, finding)) = direction.filled.filter(|(filled, _)| *filled == psn && !pending_nak) {
            direction.filled = None;
            direction.counts.late += 1;
            direction.late_ns = at.ns;
            self.findings.withdraw(finding);
            return self.reordered(index, at, psn);
        }
        if same
            && !pending_nak
            && direction.retransmission.is_none()
            && at.ns.abs_diff(again.ns) < DUPLICATED_NS
        {
            return self.duplicated(index, at, again);
        }
        direction.counts.resent += 1;
        if let Some(message) = direction.message_at(psn) {
            message.resent += 1;
        }
        let span = direction.span(psn);
        if let Some(timeout) = &mut direction.timeout
            && timeout.highest.is_before(psn)
        {
            timeout.highest = psn;
        }
        if direction.retransmission.is_some_and(|retransmission| retransmission.next == psn) && !pending_nak {
            direction.retransmission = Some(Retransmission { next: psn.advance(span) });
            return;
        }
        direction.retransmission = Some(Retransmission { next: psn.advance(span) });
        direction.counts.episodes += 1;
        match direction.pending_nak.take() {
            Some(PendingNak::Missing(..) | PendingNak::NotReady(..)) => {}
            // Retransmissions arrive out of order as well; one finding describes it.
            None if direction.is_reordering(at) => {}
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
        let subject = direction.name();
        let waited = clock::span(at.ns.saturating_sub(again.ns));
        let acked = psn.is_before(direction.una);
        if answered != 0 {
            let text = format!(
                "The {what} in packet {} was answered in packet {answered}, but requested again from there \
                 in packet {}: the answer did not reach {} in time. Look for drops between the capture \
                 point and that host.",
                first.number, at.number, direction.key.src
            );
            let found = At { number: answered, ns: first.ns };
            self.report(Kind::LostResponse, found, at.number, subject, text);
            return;
        }
        if acked {
            let ack = direction.last_ack;
            let text = format!(
                "The {what} in packet {} was acknowledged in packet {}, but retransmitted in packet {} \
                 after {waited}: the acknowledgement did not reach {} in time. Look for drops between the \
                 capture point and that host.",
                first.number, ack.number, at.number, direction.key.src
            );
            self.report(Kind::LostAck, ack, at.number, subject, text);
            return;
        }
        if let Some(timeout) = &mut direction.timeout {
            timeout.attempts += 1;
            if let Some(finding) = self.findings.at(timeout.finding) {
                finding.count += 1;
            }
            return;
        }
        let partly = direction.message_at(psn).filter(|message| message.response != message.first_psn);
        let (kind, lost, text) = if let (Operation::ReadRequest, Some(message)) =
            (packet.row().operation, partly)
        {
            let text = format!(
                "The READ in packet {} is requested again from PSN {psn} on in packet {} after {waited}: \
                 the response with that number was not seen in this capture.",
                message.first.number, at.number
            );
            (Kind::LostResponse, message.first, text)
        } else {
            // A lost packet with others behind it makes the responder send a NAK. There is none, so it was
            // the last one.
            let last = direction.window.last_sent().unwrap_or(first);
            let last = if last.number > first.number { last } else { first };
            let from = first.number;
            let which = if last.number == from {
                format!("packet {from}")
            } else {
                format!("packets {from} to {}", last.number)
            };
            let text = format!(
                "The {what} in {which} had no answer within {waited} and was retransmitted in packet {}. No \
                 ACK or NAK was seen in this capture: the last packet or its answer was lost, or the answer \
                 was late.",
                at.number
            );
            (Kind::LostRequest, last, text)
        };
        let finding = self.report(kind, lost, at.number, subject, text);
        if kind == Kind::LostRequest {
            self.directions[index].timeout = Some(Timeout { finding, attempts: 2, highest: psn });
        }
    }

    /// Adds a duplicated packet to the finding of its direction.
    fn duplicated(&mut self, index: usize, at: At, first: At) {
        let direction = &mut self.directions[index];
        direction.counts.duplicates += 1;
        if let Some(finding) = self.findings.at(direction.duplicates) {
            finding.count += 1;
            return;
        }
        let text = format!(
            "Packets arrive twice: packet {} is the same as packet {}, {} later. A device between the hosts \
             duplicates them.",
            at.number,
            first.number,
            clock::span(at.ns.saturating_sub(first.ns))
        );
        let subject = direction.name();
        self.directions[index].duplicates = self.report(Kind::Duplicated, at, at.number, subject, text);
    }

    /// Adds the findings of requests that are not answered at the end of the capture.
    pub(super) fn conclude_requests(&mut self, index: usize) {
        let direction = &mut self.directions[index];
        let dst = direction.key.dst;
        if let Some(Timeout { finding, attempts, .. }) = direction.timeout.take() {
            let answered = direction.last_ack.number;
            let last = direction.last_request.number;
            if let Some(finding) = self.findings.at(finding) {
                finding.kind = Kind::NoAnswer;
                let since = match answered {
                    0 => String::new(),
                    n => format!(" after packet {n}"),
                };
                finding.text = format!(
                    "No answer of {dst}{since} was seen in this capture: a request was sent {attempts} \
                     times, the last time in packet {last} (transport retry count probably exceeded). Check \
                     that the peer's program runs, that its queue pair is ready to receive, and that \
                     packets pass in both directions."
                );
            }
        }
        if let Some((finding, times)) = self.directions[index].rnr.take()
            && let Some(finding) = self.findings.at(finding)
        {
            finding.kind = Kind::ReceiverNeverReady;
            finding.text = format!(
                "{dst} had no receive posted: it sent {times} RNR NAKs, the first in packet {}, and no \
                 retransmission was seen after the last (RNR retry count probably exceeded). Post receives \
                 before the peer sends, or raise rnr_retry.",
                finding.shown_by
            );
        }
    }
}

impl Direction {
    /// Whether a packet was out of order so recently that an apparent loss is its consequence.
    pub(super) fn is_reordering(&self, at: At) -> bool {
        self.late_ns != 0 && at.ns.saturating_sub(self.late_ns) < REORDERING_NS
    }

    /// Number of sequence numbers that the request at `psn` uses.
    fn span(&mut self, psn: Psn) -> u32 {
        match self.message_at(psn) {
            Some(m) if m.operation == Operation::ReadRequest => {
                m.last_psn.distance_from(psn).cast_unsigned() + 1
            }
            _ => 1,
        }
    }

    /// Adds `more` sequence numbers to the READ at `read`.
    pub(super) fn lengthen(&mut self, read: Psn, more: u32) {
        let Some(slot) = self.window.get(read).copied() else { return };
        self.window.push(slot, more);
        let last = self.window.next().advance(0xff_ffff);
        if let Some(message) = self.open.iter_mut().rev().find(|message| message.first_psn == read) {
            message.last_psn = last;
        }
    }
}

/// Whether the responder answers the request even without AckReq.
fn always_answered(packet: &Packet<'_>) -> bool {
    !matches!(
        packet.row().operation,
        Operation::Send | Operation::SendImm | Operation::SendInv | Operation::Write | Operation::WriteImm
    )
}

/// The invariant CRC in the packet; 0 if it was not captured.
fn icrc(seen: &Seen<'_>, packet: &Packet<'_>) -> u32 {
    if seen.is_whole() { packet.icrc() } else { 0 }
}

fn ip_id(seen: &Seen<'_>) -> u16 {
    match seen.ip {
        Ip::V4(ip) => ip.id,
        Ip::V6(_) => 0,
    }
}
