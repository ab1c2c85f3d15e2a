//! The operations of a command: what was posted, on which memory, when the peer executed it, and when the
//! application knew.

use std::collections::{HashMap, HashSet};

use roxie::trace::{Access, Entry, Landing, Use};
use sys::trace::{FILES_MAX, Recording};

use crate::trace::model::{Event, Execution, Message, Trace};
use crate::trace::{ends, rebuild};

use super::super::findings::Findings;
use super::area::{Area, Effect, Post, Queue};
use super::landing::Landings;

/// A posted work request that succeeded.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) message: Message,
    pub(super) does: Use,
    /// Number of the call stack.
    pub(super) site: u32,
    /// When the post began. What the application knew then is what it knew for this operation.
    pub(super) posted: u64,
    /// When a completion told the process that it has ended; `u64::MAX` for never.
    pub(super) polled: u64,
    /// When a completion told any process of the two that it was executed; `u64::MAX` for never.
    pub(super) told: u64,
    /// Place among the operations of its queue pair, and the place of the last one up to it with a fence.
    pub(super) place: usize,
    pub(super) fence: Option<usize>,
    pub(super) areas: Vec<Area>,
}

impl Operation {
    /// Whether its completion tells that the peer has executed it.
    pub(super) fn is_acknowledged(&self) -> bool {
        !["UC", "UD"].contains(&&*self.message.service)
    }

    /// Whether its completion tells that it does not use this memory any more.
    pub(super) fn tells_end(&self, area: &Area) -> bool {
        area.is_local || self.is_acknowledged()
    }

    /// Whether they are of the two ends of a reliable connection.
    pub(super) fn is_peer_of(&self, other: &Operation) -> bool {
        let ends = |operation: &Operation| (operation.message.qpn, operation.message.peer);
        let (qpn, peer) = ends(other);
        self.is_acknowledged() && ends(self) == (peer, qpn)
    }

    pub(super) fn shares_queue(&self, other: &Operation) -> bool {
        let queue = |operation: &Operation| (operation.message.pid, operation.message.qpn);
        queue(self) == queue(other)
    }
}

/// The operations of a command, in the order of their posts.
#[derive(Debug, Default)]
pub(super) struct Operations {
    pub(super) list: Vec<Operation>,
    /// When processes got messages that are not in the list, in ascending order: datagrams, and messages of
    /// connection management.
    pub(super) others: HashMap<u32, Vec<u64>>,
    /// Work requests that are not in the list, because events of their process were replaced or lost.
    pub(super) replaced: usize,
    /// One-sided operations of which the remote memory is not known.
    pub(super) unknown: usize,
    /// SENDs of which the memory of the receive is not known.
    pub(super) unplaced: usize,
}

/// Returns the operations that the threads have recorded.
pub(super) fn operations(recordings: &[Recording], findings: &Findings) -> Operations {
    let mut trace = rebuild::rebuild(recordings);
    connect(&mut trace, findings);
    ends::join_by_number(&mut trace);
    let since = complete_since(recordings);
    let mut accesses = accesses(recordings);
    let told = Told::new(&trace, findings);
    let landings = Landings::new(recordings, &trace.messages, &accesses);
    let mut operations = Operations::default();
    let mut order: HashMap<Queue, (usize, Option<usize>)> = HashMap::new();
    // In the order of the posts.
    for mut message in std::mem::take(&mut trace.messages) {
        let queue = (message.pid, message.qpn);
        let post = (queue, message.first, message.posted);
        let Some(access) = accesses.remove(&post) else { continue };
        let (place, fence) = order.entry(queue).or_default();
        *place += 1;
        if access.has_fence {
            *fence = Some(*place);
        }
        told.bound(&mut message);
        let placed = match access.does {
            Use::Send => landings.areas(&mut message, &access, post),
            _ => Vec::new(),
        };
        let is_recorded = |pid: u32| since.get(&pid).is_none_or(|since| access.time_ns >= *since);
        if message.status.is_some_and(|status| status != 0) {
            continue;
        }
        let is_whole = message.execution.is_none_or(|execution| is_recorded(execution.pid));
        if !is_whole || !is_recorded(message.pid) {
            operations.replaced += 1;
            continue;
        }
        let (does, site, posted) = (access.does, access.site, access.time_ns);
        operations.unplaced += usize::from(does == Use::Send && message.bytes > 0 && placed.is_empty());
        let areas = [areas(&message, &access, findings), placed].concat();
        let is_one_sided = message.bytes > 0 && !matches!(does, Use::Send | Use::Nothing);
        operations.unknown += usize::from(is_one_sided && areas.iter().all(|area| area.is_local));
        let (ended, told) = told.of(&message, posted);
        let counted = message.acked.unwrap_or(message.completed);
        let polled = message.polled.or(access.is_counted.then_some(counted)).unwrap_or(u64::MAX);
        let polled = polled.min(ended);
        let (place, fence) = (*place, *fence);
        operations.list.push(Operation { message, does, site, posted, polled, told, place, fence, areas });
    }
    cover(&mut operations.list);
    operations.list.sort_by_key(|operation| operation.posted);
    operations.others = others(&trace, &operations.list);
    operations
}

