//! Races between operations of NICs on the same memory, from the events of all processes of the command.
//!
//! Two operations race if each was posted before any process could know that the other one was executed:
//! then nothing can have ordered them. A process knows what it has polled, what messages tell it, and, from
//! the moment of execution on, what changed in its memory. So a program that polls memory has no findings
//! ([`order`]). What sockets tell is not seen; a finding that it could explain has a kind of its own.
//!
//! Model: RDMA-TSO (Ambal et al., OOPSLA 2024) and IBA 9.5 and 10.8.3: operations of one queue pair are
//! executed in order, those of different ones are not ordered, and a request does not wait for the result of
//! an earlier READ or atomic without a fence. A SEND writes the memory of the receive that it takes
//! ([`landing`]). The completion of an unacknowledged message (UC, UD) tells only that its own memory is
//! free.

mod area;
mod landing;
mod operation;
mod order;

use std::collections::{HashMap, VecDeque};

use roxie::finding::FindingKind;
use roxie::trace::Use;
use sys::trace::Recording;

use super::finding::{Finding, Stack};
use super::findings::Findings;
use crate::processes::number;
use area::{Area, Effect};
use operation::{Operation, Operations, operations};

/// Unfinished operations that a new one is compared with, the newest ones. Half: programs with many queue
/// pairs of long send queues hide races. Double: a second more for 200,000 operations.
const UNFINISHED_MAX: usize = 2048;
/// Pairs of equal call stacks of which the knowledge is followed.
const TRIES_MAX: u32 = 16;

/// What is wrong with two operations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fault {
    /// The second one was posted before the first one was executed.
    Together,
    /// No completion and no message of these processes tells that the first one was executed.
    Unordered,
    /// The second one was posted before the completion of the first one, which writes its local memory.
    Unfinished,
    /// As `Unfinished`, on the same queue pair.
    NoFence,
    /// READ of memory that a WRITE of the same queue pair then writes: a repeated READ reads again.
    NoFenceRemote,
}

/// Two operations in the order of their posts, and the memory that they share.
struct Race<'a> {
    fault: Fault,
    first: &'a Operation,
    second: &'a Operation,
    areas: (&'a Area, &'a Area),
}

/// Returns the races, each pair of call stacks once, and a sentence that says what was compared.
pub(super) fn races(recordings: &[Recording], findings: &Findings) -> (Vec<Finding>, String) {
    let operations = operations(recordings, findings);
    let found = find(&operations).into_iter().map(|race| race.finding(findings)).collect();
    let mut compared = format!("{} work requests compared", operations.list.len());
    let not_before = recordings.iter().any(|recording| recording.replaced + recording.lost > 0);
    if not_before || operations.replaced > 0 {
        compared += ", none of those before the newest events of each thread";
    }
    if operations.unknown > 0 {
        compared += &format!(", {} of them without their remote memory", operations.unknown);
    }
    if operations.unplaced > 0 {
        compared += &format!(", {} of them without the memory of their receives", operations.unplaced);
    }
    (found, compared)
}

/// Process and call stack of two operations, the smaller ones first.
type Pair = [(u32, u32); 2];

/// The races of the operations.
fn find(operations: &Operations) -> Vec<Race<'_>> {
    let mut unfinished: VecDeque<&Operation> = VecDeque::new();
    let (mut found, mut tries) = (HashMap::<Pair, usize>::new(), HashMap::<Pair, u32>::new());
    let mut races: Vec<Race<'_>> = Vec::new();
    for second in &operations.list {
        unfinished.retain(|first| first.end() > second.posted);
        for first in &unfinished {
            let Some(race) = Race::of(first, second) else { continue };
            let mut pair = [first, second].map(|operation| (operation.message.pid, operation.site));
            pair.sort_unstable();
            let at = found.get(&pair).copied();
            let is_known = at.is_some_and(|at| races[at].fault != Fault::Unordered);
            if is_known || at.is_some() && race.fault == Fault::Unordered {
                continue;
            }
            if race.fault == Fault::Unordered {
                let tries = tries.entry(pair).or_default();
                *tries += 1;
                if *tries > TRIES_MAX || order::could_know(operations, (first, race.areas.0), second) {
                    continue;
                }
            }
            match at {
                Some(at) => races[at] = race,
                None => {
                    found.insert(pair, races.len());
                    races.push(race);
                }
            }
        }
        unfinished.push_back(second);
        if unfinished.len() > UNFINISHED_MAX {
            unfinished.pop_front();
        }
    }
    races
}

