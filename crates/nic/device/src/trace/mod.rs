//! `roxie trace`: what happens to each work request, and what the engines do.
//!
//! The places of the data path call a function of this module if [`sys::trace::is_on`]: post (`posted`),
//! transmit quantum (`Before::end`), end of a receive batch (`received`), timer (`expired`), poll of a
//! completion (`polled`), batch of the engine (`batch`), full port or window (`waits`), state of a queue pair
//! (`moved`), message of connection management (`cm_message`). Each records one [`Entry`] and passes a probe
//! for bpftrace and perf (`probes`).
//!
//! A queue pair is described by how far it has got ([`transport::Progress`]), not by its single packets.
//! `roxie trace` derives from it when each work request left, was acknowledged and completed.

mod access;
mod entry;
mod probes;

use std::cell::Cell;
use std::ffi::OsString;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use transport::{Instant, Qp, Wc};
use wire::{Gid, Qpn};

pub use access::{Access, Landing, Use};
pub use entry::{CmMessage, Entry, Input, Quantum, State, Wait};

use crate::notice::notice;

/// The variable with the directory for the files of the threads ([`sys::trace`]).
pub const VARIABLE: &str = "ROXIE_TRACE";
/// The variable with the number of events that each thread keeps.
pub const EVENTS_VARIABLE: &str = "ROXIE_TRACE_EVENTS";
/// Events that each thread keeps if the variable does not say: 4 MiB, about 13,000 messages of a program with
/// one thread.
pub const EVENTS: usize = 1 << 16;

/// Starts the trace if [`VARIABLE`] says where to.
pub(crate) fn start_from_env() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let Some(dir) = std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty()) else { return };
        sys::trace::start(dir.into(), events_from(std::env::var_os(EVENTS_VARIABLE)));
    });
}

/// The number that the variable says; [`EVENTS`] without it, or with a notice if it is none.
fn events_from(value: Option<OsString>) -> usize {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return EVENTS };
    let events = value.to_str().and_then(|text| text.parse().ok()).filter(|events| *events > 0);
    events.unwrap_or_else(|| {
        notice(format_args!(
            "{EVENTS_VARIABLE}={} is no number of events: each thread keeps {EVENTS}",
            value.display()
        ));
        EVENTS
    })
}

thread_local! {
    /// When this thread read the clock last, in this module.
    static LAST_NS: Cell<u64> = const { Cell::new(0) };
}

fn now_ns() -> u64 {
    let now = sys::now_ns();
    LAST_NS.set(now);
    now
}

fn record(time_ns: u64, entry: &Entry) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if let Err(error) = sys::trace::record(&entry.event(time_ns))
        && !REPORTED.swap(true, Ordering::Relaxed)
    {
        notice(format_args!("the events of a thread are not traced: {error}"));
    }
}

/// The application has posted a send.
#[cold]
pub(crate) fn posted(qp: &Qp) {
    let Some(send) = qp.last_posted() else { return };
    record(now_ns(), &Entry::Post { qpn: qp.qpn(), send });
    probes::post_send(
        qp.qpn().value().into(),
        send.wr_id,
        send.opcode as u64,
        send.length.into(),
        send.first,
    );
}

/// A queue pair before a transmit quantum.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    at_ns: u64,
    leaves_next: u64,
    acknowledged: u64,
    retransmitted: u64,
}

impl Before {
    /// The quantum begins at `now`, or when the packets that this thread has received since then were
    /// processed. Neither needs a look at the clock.
    #[cold]
    pub(crate) fn of(now: Instant, qp: &Qp) -> Self {
        let progress = qp.progress();
        Self {
            at_ns: now.0.max(LAST_NS.get()),
            leaves_next: progress.leaves_next,
            acknowledged: progress.acknowledged,
            retransmitted: qp.counters().retransmitted_pkts,
        }
    }