/// The events of the connection may have been replaced: sets the peers of messages without one.
fn connect(trace: &mut Trace, findings: &Findings) {
    for message in trace.messages.iter_mut().filter(|message| message.peer == 0) {
        if let Some(link) = findings.link(message.pid, message.qpn, message.posted) {
            (message.peer, message.local, message.remote) = (link.peer, link.local, link.remote);
        }
    }
}

/// From when on nothing is missing of what a process has done.
fn complete_since(recordings: &[Recording]) -> HashMap<u32, u64> {
    let mut since: HashMap<u32, u64> = HashMap::new();
    let mut threads: HashMap<u32, usize> = HashMap::new();
    for recording in recordings {
        let files = threads.entry(recording.process).or_default();
        *files += 1;
        let first = recording.events.first().filter(|_| recording.replaced > 0);
        let from = first.map_or(0, |event| match Entry::parse(event) {
            Some(Entry::Quantum { quantum, .. }) => quantum.end_ns,
            Some(Entry::Received { input, .. } | Entry::Expired { input, .. }) => input.end_ns,
            _ => event.time_ns,
        });
        let from = if recording.lost > 0 || *files >= FILES_MAX { u64::MAX } else { from };
        let since = since.entry(recording.process).or_default();
        *since = from.max(*since);
    }
    since
}

/// The accesses of the posts that were not refused.
fn accesses(recordings: &[Recording]) -> HashMap<Post, Access> {
    let mut found = HashMap::new();
    for recording in recordings {
        // Those of the last call of each queue pair, in the order of its list.
        let mut calls: HashMap<u32, Vec<Access>> = HashMap::new();
        let mut last = 0;
        for event in &recording.events {
            if let Some(access) = Access::parse(event) {
                last = access.qpn.value();
                let call = calls.entry(last).or_default();
                if access.is_first {
                    call.clear();
                }
                call.push(access);
            } else if Landing::parse(event).is_some() {
                last = 0;
            } else if let Some(Entry::Post { qpn, send }) = Entry::parse(event) {
                let call = calls.entry(qpn.value()).or_default();
                if !call.is_empty() {
                    let queue = (recording.process, qpn.value());
                    found.insert((queue, send.first, event.time_ns), call.remove(0));
                }
            } else if let Some(access) = calls.get_mut(&last).and_then(|call| call.last_mut()) {
                access.extend(event);
            }
        }
    }
    found
}

/// When processes got messages that no operation is.
fn others(trace: &Trace, operations: &[Operation]) -> HashMap<u32, Vec<u64>> {
    let mut reliable: HashSet<Queue> = HashSet::new();
    // What the receives of other queue pairs tell is not known.
    for Operation { message, .. } in operations.iter().filter(|operation| operation.is_acknowledged()) {
        reliable.insert((message.pid, message.qpn));
        reliable.extend(message.execution.map(|execution| (execution.pid, message.peer)));
    }
    let mut others: HashMap<u32, Vec<u64>> = HashMap::new();
    for mark in &trace.marks {
        let is_other = match mark.event {
            Event::Receive { qpn, .. } => !reliable.contains(&(mark.pid, qpn)),
            Event::Cm { is_sent, .. } => !is_sent,
            _ => false,
        };
        if is_other {
            others.entry(mark.pid).or_default().push(mark.at);
        }
    }
    others.values_mut().for_each(|times| times.sort_unstable());
    others
}

