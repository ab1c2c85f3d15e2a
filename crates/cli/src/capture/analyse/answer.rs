//! What the responder says: acknowledgements, refusals, data.

use wire::capture::Seen;
use wire::{NakCode, Operation, Packet, Position, Psn, Syndrome, rnr_timer_ns};

use super::Analysis;
use super::finding::{At, Kind};
use super::half::{Message, Told};
use super::window::Place;
use crate::capture::clock;

/// An answer that takes longer than this is worth a word.
const SLOW_NS: u64 = 1_000_000_000;

impl Analysis {
    /// A packet of direction `half` answers a request of the other direction.
    pub(super) fn answer(&mut self, half: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        let Some(index) = self.halves[half].peer.or_else(|| self.find_peer(half, psn)) else { return };
        let requests = &mut self.halves[index];
        if let Some(timeout) = requests.timeout.take() {
            requests.episode = None;
            // Whoever has everything, also what was not repeated, has missed nothing: the answer came late.
            let acked = matches!(packet.aeth(), Some(aeth) if matches!(aeth.syndrome, Syndrome::Ack(_)));
            if acked && timeout.highest.is_before(psn) && psn.advance(1) == requests.window.next() {
                self.findings.withdraw(timeout.finding);
            }
        }
        let requests = &mut self.halves[index];
        match packet.row().operation {
            Operation::ReadResponse => self.response(index, at, seen, packet),
            Operation::AtomicAck => {
                if let Some(slot) = requests.window.get_mut(psn) {
                    slot.answered = at.number;
                }
                self.acknowledged(index, at, psn, true);
            }
            _ => self.acknowledgement(index, at, packet),
        }
    }

    /// The direction whose requests this answers: the one that has the number outstanding; with the same UDP source port if
    /// there are several.
    fn find_peer(&mut self, half: usize, psn: Psn) -> Option<usize> {
        let (key, sport) = (self.halves[half].key, self.halves[half].sport);
        let connection = self.handshakes.connection(key.dst, key.qp);
        let fits = |candidate: &super::Half| {
            let known = connection.as_ref().is_none_or(|connection| connection.peer_qp == candidate.key.qp);
            let ends = candidate.key.src == key.dst && candidate.key.dst == key.src;
            let open = matches!(candidate.window.place(psn), Place::Again | Place::Filler)
                || candidate
                    .elastic
                    .is_some_and(|(read, most)| (0..most.cast_signed()).contains(&psn.distance_from(read)));
            ends && known && candidate.peer.is_none() && candidate.has_requests() && open
        };
        let candidates = || self.halves.iter().enumerate().filter(|(_, candidate)| fits(candidate));
        let best =
            candidates().find(|(_, candidate)| candidate.sport == sport).or_else(|| candidates().next());
        let index = best?.0;
        self.pair(half, index);
        Some(index)
    }

