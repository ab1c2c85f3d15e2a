//! The application of one end of a reliable connection: posts the work requests of the plan and checks the
//! completions.

use std::collections::VecDeque;

use transport::{
    Dest, Errno, QpState, RecvWr, SendFlags, SendWr, Sge, Wc, WcOpcode, WcStatus, ack_timeout_ns,
    further_timeout_ns,
};

use crate::memory::{LOCAL_BASE, LOCAL_KEY};
use crate::plan::{Half, Kind, word_at};
use crate::queue_pair::{QueuePair, RETRY_CNT};
use crate::rng::Rng;
use crate::violation::{Checked, ensure};

/// `wr_id` of the first receive.
const RECV_ID: u64 = 0x1000_0000;
/// Tolerance of a timeout: standstill of a link, RNR waits, frames in flight.
const GRACE_NS: u64 = 20_000_000;

/// State of the node at the far end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Time when it vanished, if it has.
    pub(crate) vanished_ns: Option<u64>,
    /// No other fault happens, so that the time of the error follows from the timeout.
    pub(crate) is_exact: bool,
}

/// The application of one end.
#[derive(Default)]
pub(crate) struct Reliable {
    pub(crate) half: Half,
    posted: usize,
    /// Signaled operations that were posted and have not completed.
    awaited: VecDeque<usize>,
    /// Number of operations known to be complete.
    pub(crate) completed: usize,
    /// Number of operations with targets that were given back to the peer.
    pub(crate) returned: usize,
    recvs_posted: usize,
    recvs_done: usize,
    /// Set when the queue pair is in the error state: the next operation and the next receive to be flushed.
    flushing: Option<(usize, usize)>,
    /// Time of the last progress, or of the last post to an idle queue.
    moved_ns: u64,
    /// Bytes of complete operations.
    pub(crate) bytes: u64,
}

impl Reliable {
    pub(crate) fn new(half: Half) -> Self {
        Self { half, ..Self::default() }
    }

    /// Returns whether there is something to post.
    pub(crate) fn has_work(&self) -> bool {
        self.posted < self.half.ops.len() || self.recvs_posted < self.half.recvs.len()
    }

    /// Returns whether everything that can end has ended.
    pub(crate) fn is_done(&self, peer: Peer) -> bool {
        match self.flushing {
            Some((op, recv)) => op == self.half.ops.len() && recv == self.half.recvs.len(),
            None => {
                self.completed == self.half.ops.len()
                    && (peer.vanished_ns.is_some() || self.recvs_done == self.half.recvs.len())
            }
        }
    }

    /// Returns the progress as text.
    pub(crate) fn state(&self) -> String {
        let (ops, recvs) = (self.half.ops.len(), self.half.recvs.len());
        format!("{}/{ops} sent, {}/{recvs} received", self.completed, self.recvs_done)
    }

    /// Posts some work requests.
    pub(crate) fn post(
        &mut self,
        now: u64,
        queue: &mut QueuePair,
        posts: u64,
        recvs: u64,
        rng: &mut Rng,
    ) -> Checked {
        for _ in 0..recvs {
            if self.recvs_posted == self.half.recvs.len() || !self.post_recv(queue, rng)? {
                break;
            }
        }
        for _ in 0..posts {
            if self.posted == self.half.ops.len() || !self.post_send(now, queue)? {
                break;
            }
        }
        Ok(())
    }

