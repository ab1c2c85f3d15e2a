//! Follows the packets of responders: ACKs, NAKs, READ responses, atomic results.

use std::cmp::Reverse;

use wire::capture::Seen;
use wire::{NakCode, Operation, Packet, Psn, Syndrome, rnr_timer_ns};

use super::Analysis;
use super::copies::Sighting;
use super::direction::{Direction, Message, PendingNak, Reacknowledged, Refused};
use super::finding::{At, Confidence, Kind, earliest, packets};
use super::request::ip_id;
use super::sequence::refusal;
use super::times::{DUPLICATED_NS, SLOW_NS};
use super::window::{OVERTAKEN_MAX, Order, Window};
use crate::clock;

/// Longer than a round trip: a NAK of a younger direction may be for a transmission before the capture.
const YOUNG_NS: u64 = 1_000_000;

impl Analysis {
    /// Handles a response packet of `direction`, which answers a request of the other direction.
    pub(super) fn answer(&mut self, direction: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        let Some(index) = self.peer(direction, seen, packet) else {
            return match self.sighting {
                Sighting::Again(ns) if at.ns.abs_diff(ns) < DUPLICATED_NS => {
                    self.duplicated(direction, at, At { ns, number: 0 }, false, false);
                }
                _ => self.stray(direction, at, packet),
            };
        };
        if self.is_copied(direction, index, at, seen) {
            return;
        }
        if !self.directions[index].has_requests() {
            return self.stray(direction, at, packet);
        }
        self.lost_before(direction, index);
        let requests = &mut self.directions[index];
        let row = packet.row();
        requests.has_fetches |= matches!(row.operation, Operation::ReadResponse | Operation::AtomicAck);
        requests.first_answer = earliest([requests.first_answer, at]);
        if let Some(timeout) = requests.timeout.take() {
            requests.retransmission = None;
            // The ACK covers packets that were not retransmitted: the responder missed nothing, its answer
            // was late.
            let acked = matches!(packet.aeth(), Some(aeth) if matches!(aeth.syndrome, Syndrome::Ack(_)));
            if acked && timeout.highest.is_before(psn) && psn.advance(1) == requests.window.next() {
                self.findings.withdraw(timeout.finding);
            } else if acked && timeout.is_first && timeout.lowest == psn && timeout.highest == psn {
                requests.reacknowledged = Some(Reacknowledged { timeout, psn, first: at, count: 0 });
            }
        }
        let requests = &mut self.directions[index];
        match packet.row().operation {
            Operation::ReadResponse => self.response(index, at, seen, packet),
            Operation::AtomicAck if psn.distance_from(requests.window.next()) >= 0 => {
                self.ack_ahead(index, at, psn);
            }
            Operation::AtomicAck => {
                if let Some(slot) = requests.window.get_mut(psn) {
                    slot.answered = at.number;
                }
                requests.not_passed(psn);
                self.acknowledged(index, at, psn, true);
            }
            _ => self.acknowledgement(index, at, packet),
        }
    }

    /// Whether an answer is a copy that the network made. Without duplicates of its request a responder sends
    /// it once.
    fn is_copied(&mut self, direction: usize, index: usize, at: At, seen: &Seen<'_>) -> bool {
        let id = ip_id(seen);
        let counts = &self.directions[index].counts;
        let is_asked_once = counts.resent + counts.duplicates == 0;
        let answers = &mut self.directions[direction];
        let is_numbered = answers.answer_numbering.tells(id);
        match self.sighting {
            Sighting::Again(ns) if (is_numbered || is_asked_once) && at.ns.abs_diff(ns) < DUPLICATED_NS => {
                self.duplicated(direction, at, At { ns, number: 0 }, is_numbered, false);
                true
            }
            _ => {
                answers.answer_numbering.add(id);
                false
            }
        }
    }