    fn acknowledgement(&mut self, index: usize, at: At, packet: &Packet<'_>) {
        let Some(aeth) = packet.aeth() else { return };
        let psn = packet.bth.psn;
        let requests = &mut self.halves[index];
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                requests.counts.acks += 1;
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
                self.refused(index, at, psn, code);
            }
            Syndrome::Reserved(_) => {}
        }
    }

    /// Everything up to `psn` has arrived. `own` says that the answer is the message's own, not a plain acknowledgement.
    fn acknowledged(&mut self, index: usize, at: At, psn: Psn, own: bool) {
        let requests = &mut self.halves[index];
        if psn.is_before(requests.una) || psn.distance_from(requests.window.next()) >= 0 {
            return;
        }
        requests.una = psn.advance(1);
        requests.last_ack = at;
        requests.told = None;
        requests.rnr = None;
        while let Some(front) = self.halves[index].open.front() {
            let covered = front.ended && !psn.is_before(front.last_psn);
            // A plain acknowledgement says nothing about a READ or an atomic.
            let waiting = front.wants_response() && !(own && front.last_psn == psn);
            if !covered || waiting && front.last_psn == psn {
                break;
            }
            let message = self.halves[index].open.pop_front();
            if !waiting {
                self.halves[index].counts.acked_messages += u64::from(!own);
                self.done(index, message, at);
            }
        }
        let requests = &mut self.halves[index];
        requests.window.trim(requests.una);
    }

    /// A message is complete.
    pub(super) fn done(&mut self, index: usize, message: Option<Message>, at: At) {
        let Some(message) = message else { return };
        let half = &mut self.halves[index];
        let took = at.ns.saturating_sub(message.last.ns);
        if at.number != message.last.number {
            half.counts.latency.add(took);
        }
        if let Some(access) = &message.access {
            half.keys.worked(access);
        }
        if took > SLOW_NS && message.resent == 0 {
            self.slow(index, at, &message, took);
        }
        if self.collect {
            self.done.push((index, message, at));
        }
    }

    fn slow(&mut self, index: usize, at: At, message: &Message, took: u64) {
        let half = &self.halves[index];
        if let Some(finding) = self.findings.at(half.slow) {
            finding.count += 1;
            return;
        }
        let (what, dst, whose) = (message.words(), half.key.dst, half.name());
        let text = format!(
            "{dst} took {} to answer the {what} in packet {}; nothing was lost.",
            clock::span(took),
            message.last.number
        );
        self.halves[index].slow = self.find(Kind::Slow, message.last, at.number, whose, text);
    }

    fn not_ready(&mut self, index: usize, at: At, psn: Psn, timer: u8) {
        let half = &mut self.halves[index];
        half.told = Some(Told::NotReady(psn, at));
        half.episode = None;
        if let Some((finding, times)) = half.rnr {
            half.rnr = Some((finding, times + 1));
            if let Some(finding) = self.findings.at(finding) {
                finding.count += 1;
            }
            return;
        }
        let whose = half.name();
        let what =
            half.message_at(psn).map_or("a request".to_owned(), |message| format!("the {}", message.words()));
        let found =
            half.window.get(psn).map_or(at, |slot| if slot.sent.number == 0 { at } else { slot.sent });
        let text = format!(
            "{} had no receive posted for {what} in packet {} and asked for a pause of {} (RNR NAK in packet {}): the receiving \
             program posts receives too late or too few.",
            half.key.dst,
            found.number,
            clock::span(rnr_timer_ns(timer)),
            at.number
        );
        let finding = self.find(Kind::ReceiverNotReady, found, at.number, whose, text);
        self.halves[index].rnr = Some((finding, 1));
    }

    fn missing(&mut self, index: usize, at: At, psn: Psn) {
        let half = &mut self.halves[index];
        // rxe complains about what follows a request that it was not ready for.
        if matches!(half.told, Some(Told::NotReady(refused, _)) if refused == psn) {
            return;
        }
        half.told = Some(Told::Missing(psn, at));
        half.episode = None;
        let Some(slot) = half.window.get(psn).copied() else { return };
        if slot.late || half.overtaken(at) {
            return self.reordered(index, at, psn);
        }
        // What was never seen here is judged when it comes.
        if slot.sent.number == 0 {
            return;
        }
        let whose = half.name();
        let text = format!(
            "Packet {} (PSN {psn}) was lost between the point of capture and {}: the responder misses it and says so in packet {} \
             (NAK PSN sequence error). The requester sends it and everything behind it again.",
            slot.sent.number, half.key.dst, at.number
        );
        self.find(Kind::LostRequest, slot.sent, at.number, whose, text);
    }

    fn refused(&mut self, index: usize, at: At, psn: Psn, code: NakCode) {
        let half = &mut self.halves[index];
        if half.refused {
            return;
        }
        half.refused = true;
        half.told = None;
        let (dst, whose) = (half.key.dst, half.name());
        let message =
            half.open.iter().find(|m| !psn.is_before(m.first_psn) && !m.last_psn.is_before(psn)).cloned();
        let found =
            half.window.get(psn).map_or(at, |slot| if slot.sent.number == 0 { at } else { slot.sent });
        let (what, access, operation) = match &message {
            Some(message) => (format!("the {}", message.words()), message.access, Some(message.operation)),
            None => ("a request".to_owned(), None, None),
        };
        let takes_receive =
            matches!(operation, Some(Operation::Send | Operation::SendImm | Operation::SendInv));
        let (kind, why) = match code {
            NakCode::RemoteAccessError => {
                let why =
                    access.map_or("key, range or permission is wrong".to_owned(), |a| half.keys.explain(&a));
                (Kind::AccessRefused, why)
            }
            NakCode::RemoteOperationalError if takes_receive => {
                let why = "the receive posted for it is too small (Linux' rxe says it so), or its memory is not accessible";
                (Kind::ResponderFailed, why.to_owned())
            }
            NakCode::RemoteOperationalError => (
                Kind::ResponderFailed,
                "the responder could not carry it out, for a reason of its own".to_owned(),
            ),
            _ if takes_receive => {
                let why = "the receive posted for it is too small, or its packets have not the length of the responder's path MTU, or \
                           not their order";
                (Kind::RequestRefused, why.to_owned())
            }
            _ => {
                let why = "the responder's queue pair does not allow this operation (qp_access_flags, max_dest_rd_atomic), or its \
                           packets have not the length of the responder's path MTU, or not their order";
                (Kind::RequestRefused, why.to_owned())
            }
        };
        let where_ = access.map_or(String::new(), |access| {
            format!(" (R_Key {}, {:#x}..{:#x})", access.key, access.va, access.va.saturating_add(access.len))
        });
        let text = format!(
            "{dst} refused {what}{where_} in packet {}: NAK {code} in packet {}. {}. The connection is over.",
            found.number,
            at.number,
            capital(&why)
        );
        self.find(kind, found, at.number, whose, text);
    }

    fn response(&mut self, index: usize, at: At, seen: &Seen<'_>, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        let position = packet.row().position;
        let requests = &mut self.halves[index];
        if matches!(position, Position::First | Position::Middle) {
            let len = seen.payload_len() as u32;
            let mtu = *requests.path_mtu.get_or_insert(len);
            if let Some((read, _)) = requests.elastic.take() {
                let asked = requests.message_at(read).map_or(0, |message| message.bytes);
                let span = asked.div_ceil(u64::from(mtu.max(1))) as u32;
                let known = requests.window.next().distance_from(read).cast_unsigned();
                requests.lengthen(read, span.saturating_sub(known));
            }
        }
        let peer_mtu = requests.path_mtu;
        if let Some(peer) = requests.peer {
            self.halves[peer].path_mtu = self.halves[peer].path_mtu.or(peer_mtu);
        }
        let requests = &mut self.halves[index];
        if let Some(slot) = requests.window.get_mut(psn) {
            slot.answered = at.number;
        }
        // Whatever came before the READ has arrived.
        let first = requests.message_at(psn).map(|message| message.first_psn);
        if let Some(first) = first {
            self.acknowledged(index, at, first.advance(0xff_ffff), false);
        }
        let requests = &mut self.halves[index];
        let Some(message) = requests.message_at(psn) else { return };
        if message.response == psn {
            message.response = psn.advance(1);
        }
        let whole = message.last_psn == psn && message.response == psn.advance(1);
        // FLUSH and ATOMIC WRITE have one response.
        if position.ends() && (whole || message.operation != Operation::ReadRequest) {
            self.acknowledged(index, at, psn, true);
        }
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
