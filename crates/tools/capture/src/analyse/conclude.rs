//! Findings that show only at the end of the capture: requests without answers, answers without requests,
//! packets that only the capture lacks.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::net::IpAddr;

use wire::Service;

use super::Analysis;
use super::direction::{Stray, Timeout};
use super::finding::{Confidence, Kind, earliest};
use super::quality::Gaps;
use super::times::SLOW_NS;
use super::window::OVERTAKEN_MAX;
use crate::clock;

/// Largest finite value of `rnr_retry`; 7 retries without limit.
const RNR_RETRY_MAX: u64 = 6;
/// Congestion signals that make a finding.
const CONGESTION_MIN: u64 = 1;

/// Most queue pairs between two hosts among which the one of an unknown answer is searched.
const ALIKE_MAX: usize = 16;

/// Sender and receiver.
type Pair = (IpAddr, IpAddr);

/// Which hosts sent packets to which.
#[derive(Default)]
struct Hosts {
    pairs: HashSet<Pair>,
    /// Number of answers that belong to no captured request, and the first one.
    strays: HashMap<Pair, (u64, u64)>,
}

impl Analysis {
    /// Adds the findings of all directions that show only at the end; returns what the capture lacks.
    pub(super) fn conclude(&mut self) -> Gaps {
        self.conclude_fragments();
        self.conclude_strays();
        let hosts = self.hosts();
        let mut gaps = Gaps::default();
        for index in 0..self.directions.len() {
            self.conclude_rnr(index);
            self.conclude_timeout(index, &hosts);
            self.conclude_unanswered(index, &mut gaps);
            self.conclude_uncaptured(index, &mut gaps);
            self.conclude_damaged(index);
            self.conclude_duplicates(index);
            self.conclude_pauses(index);
            self.conclude_congestion(index);
        }
        self.conclude_links();
        self.one_sided(&mut gaps, &hosts);
        gaps
    }

    /// Turns a request that is still without an answer into the finding that the requester gave up.
    fn conclude_timeout(&mut self, index: usize, hosts: &Hosts) {
        let direction = &mut self.directions[index];
        let Some(Timeout { finding, attempts, last, .. }) = direction.timeout.take() else { return };
        if direction.refused.is_some() {
            // A NAK was the answer.
            return self.findings.withdraw(finding);
        }
        let (src, dst) = (direction.key.src, direction.key.dst);
        let answered = direction.last_ack.number;
        let strays = hosts.strays.get(&(dst, src)).copied();
        let is_silent = strays.is_none() && !hosts.pairs.contains(&(dst, src));
        direction.is_silent = true;
        // Until now something else explained the retransmissions.
        let finding =
            finding.or_else(|| self.report_on(index, Kind::NoAnswer, last, last.number, String::new()));
        let last = last.number;
        let Some(finding) = self.findings.at(finding) else { return };
        finding.kind = Kind::NoAnswer;
        let since = match answered {
            0 => String::new(),
            n => format!(" after packet {n}"),
        };
        finding.text = format!(
            "No answer of {dst}{since} was seen in this capture: a request was sent {attempts} times, the \
             last time in packet {last} (transport retry count probably exceeded). Check that the peer's \
             program runs, that its queue pair is ready to receive, and that packets pass in both directions."
        );
        if let Some((count, first)) = strays {
            let _ = write!(
                finding.text,
                " {count} answers of {dst} in this capture belong to no request that was captured, the \
                 first is packet {first}."
            );
            finding.confidence = Confidence::Low;
        } else if is_silent {
            let _ = write!(
                finding.text,
                " The capture has no packet from {dst} to {src}: make sure that it sees both directions."
            );
        }
    }

