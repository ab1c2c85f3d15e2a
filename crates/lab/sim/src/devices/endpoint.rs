//! One end of a connection: its queue pair, its memory, and its progress: posted, completed and received
//! messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use roxie::verbs::{Buffer, Cq, Pd, Qp, QpInitAttr};
use transport::{
    Access, AddressVector, PathMtu, QpAttr, QpAttrMask, QpCap, QpState, QpType, RecvWr, SendFlags, SendWr,
    Sge, Wc, WcOpcode, WcStatus, WrOp,
};
use wire::{Gid, Psn, Qpn, Rkey};

use super::plan::{Op, Verb};

const PSN: u32 = 0x00ff_fff0;
/// Set in the ids of receives.
pub(super) const RECEIVE: u64 = 1 << 31;

/// The state of one end that its peer reads as well.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// The work of this end is complete, and everything that it expects has arrived.
    pub(super) is_done: AtomicBool,
    /// The connection of this end could not be made.
    pub(super) is_broken: AtomicBool,
}

/// The peer's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Remote {
    /// Where WRITEs go.
    pub(super) target: (u64, Rkey),
    /// What READs fetch.
    pub(super) source: (u64, Rkey),
}

/// See the module documentation.
pub(super) struct Endpoint {
    pub(super) number: u64,
    pub(super) qp: Qp,
    pub(super) work: Vec<Op>,
    /// What the peer posts.
    pub(super) expected: Vec<Op>,
    pub(super) remote: Remote,
    pub(super) own: Arc<Outside>,
    pub(super) peer: Arc<Outside>,
    pub(super) peer_process: usize,
    pub(super) closes_early: bool,
    /// This end posts one message for each message of the peer that has arrived.
    pub(super) is_ping_pong: bool,
    /// In a ping-pong: this end posts the first message.
    pub(super) starts: bool,
    /// Messages of the peer that have arrived, in a ping-pong.
    arrived: usize,
    /// What this end sends; READs fetch it as well.
    source: Arc<Buffer>,
    /// Where the peer's WRITEs go.
    target: Buffer,
    /// Where the responses to this end's READs go.
    fetched: Arc<Buffer>,
    /// Receives land here.
    inbound: Buffer,
    /// Only one thread polls the CQ, so the order of completions can be checked.
    is_ordered: bool,
    posted: usize,
    completed: usize,
    /// Whether each work request has completed.
    seen: Vec<bool>,
    received: usize,
    pub(super) is_broken: bool,
    /// The queue pair is connected, so posting may begin.
    pub(super) is_connected: bool,
    /// The plan may reject this connection.
    pub(super) may_break: bool,
}

/// Byte `at` of what end `number` sends; never 0, so that spinning on memory ends.
fn pattern(number: u64, at: usize) -> u8 {
    ((at as u64).wrapping_mul(31).wrapping_add(number.wrapping_mul(97)) % 255) as u8 + 1
}

impl Endpoint {
    /// Creates the queue pair in RESET and allocates the memory. [`connect`](Self::connect), or the thread of
    /// the connection manager, posts the receives.
    pub(super) fn new(
        number: u64,
        pd: &Pd,
        (send_cq, recv_cq): (Cq, Cq),
        work: &[Op],
        expected: &[Op],
        is_ordered: bool,
    ) -> Self {
        let bytes = |ops: &[Op]| ops.last().map_or(0, |op: &Op| op.offset + op.len).max(1);
        let (own, theirs) = (bytes(work), bytes(expected));
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = |len| pd.alloc_buffer(len, all).expect("memory");
        let receives = expected.iter().filter(|op| op.verb == Verb::Send).count();
        let cap = QpCap {
            max_send_wr: 256,
            max_recv_wr: receives.max(1) as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let init = QpInitAttr {
            ty: QpType::Rc,
            send_cq,
            recv_cq,
            srq: None,
            cap,
            sq_sig_all: false,
            cookie: number,
        };
        let qp = pd.create_qp(&init).expect("a queue pair");
        let source = buffer(own.max(theirs));
        let bytes: Vec<u8> = (0..source.len()).map(|at| pattern(number, at)).collect();
        source.write(0, &bytes);
        Self {
            number,
            qp,
            work: work.to_vec(),
            expected: expected.to_vec(),
            remote: Remote::default(),
            own: Arc::default(),
            peer: Arc::default(),
            peer_process: 0,
            closes_early: false,
            is_ping_pong: false,
            starts: false,
            arrived: 0,
            source: Arc::new(source),
            target: buffer(theirs),
            fetched: Arc::new(buffer(own)),
            inbound: buffer(theirs),
            is_ordered,
            seen: vec![false; work.len()],
            posted: 0,
            completed: 0,
            received: 0,
            is_broken: false,
            is_connected: false,
            may_break: false,
        }
    }

    pub(super) fn remote(&self) -> Remote {
        let of = |buffer: &Buffer| (buffer.addr(), buffer.rkey());
        Remote { target: of(&self.target), source: of(&self.source) }
    }

    /// Moves the queue pair from RESET to RTS, and posts the receives.
    pub(super) fn connect(&mut self, dest_qp: Qpn, dgid: Gid, remote: Remote, timeout: u8) {
        self.remote = remote;
        let attr = QpAttr {
            state: QpState::Init,
            port_num: 1,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            path_mtu: PathMtu::M1024,
            dest_qp,
            rq_psn: Psn::new(PSN),
            sq_psn: Psn::new(PSN),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            av: AddressVector { dgid, hop_limit: 64, ..AddressVector::default() },
            ..QpAttr::default()
        };
        use QpAttrMask as M;
        let modify =
            |attr: &QpAttr, mask| self.qp.modify(attr, mask).expect("a transition that is permitted");
        modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS);
        for (wr_id, sge) in self.receives_to_post() {
            self.qp.post_recv(&RecvWr { wr_id, sg_list: &[sge] }).expect("room");
        }
        let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        modify(&QpAttr { state: QpState::Rtr, ..attr.clone() }, M::STATE | rtr);
        let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        modify(&QpAttr { state: QpState::Rts, ..attr }, M::STATE | rts);
        self.is_connected = true;
    }

