//! The watchdog: a thread that notices that nothing moves, and says what waits for what.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use roxie::status::QpStatus;
use roxie::transport::QpState;
use roxie::verbs::Qp;
use sys::{now_ns, spawn_without_signals};

use crate::ibv::qp::QpObject;

use super::ending;
use super::objects::for_each_cq;
use super::options::{OPTIONS, lock};
use super::report::{FindingKind, report};
use super::stack::{Site, here};
use super::work::{self, Queue};

/// Interval of the watchdog.
const STEP: Duration = Duration::from_millis(250);
/// Time of RNR NAKs without progress after which they are reported.
const RNR_NS: u64 = 1_000_000_000;

/// A thread in ibv_get_cq_event.
pub(super) struct Waiting {
    number: u64,
    /// The channel, by its address.
    channel: usize,
    site: Site,
    since_ns: u64,
}

#[derive(Default)]
pub(super) struct Threads {
    waiting: Vec<Waiting>,
    next: u64,
}

pub(super) static THREADS: LazyLock<Mutex<Threads>> = LazyLock::new(Mutex::default);

/// A wait that ends when this is dropped.
pub(super) struct Wait(u64);

impl Drop for Wait {
    fn drop(&mut self) {
        lock(&THREADS).waiting.retain(|waiting| waiting.number != self.0);
    }
}

/// This thread waits for an event of a completion channel.
#[cold]
pub(super) fn waits(channel: usize) -> Wait {
    let site = here();
    let mut threads = lock(&THREADS);
    threads.next += 1;
    let number = threads.next;
    threads.waiting.push(Waiting { number, channel, site, since_ns: now_ns() });
    Wait(number)
}

/// What the watchdog saw of a queue pair.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// The counter of RNR NAKs, when the application last got a completion.
    rnr_naks: u64,
    moved_ns: u64,
    /// The counter of received packets, and when it changed.
    rcvd_pkts: u64,
    heard_ns: u64,
}

/// Starts the thread. Without one the process is checked all the same.
pub(super) fn start() {
    spawn_without_signals("roxie-check", run).ok();
}

fn run() {
    let mut seen: HashMap<u32, Seen> = HashMap::new();
    loop {
        sys::pause(STEP);
        ending::look_at_queues();
        let mut stuck = Vec::new();
        work::for_each(|object, queue| {
            if let Some(status) = work::status(object) {
                stuck.extend(look_at(object, queue, &status, seen.entry(queue.number).or_default()));
            }
        });
        for (kind, text, posted) in stuck {
            report(kind, &text, &[("oldest posted", posted)]);
        }
        if OPTIONS.hang_s > 0 {
            missed_events();
        }
    }
}

fn hang_ns() -> u64 {
    OPTIONS.hang_s.saturating_mul(1_000_000_000)
}

/// Looks at one queue pair; returns a finding about its oldest send.
fn look_at(
    object: &QpObject,
    queue: &mut Queue,
    status: &QpStatus,
    seen: &mut Seen,
) -> Option<(FindingKind, String, Site)> {
    if seen.moved_ns != queue.moved_ns || queue.sends.is_empty() {
        (seen.rnr_naks, seen.moved_ns) = (status.counters.rcvd_rnr_err, queue.moved_ns);
    }
    if seen.rcvd_pkts != status.counters.rcvd_pkts {
        (seen.rcvd_pkts, seen.heard_ns) = (status.counters.rcvd_pkts, now_ns());
    }
    let oldest = queue.sends.front()?;
    let is_busy = status.in_flight + status.pending > 0 && object.tail.qp.state() == QpState::Rts;
    let since_ns = now_ns().saturating_sub(queue.moved_ns);
    let rnr_naks = status.counters.rcvd_rnr_err - seen.rnr_naks;
    let what = format!(
        "the {} of {} bytes with wr_id {:#x} on queue pair {:#08x}",
        oldest.operation, oldest.bytes, oldest.wr_id, queue.number
    );
    if is_busy && rnr_naks > 1 && since_ns > RNR_NS {
        let text = format!(
            "{what} waits because the peer has no receive posted ({rnr_naks} RNR NAKs, no progress for more \
             than a second); post receives before the peer sends"
        );
        return Some((FindingKind::RnrWait, text, oldest.posted));
    }
    // A long message makes progress with each ACK.
    let silent_ns = since_ns.min(now_ns().saturating_sub(seen.heard_ns));
    let hangs = is_busy && OPTIONS.hang_s > 0 && silent_ns > hang_ns();
    hangs.then(|| (FindingKind::Hang, picture(&what, object, queue, status), oldest.posted))
}

/// What waits for what.
fn picture(what: &str, object: &QpObject, queue: &Queue, status: &QpStatus) -> String {
    let peer = match (status.remote, status.dest_qpn) {
        (Some(address), Some(number)) => format!("queue pair {:#08x} at {address}", number.value()),
        _ => "the peer".to_owned(),
    };
    let cq = object.tail.qp.transport().map(Qp::send_cq);
    let lost = if status.timeout == 0 { "; timeout is 0: a lost packet is not retransmitted" } else { "" };
    format!(
        "{what} has not completed for {} s. Packets that wait for an ACK of {peer}: {}; for their \
         transmission: {}; retransmitted: {}{lost}. Posted sends: {}, receives: {}. Completions in the send \
         CQ that were not polled: {}; it is {}",
        OPTIONS.hang_s,
        status.in_flight,
        status.pending,
        status.counters.retransmitted_pkts,
        queue.sends.len(),
        queue.receives.len(),
        cq.as_ref().map_or(0, |cq| cq.waiting()),
        if cq.is_ok_and(|cq| cq.is_armed()) { "armed" } else { "not armed" },
    )
}

/// Reports threads that wait for an event that cannot come: the completion queue was armed before its
/// completions came, or not at all.
fn missed_events() {
    let old = now_ns().saturating_sub(hang_ns());
    let waiting: Vec<(usize, Site)> = {
        let threads = lock(&THREADS);
        let long = threads.waiting.iter().filter(|waiting| waiting.since_ns < old);
        long.map(|waiting| (waiting.channel, waiting.site)).collect()
    };
    if waiting.is_empty() {
        return;
    }
    let mut found = Vec::new();
    for_each_cq(|object, created| {
        // SAFETY: the public part of an object that is alive during this call.
        let channel = unsafe { (*object.public()).base.channel }.addr();
        let waiting = waiting.iter().find(|(of, _)| channel != 0 && *of == channel);
        let cq = &object.tail.cq;
        let waits = cq.waiting();
        // Completions that are not solicited may wait for one that is.
        if let Some((_, site)) = waiting.filter(|_| waits > 0 && !cq.is_armed_for_solicited()) {
            let event = match cq.is_armed() {
                true => "it was armed after they came: only another completion raises an event",
                false => "it is not armed: no event will come",
            };
            found.push((waits, event, *site, created));
        }
    });
    for (waits, event, site, created) in found {
        let text = format!(
            "the thread waits for a completion event, but {waits} completions are in the completion queue \
             and {event}; after ibv_req_notify_cq poll once more before you wait"
        );
        report(FindingKind::MissedCompletionEvent, &text, &[("waits", site), ("created", created)]);
    }
}