impl Operation {
    /// From then on it races with no operation.
    fn end(&self) -> u64 {
        let tells_end = self.areas.iter().all(|area| self.tells_end(area));
        let told = if tells_end { self.polled } else { self.told.max(self.polled) };
        told.max(self.message.execution.map_or(0, |execution| execution.begin))
    }
}

impl<'a> Race<'a> {
    /// What may be wrong with two operations in the order of their posts; whether messages order them is not
    /// looked at.
    fn of(first: &'a Operation, second: &'a Operation) -> Option<Self> {
        let pairs = first.areas.iter().flat_map(|a| second.areas.iter().map(move |b| (a, b)));
        let shared = pairs.filter(|(a, b)| a.process == b.process && a.first < b.end && b.first < a.end);
        let mut conflicts = shared.filter(|(a, b)| a.effect.conflicts(b.effect));
        conflicts.find_map(|areas| {
            let fault = fault(first, second, areas)?;
            Some(Race { fault, first, second, areas })
        })
    }
}

fn fault(first: &Operation, second: &Operation, (a, b): (&Area, &Area)) -> Option<Fault> {
    // Programs receive into the memory that they send from, and do not look at it. What both ends of a
    // connection send in turn is looked at.
    let is_message = |area: &Area, other: &Operation| area.receive.is_some() && other.does == Use::Send;
    let is_idle = (is_message(a, second) || is_message(b, first)) && !first.is_peer_of(second);
    if is_idle || may_follow(second, a) || may_follow(first, b) {
        return None;
    }
    let is_unfinished = first.polled > second.posted;
    if first.shares_queue(second) {
        let has_fence = second.fence.is_some_and(|fence| fence > first.place);
        let fault = match (a.is_local, b.is_local) {
            (true, true) if a.effect == Effect::Write && b.effect == Effect::Read => Fault::NoFence,
            (false, false) if a.effect == Effect::Read && b.effect == Effect::Write => Fault::NoFenceRemote,
            _ => return None,
        };
        return (is_unfinished && !has_fence).then_some(fault);
    }
    if a.is_local && b.is_local && a.effect == Effect::Write {
        return is_unfinished.then_some(Fault::Unfinished);
    }
    let execution = first.message.execution.filter(|execution| execution.is_certain)?;
    // Its own completion may have come before the execution.
    let is_free = first.tells_end(a) && !first.is_acknowledged() && !is_unfinished;
    match second.posted < execution.begin && first.is_acknowledged() {
        true => Some(Fault::Together),
        false => (first.told > second.posted && !is_free).then_some(Fault::Unordered),
    }
}

/// Whether an operation may have been executed before the receiver posted the receive of `area`: then the
/// receiver may have waited for it.
fn may_follow(operation: &Operation, area: &Area) -> bool {
    let since = area.since();
    operation.posted < since && operation.message.execution.is_none_or(|execution| execution.begin < since)
}