    /// Returns a receive for each expected SEND: its id, and where the message goes.
    pub(super) fn receives_to_post(&self) -> Vec<(u64, Sge)> {
        let sends = self.expected.iter().filter(|op| op.verb == Verb::Send).enumerate();
        let receive = |(n, op): (usize, &Op)| {
            (self.number << 32 | RECEIVE | n as u64, self.inbound.sge(op.offset, op.len))
        };
        sends.map(receive).collect()
    }

    /// Takes the work requests that may be posted now as one list. The list is empty while `depth` work
    /// requests are in flight, one of them signaled.
    pub(super) fn take_list(&mut self, depth: usize) -> Vec<(usize, Op)> {
        let mut list = Vec::new();
        if self.is_ping_pong && !self.has_turn() {
            return list;
        }
        while self.is_connected && !self.is_broken && self.posted < self.work.len() {
            // An unsignaled work request counts until a signaled one after it has completed.
            let in_flight = self.posted - self.completed;
            let needs = self.posted + 1 < self.work.len() && in_flight >= depth.max(20);
            if needs || (in_flight >= depth && list.is_empty() && self.has_signaled_in_flight()) {
                break;
            }
            let op = self.work[self.posted];
            list.push((self.posted, op));
            self.posted += 1;
            if !op.joins_next {
                break;
            }
        }
        list
    }

    /// In a ping-pong: whether the peer's last message has arrived, and this end has not replied to it.
    fn has_turn(&mut self) -> bool {
        let has_arrived = |(n, op): (usize, &Op)| match op.verb {
            Verb::Send => n < self.received,
            _ => self.target.load(op.offset + op.len - 1) != 0,
        };
        let rest = self.expected.iter().enumerate().skip(self.arrived);
        self.arrived += rest.take_while(|(n, op)| has_arrived((*n, op))).count();
        self.posted < self.arrived + usize::from(self.starts)
    }

    /// Whether a signaled work request was posted and has not completed.
    pub(super) fn awaits_completion(&self) -> bool {
        let posted = self.work[..self.posted].iter().zip(&self.seen);
        !self.is_broken && posted.skip(self.completed).any(|(op, seen)| op.is_signaled && !seen)
    }

    fn has_signaled_in_flight(&self) -> bool {
        self.work[self.completed..self.posted].iter().any(|op| op.is_signaled)
    }

    /// Posts a list of work requests in one call, as an application thread does.
    pub(super) fn post(qp: &Qp, number: u64, memory: &Memory, list: &[(usize, Op)]) -> Result<(), String> {
        let mut posting = qp.begin_post();
        for (n, op) in list {
            let (at, len) = (op.offset, op.len);
            let at_remote = |(addr, key): (u64, Rkey)| (addr + at as u64, key);
            let (wr_op, sge) = match op.verb {
                Verb::Send => (WrOp::Send, memory.source.sge(at, len)),
                Verb::Write => {
                    let (remote_addr, r_key) = at_remote(memory.remote.target);
                    (WrOp::Write { remote_addr, r_key }, memory.source.sge(at, len))
                }
                Verb::Read => {
                    let (remote_addr, r_key) = at_remote(memory.remote.source);
                    (WrOp::Read { remote_addr, r_key }, memory.fetched.sge(at, len))
                }
            };
            let flags = match (op.is_signaled, op.is_inline) {
                (true, _) => SendFlags::SIGNALED,
                (false, true) => SendFlags::INLINE,
                (false, false) => SendFlags::empty(),
            };
            let wr =
                SendWr { wr_id: number << 32 | *n as u64, op: wr_op, sg_list: &[sge], flags, dest: None };
            posting.send(&wr).map_err(|error| format!("post {n} of end {number}: {error:?}"))?;
        }
        Ok(())
    }

    /// Returns the buffers that [`post`](Self::post) uses while the endpoint is not locked.
    pub(super) fn memory(&self) -> Memory {
        Memory { source: Arc::clone(&self.source), fetched: Arc::clone(&self.fetched), remote: self.remote }
    }

