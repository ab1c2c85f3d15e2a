//! When the packets of a queue pair leave: send buffers are read late, and windows are small.
//!
//! A queue pair with held packets stays on the ready list. Each hold ends by itself, so a lost packet is
//! still retransmitted. A hold begins once for each number of packets that the queue pair has sent.

use std::collections::HashMap;

use transport::Instant;
use transport::chaos::{Chaos, Fault};
use transport::{Backlog, Qp};

use crate::qp_numbers::QpIndex;

/// Longest time between a post and the read of its buffer that is added, in nanoseconds.
const LATE_NS: u64 = 250_000;
/// Longest time that a small window holds packets.
const WINDOW_NS: u64 = 100_000;
/// Most packets in a small window.
const WINDOW_PKTS_MAX: u64 = 4;

/// The holds of an engine.
#[derive(Debug, Default)]
pub(crate) struct Departures(HashMap<QpIndex, Hold>);

/// What is decided about the next packets of a queue pair.
#[derive(Debug)]
struct Hold {
    number: u64,
    /// Packets that the queue pair had sent when it was decided.
    sent_pkts: u64,
    /// When it ends; `None` after it has ended.
    until: Option<Instant>,
    quantum_pkts: usize,
}

impl Departures {
    /// Decides about the next packets of a queue pair. Returns how many may leave now; `None` for none.
    pub(crate) fn decide(
        &mut self,
        chaos: &Chaos,
        now: Instant,
        index: QpIndex,
        qp: &Qp,
        backlog: &Backlog,
    ) -> Option<usize> {
        let (sent_pkts, number) = (qp.counters().sent_pkts, chaos.number(qp.qpn().value()));
        let new = || Hold::new(chaos, now, number, sent_pkts, backlog);
        let hold = self.0.entry(index).or_insert_with(new);
        if (hold.sent_pkts, hold.number) != (sent_pkts, number) {
            *hold = new();
        }
        hold.until = hold.until.filter(|until| *until > now);
        hold.until.is_none().then_some(hold.quantum_pkts)
    }

    /// When the first hold of these queue pairs ends. One that [`decide`](Self::decide) has found ended does
    /// not count: something else keeps the packets, and the progress thread must not spin.
    pub(crate) fn next(&self, ready: impl Iterator<Item = QpIndex>) -> Option<Instant> {
        ready.filter_map(|index| self.0.get(&index)?.until).min()
    }
}

impl Hold {
    fn new(chaos: &Chaos, now: Instant, number: u64, sent_pkts: u64, backlog: &Backlog) -> Hold {
        let (mut until, mut quantum_pkts) = (now, usize::MAX);
        let sends = backlog.pending_packets > 0;
        if sends && let Some(mut draw) = chaos.strikes(Fault::SendReads, number, sent_pkts) {
            until = now.plus_ns(draw.below(LATE_NS));
        }
        if sends && let Some(mut draw) = chaos.strikes(Fault::Windows, number, sent_pkts) {
            quantum_pkts = 1 + draw.below(WINDOW_PKTS_MAX) as usize;
            if backlog.in_flight_packets >= quantum_pkts {
                until = until.max(now.plus_ns(draw.below(WINDOW_NS)));
            }
        }
        Hold { number, sent_pkts, until: Some(until), quantum_pkts }
    }
}
