//! The watchdog: a thread that notices that nothing moves, and says what waits for what.

use std::collections::HashMap;
use std::time::Duration;

use roxie::status::QpStatus;
use roxie::transport::{QpState, ack_timeout_ns};
use roxie::verbs::Qp;
use sys::{now_ns, spawn_without_signals};

use crate::ibv::qp::QpObject;

use super::objects::for_each_cq;
use super::options::OPTIONS;
use super::report::{FindingKind, report};
use super::stack::Site;
use super::work::{self, Queue};
use super::{pages, waits};

/// Interval of the watchdog.
const STEP: Duration = Duration::from_millis(250);
/// Time of RNR NAKs without progress after which they are reported.
const RNR_NS: u64 = 1_000_000_000;
/// A send that hangs was silent for so many timeouts of its queue pair, at least.
const TIMEOUTS: u64 = 4;

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
        let before_ns = now_ns();
        sys::pause(STEP);
        // The machine is so busy, or the process was stopped, that nothing can be told of others.
        if now_ns() - before_ns > 4 * STEP.as_nanos() as u64 {
            continue;
        }
        look_at_queues();
        let mut stuck = Vec::new();
        work::for_each(|object, queue| {
            if let Some(status) = work::status(object) {
                stuck.extend(look_at(object, queue, &status, seen.entry(queue.number).or_default()));
            }
        });
        for (kind, text, posted) in stuck {
            let spent = if kind == FindingKind::RnrWait { waits::spent_limits() } else { Vec::new() };
            let text = if spent.is_empty() { text } else { format!("{text}; {}", waits::LIMIT_SPENT) };
            let mut sites = vec![("oldest posted", posted)];
            sites.extend(spent);
            report(kind, &text, &sites);
        }
        if OPTIONS.hang_s > 0 {
            waits::missed_events(now_ns().saturating_sub(hang_ns()));
        }
    }
}

/// Reports completion queues that lost completions, and queue pairs that dropped datagrams.
pub(super) fn look_at_queues() {
    pages::end_flights(None, false);
    pages::report_uses(work::is_ready);
    work::look_at_refusals();
    let mut found = Vec::new();
    for_each_cq(|object, created| {
        if object.tail.cq.has_overflowed() {
            found.push((object.tail.cq.capacity(), created));
        }
    });
    for (capacity, created) in found {
        let text = format!(
            "a completion queue of {capacity} entries overflowed: completions are lost, and the queue pair \
             is in the error state; it needs an entry for each work request that can complete before a poll"
        );
        report(FindingKind::CqOverflow, &text, &[("created", created)]);
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
    // Some packets may be lost, and are retransmitted after the timeout.
    let patient_ns = hang_ns().max(TIMEOUTS * ack_timeout_ns(status.timeout).unwrap_or(0));
    let hangs = is_busy && OPTIONS.hang_s > 0 && silent_ns > patient_ns;
    let waited_s = since_ns / 1_000_000_000;
    hangs.then(|| (FindingKind::Hang, picture(&what, waited_s, object, queue, status), oldest.posted))
}

/// What waits for what.
fn picture(what: &str, waited_s: u64, object: &QpObject, queue: &Queue, status: &QpStatus) -> String {
    let peer = match (status.remote, status.dest_qpn) {
        (Some(address), Some(number)) => format!("queue pair {:#08x} at {address}", number.value()),
        _ => "the peer".to_owned(),
    };
    let cq = object.tail.qp.transport().map(Qp::send_cq);
    let lost = if status.timeout == 0 { "; timeout is 0: a lost packet is not retransmitted" } else { "" };
    format!(
        "{what} has not completed for {waited_s} s. Packets that wait for an ACK of {peer}: {}; for their \
         transmission: {}; retransmitted: {}{lost}. Posted sends: {}, receives: {}. Completions in the send \
         CQ that were not polled: {}; it is {}",
        status.in_flight,
        status.pending,
        status.counters.retransmitted_pkts,
        queue.sends.len(),
        queue.receives.len(),
        cq.as_ref().map_or(0, |cq| cq.waiting()),
        if cq.is_ok_and(|cq| cq.is_armed()) { "armed" } else { "not armed" },
    )
}
