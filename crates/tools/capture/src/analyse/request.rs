//! Follows new requests, and those that fill a gap. `repeat` follows those that were captured before.

use wire::capture::Seen;
use wire::icrc::ICRC_LEN;
use wire::{Ip, Operation, Packet, Position, Psn, Service};

use super::Analysis;
use super::direction::{Direction, Inside, Message, PendingNak, Unseen};
use super::finding::{At, Confidence, Kind};
use super::keys::Access;
use super::times::OUT_OF_ORDER_NS;
use super::window::{Order, Slot};

/// A NAK or a retransmission within this time after an out-of-order packet is its consequence.
const REORDERING_NS: u64 = 50_000_000;
/// Payload bytes of a full packet, for each path MTU of the IBA.
const PATH_MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

impl Analysis {
    /// Handles a request packet of direction `index`.
    pub(super) fn request(&mut self, index: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        let slot = Slot {
            sent: at,
            again: at,
            icrc: if seen.is_whole() { packet.icrc() } else { 0 },
            ip_id: ip_id(seen),
            sport: seen.source_port(),
            len: seen.udp_payload_len as u16,
            opcode: packet.bth.opcode,
            ack_req: packet.bth.ack_req,
            point: self.point,
            behind_gap: self.directions[index].holes > 0,
            ..Slot::default()
        };
        self.size_read(index, psn);
        let least = packet.row().header_len() + usize::from(packet.bth.pad_cnt) + ICRC_LEN;
        if seen.udp_payload_len < least {
            let text = "A packet is malformed: its pad count is larger than its payload. A receiver should \
                        drop it silently.";
            self.report_doubted(index, Kind::Malformed, at, psn, at, text.to_owned());
        }
        let direction = &mut self.directions[index];
        direction.has_fetches |= always_answered(packet);
        match direction.window.order(psn) {
            Order::Repeated if direction.was_guessed(packet) => {
                return self.fill_gap(index, at, packet, slot);
            }
            Order::Repeated => return self.repeated(index, at, seen, packet, &slot),
            Order::FillsGap => return self.fill_gap(index, at, packet, slot),
            Order::TooOld if direction.window.reach_back(psn) => {
                if direction.last_ack.number == 0 {
                    direction.una = psn;
                }
                return self.fill_gap(index, at, packet, slot);
            }
            Order::TooOld => direction.counts.resent += 1,
            Order::First | Order::Restart => {
                direction.forget_holes();
                direction.window.restart(psn);
                direction.hole = (at, slot.ip_id, self.point);
                direction.begins = psn;
                direction.inside = Inside::Unknown;
                direction.msn = None;
                direction.una = psn;
                direction.open.clear();
                direction.refused = None;
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
        if direction.first_request.0.number == 0 {
            direction.first_request = (at, psn);
        }
        direction.last_request = at;
        self.not_ahead(index, at, psn);
    }

    /// Derives how many numbers a READ has from the number of the next request, while the path MTU is
    /// unknown.
    fn size_read(&mut self, index: usize, psn: Psn) {
        let direction = &mut self.directions[index];
        let Some((read, most)) = direction.unsized_read else { return };
        let span = psn.distance_from(read);
        if span > 1 {
            let missing = span.min(most.cast_signed()) - direction.window.next().distance_from(read);
            direction.lengthen(read, missing.max(0).cast_unsigned(), true);
            // Or requests are missing there.
            direction.inside = Inside::Unknown;
        }
        if span >= 1 {
            direction.unsized_read = None;
        }
    }

    /// Learns the path MTU from a response, and from it the number of responses of a READ.
    pub(super) fn size_answered_read(&mut self, index: usize, seen: &Seen<'_>, packet: &Packet<'_>) {
        let (psn, position) = (packet.bth.psn, packet.row().position);
        let requests = &mut self.directions[index];
        if matches!(position, Position::First | Position::Middle) {
            let len = seen.payload_len() as u32;
            let mtu = *requests.path_mtu.get_or_insert(len);
            if let Some((read, _)) = requests.unsized_read.take() {
                let bytes = requests.message_at(read).map_or(0, |message| message.bytes);
                let span = bytes.div_ceil(u64::from(mtu.max(1))) as u32;
                let known = requests.window.next().distance_from(read).cast_unsigned();
                requests.lengthen(read, span.saturating_sub(known), false);
            }
        }
        if let Some((read, _)) =
            requests.unsized_read.filter(|(read, _)| position.ends() && !psn.is_before(*read))
        {
            requests.unsized_read = None;
            let missing = psn.advance(1).distance_from(requests.window.next());
            requests.lengthen(read, missing.max(0).cast_unsigned(), true);
        }
        let peer_mtu = requests.path_mtu;
        if let Some(peer) = requests.peer {
            self.directions[peer].path_mtu = self.directions[peer].path_mtu.or(peer_mtu);
        }
    }

    /// Handles a request packet with the next number in sequence.
    fn in_order(&mut self, index: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>, slot: Slot) {
        let direction = &mut self.directions[index];
        let (psn, row) = (packet.bth.psn, packet.row());
        let len = seen.payload_len() as u64;
        direction.retransmission = None;
        direction.numbering.add(slot.ip_id);
        let mut span = 1;
        let access = Access::of(packet);
        if row.operation == Operation::ReadRequest {
            let most = read_span(packet, None).unwrap_or(1);
            match direction.path_mtu.filter(|_| access.is_some()) {
                Some(mtu) => span = read_span(packet, Some(mtu)).unwrap_or(1),
                None if most > 1 => direction.unsized_read = Some((psn, most)),
                None => {}
            }
        }
        direction.window.push(slot, span);
        self.check_opcodes(index, at, packet);
        self.check_pause(index, at, row.position);
        let direction = &mut self.directions[index];
        if row.position.starts() || direction.inside != Inside::Begun {
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
                stalled_ns: 0,
                ended: row.position.ends(),
                access,
                response: psn,
                response_bytes: 0,
                responded: false,
                response_at: At::default(),
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
        let is_whole = row.position.starts() || direction.inside == Inside::Begun;
        direction.inside = if row.position.ends() { Inside::Ended } else { Inside::Begun };
        if let Some(key) = packet.ieth() {
            direction.keys.invalidated(key, at);
        }
        let bytes = direction.open.back().map_or(0, |message| message.bytes);
        if row.position.ends() {
            direction.size(bytes);
            if is_whole {
                self.check_length(index, at, psn);
            }
        }
        let direction = &mut self.directions[index];
        // A UC responder sends no ACKs: the last packet completes the message.
        if row.service == Service::Uc && row.position.ends() {
            direction.una = direction.window.next();
            let message = direction.open.pop_back();
            self.done(index, message, at);
        }
        let direction = &mut self.directions[index];
        direction.window.trim(direction.una);
        self.check_mtu(index, at, seen, (row.position, psn));
    }

    /// Checks that full packets have the size of the path MTU.
    fn check_mtu(&mut self, index: usize, at: At, seen: &Seen<'_>, (position, psn): (Position, Psn)) {
        if !matches!(position, Position::First | Position::Middle) {
            return;
        }
        let len = seen.payload_len() as u32;
        let direction = &mut self.directions[index];
        if !std::mem::replace(&mut direction.has_own_mtu, true) {
            direction.path_mtu = Some(len);
        }
        let known = direction.path_mtu.unwrap_or(len);
        if known == len && PATH_MTUS.contains(&len) || direction.mtu_finding {
            return;
        }
        direction.mtu_finding = true;
        let text = if known == len {
            format!(
                "Full packets carry {len} bytes, which is not a path MTU (256, 512, 1024, 2048 or 4096): \
                 a receiver should refuse such packets."
            )
        } else {
            format!(
                "Packet {} carries {len} bytes, while the path MTU of the connection is {known}: a \
                 receiver should refuse such packets. Configure the same path MTU at both ends.",
                at.number
            )
        };
        self.report_doubted(index, Kind::WrongMtu, at, psn, at, text);
    }

    /// Handles `count` numbers missing before the packet.
    fn gap(&mut self, index: usize, at: At, count: u32, slot: &Slot) {
        let direction = &mut self.directions[index];
        let first = direction.window.next();
        direction.window.push(Slot { missing: true, ..Slot::default() }, count);
        direction.counts.gaps += u64::from(count);
        if direction.service != Service::Uc {
            direction.holes += u64::from(count);
        }
        if direction.first_hole.number == 0 {
            direction.first_hole = at;
        }
        direction.hole = (at, slot.ip_id, self.point);
        direction.inside = Inside::Unknown;
        let last = direction.window.next().advance(0xff_ffff - count);
        let is_elsewhere = direction.window.get(last).is_some_and(|slot| slot.point != self.point);
        if direction.service == Service::Uc && !is_elsewhere {
            let text = format!(
                "{count} packets before packet {} were not seen in this capture. A UC requester does not \
                 repeat them: a receiver should drop their message silently.",
                at.number
            );
            let finding = self.report_on(index, Kind::LostUnreliable, at, at.number, text);
            self.directions[index].unseen =
                finding.map(|finding| Unseen { finding, first, count, left: count });
        }
    }

    /// Handles a packet that was missing before: it is out of order, or a retransmission of a packet that was
    /// lost before the capture point.
    fn fill_gap(&mut self, index: usize, at: At, packet: &Packet<'_>, slot: Slot) {
        let direction = &mut self.directions[index];
        let psn = packet.bth.psn;
        let (opened, opener_id, point) = direction.hole;
        // Its first transmission may be older than the capture.
        let is_older = psn.is_before(direction.begins);
        let id_distance = slot.ip_id.wrapping_sub(opener_id).cast_signed();
        let pending_nak =
            matches!(direction.pending_nak, Some(PendingNak::Missing(missing, _)) if missing == psn);
        // A sender that counts numbers its packets in the order in which it makes them.
        let late = if direction.numbering.tells(slot.ip_id) {
            id_distance < 0
        } else {
            !pending_nak && at.ns.abs_diff(opened.ns) < OUT_OF_ORDER_NS
        };
        // Each point has its own order.
        let is_elsewhere = point != self.point && !pending_nak;
        let is_unsized = direction.path_mtu.is_none();
        let mut filled = 0;
        while filled < read_span(packet, direction.path_mtu).unwrap_or(1)
            && let Some(place) = direction.window.get_mut(psn.advance(filled))
            && (filled == 0 || place.missing)
        {
            direction.holes = direction.holes.saturating_sub(u64::from(place.missing));
            *place = Slot { late: late && !is_elsewhere, guessed: filled > 0 && is_unsized, ..slot };
            filled += 1;
        }
        if is_elsewhere {
            return;
        }
        if let Some(message) = direction.message_at(psn) {
            message.packets += 1;
        }
        if late {
            direction.last_request = at;
            direction.counts.late += 1;
            direction.note_late(at, psn);
            if let Some(gap) = &mut direction.unseen
                && (0..gap.count.cast_signed()).contains(&psn.distance_from(gap.first))
            {
                gap.left -= 1;
                if gap.left == 0 {
                    self.findings.withdraw(Some(gap.finding));
                    direction.unseen = None;
                }
            }
            return self.reordered(index, at, psn, slot.ip_id);
        }
        direction.counts.resent += 1;
        direction.stalled(direction.last_request, at);
        direction.last_request = at;
        if is_older {
            direction.pending_nak = None;
            direction.filled = Some((psn, at, None));
            return;
        }
        let why = match direction.pending_nak.take() {
            Some(PendingNak::Missing(_, nak)) => {
                format!(" because the responder's NAK in packet {} requested it", nak.number)
            }
            _ => ", and no NAK that requested it was seen in this capture".to_owned(),
        };
        let is_counted = direction.numbering.tells(slot.ip_id);
        let or = if is_counted { "" } else { ", or arrives late" };
        direction.retransmission = Some(psn.advance(filled));
        direction.episode(at);
        let text = format!(
            "The packet with PSN {psn} was not captured before packet {}, where it is \
             retransmitted{why}{or}. An earlier transmission did not reach the capture point, or the \
             capture lacks it: look for drops between the requester and the capture.",
            at.number
        );
        let finding = self.report_on(index, Kind::LostRequest, opened, at.number, text);
        self.directions[index].filled = Some((psn, at, finding));
    }

    /// Adds an out-of-order packet with this IPv4 identification to the finding of its direction.
    pub(super) fn reordered(&mut self, index: usize, at: At, psn: Psn, id: u16) {
        let direction = &mut self.directions[index];
        if let Some(finding) = self.findings.at(direction.reordered) {
            finding.count += 1;
            return;
        }
        let is_certain = direction.numbering.tells(id);
        let or = if is_certain {
            ""
        } else {
            " Or it was lost before it was captured, or the capture began later, and this is its \
             retransmission: its sender does not number its packets."
        };
        let text = format!(
            "Packets arrive out of order: packet {} (PSN {psn}) was captured after packets with higher \
             numbers. A go-back-N responder requests a retransmission. Look for several paths or queues \
             between the hosts.{or}",
            at.number
        );
        let finding = self.report_on(index, Kind::Reordered, at, at.number, text);
        if let Some(finding) = self.findings.at(finding).filter(|_| !is_certain) {
            finding.confidence = Confidence::Medium;
        }
        self.directions[index].reordered = finding;
    }
}

impl Direction {
    /// Whether a packet was out of order so recently that an apparent loss of `psn` is its consequence.
    pub(super) fn is_reordering(&self, at: At, psn: Psn) -> bool {
        self.late
            .is_some_and(|(ns, lowest)| at.ns.saturating_sub(ns) < REORDERING_NS && !psn.is_before(lowest))
    }

    /// Notes that the packet `at` was out of order.
    pub(super) fn note_late(&mut self, at: At, psn: Psn) {
        let lowest =
            if self.is_reordering(at, psn) { self.late.map_or(psn, |(_, lowest)| lowest) } else { psn };
        self.late = Some((at.ns, lowest));
    }

    /// Takes the packets for lost that are missing when the numbers restart: a new connection does not send
    /// them.
    fn forget_holes(&mut self) {
        self.holes = self.holes.saturating_sub(self.window.missing_from(self.una));
    }

    /// Whether the number of a packet was taken for one of a READ with an unknown number of responses. A READ
    /// that has the same end requests the last responses once more.
    fn was_guessed(&mut self, packet: &Packet<'_>) -> bool {
        let psn = packet.bth.psn;
        let Some(slot) = self.window.get(psn).copied().filter(|slot| slot.guessed) else { return false };
        let end = |access: Access| access.va.wrapping_add(access.len);
        let before = self.message_at(psn).map(|message| message.access.map(end));
        let is_rest = before.is_some_and(|before| before == Access::of(packet).map(end));
        let is_open = slot.answered == 0 && !psn.is_before(self.una);
        packet.row().operation != Operation::ReadRequest || is_open && !is_rest
    }

    /// Number of sequence numbers that the request at `psn` uses.
    pub(super) fn span(&mut self, psn: Psn) -> u32 {
        match self.message_at(psn) {
            Some(m) if m.operation == Operation::ReadRequest => {
                m.last_psn.distance_from(psn).cast_unsigned() + 1
            }
            _ => 1,
        }
    }

    /// Ends the READ in flight with the number `psn` before it: a packet with that number is missing.
    pub(super) fn shorten(&mut self, psn: Psn) {
        let Some(message) = self.message_at(psn) else { return };
        let last = std::mem::replace(&mut message.last_psn, psn.advance(0xff_ffff));
        for each in 0..=last.distance_from(psn).max(0).cast_unsigned() {
            // The window has fewer numbers than the longest READ.
            let Some(slot) = self.window.get_mut(psn.advance(each)) else { break };
            if !slot.missing {
                *slot = Slot { missing: true, ..Slot::default() };
                self.holes += 1;
                self.counts.gaps += 1;
            }
        }
    }

    /// Adds `more` sequence numbers to the READ at `read`; `guessed` says that they may be those of other
    /// requests.
    pub(super) fn lengthen(&mut self, read: Psn, more: u32, guessed: bool) {
        let Some(slot) = self.window.get(read).copied() else { return };
        self.window.push(Slot { guessed, ..slot }, more);
        let last = self.window.next().advance(0xff_ffff);
        if let Some(message) = self.open.iter_mut().rev().find(|message| message.first_psn == read) {
            message.last_psn = last;
        }
    }
}

/// Numbers of the responses to a READ request; without a path MTU the most. Without the RETH, which the
/// capture may have cut off, the length is unknown.
pub(super) fn read_span(packet: &Packet<'_>, mtu: Option<u32>) -> Option<u32> {
    let is_read = packet.row().operation == Operation::ReadRequest;
    let bytes = Access::of(packet).map_or(u64::from(u32::MAX), |access| access.len);
    is_read.then(|| bytes.div_ceil(mtu.unwrap_or(PATH_MTUS[0]).into()).clamp(1, 1 << 23) as u32)
}

/// Whether the responder answers the request even without AckReq.
pub(super) fn always_answered(packet: &Packet<'_>) -> bool {
    !matches!(
        packet.row().operation,
        Operation::Send | Operation::SendImm | Operation::SendInv | Operation::Write | Operation::WriteImm
    )
}

pub(super) fn ip_id(seen: &Seen<'_>) -> u16 {
    match seen.ip {
        Ip::V4(ip) => ip.id,
        Ip::V6(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_read_counts_each_missing_number_once() {
        let psn = Psn::new(0);
        let mut direction = Direction::default();
        direction.window.restart(psn);
        let sent = At { number: 1, ns: 1 };
        direction.window.push(Slot { sent, ..Slot::default() }, 6);
        direction.window.push(Slot { missing: true, ..Slot::default() }, 2);
        (direction.holes, direction.counts.gaps) = (2, 2);
        direction.begin(Message {
            operation: Operation::ReadRequest,
            first_psn: psn,
            last_psn: psn.advance((1 << 23) - 1),
            bytes: u64::from(u32::MAX),
            packets: 1,
            first: sent,
            last: sent,
            resent: 0,
            stalled_ns: 0,
            ended: true,
            access: None,
            response: psn,
            response_bytes: 0,
            responded: false,
            response_at: At::default(),
        });
        direction.shorten(psn.advance(4));
        assert_eq!((direction.holes, direction.counts.gaps), (4, 4));
        assert_eq!(direction.window.missing_from(psn), 4);
        assert_eq!(direction.span(psn), 4);
    }
}
