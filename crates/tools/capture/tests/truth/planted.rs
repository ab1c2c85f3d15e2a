//! Faults that show in a capture, and the findings that name them.

use roxie_capture::analyse::{Finding, Kind, Verdict};

use crate::ends::{Cause, What};
use crate::judge::Case;
use crate::plan::{EndWhat, NetWhat, Tap};
use crate::world::{AtTap, Sent};

/// Faults that show, and that no finding names.
pub(crate) fn missed(case: &Case<'_>, verdict: &Verdict) -> Vec<String> {
    let mut missed = Vec::new();
    let mut expect = |what: String, kinds: &[Kind]| {
        let is_loss = kinds.starts_with(LOSS);
        let names = |finding: &Finding| {
            let or = ["Or it was lost", "Or the sender repeated"];
            kinds.contains(&finding.kind) || is_loss && or.iter().any(|or| finding.text.contains(or))
        };
        if !verdict.findings.iter().any(names) {
            missed.push(format!("MISSED {what}, expected {kinds:?}"));
        }
    };
    for sent in case.story.sent.iter().filter(|sent| sent.fate.is_some()) {
        if let Some(kinds) = by_network(case, sent) {
            expect(format!("{:?} of {:?} psn {}", sent.fate, sent.what, sent.psn), kinds);
        }
    }
    for (index, conversation) in case.plan.conversations.iter().enumerate() {
        for (half, planned) in conversation.halves.iter().enumerate() {
            let Some(fault) = planned.fault else { continue };
            if let Some(kinds) = by_end(case, index, half, fault.message, fault.what) {
                expect(format!("{fault:?}"), kinds);
            }
        }
    }
    let pauses = case.shown.packets.iter().map(|&index| &case.story.at_taps[index]);
    if pauses.filter(|at_tap| at_tap.sent.is_none()).count() > 1 {
        expect("pause frames".into(), &[Kind::LinkPaused]);
    }
    missed
}

const LOSS: &[Kind] = &[
    Kind::LostRequest,
    Kind::LostAck,
    Kind::LostResponse,
    Kind::LateAnswer,
    Kind::NoAnswer,
    Kind::BadIcrc,
    Kind::Malformed,
];

/// New packets follow a retransmission: if a late answer covers them, nothing is missing.
fn goes_on(case: &Case<'_>, again: &Sent) -> bool {
    let mut later = case.stream(again).filter(|other| other.ns > again.ns && !other.is_answer());
    later.any(|other| {
        let earlier =
            |before: &Sent| before.psn == other.psn && before.ns < other.ns && case.is_captured(before);
        !case.stream(again).any(earlier)
    })
}