    fn post_send(&mut self, now: u64, queue: &mut QueuePair) -> Checked<bool> {
        let op = &self.half.ops[self.posted];
        let mut addr = LOCAL_BASE + op.local as u64;
        let sges: Vec<Sge> = op
            .pieces
            .iter()
            .map(|&length| {
                // The queue pair does not check the key of an empty or inline element.
                let lkey = if length == 0 || op.inline { wire::Lkey(0xdead) } else { LOCAL_KEY };
                let sge = Sge { addr, length, lkey };
                addr += u64::from(length);
                sge
            })
            .collect();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, op.signaled);
        flags.set(SendFlags::SOLICITED, op.solicited);
        flags.set(SendFlags::FENCE, op.fence);
        flags.set(SendFlags::INLINE, op.inline);
        let wr = SendWr {
            wr_id: self.posted as u64,
            op: op.wr_op(),
            sg_list: &sges,
            flags,
            dest: op.srqn.map(Dest::Srq),
        };
        let was_idle = queue.qp.is_send_idle();
        match queue.post_send(&wr) {
            Ok(()) => {}
            Err(refused) if refused.kind() == Errno::ENOMEM => return Ok(false),
            Err(error) => ensure!(false, State, "post_send refused a valid work request: {error}"),
        }
        if op.signaled {
            self.awaited.push_back(self.posted);
        }
        if was_idle {
            self.moved_ns = now;
        }
        self.posted += 1;
        Ok(true)
    }

    fn post_recv(&mut self, queue: &mut QueuePair, rng: &mut Rng) -> Checked<bool> {
        let recv = &self.half.recvs[self.recvs_posted];
        let first = rng.between(0, recv.room as u64);
        let addr = LOCAL_BASE + recv.local as u64;
        let sges = [
            Sge { addr, length: first as u32, lkey: LOCAL_KEY },
            Sge { addr: addr + first, length: recv.room as u32 - first as u32, lkey: LOCAL_KEY },
        ];
        let wr = RecvWr { wr_id: RECV_ID + self.recvs_posted as u64, sg_list: &sges };
        match queue.post_recv(recv.srqn, &wr) {
            Ok(()) => self.recvs_posted += 1,
            Err(refused) if refused.kind() == Errno::ENOMEM => return Ok(false),
            Err(error) => ensure!(false, State, "post_recv refused a valid work request: {error}"),
        }
        Ok(true)
    }

    /// Checks that signaled work requests complete once and in order, with the expected bytes.
    pub(crate) fn on_send_wc(
        &mut self,
        now: u64,
        wc: &Wc,
        queue: &QueuePair,
        peer: Peer,
        rng: &mut Rng,
    ) -> Checked {
        if wc.status != WcStatus::Success {
            return self.on_error(now, wc, queue, peer);
        }
        let index = self.awaited.pop_front();
        ensure!(
            self.flushing.is_none(),
            Completion,
            "send {} completes with success after the error",
            wc.wr_id
        );
        ensure!(
            index.is_some_and(|index| index as u64 == wc.wr_id),
            Completion,
            "send {} completes, expected {index:?}",
            wc.wr_id
        );
        let index = wc.wr_id as usize;
        for op in &mut self.half.ops[self.completed..=index] {
            let bytes = op.local..op.local + op.len;
            let mut local = queue.memory.local.borrow_mut();
            self.bytes += op.len as u64;
            match op.kind {
                Kind::Read { .. } | Kind::CompareSwap { .. } | Kind::FetchAdd { .. } => {
                    ensure!(local[bytes] == op.fetched, Bytes, "{:?} returned unexpected bytes", op.kind);
                    ensure!(wc.status == WcStatus::Success, Completion, "{:?}", wc.status);
                }
                Kind::LocalInv { key } => {
                    ensure!(
                        !queue.memory.keys.borrow().contains(&key),
                        Completion,
                        "LOCAL_INV {key:#x} did not invalidate the key"
                    );
                }
                // The source belongs to the application again; the queue pair must not read it any more.
                _ if op.len > 0 && rng.chance(500) => {
                    local[op.local] ^= 0xff;
                    self.half.local_after[op.local] = local[op.local];
                    self.half.local[op.local] = local[op.local];
                }
                _ => {}
            }
        }
        self.completed = index + 1;
        self.moved_ns = now;
        Ok(())
    }

    /// The peer has vanished: the oldest operation must fail when all retries are used up, and the others are
    /// flushed.
    fn on_error(&mut self, now: u64, wc: &Wc, queue: &QueuePair, peer: Peer) -> Checked {
        let status = wc.status;
        let Some(vanished_ns) = peer.vanished_ns else {
            ensure!(false, Completion, "send {} fails with {status:?} although its peer is alive", wc.wr_id);
            return Ok(());
        };
        ensure!(queue.qp.state() == QpState::Err, State, "{status:?} in state {:?}", queue.qp.state());
        let index = wc.wr_id as usize;
        if let Some((next, _)) = &mut self.flushing {
            ensure!(
                index == *next && status == WcStatus::WrFlushErr,
                Completion,
                "send {index} completes with {status:?}, expected a flush of {next}"
            );
            *next += 1;
            return Ok(());
        }
        ensure!(
            status == WcStatus::RetryExcErr,
            Completion,
            "{status:?}, expected RetryExcErr because the peer has vanished"
        );
        let is_oldest = index >= self.completed
            && index < self.posted
            && self.awaited.front().is_none_or(|&a| a >= index);
        ensure!(is_oldest, Completion, "send {index} fails, but {} operations are complete", self.completed);
        let timeout = queue.qp.attr().timeout;
        let timeout_ns = ack_timeout_ns(timeout).unwrap_or(0);
        let all_ns = timeout_ns + u64::from(RETRY_CNT) * further_timeout_ns(timeout).unwrap_or(0);
        let waited_ns = now - self.moved_ns;
        ensure!(
            !peer.is_exact || waited_ns >= all_ns,
            Progress,
            "send {index} fails after {waited_ns} ns, before {RETRY_CNT} retries of {timeout_ns} ns"
        );
        let late_ns = now.saturating_sub(vanished_ns.max(self.moved_ns) + all_ns);
        ensure!(late_ns < GRACE_NS, Progress, "send {index} fails {late_ns} ns too late");
        self.awaited.clear();
        let mut flushed = self.recvs_done;
        if queue.srqs.own.is_some() {
            // A shared receive queue is not flushed.
            self.recvs_posted = self.half.recvs.len();
            flushed = self.recvs_posted;
        }
        self.flushing = Some((index + 1, flushed));
        Ok(())
    }

    /// Checks that receive work requests complete once and in order, each with its message.
    pub(crate) fn on_recv_wc(
        &mut self,
        wc: &Wc,
        solicited: bool,
        srqn: Option<u32>,
        queue: &QueuePair,
    ) -> Checked {
        if wc.status == WcStatus::WrFlushErr
            && let Some((_, next)) = &mut self.flushing
        {
            // From a shared receive queue only the receive that a message had taken is flushed.
            let expected = if queue.srqs.own.is_some() { self.recvs_done } else { *next };
            ensure!(
                wc.wr_id == RECV_ID + expected as u64,
                Completion,
                "receive {} is flushed before {expected}",
                wc.wr_id - RECV_ID
            );
            if queue.srqs.own.is_none() {
                *next += 1;
            } else {
                self.recvs_done += 1;
            }
            return Ok(());
        }
        let number = self.recvs_done;
        ensure!(
            self.flushing.is_none() && number < self.recvs_posted,
            Completion,
            "receive {} completes, {number} of {} have",
            wc.wr_id.wrapping_sub(RECV_ID),
            self.recvs_posted
        );
        let recv = &self.half.recvs[number];
        ensure!(
            wc.status == WcStatus::Success && wc.wr_id == RECV_ID + number as u64,
            Completion,
            "receive {} completes with {:?}, expected success of {number}",
            wc.wr_id.wrapping_sub(RECV_ID),
            wc.status
        );
        let local = queue.memory.local.borrow();
        let opcode = match &recv.data {
            Some(data) => {
                let there = &local[recv.local..recv.local + data.len()];
                ensure!(there == data, Bytes, "receive {number} has unexpected bytes");
                WcOpcode::Recv
            }
            None => WcOpcode::RecvRdmaWithImm,
        };
        let wc_flags = if recv.imm.is_some() { Wc::WITH_IMM } else { 0 }
            | if recv.inv.is_some() { Wc::WITH_INV } else { 0 };
        let imm_data = recv.imm.or(recv.inv.map(u32::to_ne_bytes)).unwrap_or_default();
        let seen = (wc.opcode, wc.byte_len as usize, wc.wc_flags, wc.imm_data, solicited, srqn);
        let expected = (opcode, recv.byte_len, wc_flags, imm_data, recv.solicited, recv.srqn);
        ensure!(
            seen == expected,
            Completion,
            "receive {number} completes with {seen:?}, expected {expected:?}"
        );
        if let Some(key) = recv.inv {
            let is_valid = queue.memory.keys.borrow().contains(&key);
            ensure!(!is_valid, Completion, "key {key:#x} is still valid");
        }
        self.recvs_done += 1;
        Ok(())
    }

    /// Returns whether the last-WQE-reached event may be reported.
    pub(crate) fn expects_last_wqe(&self, queue: &QueuePair) -> bool {
        self.flushing.is_some() && queue.srqs.own.is_some()
    }

    /// Checks memory against the model. After a broken connection, each byte may also have its original
    /// value, and an atomic word any of its values.
    pub(crate) fn check_memory(&self, queue: &QueuePair, peer: Peer) -> Checked {
        let half = &self.half;
        let (local, mut remote) = (queue.memory.local.borrow(), queue.memory.remote.borrow_mut());
        for (at, values) in half.words.iter().filter(|_| peer.vanished_ns.is_some()) {
            let value = word_at(&remote, *at);
            ensure!(values.contains(&value), Bytes, "atomic word {at} has the value {value:#x}");
            remote[*at..at + 8].copy_from_slice(&half.remote_after[*at..at + 8]);
        }
        let regions = [
            ("local", &**local, &half.local, &half.local_after),
            ("remote", &**remote, &half.remote, &half.remote_after),
        ];
        for (name, there, before, after) in regions {
            if there == after {
                continue;
            }
            let half_done = |at: usize| peer.vanished_ns.is_some() && there[at] == before[at];
            let is_wrong = |at: &usize| there[*at] != after[*at] && !half_done(*at);
            if let Some(at) = (0..after.len()).find(is_wrong) {
                let (is, was, expected) = (there[at], before[at], after[at]);
                ensure!(false, Bytes, "{name} byte {at} is {is:#x}; it was {was:#x}, expected {expected:#x}");
            }
        }
        if peer.vanished_ns.is_none() {
            ensure!(queue.memory.keys.borrow().is_empty(), Bytes, "a key was not invalidated");
            ensure!(
                queue.qp.state() == QpState::Rts,
                State,
                "the queue pair ends in state {:?}",
                queue.qp.state()
            );
        }
        Ok(())
    }
}