    /// Reports RNR NAKs that are the last packets of a connection.
    fn conclude_rnr(&mut self, index: usize) {
        let dst = self.directions[index].key.dst;
        let Some((finding, times)) = self.directions[index].rnr.take() else { return };
        self.directions[index].is_silent = true;
        let Some(finding) = self.findings.at(finding) else { return };
        let first = finding.shown_by;
        if times > RNR_RETRY_MAX + 1 {
            finding.text = format!(
                "{dst} had no receive posted until the end of the capture: it sent {times} RNR NAKs, the \
                 first in packet {first}. The requester retries without limit: it has rnr_retry 7, and \
                 neither gives up nor reports an error. Post receives before the peer sends."
            );
            return;
        }
        finding.kind = Kind::ReceiverNeverReady;
        finding.confidence = Kind::ReceiverNeverReady.confidence();
        let naks = match times {
            1 => format!("an RNR NAK in packet {first}"),
            n => format!("{n} RNR NAKs, the first in packet {first}"),
        };
        finding.text = format!(
            "{dst} had no receive posted: it sent {naks}, and no retransmission was seen after that (RNR \
             retry count probably exceeded: rnr_retry {}; or the capture ends before the retransmission). \
             Post receives before the peer sends, or raise rnr_retry.",
            times - 1
        );
    }

    /// Reports a request that was not answered long before the end of the capture; counts a younger one.
    fn conclude_unanswered(&mut self, index: usize, gaps: &mut Gaps) {
        let direction = &self.directions[index];
        let is_answered =
            direction.service == Service::Uc || direction.refused.is_some() || !direction.awaits_answer();
        let has_peer = direction.peer.is_some();
        let is_ended = self.handshakes.is_ended(direction.key.dst, direction.key.qp);
        if is_answered || is_ended || direction.is_silent {
            return;
        }
        let Some(open) = direction.open.iter().find(|message| !direction.una.is_before(message.first_psn))
        else {
            return;
        };
        let waited = self.totals.last.ns.saturating_sub(open.last.ns);
        // Without a packet of the peer nothing tells whether it answered.
        if waited < SLOW_NS || !has_peer {
            gaps.open_requests += 1;
            return;
        }
        let (last, words) = (open.last, open.words());
        let dst = direction.key.dst;
        let text = format!(
            "The answer of {dst} to the {words} in packet {} was not seen in this capture, which ends {} \
             later, and no retransmission either. Check whether the peer's program waits for a CPU.",
            last.number,
            clock::span(waited)
        );
        self.report_on(index, Kind::Slow, last, self.totals.last.number, text);
    }

    /// Counts packets that both ends have and the capture lacks: numbers that were acknowledged, and
    /// responses that were not requested again.
    fn conclude_uncaptured(&mut self, index: usize, gaps: &mut Gaps) {
        let direction = &mut self.directions[index];
        let unacknowledged = direction.window.missing_from(direction.una);
        let requests = direction.holes.saturating_sub(unacknowledged);
        let partly = direction.open.iter().filter(|m| m.responded && m.resent == 0);
        let partly: Vec<_> = partly.map(|m| (m.response, m.last_psn, m.response_at)).collect();
        for (first, last, at) in partly {
            direction.pass_over(first, last, at);
        }
        // Where packets are lost, the last ones may be, and not be requested again so far.
        let last = direction.last_request.number;
        let is_lossy = direction.counts.resent > 0;
        direction.passed.retain(|(_, _, by)| by.number < last || !is_lossy);
        let spans = direction.passed.iter().map(|(from, to, _)| to.distance_from(*from).cast_unsigned());
        let responses = spans.map(|span| u64::from(span) + 1).sum();
        let hole = (requests > 0).then_some(direction.first_hole);
        let first = earliest(direction.passed.iter().map(|(_, _, at)| *at).chain(hole));
        direction.counts.uncaptured = requests + responses;
        if direction.counts.uncaptured > 0 {
            let peer = direction.peer.map(|_| direction.key);
            gaps.add_uncaptured(requests, responses, first, peer);
        }
    }

