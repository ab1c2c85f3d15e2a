//! Decides when a message leaves: [`decide`] alone.
//!
//! Each packet that leaves alone costs a system call, so messages of a stream leave in batches. An
//! application that waits for one message must not wait until a batch is full. The decision needs no clock: a
//! stream differs from a ping-pong in how much is in flight, whether an ACK is expected, and whether
//! completions are left in the CQ.
//!
//! A held message is always followed by an event that sends it: the expected ACK, the next poll, or the
//! progress thread, which takes over when the application stops polling. A post of another queue pair does
//! not send it.

use transport::Backlog;

use super::Tuning;

/// Smallest packet size (bytes) with which the packets of a burst are computed. With a path MTU below 1 KiB
/// a burst would reach the kernel's limit of packets before the limit of bytes.
const PACKET_BYTES_MIN: usize = 1024;

/// The event that requires a decision about one queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Trigger {
    /// The application posted `work_requests` in one list. `is_listed`: an earlier post is still held.
    Post { work_requests: usize, is_listed: bool },
    /// An application thread polls, and the queue pair is on the ready list.
    Poll,
    /// All packets must leave: a poll of the progress thread, a state change.
    Flush,
}

/// What the engine does with the pending packets of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Decision {
    /// They leave now, as one quantum.
    Send(Quantum),
    /// They stay on the ready list until the next trigger.
    Hold,
}

/// One transmit quantum of one queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Quantum {
    /// New request packets that may leave; responses and retransmissions of the oldest packet ignore it.
    pub(crate) budget_pkts: usize,
    /// The port is flushed after this many packets, and at the end.
    pub(crate) flush_at_pkts: usize,
    /// Packets of any kind that may leave.
    pub(crate) max_pkts: usize,
}

/// Decides whether a queue pair with this backlog sends now. `cq_is_backlogged`: the application left
/// entries in the send CQ. `flow_room_pkts`: packets that the flow window accepts.
#[inline]
pub(crate) fn decide(
    trigger: Trigger,
    backlog: &Backlog,
    cq_is_backlogged: bool,
    flow_room_pkts: usize,
    tuning: &Tuning,
) -> Decision {
    #[cfg(test)]
    asked::count(&asked::DECISIONS);
    let holds = match trigger {
        Trigger::Flush => false,
        // The application will take the completions that it left, and then post more for the same batch.
        Trigger::Poll => cq_is_backlogged && backlog.only_small_messages && !backlog.has_event,
        Trigger::Post { work_requests, is_listed } => {
            let is_stream = backlog.is_ack_expected && backlog.in_flight_packets >= tuning.isolated_pkts;
            (is_stream || (cq_is_backlogged && is_listed)) && !is_batch_full(work_requests, backlog, tuning)
        }
    };
    if holds { Decision::Hold } else { Decision::Send(quantum(backlog, flow_room_pkts, tuning)) }
}

/// Whether the posted messages fill a batch, or the application waits for the last of them.
#[inline]
fn is_batch_full(work_requests: usize, backlog: &Backlog, tuning: &Tuning) -> bool {
    work_requests >= tuning.list_wrs
        || backlog.pending_packets >= tuning.batch_pkts
        || backlog.pending_bytes >= tuning.batch_bytes
        || backlog.last_posted_bytes >= tuning.burst_bytes
        || backlog.unsignaled_run >= tuning.unsignaled_run
        || !backlog.is_reliable
}

/// Packets of the path MTU in a full burst.
#[inline]
fn burst_pkts(backlog: &Backlog, tuning: &Tuning) -> usize {
    tuning.burst_bytes / backlog.path_mtu_bytes.max(PACKET_BYTES_MIN)
}

/// New request packets that may leave in one quantum, while the flow window accepts `flow_room_pkts`.
#[inline]
pub(crate) fn budget_pkts(backlog: &Backlog, flow_room_pkts: usize, tuning: &Tuning) -> usize {
    let burst = burst_pkts(backlog, tuning);
    let room = backlog.window_room_packets.min(flow_room_pkts);
    // A window smaller than the backlog is filled by whole bursts. The ACK that reopens the window will come:
    // every second burst and the last packet of the budget set AckReq. (With a rate limit a burst may end at
    // any packet.)
    let whole_bursts =
        !backlog.is_paced && backlog.in_flight_packets >= burst && backlog.pending_packets > room;
    if whole_bursts { room - room % burst.max(1) } else { flow_room_pkts }
}

#[inline]
fn quantum(backlog: &Backlog, flow_room_pkts: usize, tuning: &Tuning) -> Quantum {
    let (burst, budget_pkts) = (burst_pkts(backlog, tuning), budget_pkts(backlog, flow_room_pkts, tuning));
    // A message of two bursts leaves in two halves: the peer processes the first while the second is made.
    let isolated = backlog.isolated_packets;
    let in_halves = isolated > burst && isolated <= 2 * burst;
    let flush_at_pkts = if in_halves { isolated.div_ceil(2) } else { usize::MAX };
    Quantum { budget_pkts, flush_at_pkts, max_pkts: tuning.quantum_pkts }
}

/// What the calling thread has asked, for tests.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::Cell;
    use std::thread::LocalKey;

    thread_local! {
        pub(crate) static DECISIONS: Cell<usize> = const { Cell::new(0) };
        pub(crate) static BACKLOGS: Cell<usize> = const { Cell::new(0) };
    }

    pub(crate) fn count(of: &'static LocalKey<Cell<usize>>) {
        of.set(of.get() + 1);
    }
}

#[cfg(test)]
#[path = "departure_tests.rs"]
mod tests;