/// The memory of a work request.
fn areas(message: &Message, access: &Access, findings: &Findings) -> Vec<Area> {
    let (local, remote) = match access.does {
        Use::Send => (Effect::Read, None),
        Use::Write => (Effect::Read, Some((Effect::Write, u64::from(message.bytes)))),
        Use::Read => (Effect::Write, Some((Effect::Read, u64::from(message.bytes)))),
        Use::Atomic => (Effect::Write, Some((Effect::Atomic, 8))),
        Use::AtomicWrite => (Effect::Read, Some((Effect::Atomic, 8))),
        Use::Nothing => return Vec::new(),
    };
    let own = access.local.iter().map(|(first, length)| Area {
        process: message.pid,
        first: *first,
        end: first.saturating_add(u64::from(*length)),
        effect: local,
        is_local: true,
        receive: None,
    });
    let mut areas: Vec<Area> = own.collect();
    let ((first, key), execution) = (access.remote, message.execution);
    if let (Some((effect, length)), Some(execution)) = (remote, execution) {
        let (process, end) = (execution.pid, first.saturating_add(length));
        // Keys of memory windows and of regions with other addresses are left out.
        if length > 0 && findings.has_memory(process, key.0, (first, end), execution.begin) {
            areas.push(Area { process, first, end, effect, is_local: false, receive: None });
        }
    }
    areas
}

/// An operation is known to have ended, and to have been executed, too, when that is known of a later one of
/// its queue pair. An own completion tells the latter of acknowledged messages only.
fn cover(operations: &mut [Operation]) {
    let mut first: HashMap<Queue, (u64, u64)> = HashMap::new();
    for operation in operations.iter_mut().rev() {
        let queue = (operation.message.pid, operation.message.qpn);
        let (polled, told) = first.entry(queue).or_insert((u64::MAX, u64::MAX));
        *polled = operation.polled.min(*polled);
        *told = operation.told.min(*told);
        if operation.is_acknowledged() {
            *told = (*polled).min(*told);
        }
        (operation.polled, operation.told) = (*polled, *told);
    }
}

/// When the processes got receives and changed states, by queue pair, in ascending order.
struct Told {
    receives: HashMap<Queue, Vec<u64>>,
    states: HashMap<Queue, Vec<u64>>,
}

impl Told {
    fn new(trace: &Trace, findings: &Findings) -> Self {
        let mut told = Self { receives: HashMap::new(), states: HashMap::new() };
        for mark in &trace.marks {
            let (all, qpn) = match mark.event {
                Event::Receive { qpn, .. } => (&mut told.receives, qpn),
                Event::State { qpn, .. } => (&mut told.states, qpn),
                _ => continue,
            };
            all.entry((mark.pid, qpn)).or_default().push(mark.at);
        }
        for (process, qpn, at) in findings.ended() {
            told.states.entry((process, qpn)).or_default().push(at);
        }
        told.receives.values_mut().chain(told.states.values_mut()).for_each(|times| times.sort_unstable());
        told
    }

    /// Forgets an execution that was not on the connection of the message: without an acknowledgement only
    /// the number of the last packet says when it was.
    fn bound(&self, message: &mut Message) {
        let queue = |execution: Execution| (execution.pid, message.peer);
        let peer = message.execution.map_or(u64::MAX, |at| after(&self.states, queue(at), message.posted));
        let until = peer.min(after(&self.states, (message.pid, message.qpn), message.posted));
        message.execution = message.execution.filter(|at| message.service != "UC" || at.begin <= until);
    }

    /// When the queue pair of a message ended or changed its state, and when a process could know that the
    /// message was executed: by that, by the same at the peer, or by a receive there.
    fn of(&self, message: &Message, posted: u64) -> (u64, u64) {
        let own = after(&self.states, (message.pid, message.qpn), posted);
        let Some(execution) = message.execution else { return (own, own) };
        let peer = (execution.pid, message.peer);
        let told = after(&self.states, peer, posted).min(after(&self.receives, peer, execution.begin));
        (own, told.min(own))
    }
}

/// The first time of a queue pair from a time on.
fn after(all: &HashMap<Queue, Vec<u64>>, queue: Queue, from: u64) -> u64 {
    let times = all.get(&queue).map_or(&[][..], |times| times);
    times.get(times.partition_point(|at| *at < from)).copied().unwrap_or(u64::MAX)
}