    /// The quantum has ended with `packets` sent.
    #[cold]
    pub(crate) fn end(self, qp: &Qp, packets: usize) {
        let progress = qp.progress();
        let retransmitted = qp.counters().retransmitted_pkts - self.retransmitted;
        if packets == 0 && progress.acknowledged == self.acknowledged {
            return;
        }
        let (end_ns, from, until) = (now_ns(), self.leaves_next, progress.leaves_next);
        let quantum = Quantum {
            end_ns,
            packets: packets.try_into().unwrap_or(u16::MAX),
            retransmitted: retransmitted.try_into().unwrap_or(u32::MAX),
            from,
            progress,
        };
        record(self.at_ns, &Entry::Quantum { qpn: qp.qpn(), quantum });
        probes::transmit(qp.qpn().value().into(), packets as u64, from, until, retransmitted);
    }
}

fn input(qp: &Qp) -> Input {
    let counters = qp.counters();
    Input {
        end_ns: now_ns(),
        progress: qp.progress(),
        naks: counters.rcvd_seq_err as u16,
        rnr_naks: counters.rcvd_rnr_err as u16,
        probes: counters.probes as u16,
        timeouts: counters.local_ack_timeout_err as u16,
    }
}

/// A queue pair has processed the packets of a receive batch, which the engine took at `now`.
#[cold]
pub(crate) fn received(now: Instant, qp: &Qp) {
    let input = input(qp);
    record(now.0, &Entry::Received { qpn: qp.qpn(), input });
    probes::receive(qp.qpn().value().into(), input.progress.acknowledged, input.progress.executes_next);
}

/// A timer of a queue pair has expired.
#[cold]
pub(crate) fn expired(now: Instant, qp: &Qp) {
    let input = input(qp);
    record(now.0, &Entry::Expired { qpn: qp.qpn(), input });
    probes::expire(qp.qpn().value().into(), input.progress.acknowledged, input.timeouts.into());
}

/// The application has polled completions.
#[cold]
pub(crate) fn polled<'a>(completions: impl Iterator<Item = &'a Wc>) {
    let now_ns = now_ns();
    completions.for_each(|wc| polled_one(now_ns, wc));
}

fn polled_one(now_ns: u64, wc: &Wc) {
    record(
        now_ns,
        &Entry::Poll {
            qpn: Qpn::new(wc.qp_num),
            wr_id: wc.wr_id,
            status: wc.status as u8,
            is_receive: wc.is_receive(),
            bytes: wc.byte_len,
        },
    );
    probes::poll(wc.qp_num.into(), wc.wr_id, wc.status as u64, wc.is_receive().into());
}

/// The engine has received `batches` since `now`, and sent what followed.
#[cold]
pub(crate) fn batch(now: Instant, batches: usize) {
    record(now.0, &Entry::Batch { batches: batches as u64 });
    probes::batch(now.0, batches as u64);
}

/// A queue pair has packets to send and waits.
#[inline]
pub(crate) fn waits(qpn: Qpn, wait: Wait) {
    if sys::trace::is_on() {
        record_wait(qpn, wait);
    }
}

#[cold]
fn record_wait(qpn: Qpn, wait: Wait) {
    record(now_ns(), &Entry::Waits { qpn, wait });
    probes::wait(qpn.value().into(), wait as u64);
}

/// A queue pair has another state. `local`: the address that it sends from.
#[cold]
pub(crate) fn moved(qp: &Qp, local: Gid) {
    let (ty, state, dest_qpn) = (qp.ty(), qp.state(), qp.dest_qpn());
    let state_entry = State { ty, state, dest_qpn, local, remote: qp.av().dgid };
    record(now_ns(), &Entry::State { qpn: qp.qpn(), state: state_entry });
    probes::state(qp.qpn().value().into(), state as u64, dest_qpn.value().into());
}

/// A management datagram leaves, or has arrived.
#[inline]
pub(crate) fn cm_message(mad: &[u8; wire::mad::MAD_LEN], is_sent: bool) {
    if sys::trace::is_on() {
        record_cm_message(mad, is_sent);
    }
}

#[cold]
fn record_cm_message(mad: &[u8; wire::mad::MAD_LEN], is_sent: bool) {
    let message = CmMessage::parse(mad, is_sent);
    record(now_ns(), &Entry::Cm(message));
    let CmMessage { attribute, sender, receiver, .. } = message;
    probes::cm(attribute.into(), sender.into(), receiver.into(), is_sent.into());
}

#[cfg(test)]
mod tests;