    /// The direction of the requests that a response answers. A pair that was guessed is exchanged if it does
    /// not fit, and another one does.
    fn peer(&mut self, direction: usize, seen: &Seen<'_>, packet: &Packet<'_>) -> Option<usize> {
        let psn = packet.bth.psn;
        let known = self.directions[direction].peer;
        if let Some(known) = known {
            let requests = &self.directions[known];
            let is_there = matches!(requests.window.order(psn), Order::Repeated | Order::FillsGap);
            let is_certain = self.peer_qp(self.directions[direction].key).is_some();
            if is_certain || is_there && requests.is_answered_by(seen, packet) {
                return Some(known);
            }
        }
        let Some(found) = self.find_peer(direction, seen, packet) else { return known };
        if Some(found) == known {
            return known;
        }
        let other = self.directions[found].peer;
        self.pair(direction, found);
        if let (Some(other), Some(known)) = (other, known) {
            self.pair(other, known);
        }
        Some(found)
    }

    /// The direction of the requests that a response with this number answers: one with the number in flight.
    /// Among several, one with such a request is preferred, then one that waits for the answer, then one with
    /// the same partition and UDP source port.
    fn find_peer(&self, direction: usize, seen: &Seen<'_>, packet: &Packet<'_>) -> Option<usize> {
        let psn = packet.bth.psn;
        let Direction { key, sport, service, p_key, wrong_p_key, peer: guess, .. } =
            self.directions[direction];
        let peer = self.peer_qp(key);
        let same_key =
            |candidate: &Direction| candidate.p_key.map(|(key, _)| key) == p_key.map(|(key, _)| key);
        let fits = |candidate: &Direction| {
            let known = peer.is_none_or(|peer| peer == candidate.key.qp) && candidate.service == service;
            let ends =
                candidate.key.src == key.dst && candidate.key.dst == key.src && candidate.key.vni == key.vni;
            let open = matches!(candidate.window.order(psn), Order::Repeated | Order::FillsGap)
                || candidate
                    .unsized_read
                    .is_some_and(|(read, most)| (0..most.cast_signed()).contains(&psn.distance_from(read)));
            // A queue pair does not answer packets of another partition.
            let knows_key = candidate.p_key.is_some() && !candidate.wrong_p_key && !wrong_p_key;
            let is_other = peer.is_none() && knows_key && !same_key(candidate);
            let is_damaged = |peer: usize| {
                let counts = &self.directions[peer].counts;
                counts.intact == 0 && counts.damaged > 0
            };
            let is_free = (candidate.peer.is_none_or(is_damaged) || guess.is_some()) && !is_other;
            ends && known && is_free && candidate.has_requests() && open
        };
        let candidates = self.directions.iter().enumerate().filter(|(_, candidate)| fits(candidate));
        // Neither the source ports nor the numbers of connections need differ: the request that waits longest
        // is the likely one.
        let (index, _) = candidates.max_by_key(|(_, candidate)| {
            let sent = candidate.window.get(psn).map_or(u64::MAX, |slot| slot.sent.number);
            (
                candidate.is_answered_by(seen, packet),
                !psn.is_before(candidate.una),
                same_key(candidate),
                candidate.sport == sport,
                Reverse(sent),
            )
        })?;
        Some(index)
    }

    /// Reports a request with a NAK that is older than the first captured request, once it was retransmitted.
    pub(super) fn lost_before(&mut self, direction: usize, index: usize) {
        let requests = &self.directions[index];
        let Some(stray) = self.directions[direction].strays.filter(|stray| stray.is_nak) else { return };
        if requests.sent(stray.psn) > stray.at.number {
            let text = format!(
                "{} reports PSN {} missing in packet {} (NAK PSN sequence error), and the requester \
                 retransmits it: it was lost before the capture began.",
                requests.key.dst, stray.psn, stray.at.number
            );
            self.report_on(index, Kind::LostRequest, stray.at, stray.at.number, text);
            self.directions[direction].strays = None;
        }
    }

