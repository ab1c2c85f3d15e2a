//! The watchdog: a thread that notices that nothing moves.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use roxie::status::QpStatus;
use roxie::transport::QpState;
use sys::{now_ns, spawn_without_signals};

use crate::ibv::qp::QpObject;

use super::work::{self, Queue};
use super::{OPTIONS, ending, report::report};

/// Interval of the watchdog.
const STEP: Duration = Duration::from_millis(250);
/// Time of RNR NAKs without progress after which they are reported.
const RNR_NS: u64 = 1_000_000_000;

/// What the watchdog saw of a queue pair.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// The counter of RNR NAKs, when the application last got a completion.
    rnr_naks: u64,
    moved_ns: u64,
}

/// Starts the thread. Without one the process is checked all the same.
pub(super) fn start() {
    spawn_without_signals("roxie-check", run).ok();
}

fn run() {
    let mut seen: HashMap<u32, Seen> = HashMap::new();
    loop {
        thread::sleep(STEP);
        ending::look_at_queues();
        let mut stuck = Vec::new();
        work::for_each(|object, queue| {
            if let Some(status) = object.tail.qp.status() {
                look_at(object, queue, &status, seen.entry(queue.number).or_default(), &mut stuck);
            }
        });
        for (kind, text, posted) in stuck {
            report(kind, &text, &[("oldest posted", posted)]);
        }
    }
}

type Stuck = (&'static str, String, super::stack::Site);

/// Looks at one queue pair.
fn look_at(
    _object: &QpObject,
    queue: &mut Queue,
    status: &QpStatus,
    seen: &mut Seen,
    stuck: &mut Vec<Stuck>,
) {
    if seen.moved_ns != queue.moved_ns || queue.sends.is_empty() {
        *seen = Seen { rnr_naks: status.counters.rcvd_rnr_err, moved_ns: queue.moved_ns };
    }
    let Some(oldest) = queue.sends.front() else { return };
    let is_busy = status.in_flight + status.pending > 0;
    let since_ns = now_ns().saturating_sub(queue.moved_ns);
    if !is_busy || status.state != "RTS" {
        return;
    }
    let _ = QpState::Rts;
    let rnr_naks = status.counters.rcvd_rnr_err - seen.rnr_naks;
    let what = format!(
        "the {} of {} bytes with wr_id {:#x} on queue pair {:#08x}",
        oldest.operation, oldest.bytes, oldest.wr_id, queue.number
    );
    if rnr_naks > 1 && since_ns > RNR_NS {
        let text = format!(
            "{what} waits because the peer has no receive posted ({rnr_naks} RNR NAKs, no progress for more \
             than a second); post receives before the peer sends"
        );
        stuck.push(("rnr-wait", text, oldest.posted));
    } else if OPTIONS.hang_s > 0 && since_ns > OPTIONS.hang_s * 1_000_000_000 {
        stuck.push(("hang", picture(&what, queue, status), oldest.posted));
    }
}

/// Who waits for what.
fn picture(what: &str, queue: &Queue, status: &QpStatus) -> String {
    let peer = match (status.remote, status.dest_qpn) {
        (Some(address), Some(number)) => format!("queue pair {:#08x} at {address}", number.value()),
        _ => "the peer".to_owned(),
    };
    let wait = if status.timeout == 0 { "; timeout is 0, so a lost packet is never sent again" } else { "" };
    format!(
        "{what} has not completed for {} s: {} packets wait for an ACK of {peer}, {} for their transmission; \
         {} sends and {} receives are posted{wait}",
        OPTIONS.hang_s,
        status.in_flight,
        status.pending,
        queue.sends.len(),
        queue.receives.len()
    )
}
