//! Compares what the analyser says with what happened.

use roxie_capture::analyse::{Confidence, Finding, Kind, Verdict};

use crate::ends::What;
use crate::file::Shown;
use crate::plan::{EndWhat, NetWhat, Op, Plan, Tap};
use crate::planted;
use crate::world::{AtTap, Sent, Story};

/// A run with its capture.
pub(crate) struct Case<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) story: &'a Story,
    pub(crate) shown: &'a Shown,
}

impl<'a> Case<'a> {
    /// What is wrong in the verdict.
    pub(crate) fn judge(&self, verdict: &Verdict) -> Vec<String> {
        let mut wrong: Vec<String> = Vec::new();
        for finding in &verdict.findings {
            if let Some(why) = self.contradiction(finding, verdict) {
                wrong.push(format!(
                    "FALSE {why}: {:?} {:?}: {}",
                    finding.kind, finding.confidence, finding.text
                ));
            }
        }
        if !verdict.is_inconclusive() {
            wrong.extend(planted::missed(self, verdict));
        }
        if self.is_complete() && self.is_calm() {
            if verdict.is_inconclusive() {
                wrong.push(format!("inconclusive without a reason: {}", verdict.text()));
            }
            if verdict.findings.is_empty() && verdict.confidence() != Confidence::High {
                wrong.push(format!("doubt without a reason: {}", verdict.text()));
            }
        }
        wrong
    }