impl Race<'_> {
    fn finding(&self, findings: &Findings) -> Finding {
        let process = self.second.message.pid;
        let stacks = [(self.second, "posted second"), (self.first, "posted first")];
        let stacks = stacks.map(|(operation, what)| (operation.message.pid, operation.site, what));
        let areas = [self.areas.0, self.areas.1].into_iter();
        let receives = areas.filter_map(|area| Some((area.process, area.receive?.site, "receive posted")));
        let mut stacks: Vec<_> = stacks.into_iter().chain(receives).collect();
        // The receive is the mistake if its memory is also sent.
        let are_sends = [self.first, self.second].iter().all(|operation| operation.does == Use::Send);
        stacks.rotate_left(if are_sends { 2 } else { 0 });
        let stacks = stacks.into_iter().filter_map(|(pid, site, what)| {
            let place = findings.place(pid, site)?.clone();
            Some(Stack { what: what.to_owned(), process: Some(pid).filter(|pid| *pid != process), ..place })
        });
        Finding {
            kind: self.kind(),
            text: self.text(),
            stacks: stacks.collect(),
            ends: None,
            failed: None,
            process,
            command: findings.command(process),
        }
    }

    fn kind(&self) -> FindingKind {
        let is_local = self.areas.0.is_local || self.areas.1.is_local;
        match (self.fault, is_local) {
            (Fault::NoFence | Fault::NoFenceRemote, _) => FindingKind::MissingFence,
            (Fault::Unordered, true) => FindingKind::UnorderedLocal,
            (Fault::Unordered, false) => FindingKind::UnorderedRemote,
            (Fault::Together | Fault::Unfinished, true) => FindingKind::RaceLocal,
            (Fault::Together | Fault::Unfinished, false) => FindingKind::RaceRemote,
        }
    }

    fn text(&self) -> String {
        let (a, b) = self.areas;
        let (first, end) = (a.first.max(b.first), a.end.min(b.end));
        let unordered = match self.first.tells_end(a) {
            true => "Operations of different queue pairs are not ordered (IBA 9.5)",
            false => {
                "The completion of a message that the peer does not acknowledge (UC, UD) says nothing about \
                 the peer's memory (IBA 9.8)"
            }
        };
        let is_one_process = self.first.message.pid == self.second.message.pid;
        let remedy = match (is_one_process, [a, b].iter().any(|area| area.effect == Effect::Atomic)) {
            _ if !self.first.tells_end(a) => {
                "Post the second one after the peer has polled a receive of that queue pair, and tells so"
            }
            _ if [a, b].iter().any(|area| area.receive.is_some()) => {
                "Post the receive to other memory, or after a message that follows the other operation"
            }
            (_, true) => "Use atomics only, or post the second one after the completion of the first one",
            (true, _) => "Post the second one after the completion of the first one, or to its queue pair",
            (false, _) => "Post the second one after a message that follows the first one or its completion",
        };
        let (what, rule, remedy) = match self.fault {
            Fault::Together => (
                ", at the same time: the second one was posted before the first one was executed",
                unordered,
                remedy,
            ),
            Fault::Unordered => (
                ". No completion and no message told that the first one was executed before the second one \
                 was posted; what sockets, pipes or shared memory tell is not seen",
                unordered,
                remedy,
            ),
            Fault::Unfinished => (
                ". The second one was posted before the completion of the first one was polled",
                "The result of a READ or atomic is in memory at its completion (IBA 10.8.3)",
                "Poll it first",
            ),
            Fault::NoFence => (
                ". The second one has no fence: it may take the memory before the result of the first one is \
                 there",
                "A request does not wait for the results of earlier READs and atomics (IBA 10.8.3)",
                "Set IBV_SEND_FENCE, or poll the completion of the first one before",
            ),
            Fault::NoFenceRemote => (
                ". The second one has no fence: a READ that is repeated after a loss returns what the second \
                 one has written",
                "A request does not wait for the results of earlier READs (IBA 10.8.3)",
                "Set IBV_SEND_FENCE, or poll the completion of the READ before",
            ),
        };
        format!(
            "{} and then {} use the same {} bytes at {first:#x} of process {}{what}. {rule}. {remedy}.",
            self.first.named(a),
            self.second.named(b),
            end - first,
            number(a.process)
        )
    }
}

impl Operation {
    /// Names it for people, with what it does to an area.
    fn named(&self, area: &Area) -> String {
        let message = &self.message;
        let does = match (area.effect, area.is_local) {
            (Effect::Read, _) => "reads",
            (Effect::Write, _) => "writes",
            (Effect::Atomic, _) => "changes",
        };
        let owner = match (area.receive, area.is_local) {
            (Some(_), _) => "the memory of a receive",
            (None, true) => "local memory",
            (None, false) => "remote memory",
        };
        format!(
            "the {} of {} bytes with wr_id {:#x} on queue pair {:#08x} ({does} {owner})",
            message.opcode, message.bytes, message.wr_id, message.qpn
        )
    }
}

#[cfg(test)]
mod tests;