    /// Checks a completion. A failed work request is a broken promise unless `may_fail`, or unless the plan
    /// may reject this connection.
    pub(super) fn complete(&mut self, wc: &Wc, may_fail: bool) -> Result<(), String> {
        let (number, n) = (self.number, (wc.wr_id & (RECEIVE - 1)) as usize);
        if wc.status != WcStatus::Success {
            self.is_broken = true;
            let excuse = if may_fail || self.may_break {
                Ok(())
            } else {
                Err(format!("end {number}: {n} ended with {:?}", wc.status))
            };
            return excuse;
        }
        if wc.wr_id & RECEIVE != 0 {
            return self.received(n, wc);
        }
        let op = *self
            .work
            .get(n)
            .ok_or_else(|| format!("end {number}: completion of {n}, which was not posted"))?;
        let skipped = self.work[self.completed..n.max(self.completed)].iter().any(|op| op.is_signaled);
        let is_early = self.is_ordered && (n < self.completed || skipped);
        if is_early || n >= self.posted || !op.is_signaled || std::mem::replace(&mut self.seen[n], true) {
            return Err(format!(
                "end {number}: completion of {n} after {} of {}",
                self.completed, self.posted
            ));
        }
        self.completed = self.completed.max(n + 1);
        if op.verb == Verb::Read {
            if wc.opcode != WcOpcode::RdmaRead {
                return Err(format!("end {number}: a READ completed as {:?}", wc.opcode));
            }
            check(&self.fetched, op, number ^ 1, "READ")?;
        }
        Ok(())
    }

    fn received(&mut self, n: usize, wc: &Wc) -> Result<(), String> {
        let number = self.number;
        if self.is_ordered && n != self.received {
            return Err(format!("end {number}: receive {n} completed after {}", self.received));
        }
        self.received += 1;
        let op = self.expected.iter().filter(|op| op.verb == Verb::Send).nth(n);
        let op = *op.ok_or_else(|| format!("end {number}: receive {n} was not posted"))?;
        if wc.byte_len as usize != op.len {
            return Err(format!("end {number}: receive {n} has {} of {} bytes", wc.byte_len, op.len));
        }
        check(&self.inbound, op, number ^ 1, "SEND")
    }

    /// Whether all work requests have completed and every expected SEND has arrived.
    pub(super) fn has_all(&self) -> bool {
        self.has_sent_all() && (self.is_broken || self.received == self.receives())
    }

    /// Whether all work requests were posted and the signaled ones have completed.
    pub(super) fn has_sent_all(&self) -> bool {
        let is_complete = |(op, seen): (&Op, &bool)| *seen || !op.is_signaled;
        self.is_broken
            || (self.posted == self.work.len() && self.work.iter().zip(&self.seen).all(is_complete))
    }

    /// Whether the connection was made, or could not be made.
    pub(super) fn has_begun(&self) -> bool {
        self.is_connected || self.is_broken
    }

    /// Whether every expected SEND has arrived.
    pub(super) fn has_received_all(&self) -> bool {
        self.is_broken || self.received == self.receives()
    }

    fn receives(&self) -> usize {
        self.expected.iter().filter(|op| op.verb == Verb::Send).count()
    }

    /// Whether the last byte of each expected WRITE has arrived.
    pub(super) fn sees_writes(&self) -> bool {
        let mut writes = self.expected.iter().filter(|op| op.verb == Verb::Write);
        self.is_broken || writes.all(|op| self.target.load(op.offset + op.len - 1) != 0)
    }

    /// Checks that every byte of the peer's WRITEs is right, and that no other byte was written.
    pub(super) fn check_writes(&self) -> Result<(), String> {
        for op in self.expected.iter() {
            if op.verb == Verb::Write {
                check(&self.target, *op, self.number ^ 1, "WRITE")?;
            } else {
                let mut bytes = vec![0; op.len];
                self.target.read(op.offset, &mut bytes);
                if bytes.iter().any(|byte| *byte != 0) {
                    return Err(format!("end {}: memory at {} was written", self.number, op.offset));
                }
            }
        }
        Ok(())
    }

    /// Tells the peer that this end has done its work. Returns whether that is new.
    pub(super) fn finish(&self) -> bool {
        !self.own.is_done.swap(true, Ordering::Relaxed)
    }

    pub(super) fn peer_is_done(&self) -> bool {
        self.peer.is_done.load(Ordering::Relaxed)
    }
}

/// Buffers and keys that posting uses.
pub(super) struct Memory {
    source: Arc<Buffer>,
    fetched: Arc<Buffer>,
    remote: Remote,
}

fn check(buffer: &Buffer, op: Op, sender: u64, what: &str) -> Result<(), String> {
    let mut bytes = vec![0; op.len];
    buffer.read(op.offset, &mut bytes);
    let wrong = bytes.iter().enumerate().position(|(i, byte)| *byte != pattern(sender, op.offset + i));
    wrong.map_or(Ok(()), |at| Err(format!("{what} at {}: byte {at} of {} is wrong", op.offset, op.len)))
}