/// What names a second copy.
fn copied(case: &Case<'_>, sent: &Sent) -> Option<&'static [Kind]> {
    let mut all = case.story.sent.iter();
    // The same answer to a request that was sent twice is no copy.
    if sent.is_answer() && all.any(|other| other.again.is_some() && other.conversation == sent.conversation) {
        return None;
    }
    // Of a retransmission, the first transmission may be late.
    Some(if sent.again.is_some() { &[Kind::Duplicated, Kind::Reordered] } else { &[Kind::Duplicated] })
}

/// What names a request that others have overtaken. The order of retransmissions shows as further ones.
fn overtaken(case: &Case<'_>, sent: &Sent, number: u64, at_tap: &AtTap) -> Option<&'static [Kind]> {
    let mut earlier = case.captured().take_while(|(each, ..)| *each < number);
    let is_overtaken = earlier.any(|(_, other, by)| {
        (by.conversation, by.half, by.from) == (sent.conversation, sent.half, sent.from)
            && other.sent > at_tap.sent
            && by.psn > sent.psn
    });
    let kinds: &[Kind] = match sent.again {
        Some(_) => &[Kind::Reordered, Kind::LostRequest, Kind::LostAck, Kind::LostResponse, Kind::NoAnswer],
        None => &[Kind::Reordered, Kind::LostRequest],
    };
    is_overtaken.then_some(kinds)
}

fn by_network(case: &Case<'_>, sent: &Sent) -> Option<&'static [Kind]> {
    let (what, before) = sent.fate?;
    let planned = &case.plan.conversations[sent.conversation];
    let reliable = planned.halves[sent.half].reliable;
    let snap = case.plan.view.snap;
    let mut shown = case.captured().filter(|(_, _, other)| std::ptr::eq(*other, sent));
    match what {
        NetWhat::Flip if before && snap == 0 => shown.next().map(|_| LOSS),
        NetWhat::Copy(_) if before && snap == 0 => copied(case, sent).filter(|_| shown.count() > 1),
        NetWhat::Overtake(_) if before && reliable && !sent.is_answer() => {
            let (number, at_tap, _) = shown.next()?;
            overtaken(case, sent, number, at_tap)
        }
        NetWhat::Lose | NetWhat::Flip if !reliable => {
            if what == NetWhat::Flip && snap > 0 || !before || planned.service == crate::packet::UD {
                return None;
            }
            let psns: Vec<u64> = case
                .captured()
                .filter(|(_, _, other)| {
                    (other.conversation, other.half, other.from) == (sent.conversation, sent.half, sent.from)
                })
                .map(|(_, _, other)| other.psn)
                .collect();
            let inside = psns.iter().any(|&psn| psn < sent.psn) && psns.iter().any(|&psn| psn > sent.psn);
            inside.then_some(&[Kind::LostUnreliable, Kind::BadIcrc, Kind::Malformed])
        }
        // The other point may have the first transmission only, and the answer covers both.
        NetWhat::Delay(_) if case.plan.tap == Tap::Both && case.plan.view.begin > 0 => None,
        // In a packet that was not captured to its end, the damage may look like another number.
        NetWhat::Flip if snap > 0 => None,
        NetWhat::Lose | NetWhat::Flip | NetWhat::Delay(_) if !sent.is_answer() => {
            let fault = planned.halves[sent.half].fault;
            if fault.is_some_and(|fault| matches!(fault.what, EndWhat::OtherPsn | EndWhat::NotReady(..))) {
                return None;
            }
            let again = case.next_again(sent).filter(|again| case.is_captured(again))?;
            if matches!(what, NetWhat::Delay(_)) && goes_on(case, again) {
                return None;
            }
            let nak = case.captured().any(|(_, _, other)| {
                matches!(other.what, What::Ack { syndrome: 0x60, .. })
                    && other.psn == sent.psn
                    && (other.conversation, other.half) == (sent.conversation, sent.half)
            });
            let number = |wanted: &Sent| {
                let mut all =
                    case.captured().filter(|(_, at_tap, other)| std::ptr::eq(*other, wanted) && !at_tap.copy);
                all.next().map(|(number, ..)| number)
            };
            let before = number(sent).is_some_and(|first| number(again).is_some_and(|next| first < next));
            (before || nak && again.again == Some(Cause::Nak)).then_some(LOSS)
        }
        // What an RNR NAK asks for looks the same if it was lost.
        _ if matches!(sent.what, What::Ack { syndrome: 0x20..=0x3f, .. }) => None,
        NetWhat::Lose | NetWhat::Flip | NetWhat::Delay(_) => {
            let mut requests = case.story.sent.iter().filter(|other| {
                !other.is_answer()
                    && (other.conversation, other.half) == (sent.conversation, sent.half)
                    && other.psn <= sent.psn
                    && sent.psn < case.end_of(other)
            });
            let first = requests.clone().find(|request| request.again.is_none() && request.ns < sent.ns)?;
            let again = requests.find(|request| {
                matches!(request.again, Some(Cause::Timer | Cause::Gap)) && request.ns > sent.ns
            })?;
            let is_late = matches!(what, NetWhat::Delay(_)) && goes_on(case, again);
            (case.is_captured(first) && case.is_captured(again) && !is_late).then_some(LOSS)
        }
        _ => None,
    }
}

fn by_end(
    case: &Case<'_>,
    conversation: usize,
    half: usize,
    message: usize,
    what: EndWhat,
) -> Option<&'static [Kind]> {
    let mine = || {
        let all = case.captured().filter(move |(_, at_tap, sent)| {
            (sent.conversation, sent.half) == (conversation, half)
                && !at_tap.copy
                && !matches!(sent.fate, Some((NetWhat::Flip, true)))
        });
        all.map(|(_, at_tap, sent)| (at_tap, sent))
    };
    let nak = |wanted: fn(u8) -> bool| {
        mine().any(|(_, sent)| matches!(sent.what, What::Ack { syndrome, .. } if wanted(syndrome)))
    };
    let of_message = |sent: &Sent| matches!(sent.what, What::Request { message: m, .. } if m == message);
    match what {
        EndWhat::NotReady(..) => {
            let rnr = nak(|syndrome| (0x20..0x40).contains(&syndrome));
            rnr.then_some(&[Kind::ReceiverNotReady, Kind::ReceiverNeverReady])
        }
        EndWhat::Refuses(0x62) => nak(|it| it == 0x62).then_some(&[Kind::AccessRefused]),
        EndWhat::Refuses(0x63) => nak(|it| it == 0x63).then_some(&[Kind::ResponderFailed]),
        EndWhat::Refuses(_) | EndWhat::LargerMtu | EndWhat::OtherLength | EndWhat::NoLast => {
            nak(|it| it == 0x61).then_some(&[
                Kind::RequestRefused,
                Kind::WrongLength,
                Kind::WrongMtu,
                Kind::OpcodeSequence,
            ])
        }
        EndWhat::Dead => {
            let again = mine().any(|(_, sent)| of_message(sent) && sent.again.is_some());
            let first = mine().any(|(_, sent)| of_message(sent) && sent.again.is_none());
            (again && first).then_some(&[Kind::NoAnswer, Kind::LostRequest])
        }
        EndWhat::OtherKey => {
            // Only numbers pair the directions, so the keys of the answers say nothing.
            let mut requests = mine().map(|(_, sent)| sent).filter(|sent| !sent.is_answer());
            let own = requests.clone().any(|sent| !sent.other_key);
            let other = requests.any(|sent| sent.other_key);
            (other && own).then_some(&[Kind::WrongKey])
        }
        EndWhat::OtherBytes => {
            let bytes = |again: bool| {
                mine().any(|(_, sent)| {
                    of_message(sent)
                        && sent.again.is_some() == again
                        && matches!(sent.what, What::Request { index: 0, .. })
                })
            };
            let port = case.plan.conversations[conversation].ports[half];
            (bytes(false) && bytes(true) && port != 0 && case.plan.view.snap == 0)
                .then_some(&[Kind::ChangedBytes])
        }
        EndWhat::OtherPsn => nak(|it| it == 0x60).then_some(&[Kind::WrongPsn]),
        EndWhat::Slow => {
            let planned = &case.plan.conversations[conversation].halves[half].messages[message];
            let end = planned.first + planned.psns;
            let asked = mine().filter(|(_, sent)| of_message(sent)).map(|(at_tap, _)| at_tap.ns).max()?;
            let answers = mine().filter(|(_, sent)| sent.is_answer() && sent.psn + 1 >= end);
            let answered = answers.map(|(at_tap, _)| at_tap.ns).min()?;
            let again = mine().any(|(_, sent)| sent.again.is_some());
            (answered > asked + 1_010_000_000 && !again).then_some(&[Kind::Slow])
        }
        EndWhat::Marked => {
            let marks = mine().any(|(_, sent)| matches!(sent.what, What::Notification));
            marks.then_some(&[Kind::Congestion])
        }
    }
}
