//! When posts leave. Alone each would cost a system call, so those of a run gather to a burst; but no program shall wait for
//! company.
//!
//! Invariant: what gathers is in the ready list, and was posted while an acknowledgement was under way, or joined what was. So that
//! acknowledgement sends it, or a poll, or the background thread once nobody polls.

use transport::Instant;

use crate::engine::tables::{QpEntry, Tables};
use crate::engine::tx::BURST_BYTES;
use crate::engine::{Core, Engine, now};

/// Posted packets that leave whatever is on its way: as a burst if they are small. Kernels since 6.9 take 128 at once, before that 64.
const BATCH: usize = 96;
/// ... and bytes, which with a path MTU of 4096 are fewer packets.
const BATCH_BYTES: usize = 2 * BURST_BYTES;
/// Work requests of a post list that do; what is posted next waits for the next one.
const LIST: usize = 32;
/// A work request with a completion behind so many without is the one that the program waits for: its answer is on its way while
/// the program posts on. perftest has a hundred to a completion.
const RUN: u32 = 16;
/// A post is sent at once if none has left for so long: it is not one of many, which take 0.1 us each. A turn of a ping-pong takes
/// 3 us, and 0.6 us within a host.
const IDLE_NS: u64 = 500;
/// ... and for so long from who has not caught up with his completions: he goes on posting. UCX posts 16, and takes as many
/// completions, between two looks at what has come; a [`BATCH`] takes it 20 us. No message gathers for longer while somebody polls.
pub(crate) const BEHIND_NS: u64 = 20_000;

impl QpEntry {
    /// Whether what has gathered, `posted` work requests of which are the youngest, is to leave whatever is on its way.
    #[inline]
    pub(crate) fn has_gathered(&self, posted: usize) -> bool {
        let qp = &self.qp;
        posted >= LIST
            || qp.pending_packets() >= BATCH
            || qp.pending_bytes() >= BATCH_BYTES
            || qp.last_posted_bytes() >= BURST_BYTES
            || qp.ended_run() >= RUN
            || !qp.ty().is_reliable()
    }

    /// Whether what it has to send may wait for more of the kind even though somebody polls: small messages of one who has
    /// completions left to take, and so is busy with posting, not waiting for answers. A burst of sixteen costs twice as much for
    /// each message as a full one.
    #[inline]
    fn gathers(&self) -> bool {
        self.qp.has_only_small_messages() && !self.qp.has_event() && self.send_cq.excuses_poll()
    }
}

impl Engine {
    /// Transmits what was posted to a QP, the last `posted` work requests in one list: at once if no acknowledgement is under way, if
    /// it is the first to gather and nothing has left for a while, or if enough has gathered, else with the next poll or that
    /// acknowledgement. From who is behind with his completions it goes on gathering.
    #[inline]
    pub(crate) fn doorbell(&self, core: &mut Core, index: u16, posted: usize) {
        let Some(entry) = core.tables.qp_mut(index) else { return };
        let behind = entry.send_cq.is_behind();
        let gathers_on = behind && entry.ready;
        let eager = (!gathers_on && !entry.qp.is_answer_owed()) || entry.has_gathered(posted);
        // Listed by an earlier doorbell, which has seen to everything: most of a run of posts end here.
        if eager || !entry.ready || entry.qp.has_event() {
            self.ring_through(core, index, eager, behind);
        }
    }

    fn ring_through(&self, core: &mut Core, index: u16, eager: bool, behind: bool) {
        let now = now();
        let idle_ns = if behind { BEHIND_NS } else { IDLE_NS };
        let leaves = eager || now >= core.tables.left_at.plus_ns(idle_ns);
        core.posted(now, index, leaves);
        let held = core.hooks.next_due_ns().map(Instant);
        let room = core.tables.retry_at(now);
        let deadline = [core.tables.timers.next(), held, room].into_iter().flatten().min();
        self.wake_before(deadline);
        self.wake_before(self.moderator.next());
    }
}

impl Core {
    /// A queue pair was posted to, and what it has may leave now or waits for the next poll.
    pub(crate) fn posted(&mut self, now: Instant, index: u16, leaves: bool) {
        let sends = |entry: &mut QpEntry| !entry.qp.has_event() && entry.qp.wants_transmit();
        if leaves && self.tables.qp_mut(index).is_some_and(sends) {
            // It is settled in its turn, behind what it sends.
            self.tables.make_ready(index);
        } else {
            self.tables.settle(now, index);
        }
        if leaves {
            self.transmit(now);
        }
    }

    /// As [`transmit_turn`](Self::transmit_turn), but what gathers goes on with that: who polls is going to post more.
    pub(crate) fn transmit_gathered(&mut self, now: Instant) -> bool {
        self.tables.set_gatherers_aside(now);
        // Whether there was room is not known anew where nothing leaves.
        let more = !self.tables.ready.is_empty() && self.transmit_turn(now);
        self.tables.ready.extend(self.tables.gatherers.drain(..));
        more
    }
}

impl Tables {
    /// Those whose messages go on gathering leave the ready list, unless some have done so for long enough.
    #[inline]
    fn set_gatherers_aside(&mut self, now: Instant) {
        if self.ready.is_empty() || self.gathering_since.is_some_and(|since| now >= since.plus_ns(BEHIND_NS))
        {
            self.gathering_since = None;
            return;
        }
        let Self { ready, gatherers, qps, .. } = self;
        ready.retain(|&index| {
            let entry = qps.get(usize::from(index)).and_then(Option::as_deref);
            let gathers = entry.is_some_and(QpEntry::gathers);
            gatherers.extend(gathers.then_some(index));
            !gathers
        });
        self.gathering_since = (!gatherers.is_empty()).then(|| self.gathering_since.unwrap_or(now));
    }
}
