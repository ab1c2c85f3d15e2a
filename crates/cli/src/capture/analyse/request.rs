//! Requests: new ones, and those that come again, with the cause.

use wire::capture::Seen;
use wire::icrc::{ICRC_LEN, differ_by_id};
use wire::{Ip, Operation, Packet, Position, Psn, Service};

use super::Analysis;
use super::finding::{At, Kind};
use super::half::{Episode, Half, Message, Timeout, Told, verb};
use super::keys::Access;
use super::window::{Place, Slot};
use crate::capture::clock;

/// A copy that follows within this time, and is the same to the bit, was doubled on its way. Shorter than the time after which roxie
/// asks whether a packet has arrived.
const DOUBLED_NS: u64 = 200_000;
/// Longest time by which a packet is overtaken and not repeated, where the identification does not tell.
const OVERTAKEN_NS: u64 = 20_000_000;
/// A complaint or a repetition so soon after a packet that was overtaken comes from that.
const REORDERING_NS: u64 = 50_000_000;
/// Payload bytes of full packets, by the specification.
const PATH_MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

impl Analysis {
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
        self.stretch(index, psn);
        let half = &mut self.halves[index];
        match half.window.place(psn) {
            Place::Again => return self.again(index, at, seen, packet, &slot),
            Place::Filler => return self.filler(index, at, packet, slot),
            Place::Ancient if half.window.reach_back(psn) => {
                half.hole.get_or_insert((half.first, half.ip_id));
                if half.last_ack.number == 0 {
                    half.una = psn;
                }
                return self.filler(index, at, packet, slot);
            }
            Place::Ancient => half.counts.resent += 1,
            Place::Start | Place::Restart => {
                half.window.restart(psn);
                half.una = psn;
                half.open.clear();
                half.refused = false;
                self.in_order(index, at, seen, packet, slot);
            }
            Place::Next => self.in_order(index, at, seen, packet, slot),
            Place::Gap(count) => {
                self.gap(index, at, count, &slot);
                self.in_order(index, at, seen, packet, slot);
            }
        }
        let half = &mut self.halves[index];
        if packet.bth.ack_req || answered_itself(packet) {
            half.ask(psn);
        }
        half.last_request = at;
    }

    /// The span of a READ is as long as the next request says, as long as the path MTU is not known.
    fn stretch(&mut self, index: usize, psn: Psn) {
        let half = &mut self.halves[index];
        let Some((read, most)) = half.elastic else { return };
        let span = psn.distance_from(read);
        if span > 1 && span <= most.cast_signed() {
            let missing = psn.distance_from(half.window.next());
            half.lengthen(read, missing.max(0).cast_unsigned());
        }
        if span >= 1 {
            half.elastic = None;
        }
    }

    /// A packet in its order.
    fn in_order(&mut self, index: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>, slot: Slot) {
        let half = &mut self.halves[index];
        let (psn, row) = (packet.bth.psn, packet.row());
        let len = seen.payload_len() as u64;
        half.episode = None;
        half.ids_restart |= slot.ip_id.wrapping_sub(half.ip_id).cast_signed() < 0 && half.ip_id != 0;
        half.ip_id = slot.ip_id;
        let mut span = 1;
        let access = Access::of(packet);
        if row.operation == Operation::ReadRequest {
            let asked = access.map_or(0, |access| access.len);
            let packets = |mtu: u32| asked.div_ceil(mtu.into()).clamp(1, 1 << 23) as u32;
            match half.path_mtu {
                Some(mtu) => span = packets(mtu),
                None if packets(256) > 1 => half.elastic = Some((psn, packets(256))),
                None => {}
            }
        }
        half.window.push(slot, span);
        if row.position.starts() || !half.inside {
            let bytes =
                if row.operation == Operation::ReadRequest { access.map_or(0, |a| a.len) } else { len };
            half.begin(Message {
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
        } else if let Some(message) = half.open.back_mut() {
            // The last packet says whether there is immediate data.
            message.operation = row.operation;
            message.last_psn = psn;
            message.bytes += len;
            message.packets += 1;
            message.last = at;
            message.ended = row.position.ends();
            half.counts.message_bytes += len;
        }
        half.inside = !row.position.ends();
        if let Some(key) = packet.ieth() {
            half.keys.invalidated(key, at);
        }
        let bytes = half.open.back().map_or(0, |message| message.bytes);
        if row.position.ends() {
            half.size(bytes);
        }
        // Nobody acknowledges on an unreliable connection.
        if row.service == Service::Uc && row.position.ends() {
            half.una = half.window.next();
            let message = half.open.pop_back();
            self.done(index, message, at);
        }
        let half = &mut self.halves[index];
        half.window.trim(half.una);
        self.check_mtu(index, at, seen, row.position);
    }

    /// Full packets have the size of the path MTU, always the same.
    fn check_mtu(&mut self, index: usize, at: At, seen: &Seen<'_>, position: Position) {
        if !matches!(position, Position::First | Position::Middle) {
            return;
        }
        let len = seen.payload_len() as u32;
        let half = &mut self.halves[index];
        let known = *half.path_mtu.get_or_insert(len);
        if known == len && PATH_MTUS.contains(&len) || half.mtu_finding {
            return;
        }
        half.mtu_finding = true;
        let text = format!(
            "Full packets carry {len} bytes, while the path MTU of the connection is {known}: the two ends do not agree on \
             it, and the receiver refuses such packets."
        );
        let whose = half.name();
        self.find(Kind::WrongMtu, at, at.number, whose, text);
    }

    /// Numbers were left out.
    fn gap(&mut self, index: usize, at: At, count: u32, slot: &Slot) {
        let half = &mut self.halves[index];
        half.window.push(Slot::default(), count);
        half.counts.gaps += u64::from(count);
        half.hole = Some((at, slot.ip_id));
        half.inside = false;
        if half.service == Service::Uc {
            let whose = half.name();
            let text = format!(
                "{count} packets in front of packet {} were lost before the point of capture. An unreliable connection does \
                 not repeat them: the message is gone.",
                at.number
            );
            self.find(Kind::LostUnreliable, at, at.number, whose, text);
        }
    }

    /// A number that was left out comes after all: overtaken, or sent again because it was lost on its way to here.
    fn filler(&mut self, index: usize, at: At, packet: &Packet<'_>, slot: Slot) {
        let half = &mut self.halves[index];
        let psn = packet.bth.psn;
        let (opened, opener_id) = half.hole.unwrap_or_default();
        let id_distance = slot.ip_id.wrapping_sub(opener_id).cast_signed();
        let told = matches!(half.told, Some(Told::Missing(missing, _)) if missing == psn);
        // Identifications of a host's packets grow in the order in which they were made.
        let ids_tell = slot.ip_id != 0 && opener_id != 0 && !half.ids_restart;
        let late = if ids_tell { id_distance < 0 } else { !told && at.ns.abs_diff(opened.ns) < OVERTAKEN_NS };
        if let Some(place) = half.window.get_mut(psn) {
            *place = Slot { late, ..slot };
        }
        if let Some(message) = half.message_at(psn) {
            message.packets += 1;
        }
        half.last_request = at;
        if late {
            half.counts.late += 1;
            half.late_ns = at.ns;
            return self.reordered(index, at, psn);
        }
        half.counts.resent += 1;
        let whose = half.name();
        let why = match half.told.take() {
            Some(Told::Missing(_, nak)) => {
                format!("the responder's NAK in packet {} asked for it", nak.number)
            }
            _ => "its acknowledgement did not come in time".to_owned(),
        };
        half.episode = Some(Episode { next: psn.advance(1) });
        half.counts.episodes += 1;
        let text = format!(
            "The packet with PSN {psn} is not in the capture before packet {}, where it is sent again because {why}: it was lost \
             before the point of capture.",
            at.number
        );
        let finding = self.find(Kind::LostRequest, opened, at.number, whose, text);
        self.halves[index].filled = Some((psn, finding));
    }

    pub(super) fn reordered(&mut self, index: usize, at: At, psn: Psn) {
        let half = &mut self.halves[index];
        if let Some(finding) = self.findings.at(half.reordered) {
            finding.count += 1;
            return;
        }
        let text = format!(
            "Packets overtake each other: the one with PSN {psn} comes after later ones. The responder takes that for a loss, and \
             the requester goes back."
        );
        let whose = half.name();
        self.halves[index].reordered = self.find(Kind::Reordered, at, at.number, whose, text);
    }

    /// A number seen before.
    fn again(&mut self, index: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>, slot: &Slot) {
        let half = &mut self.halves[index];
        let psn = packet.bth.psn;
        let Some(before) = half.window.get_mut(psn) else { return };
        let (first, again, answered) = (before.sent, before.again, before.answered);
        // A socket that sends a packet twice gives it two identifications.
        let ids = slot.ip_id ^ before.ip_id;
        let len = seen.udp_payload_len.saturating_sub(ICRC_LEN);
        let same = slot.icrc != 0 && before.icrc != 0 && differ_by_id(slot.icrc ^ before.icrc, ids, len);
        if same && slot.place != before.place && at.ns.abs_diff(again.ns) < DOUBLED_NS {
            self.totals.seen_twice += 1;
            return;
        }
        before.again = at;
        half.last_request = at;
        let asked = half.awaits_answer();
        if packet.bth.ack_req {
            half.ask(psn);
        }
        let told = half.told.is_some();
        // What the responder missed was repeated once, and then came a second time: it was on its way all the time.
        if let Some((_, finding)) = half.filled.filter(|(filled, _)| *filled == psn && !told) {
            half.filled = None;
            half.counts.late += 1;
            half.late_ns = at.ns;
            self.findings.withdraw(finding);
            return self.reordered(index, at, psn);
        }
        if same && !told && half.episode.is_none() && at.ns.abs_diff(again.ns) < DOUBLED_NS {
            return self.doubled(index, at, again);
        }
        half.counts.resent += 1;
        if let Some(message) = half.message_at(psn) {
            message.resent += 1;
        }
        let span = half.span(psn);
        if let Some(timeout) = &mut half.timeout
            && timeout.highest.is_before(psn)
        {
            timeout.highest = psn;
        }
        if half.episode.is_some_and(|episode| episode.next == psn) && !told {
            half.episode = Some(Episode { next: psn.advance(span) });
            return;
        }
        half.episode = Some(Episode { next: psn.advance(span) });
        half.counts.episodes += 1;
        match half.told.take() {
            Some(Told::Missing(..) | Told::NotReady(..)) => {}
            // Repetitions overtake each other as well; that is said once.
            None if half.overtaken(at) => {}
            // No answer came because nobody asked for one; now somebody does.
            None if !asked
                && !psn.is_before(half.una)
                && half.timeout.is_none()
                && !answered_itself(packet) => {}
            None => self.unasked(index, at, packet, first, again, answered),
        }
    }

    /// A request comes again, and nobody asked for it: its answer is missing.
    fn unasked(&mut self, index: usize, at: At, packet: &Packet<'_>, first: At, again: At, answered: u64) {
        let half = &mut self.halves[index];
        let (psn, what) = (packet.bth.psn, verb(packet.row().operation));
        let whose = half.name();
        let waited = clock::span(at.ns.saturating_sub(again.ns));
        let acked = psn.is_before(half.una);
        if answered != 0 {
            let text = format!(
                "The {what} in packet {} was answered in packet {answered}, but asked for again from there in packet {}: the \
                 answer was lost between the point of capture and {}.",
                first.number, at.number, half.key.src
            );
            let found = At { number: answered, ns: first.ns };
            self.find(Kind::LostResponse, found, at.number, whose, text);
            return;
        }
        if acked {
            let ack = half.last_ack;
            let text = format!(
                "The {what} in packet {} was acknowledged in packet {}, but sent again in packet {} after {waited}: the \
                 acknowledgement was lost between the point of capture and {}, or came too late.",
                first.number, ack.number, at.number, half.key.src
            );
            self.find(Kind::LostAck, ack, at.number, whose, text);
            return;
        }
        if let Some(timeout) = &mut half.timeout {
            timeout.attempts += 1;
            if let Some(finding) = self.findings.at(timeout.finding) {
                finding.count += 1;
            }
            return;
        }
        let partly = half.message_at(psn).filter(|message| message.response != message.first_psn);
        let (kind, lost, text) = if let (Operation::ReadRequest, Some(message)) =
            (packet.row().operation, partly)
        {
            let text = format!(
                "The READ in packet {} is asked for again from PSN {psn} on in packet {} after {waited}: that response never came \
                 by here.",
                message.first.number, at.number
            );
            (Kind::LostResponse, message.first, text)
        } else {
            // A loss in front of other packets makes the responder complain, so it was the last.
            let last = half.window.last_sent().unwrap_or(first);
            let last = if last.number > first.number { last } else { first };
            let from = first.number;
            let which = if last.number == from {
                format!("packet {from}")
            } else {
                format!("packets {from} to {}", last.number)
            };
            let text = format!(
                "The {what} in {which} was not answered within {waited} and is sent again in packet {}. No answer was seen: the \
                 last packet or its answer was lost, or came too late.",
                at.number
            );
            (Kind::LostRequest, last, text)
        };
        let finding = self.find(kind, lost, at.number, whose, text);
        if kind == Kind::LostRequest {
            self.halves[index].timeout = Some(Timeout { finding, attempts: 2, highest: psn });
        }
    }

    fn doubled(&mut self, index: usize, at: At, first: At) {
        let half = &mut self.halves[index];
        half.counts.duplicates += 1;
        if let Some(finding) = self.findings.at(half.duplicates) {
            finding.count += 1;
            return;
        }
        let text = format!(
            "Packets come twice: packet {} is the same as packet {}, {} later. Something on the way doubles them; the responder \
             must not execute them twice.",
            at.number,
            first.number,
            clock::span(at.ns.saturating_sub(first.ns))
        );
        let whose = half.name();
        self.halves[index].duplicates = self.find(Kind::Duplicated, at, at.number, whose, text);
    }

    /// What is open at the end.
    pub(super) fn conclude_requests(&mut self, index: usize) {
        let half = &mut self.halves[index];
        let (whose, dst) = (half.name(), half.key.dst);
        if let Some(Timeout { finding, attempts, .. }) = half.timeout.take() {
            let answered = half.last_ack.number;
            let last = half.last_request.number;
            if let Some(finding) = self.findings.at(finding) {
                finding.kind = Kind::NoAnswer;
                let since = match answered {
                    0 => format!("{dst} never answers"),
                    n => format!("{dst} does not answer any more after packet {n}"),
                };
                finding.text = format!(
                    "{since}: a request was sent {attempts} times, the last time in packet {last}, and then given up (transport \
                     retry count exceeded). The peer is gone, its queue pair is not ready, or nothing gets through in one \
                     direction."
                );
            }
        }
        if let Some((finding, times)) = self.halves[index].rnr.take()
            && let Some(finding) = self.findings.at(finding)
        {
            finding.kind = Kind::ReceiverNeverReady;
            finding.text = format!(
                "{dst} has no receive posted: it said so {times} times (RNR NAK), first in packet {}, and the sender gave up (RNR \
                 retry count exceeded). ({whose})",
                finding.shown_by
            );
        }
    }
}

impl Half {
    /// Whether a packet was overtaken so recently that what looks like a loss comes from that.
    pub(super) fn overtaken(&self, at: At) -> bool {
        self.late_ns != 0 && at.ns.saturating_sub(self.late_ns) < REORDERING_NS
    }

    /// How many numbers the request at `psn` has.
    fn span(&mut self, psn: Psn) -> u32 {
        match self.message_at(psn) {
            Some(m) if m.operation == Operation::ReadRequest => {
                m.last_psn.distance_from(psn).cast_unsigned() + 1
            }
            _ => 1,
        }
    }

    /// The READ at `read` has so many numbers more.
    pub(super) fn lengthen(&mut self, read: Psn, more: u32) {
        let Some(slot) = self.window.get(read).copied() else { return };
        self.window.push(slot, more);
        let last = self.window.next().advance(0xff_ffff);
        if let Some(message) = self.open.iter_mut().rev().find(|message| message.first_psn == read) {
            message.last_psn = last;
        }
    }
}

/// Whether the request has an answer of its own, asked for or not.
fn answered_itself(packet: &Packet<'_>) -> bool {
    !matches!(
        packet.row().operation,
        Operation::Send | Operation::SendImm | Operation::SendInv | Operation::Write | Operation::WriteImm
    )
}

/// The invariant CRC as captured, 0 if it was not.
fn icrc(seen: &Seen<'_>, packet: &Packet<'_>) -> u32 {
    if seen.is_whole() { packet.icrc() } else { 0 }
}

fn ip_id(seen: &Seen<'_>) -> u16 {
    match seen.ip {
        Ip::V4(ip) => ip.id,
        Ip::V6(_) => 0,
    }
}