    /// Says what damaged packets mean: single ones are dropped, but not all packets of a direction.
    fn conclude_damaged(&mut self, index: usize) {
        let direction = &self.directions[index];
        let counts = &direction.counts;
        let (bad, good) = (counts.damaged, counts.intact);
        let answered = direction.last_ack.number != 0;
        if bad > 0 && good == 0 && !answered {
            let doubts = direction.doubts.iter();
            doubts.for_each(|(_, _, finding)| self.findings.withdraw(Some(*finding)));
        }
        if bad == 0 || bad == 1 && !answered || good > 0 {
            return;
        }
        let Some(finding) = self.findings.at(direction.damaged) else { return };
        let (all, were) = match bad {
            1 => ("The only packet has".to_owned(), "was"),
            n => (format!("All {n} packets have"), "were"),
        };
        let accepted = if answered { format!(", and {were} acknowledged") } else { String::new() };
        finding.text = format!(
            "{all} a wrong invariant CRC in this direction{accepted}. Probably the capture \
             sees them before the NIC computes the CRC, or a device on the path changed a field that the CRC \
             covers (address translation). Capture at the receiver to see what arrives."
        );
        finding.confidence = Confidence::Medium;
    }

    fn conclude_congestion(&mut self, index: usize) {
        let direction = &self.directions[index];
        let (ce, cnps) = (direction.counts.ce, direction.counts.cnps);
        if ce + cnps < CONGESTION_MIN {
            return;
        }
        let first = if cnps > 0 { direction.counts.first_cnp } else { direction.counts.first_ce };
        let text = if cnps > 0 {
            let s = if cnps == 1 { "" } else { "s" };
            format!(
                "{} was sent {cnps} congestion notification{s} (CNP) for its queue pair {}: packets that it \
                 sends meet a full queue.",
                direction.key.dst, direction.key.qp
            )
        } else {
            format!(
                "{ce} of {} packets have a congestion mark (ECN CE): they met a full queue in transit.",
                direction.counts.packets
            )
        };
        self.report_on(index, Kind::Congestion, first, first.number, text);
    }

    /// Pairs answers without requests with the only requests without answers between the same hosts: the two
    /// ends use different sequence numbers.
    fn conclude_strays(&mut self) {
        let mut lonely: HashMap<(Pair, Service), Vec<usize>> = HashMap::new();
        for (index, direction) in self.directions.iter().enumerate().filter(|(_, d)| d.peer.is_none()) {
            let pair = (direction.key.src, direction.key.dst);
            let alike = lonely.entry((pair, direction.service)).or_default();
            if alike.len() <= ALIKE_MAX {
                alike.push(index);
            }
        }
        for index in 0..self.directions.len() {
            let direction = &self.directions[index];
            let Some(stray) = direction.strays.filter(|stray| !stray.is_refusal) else { continue };
            let (key, service) = (direction.key, direction.service);
            if let Some(request) = direction.peer {
                // Paired by the numbers of later answers.
                self.lost_before(index, request);
                let requests = &self.directions[request];
                if stray.is_nak && requests.has_requests() && requests.window.get(stray.psn).is_none() {
                    self.different_numbers(request, stray);
                }
                continue;
            }
            let of = |pair| lonely.get(&(pair, service)).map_or(&[][..], Vec::as_slice);
            let others = of((key.dst, key.src));
            let is_alone = of((key.src, key.dst)).len() == 1 && others.len() <= ALIKE_MAX;
            let peer = self.peer_qp(key);
            let fits = |other: &&usize| {
                let other = &self.directions[**other];
                let known = peer.is_none_or(|peer| peer == other.key.qp);
                known && other.key.vni == key.vni && other.has_requests()
            };
            let fitting = || others.iter().copied().filter(|other| fits(&other));
            let obeys = |other: &usize| self.directions[*other].sent(stray.psn) > stray.at.number;
            match (only(fitting()), only(fitting().filter(obeys))) {
                (_, Some(request)) if stray.is_nak => {
                    self.pair(index, request);
                    self.lost_before(index, request);
                }
                (Some(request), _) if is_alone => {
                    self.pair(index, request);
                    self.different_numbers(request, stray);
                }
                _ if stray.is_nak => self.unpaired_nak(index, stray),
                _ => {}
            }
        }
    }

    /// Reports a NAK of a connection without any request that it could answer.
    fn unpaired_nak(&mut self, index: usize, stray: Stray) {
        let text = format!(
            "{} expects PSN {} (NAK PSN sequence error in packet {}), and the requests of that connection \
             were not captured, or several fit: either the two ends were connected with different numbers \
             (rq_psn of the responder must be sq_psn of the requester), or the request with this PSN was \
             lost before the capture began or before the capture point.",
            self.directions[index].key.src, stray.psn, stray.at.number
        );
        let finding = self.report_on(index, Kind::WrongPsn, stray.at, stray.at.number, text);
        if let Some(finding) = self.findings.at(finding) {
            finding.confidence = Confidence::Low;
        }
    }