    pub(crate) fn at_tap(&self, number: u64) -> Option<&'a AtTap> {
        let index = *self.shown.packets.get(usize::try_from(number).ok()?.checked_sub(1)?)?;
        Some(&self.story.at_taps[index])
    }

    pub(crate) fn sent_of(&self, at_tap: &AtTap) -> Option<&'a Sent> {
        at_tap.sent.map(|sent| &self.story.sent[sent])
    }

    /// The sent packet that a number of the capture means.
    pub(crate) fn sent(&self, number: u64) -> Option<&'a Sent> {
        self.at_tap(number).and_then(|at_tap| self.sent_of(at_tap))
    }

    /// The packets of the capture, with their numbers.
    pub(crate) fn captured(&self) -> impl Iterator<Item = (u64, &'a AtTap, &'a Sent)> + Clone {
        let packets = (1..).zip(&self.shown.packets);
        let packets = packets.map(|(number, &index)| (number, &self.story.at_taps[index]));
        packets.filter_map(|(number, at_tap)| Some((number, at_tap, self.sent_of(at_tap)?)))
    }

    /// All packets at the tap are in the file.
    pub(crate) fn is_complete(&self) -> bool {
        let view = &self.plan.view;
        view.only_from.is_none() && view.snap == 0 && self.shown.packets.len() == self.story.at_taps.len()
    }

    /// Nothing happened.
    fn is_calm(&self) -> bool {
        let calm = |sent: &Sent| sent.fate.is_none() && !sent.marked && sent.again.is_none();
        let ends = self.plan.conversations.iter().flat_map(|conversation| &conversation.halves);
        let mut ends = ends.filter(|half| half.fault.is_some());
        self.story.sent.iter().all(calm) && self.plan.pause.is_none() && ends.next().is_none()
    }

    /// Sequence numbers that a packet has or covers, behind the last one.
    pub(crate) fn end_of(&self, sent: &Sent) -> u64 {
        match sent.what {
            What::Request { message, .. } => {
                let half = &self.plan.conversations[sent.conversation].halves[sent.half];
                let message = &half.messages[message];
                if message.op == Op::Read { message.first + message.psns } else { sent.psn + 1 }
            }
            _ => sent.psn + 1,
        }
    }

    /// Packets of the same stream: requests, or answers, of one direction.
    pub(crate) fn stream(&self, of: &Sent) -> impl Iterator<Item = &'a Sent> {
        let key = (of.conversation, of.half, of.from);
        self.story.sent.iter().filter(move |sent| (sent.conversation, sent.half, sent.from) == key)
    }

    /// A later packet of its stream arrived before it.
    fn is_overtaken(&self, sent: &Sent) -> bool {
        let first = |sent: &Sent| sent.arrivals.first().copied();
        let mut later = self.stream(sent).filter(|other| other.psn > sent.psn && other.ns > sent.ns);
        later.any(|other| first(other).is_some_and(|ns| first(sent).is_none_or(|own| ns < own)))
    }

    /// Requests and answers of one direction.
    fn stream_of_both(&self, of: &Sent) -> impl Iterator<Item = &'a Sent> {
        let key = (of.conversation, of.half);
        self.story.sent.iter().filter(move |sent| (sent.conversation, sent.half) == key)
    }

    fn fault_of(&self, sent: &Sent) -> Option<EndWhat> {
        let halves = &self.plan.conversations[sent.conversation].halves;
        halves[sent.half].fault.or(halves[1 - sent.half].fault).map(|fault| fault.what)
    }

    fn has_fault(&self, sent: &Sent, fits: impl Fn(EndWhat) -> bool) -> bool {
        let halves = &self.plan.conversations[sent.conversation].halves;
        halves.iter().filter_map(|half| half.fault).any(|fault| fits(fault.what))
    }

    /// Why a finding is false.
    fn contradiction(&self, finding: &Finding, verdict: &Verdict) -> Option<String> {
        let text = &finding.text;
        let says = |part: &str| text.contains(part);
        match finding.kind {
            Kind::CaptureLoss => return self.false_capture_loss(text),
            Kind::LinkPaused => return self.plan.pause.is_none().then(|| "no pause".into()),
            _ => {}
        }
        let Some(at) = self.sent(finding.at.number) else { return Some("not a packet".into()) };
        // Bytes that changed in the network, in a packet that was not captured to its end. Of two taps, the
        // second one is behind the change.
        let is_damaged = |number| {
            let flips = |sent: &Sent| match sent.fate {
                Some((NetWhat::Flip, before)) => before || self.plan.tap == Tap::Both,
                _ => false,
            };
            self.sent(number).is_some_and(flips)
        };
        if self.plan.view.snap > 0 && (is_damaged(finding.at.number) || is_damaged(finding.shown_by)) {
            return None;
        }
        let by = self.sent(finding.shown_by);
        match finding.kind {
            Kind::LostRequest | Kind::LateAnswer | Kind::LostAck | Kind::LostResponse => {
                let doubted = finding.confidence == Confidence::Low && verdict.is_inconclusive();
                self.false_loss(finding, at, doubted)
            }
            Kind::Duplicated | Kind::Reordered | Kind::LostUnreliable => self.false_order(finding, at),
            Kind::NoAnswer => self.false_no_answer(at, &packets_in(text)),
            Kind::WrongPsn if says("lost before the capture") || says("capture lacks requests") => None,
            Kind::UnknownAck => {
                let ack = self.sent(finding.shown_by)?;
                let known = self.captured().take_while(|(number, ..)| *number < finding.shown_by);
                let mut known = known.filter(|(_, _, sent)| {
                    let is_intact = !matches!(sent.fate, Some((NetWhat::Flip, true)));
                    let is_same = (sent.conversation, sent.half) == (ack.conversation, ack.half);
                    !sent.is_answer() && is_same && is_intact
                });
                let known = known.any(|(_, _, sent)| sent.psn <= ack.psn && ack.psn < self.end_of(sent));
                known.then(|| "the request was captured".into())
            }
            Kind::ReceiverNotReady | Kind::ReceiverNeverReady => {
                let rnr = by
                    .into_iter()
                    .chain([at])
                    .any(|sent| self.has_fault(sent, |what| matches!(what, EndWhat::NotReady(..))));
                (!rnr).then(|| "it was ready".into())
            }
            Kind::BadIcrc | Kind::Malformed => {
                let flipped = matches!(at.fate, Some((NetWhat::Flip, _)));
                (!flipped).then(|| "it is intact".into())
            }
            Kind::Congestion => {
                (!at.marked && !matches!(at.what, What::Notification)).then(|| "no mark".into())
            }
            Kind::Slow if says("only after") || says("for") => {
                let slow = self.has_fault(at, |what| what == EndWhat::Slow || matches!(what, EndWhat::Dead));
                let span = self.at_tap(self.shown.packets.len() as u64)?.ns - self.at_tap(1)?.ns;
                (!slow && span < 1_000_000_000).then(|| "not slow".into())
            }
            kind => self.false_by_fault(kind, at),
        }
    }

    /// Why a finding about a lost or late packet is false.
    fn false_loss(&self, finding: &Finding, at: &Sent, doubted: bool) -> Option<String> {
        let numbers = packets_in(&finding.text);
        let says = |part: &str| finding.text.contains(part);
        match finding.kind {
            Kind::LostRequest if says("in sequence: the responder") => {
                let lost = self.sent(numbers[0])?;
                let or = says("or an earlier transmission");
                let mut all = self.stream(at).filter(|sent| sent.psn == lost.psn && or);
                let in_order = |sent: &Sent| sent.accepted && !self.is_overtaken(sent);
                (in_order(lost) && all.all(in_order)).then(|| "it did".into())
            }
            Kind::LostRequest if says("was not captured before") => {
                let again = self.sent(numbers[0])?;
                if again.again.is_none() && !doubted && !says("or arrives late") {
                    return Some("no retransmission".into());
                }
                let mut all =
                    self.stream(at).filter(|sent| sent.psn <= again.psn && self.end_of(sent) > again.psn);
                let before = all.any(|sent| matches!(sent.fate, Some((NetWhat::Lose | NetWhat::Flip, true))));
                let lacks = self.shown.packets.len() < self.story.at_taps.len();
                (!before && !lacks && !says("or arrives late")).then(|| "it did reach it".into())
            }
            Kind::LostRequest if says("while packets before it") => {
                let lost = self
                    .stream(at)
                    .any(|sent| sent.is_lost() || matches!(sent.fate, Some((NetWhat::Overtake(_), _))));
                (!lost).then(|| "none was lost".into())
            }
            Kind::LostRequest if says("lost before the capture began") => {
                let mut all = self.story.sent.iter().filter(|sent| sent.conversation == at.conversation);
                let lost =
                    all.any(|sent| sent.is_lost() || matches!(sent.fate, Some((NetWhat::Overtake(_), _))));
                (!lost).then(|| "none was lost".into())
            }
            Kind::LateAnswer => {
                let until = self.at_tap(*numbers.last()?)?.ns;
                let mut all = self.stream(at).filter(|sent| sent.psn == at.psn && sent.ns < until);
                all.any(Sent::is_lost).then(|| "a transmission was lost".into())
            }
            Kind::LostResponse if says("is requested again from PSN") => {
                self.sent(finding.shown_by)?.again.is_none().then(|| "it is not".into())
            }
            Kind::LostRequest if says("retransmitted in") => {
                let last = *numbers.last()?;
                self.sent(last)?.again.is_none().then(|| format!("{last} is no retransmission"))
            }
            Kind::LostAck | Kind::LostResponse
                if ["answered in", "acknowledged in", "refused in"].into_iter().any(says) =>
            {
                let again = self.sent(*numbers.last()?)?;
                let answer = self.sent(numbers[numbers.len() - 2])?;
                if again.again.is_none() {
                    return Some("no retransmission".into());
                }
                if !answer.is_answer() {
                    return Some("no answer".into());
                }
                let in_time = answer.arrivals.first().is_some_and(|&ns| ns < again.ns);
                (in_time && answer.fate.is_none() && !says("that has no answer"))
                    .then(|| "the answer arrived in time".into())
            }
            _ => None,
        }
    }

    /// Why a finding about the order or number of packets is false.
    fn false_order(&self, finding: &Finding, at: &Sent) -> Option<String> {
        let numbers = packets_in(&finding.text);
        let says = |part: &str| finding.text.contains(part);
        match finding.kind {
            Kind::Duplicated => {
                let a = self.at_tap(numbers[0])?;
                let mut before = self.captured().take_while(|(number, ..)| *number < numbers[0]);
                let same = before.any(|(_, b, _)| a.sent == b.sent && (a.copy || b.copy));
                let sent = self.sent_of(a)?;
                let mut half = self.stream_of_both(sent);
                let again =
                    sent.again.is_some() || sent.is_answer() && half.any(|other| other.again.is_some());
                let repeated = says("Or the sender repeated") && again;
                let copied =
                    self.stream_of_both(sent).any(|sent| matches!(sent.fate, Some((NetWhat::Copy(_), _))));
                (!same && !repeated && !copied).then(|| "no copy of the network".into())
            }
            Kind::Reordered => {
                let number = numbers[0];
                let (late, tap) = (self.at_tap(number)?, self.at_tap(number)?.tap);
                let mut before = self.captured().take_while(|(each, ..)| *each < number);
                let overtaken = before.any(|(_, other, sent)| {
                    other.tap == tap
                        && other.sent > late.sent
                        && sent.from == at.from
                        && sent.conversation == at.conversation
                });
                let again = says("this is its retransmission") && self.sent_of(late)?.again.is_some();
                (!overtaken && !late.copy && !again).then(|| "in order".into())
            }
            Kind::LostUnreliable => {
                let lost =
                    self.stream(at).any(|sent| sent.is_lost() || sent.fate.is_some_and(|(_, before)| before));
                let lacks = self.shown.dropped > 0;
                (!lost && !lacks).then(|| "none is missing".into())
            }
            _ => None,
        }
    }

    /// Kinds that only a fault of an end explains.
    fn false_by_fault(&self, kind: Kind, at: &Sent) -> Option<String> {
        use EndWhat as E;
        let fits = |what: EndWhat| match kind {
            Kind::AccessRefused => what == E::Refuses(0x62),
            Kind::ResponderFailed => what == E::Refuses(0x63),
            Kind::RequestRefused => {
                matches!(what, E::Refuses(0x61) | E::LargerMtu | E::OtherLength | E::NoLast)
            }
            Kind::WrongPsn => what == E::OtherPsn,
            Kind::WrongKey => what == E::OtherKey,
            Kind::WrongMtu => what == E::LargerMtu,
            Kind::WrongLength => matches!(what, E::OtherLength | E::NoLast),
            Kind::OpcodeSequence => what == E::NoLast,
            Kind::ChangedBytes => what == E::OtherBytes,
            _ => false,
        };
        if self.has_fault(at, fits) {
            return None;
        }
        let unreliable = !self.plan.conversations[at.conversation].halves[0].reliable;
        let lacks = self.shown.dropped > 0 || self.stream(at).any(|sent| sent.fate.is_some());
        if kind == Kind::OpcodeSequence && unreliable && lacks {
            return None;
        }
        if kind == Kind::Pause {
            let at_taps = self.captured().map(|(_, at_tap, _)| at_tap.ns);
            let span = at_taps.clone().max()? - at_taps.min()?;
            return (span < 1_000_000_000).then(|| "no pause".into());
        }
        Some(format!("the fault is {:?}", self.fault_of(at)))
    }

    fn false_capture_loss(&self, text: &str) -> Option<String> {
        let one_way = text.contains("only one direction");
        if !self.is_complete() {
            return None;
        }
        if one_way {
            return Some("both directions were captured".into());
        }
        Some("the capture is complete".into())
    }

    fn false_no_answer(&self, at: &Sent, numbers: &[u64]) -> Option<String> {
        let last = *numbers.iter().max_by_key(|number| self.sent(**number).map(|sent| !sent.is_answer()))?;
        let request = self.sent(last)?;
        if request.again.is_none() && self.is_complete() {
            return Some(format!("{last} is no retransmission"));
        }
        let answers = self.captured().filter(|(_, at_tap, sent)| {
            sent.is_answer()
                && (sent.conversation, sent.half) == (at.conversation, at.half)
                && sent.psn >= request.psn
                && !matches!(sent.what, What::Notification)
                && !matches!(sent.fate, Some((NetWhat::Flip, true)))
                && !at_tap.copy
        });
        let mut answers = answers.filter(|(number, ..)| *number > last);
        answers.next().map(|(number, ..)| format!("packet {number} answers it"))
    }

    /// The next transmission of what a packet carries.
    pub(crate) fn next_again(&self, of: &Sent) -> Option<&'a Sent> {
        let later = self.stream(of).filter(|sent| sent.ns > of.ns && sent.again.is_some());
        later.into_iter().find(|sent| sent.psn <= of.psn && of.psn < self.end_of(sent))
    }

    pub(crate) fn is_captured(&self, sent: &Sent) -> bool {
        self.captured().any(|(_, at_tap, other)| std::ptr::eq(other, sent) && !at_tap.copy)
    }
}

/// The numbers of packets in a text: `packet 3`, `packets 3 to 5`.
fn packets_in(text: &str) -> Vec<u64> {
    let words: Vec<&str> = text.split(' ').collect();
    let number = |word: &str| word.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().ok();
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        if !matches!(word.trim_start_matches('('), "packet" | "Packet" | "packets" | "Packets") {
            continue;
        }
        found.extend(words.get(index + 1).and_then(|word| number(word)));
        if words.get(index + 2) == Some(&"to") {
            found.extend(words.get(index + 3).and_then(|word| number(word)));
        }
    }
    found
}