    fn acknowledgement(&mut self, index: usize, at: At, packet: &Packet<'_>) {
        let Some(aeth) = packet.aeth() else { return };
        let psn = packet.bth.psn;
        let requests = &mut self.directions[index];
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                requests.counts.acks += 1;
                if psn.distance_from(requests.window.next()) >= 0 {
                    return self.ack_ahead(index, at, psn);
                }
                self.check_msn(index, at, packet);
                self.reacknowledged(index, at, psn);
                self.acknowledged(index, at, psn, false);
            }
            Syndrome::RnrNak(timer) => {
                requests.counts.rnr_naks += 1;
                self.acknowledged(index, at, psn.advance(0xff_ffff), false);
                self.not_ready(index, at, psn, timer);
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                requests.counts.naks += 1;
                self.acknowledged(index, at, psn.advance(0xff_ffff), false);
                self.missing(index, at, psn);
            }
            Syndrome::Nak(code) => {
                requests.counts.naks += 1;
                self.acknowledged(index, at, psn.advance(0xff_ffff), false);
                // The requester does not request responses again after this.
                self.directions[index].passed.retain(|(_, _, by)| by.number != at.number);
                self.refused(index, at, psn, code);
            }
            Syndrome::Reserved(code) => {
                let text = format!(
                    "The acknowledgement in packet {} has the reserved syndrome {code:#04x}: it is neither \
                     ACK nor NAK. Check the responder.",
                    at.number
                );
                self.report_on(index, Kind::Malformed, at, at.number, text);
            }
        }
    }

    /// Counts the ACKs for a single packet that was retransmitted. If each transmission has one, none was
    /// lost. (Of several packets, Linux rxe acknowledges each duplicate with the latest number.)
    fn reacknowledged(&mut self, index: usize, at: At, psn: Psn) {
        // An equal one just before may be the same one.
        if matches!(self.sighting, Sighting::Again(ns) if at.ns.abs_diff(ns) < DUPLICATED_NS) {
            return;
        }
        let requests = &mut self.directions[index];
        let Some(seen) = requests.reacknowledged.as_mut().filter(|seen| seen.psn == psn) else { return };
        seen.count += 1;
        let Reacknowledged { timeout, first, count, .. } = *seen;
        if count < timeout.attempts {
            return;
        }
        requests.reacknowledged = None;
        let dst = requests.key.dst;
        let Some(finding) = self.findings.at(timeout.finding) else { return };
        finding.kind = Kind::LateAnswer;
        finding.text = format!(
            "{dst} answered a request late: it was sent {count} times from packet {} on, and each \
             transmission was acknowledged ({}), so probably none was lost. Check whether the hosts or their \
             programs wait for a CPU.",
            finding.at.number,
            packets(first, at)
        );
    }

    /// Handles the acknowledgement of all requests up to `psn`, explicit or implied. `own` says that the
    /// packet is the response that completes the message at `psn`, not a plain ACK.
    pub(super) fn acknowledged(&mut self, index: usize, at: At, psn: Psn, own: bool) {
        let requests = &mut self.directions[index];
        if psn.is_before(requests.una) || psn.distance_from(requests.window.next()) >= 0 {
            return;
        }
        requests.una = psn.advance(1);
        requests.last_ack = at;
        requests.pending_nak = None;
        requests.rnr = None;
        self.accepted(index, at);
        while let Some(front) = self.directions[index].open.front() {
            // A message without a captured last packet is covered with the next one.
            let next = self.directions[index].open.get(1);
            let is_over = front.ended || next.is_some_and(|next| !psn.is_before(next.first_psn));
            let covered = is_over && !psn.is_before(front.last_psn);
            // A plain ACK does not complete a READ or an atomic.
            let waiting = front.wants_response() && !(own && front.last_psn == psn);
            if !covered || waiting && front.last_psn == psn {
                break;
            }
            let ended = front.ended;
            // Responses that were requested again meanwhile may still come.
            let is_passed = waiting && front.resent == 0;
            let (from, to) = (front.response, front.last_psn);
            let message = self.directions[index].open.pop_front();
            if is_passed {
                self.directions[index].pass_over(from, to, at);
            } else if ended && !waiting {
                self.directions[index].counts.acked_messages += u64::from(!own);
                self.done(index, message, at);
            }
        }
        let requests = &mut self.directions[index];
        requests.window.trim(requests.una);
    }

    /// Counts a completed message.
    pub(super) fn done(&mut self, index: usize, message: Option<Message>, at: At) {
        let Some(message) = message else { return };
        let direction = &mut self.directions[index];
        let took = message.latency_ns(at.ns);
        if at.number != message.last.number {
            direction.counts.latency.add(took);
            self.links.add_latency(at.ns, took);
        }
        let direction = &mut self.directions[index];
        if let Some(access) = &message.access {
            direction.keys.worked(access);
        }
        if took > SLOW_NS && message.resent == 0 {
            self.slow(index, at, &message, took);
        }
        if self.collect {
            self.done.push((index, message, at));
        }
    }

    fn slow(&mut self, index: usize, at: At, message: &Message, took: u64) {
        let direction = &self.directions[index];
        if let Some(finding) = self.findings.at(direction.slow) {
            finding.count += 1;
            return;
        }
        let (what, dst) = (message.words(), direction.key.dst);
        let pause = self.links.paused_since(at.ns.saturating_sub(took)).map_or(String::new(), |pause| {
            format!(
                " A link was paused meanwhile, the last pause frame is packet {}: that may explain the \
                 delay.",
                pause.number
            )
        });
        let or = if pause.is_empty() { "" } else { "otherwise " };
        let text = format!(
            "{dst} answered the {what} in packet {} only after {}.{pause} No packet of it was retransmitted, \
             so the delay is {or}probably at {dst}: check whether its program waits for a CPU.",
            message.last.number,
            clock::span(took)
        );
        self.directions[index].slow = self.report_on(index, Kind::Slow, message.last, at.number, text);
    }

    fn not_ready(&mut self, index: usize, at: At, psn: Psn, timer: u8) {
        let direction = &mut self.directions[index];
        direction.pending_nak = Some(PendingNak::NotReady(psn, at));
        direction.retransmission = None;
        if let Some((finding, times)) = direction.rnr {
            direction.rnr = Some((finding, times + 1));
            if let Some(finding) = self.findings.at(finding) {
                finding.count += 1;
            }
            return;
        }
        let what = direction
            .message_at(psn)
            .map_or("a request".to_owned(), |message| format!("the {}", message.words()));
        let found =
            direction.window.get(psn).map_or(at, |slot| if slot.sent.number == 0 { at } else { slot.sent });
        let text = format!(
            "{} had no receive posted for {what} in packet {} and asked for a pause of {} (RNR NAK in \
             packet {}): its program posts receives too late or too few.",
            direction.key.dst,
            found.number,
            clock::span(rnr_timer_ns(timer)),
            at.number
        );
        let finding = self.report_on(index, Kind::ReceiverNotReady, found, at.number, text);
        self.directions[index].rnr = Some((finding, 1));
    }

    fn missing(&mut self, index: usize, at: At, psn: Psn) {
        let direction = &mut self.directions[index];
        // After an RNR NAK, rxe also NAKs the packets that follow the refused request. A NAK for a number
        // that was acknowledged is older than the acknowledgement.
        if psn.is_before(direction.una) && direction.last_ack.number != at.number
            || matches!(direction.pending_nak, Some(PendingNak::NotReady(refused, _)) if refused == psn)
        {
            return;
        }
        direction.pending_nak = Some(PendingNak::Missing(psn, at));
        direction.retransmission = None;
        // A responder never expects the number of a later response: the READ has fewer than was derived.
        if direction.message_at(psn).is_some_and(|m| m.wants_response() && m.first_psn != psn) {
            direction.shorten(psn);
        }
        let Some(slot) = direction.window.get(psn).copied() else { return self.unknown_nak(index, at, psn) };
        if slot.late || direction.is_reordering(at, psn) {
            return self.reordered(index, at, psn, slot.ip_id);
        }
        // A packet that was never captured is judged when its retransmission arrives.
        if slot.sent.number == 0 {
            return;
        }
        if slot.behind_gap || slot.again.number < direction.episode.number {
            let text = format!(
                "{} reports PSN {psn} missing in packet {} (NAK PSN sequence error). It was captured in \
                 packet {}, while packets before it were missing or repeated: that transmission was lost, or \
                 discarded for those packets and lost later.",
                direction.key.dst, at.number, slot.again.number
            );
            self.report_on(index, Kind::LostRequest, slot.again, at.number, text);
            return;
        }
        // The capture may begin behind the first transmission of the first packets, as an answer to a number
        // that was not captured before tells, too.
        let has_strays = direction.peer.is_some_and(|peer| self.directions[peer].strays.is_some());
        let direction = &self.directions[index];
        let is_young = at.ns.saturating_sub(direction.first.ns) < YOUNG_NS;
        let is_first = slot.sent.number < direction.first_answer.number || has_strays || is_young;
        let or = match (slot.sent.number, slot.again.number) {
            (sent, again) if sent != again => format!(", or an earlier transmission from packet {sent} on,"),
            _ if is_first => ", or an earlier transmission,".to_owned(),
            _ => String::new(),
        };
        let text = format!(
            "Packet {} (PSN {psn}){or} was captured but did not reach {} in sequence: the responder reports \
             it missing in packet {} (NAK PSN sequence error), and the requester retransmits from \
             there. Look for drops, or several paths, between the capture point and the responder.",
            slot.again.number, direction.key.dst, at.number
        );
        let finding = self.report_on(index, Kind::LostRequest, slot.again, at.number, text);
        if let Some(finding) = self.findings.at(finding) {
            finding.confidence = Confidence::High;
        }
    }

    /// Reports a NAK that expects a number behind all captured requests.
    fn unknown_nak(&mut self, index: usize, at: At, psn: Psn) {
        let direction = &mut self.directions[index];
        direction.pending_nak = None;
        if psn.distance_from(direction.window.next()) <= 0 || direction.refused.is_some() {
            return;
        }
        direction.refused = Some(Refused::UnknownPsn);
        let last = direction.window.next().advance(0xff_ffff);
        let is_near = psn.distance_from(last) <= OVERTAKEN_MAX;
        let either = if is_near { "Either the capture lacks requests, or the" } else { "The" };
        let text = format!(
            "{} expects PSN {psn} (NAK PSN sequence error in packet {}), while the highest number of a \
             request in this capture is {last}. {either} two ends count from different numbers: rq_psn of \
             the responder must be sq_psn of the requester.",
            direction.key.dst, at.number
        );
        let finding = self.report_on(index, Kind::WrongPsn, at, at.number, text);
        if let Some(finding) = self.findings.at(finding).filter(|_| is_near) {
            finding.confidence = Confidence::Medium;
        }
    }

    fn refused(&mut self, index: usize, at: At, psn: Psn, code: NakCode) {
        let direction = &mut self.directions[index];
        if direction.refused.is_some() {
            return;
        }
        direction.refused = Some(Refused::Fatal(at));
        direction.pending_nak = None;
        let dst = direction.key.dst;
        let message = direction.message_at(psn).cloned();
        let found =
            direction.window.get(psn).map_or(at, |slot| if slot.sent.number == 0 { at } else { slot.sent });
        let (what, access, operation) = match &message {
            Some(message) => (format!("the {}", message.words()), message.access, Some(message.operation)),
            None => ("a request".to_owned(), None, None),
        };
        let consumes_receive =
            matches!(operation, Some(Operation::Send | Operation::SendImm | Operation::SendInv));
        let why = match code {
            NakCode::RemoteAccessError => access
                .map_or("the key, the address range or the access right is wrong".to_owned(), |access| {
                    direction.keys.explain(&access)
                }),
            NakCode::RemoteOperationalError if consumes_receive => {
                "the receive posted for it is too small (Linux's rxe answers so), or its memory is not \
                 accessible"
                    .to_owned()
            }
            NakCode::RemoteOperationalError => {
                "the responder could not execute it because of a local error".to_owned()
            }
            _ if consumes_receive => {
                "the receive posted for it is too small, or its packets do not have the \
                                      length of the responder's path MTU or are not in sequence"
                    .to_owned()
            }
            _ => "the responder's queue pair does not allow this operation (qp_access_flags, \
                  max_dest_rd_atomic), or its packets do not have the length of the responder's path MTU or \
                  are not in sequence"
                .to_owned(),
        };
        let range = access.map_or(String::new(), |access| {
            format!(" (R_Key {}, {:#x}..{:#x})", access.key, access.va, access.va.saturating_add(access.len))
        });
        let text = format!(
            "{dst} refused {what}{range} in packet {}: NAK {code} in packet {}. {}. This NAK ends the \
             connection.",
            found.number,
            at.number,
            capital(&why)
        );
        self.report_on(index, refusal(code), found, at.number, text);
    }

    fn response(&mut self, index: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>) {
        let (psn, position) = (packet.bth.psn, packet.row().position);
        if self.directions[index].surplus == Some(psn) {
            self.directions[index].surplus = (!position.ends()).then_some(psn.advance(1));
            return;
        }
        self.size_answered_read(index, seen, packet);
        if psn.distance_from(self.directions[index].window.next()) >= 0 {
            return self.ack_ahead(index, at, psn);
        }
        let requests = &mut self.directions[index];
        let is_first = requests.window.get_mut(psn).is_none_or(|slot| slot.answered == 0);
        if let Some(slot) = requests.window.get_mut(psn) {
            slot.answered = at.number;
        }
        requests.not_passed(psn);
        // The response acknowledges all requests before the READ.
        let first = requests.message_at(psn).map(|message| message.first_psn);
        if let Some(first) = first {
            self.acknowledged(index, at, first.advance(0xff_ffff), false);
        }
        let requests = &mut self.directions[index];
        let Some(message) = requests.message_at(psn) else { return };
        message.response_at = at;
        message.responded |= position.ends();
        message.response_bytes += if is_first { seen.payload_len() as u64 } else { 0 };
        let (in_sequence, was_resent) = (message.response == psn, message.resent > 0);
        let is_early = position.ends() && psn.is_before(message.last_psn);
        let is_wrong = in_sequence && !was_resent && self.check_response_length(index, at, psn, position);
        let requests = &mut self.directions[index];
        if in_sequence && !was_resent && !is_wrong && is_early {
            // Without a path MTU the number of responses was a guess: the others answer another request.
            requests.shorten(psn.advance(1));
        }
        let Some(message) = requests.message_at(psn) else { return };
        let last = message.last_psn;
        if in_sequence {
            // Responses behind a gap arrived before.
            let mut next = psn.advance(1);
            let is_there =
                |window: &mut Window, psn| window.get_mut(psn).is_some_and(|slot| slot.answered != 0);
            while !last.is_before(next) && is_there(&mut requests.window, next) {
                next = next.advance(1);
            }
            if let Some(message) = requests.message_at(psn) {
                message.response = next;
            }
        }
        let Some(message) = self.directions[index].message_at(psn) else { return };
        let whole = is_wrong || in_sequence && last.is_before(message.response);
        let operation = message.operation;
        // FLUSH and ATOMIC WRITE have a single response.
        if whole || position.ends() && operation != Operation::ReadRequest {
            self.acknowledged(index, at, if whole { last } else { psn }, true);
        }
    }
}

impl Direction {
    /// Whether the request with the number of an answer is of the kind that has such answers.
    fn is_answered_by(&self, seen: &Seen<'_>, packet: &Packet<'_>) -> bool {
        let (psn, row) = (packet.bth.psn, packet.row());
        let asked = self.open.iter().find(|message| message.has(psn));
        let is_atomic = |m: &Message| matches!(m.operation, Operation::CompareSwap | Operation::FetchAdd);
        let is_only = row.position.starts() && row.position.ends();
        asked.is_none_or(|message| match row.operation {
            Operation::AtomicAck => is_atomic(message),
            // An Only response is the whole answer: it has the length that the READ asks for.
            Operation::ReadResponse if message.operation == Operation::ReadRequest => {
                !is_only
                    || message.access.is_none()
                    || message.last_psn.distance_from(psn) > 0
                    || message.first_psn != psn
                    || message.bytes == seen.payload_len() as u64
            }
            Operation::ReadResponse => message.wants_response() && !is_atomic(message),
            _ => true,
        })
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