    /// Which hosts sent packets to which.
    fn hosts(&self) -> Hosts {
        let mut hosts = Hosts::default();
        for direction in &self.directions {
            let pair = (direction.key.src, direction.key.dst);
            hosts.pairs.insert(pair);
            if let (Some(stray), None) = (direction.strays, direction.peer) {
                let (count, first) = hosts.strays.entry(pair).or_insert((0, u64::MAX));
                (*count, *first) = (*count + stray.count, (*first).min(stray.at.number));
            }
        }
        let answered = self.handshakes.list().iter().filter(|handshake| handshake.answered.is_some());
        hosts.pairs.extend(answered.map(|handshake| (handshake.passive, handshake.active)));
        hosts
    }

    fn different_numbers(&mut self, index: usize, stray: Stray) {
        let direction = &mut self.directions[index];
        let is_older = (0..=OVERTAKEN_MAX).contains(&direction.first_request.1.distance_from(stray.psn));
        if is_older && !stray.is_nak {
            // It answers a request from before the capture.
            return;
        }
        let timeout = direction.timeout.take();
        direction.ack_requested = None;
        let dst = direction.key.dst;
        let first = direction.first_request;
        let (at, psn) = (stray.at, stray.psn);
        let times = if stray.count > 1 { format!(" ({} answers)", stray.count) } else { String::new() };
        // The capture may begin behind the packet that the responder misses.
        let is_repeated = direction.window.get(psn).is_some_and(|slot| slot.sent.number != 0);
        let numbers = "were connected with different numbers: rq_psn of the responder must be sq_psn of the \
                       requester";
        let (kind, text) = if stray.is_nak {
            let why = match (is_older, is_repeated) {
                (true, true) => "The packet before was lost before the capture began".to_owned(),
                (true, false) => format!("It was lost before the capture began, or the two ends {numbers}"),
                (false, _) => format!("The two ends {numbers}"),
            };
            let text = format!(
                "{dst} answers in packet {} that it expects PSN {psn} (NAK PSN sequence error){times}, while \
                 the requester begins with PSN {} in packet {}. {why}.",
                at.number, first.1, first.0.number
            );
            (if is_older && is_repeated { Kind::LostRequest } else { Kind::WrongPsn }, text)
        } else {
            let text = format!(
                "{dst} acknowledges PSN {psn} in packet {}{times}, and no request with that number was seen \
                 in this capture: the first one has PSN {}. Either the capture lacks requests, or the \
                 responder takes the requests for duplicates, because its rq_psn is not the requester's \
                 sq_psn.",
                at.number, first.1
            );
            (Kind::UnknownAck, text)
        };
        if let Some(timeout) = timeout {
            self.findings.withdraw(timeout.finding);
        }
        let found = if stray.is_nak { first.0 } else { at };
        let finding = self.report_on(index, kind, found, at.number, text);
        if is_older && let Some(finding) = self.findings.at(finding) {
            finding.confidence = finding.confidence.min(Confidence::Medium);
        }
    }

    /// Finds connections of which only one direction was captured.
    fn one_sided(&self, gaps: &mut Gaps, hosts: &Hosts) {
        for direction in &self.directions {
            if direction.peer.is_some() || matches!(direction.service, Service::Ud | Service::Uc) {
                continue;
            }
            let key = direction.key;
            if hosts.pairs.contains(&(key.dst, key.src)) {
                continue;
            }
            let requests_only = direction.has_requests()
                && direction.ack_requested.is_some()
                && direction.counts.resent + direction.counts.damaged == 0
                && direction.counts.begun() > 1;
            let answers_only = direction.strays.is_some();
            if requests_only || answers_only {
                gaps.add_one_sided(direction.name(), !answers_only);
            }
        }
    }
}

/// The element of an iterator that has one.
fn only(mut all: impl Iterator<Item = usize>) -> Option<usize> {
    all.next().filter(|_| all.next().is_none())
}
