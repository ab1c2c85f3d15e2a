//! From the events of the threads to messages: which work request a packet number belongs to.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use roxie::trace::{Entry, Input, Quantum, State, Wait};
use sys::trace::Recording;
use transport::{PostedSend, Progress, QpState, QpType, WcOpcode};

use super::model::{Event, Mark, Message, Process, Slice, Thread, Trace, What};

/// Builds the trace of all threads of one `roxie trace`.
pub(crate) fn rebuild(recordings: &[Recording]) -> Trace {
    let mut trace = Trace::default();
    let mut processes: BTreeMap<u32, Vec<&Recording>> = BTreeMap::new();
    for recording in recordings {
        processes.entry(recording.process).or_default().push(recording);
        let (pid, tid, name) = (recording.process, recording.thread, recording.name.clone());
        trace.threads.push(Thread { pid, tid, name });
    }
    for (pid, threads) in processes {
        let command = threads.first().map(|thread| thread.command.clone()).unwrap_or_default();
        trace.processes.push(Process { pid, command });
        let mut entries: Vec<(u64, u32, Entry)> = Vec::new();
        for thread in threads {
            let parsed = thread
                .events
                .iter()
                .filter_map(|event| Some((event.time_ns, thread.thread, Entry::parse(event)?)));
            let from = entries.len();
            entries.extend(parsed);
            trace.slices.extend(batches(pid, &entries[from..]));
        }
        entries.sort_by_key(|(time, ..)| *time);
        let mut builder = Builder { pid, trace: &mut trace, qps: HashMap::new() };
        entries.iter().for_each(|(time, tid, entry)| builder.add(*time, *tid, entry));
        builder.finish();
    }
    trace
}

/// The batches of the engine in a thread, from its entries in the order of recording: a batch ends with the
/// last entry that it has made.
fn batches(pid: u32, entries: &[(u64, u32, Entry)]) -> Vec<Slice> {
    let (mut slices, mut last) = (Vec::new(), 0);
    for (begin, tid, entry) in entries {
        match *entry {
            Entry::Quantum { quantum, .. } => last = quantum.end_ns,
            Entry::Received { input, .. } | Entry::Expired { input, .. } => last = input.end_ns,
            Entry::Batch { batches } => {
                let (begin, end, what) = (*begin, last.max(*begin), What::Batch { batches });
                slices.push(Slice { pid, tid: *tid, begin, end, what });
            }
            _ => {}
        }
    }
    slices
}

/// The messages of one process.
struct Builder<'a> {
    pid: u32,
    trace: &'a mut Trace,
    qps: HashMap<u32, Ends>,
}

/// One queue pair.
struct Ends {
    state: State,
    /// Messages that have not completed, in the order of their posts, with their places in the send queue.
    queue: VecDeque<(u32, bool, Message)>,
    /// Messages that wait for a poll.
    unpolled: VecDeque<Message>,
    /// Polls of completions that the engine has not recorded.
    early: Vec<Poll>,
    counters: Option<Input>,
    /// An RNR NAK came then, after which nothing was retransmitted.
    not_ready: Option<u64>,
}

/// The application has polled a completion.
#[derive(Clone, Copy)]
struct Poll {
    at: u64,
    wr_id: u64,
    status: u8,
}

impl Default for Ends {
    fn default() -> Self {
        let (ty, state) = (QpType::Rc, QpState::Reset);
        let state = State {
            ty,
            state,
            dest_qpn: Default::default(),
            local: Default::default(),
            remote: Default::default(),
        };
        let (queue, unpolled) = (VecDeque::new(), VecDeque::new());
        Self { state, queue, unpolled, early: Vec::new(), counters: None, not_ready: None }
    }
}

impl Builder<'_> {
    fn add(&mut self, time: u64, tid: u32, entry: &Entry) {
        match *entry {
            Entry::Post { qpn, send } => {
                let pid = self.pid;
                let ends = self.qps.entry(qpn.value()).or_default();
                let message = message(pid, qpn.value(), &ends.state, &send, time);
                ends.queue.push_back((send.index, send.is_signaled, message));
            }
            Entry::Quantum { qpn, quantum } => self.sent(time, tid, qpn.value(), &quantum),
            Entry::Received { qpn, input } => {
                self.advanced(time, tid, qpn.value(), &input);
                let state = self.qps.entry(qpn.value()).or_default().state;
                let (local, remote) = (address(state.local), address(state.remote));
                let (peer, executed) = (state.dest_qpn.value(), input.progress.executes_next);
                let what = What::Receive { qpn: qpn.value(), peer, local, remote, executed };
                self.slice(tid, (time, input.end_ns), what);
            }
            Entry::Expired { qpn, input } => self.advanced(time, tid, qpn.value(), &input),
            Entry::Poll { qpn, wr_id, status, is_receive: true, bytes } => {
                self.mark(tid, time, Event::Receive { qpn: qpn.value(), wr_id, bytes, status });
            }
            Entry::Poll { qpn, wr_id, status, .. } => {
                if let Some(ends) = self.qps.get_mut(&qpn.value()) {
                    ends.polled(Poll { at: time, wr_id, status }, &mut self.trace.messages);
                }
            }
            // `batches` has them.
            Entry::Batch { .. } => {}
            Entry::Waits { qpn, wait } => {
                let qpn = qpn.value();
                self.mark(
                    tid,
                    time,
                    match wait {
                        Wait::Port => Event::PortFull { qpn },
                        Wait::Flow => Event::FlowFull { qpn },
                        Wait::Window => Event::WindowFull { qpn },
                    },
                );
            }
            Entry::State { qpn, state } => {
                let (qpn, peer) = (qpn.value(), state.dest_qpn.value());
                let ends = self.qps.entry(qpn).or_default();
                if state.state == QpState::Reset {
                    // What has not completed never does, and the numbers begin anew.
                    self.trace.messages.extend(std::mem::take(ends).unpolled);
                }
                ends.state = state;
                self.mark(tid, time, Event::State { qpn, state: state.state.to_string(), peer });
            }
            Entry::Cm(message) => {
                let (own, peer) = match message.is_sent {
                    true => (message.sender, message.receiver),
                    false => (message.receiver, message.sender),
                };
                let (message, is_sent) = (message.name().to_owned(), message.is_sent);
                self.mark(tid, time, Event::Cm { message, own, peer, is_sent });
            }
        }
    }

    fn slice(&mut self, tid: u32, (begin, end): (u64, u64), what: What) {
        self.trace.slices.push(Slice { pid: self.pid, tid, begin, end: end.max(begin), what });
    }

    fn mark(&mut self, tid: u32, at: u64, event: Event) {
        self.trace.marks.push(Mark { pid: self.pid, tid, at, event });
    }

    /// A queue pair has sent packets from `begin` on.
    fn sent(&mut self, begin: u64, tid: u32, qpn: u32, quantum: &Quantum) {
        let Quantum { end_ns, packets, mut retransmitted, from, progress } = *quantum;
        self.slice(tid, (begin, end_ns), What::Transmit { qpn, packets, retransmitted });
        let ends = self.qps.entry(qpn).or_default();
        let until = progress.leaves_next;
        // Packets of a quantum leave at equal intervals.
        let at = |packet: u64| {
            let since = end_ns.saturating_sub(begin).saturating_mul(packet - from);
            begin.saturating_add(since / until.saturating_sub(from).max(1))
        };
        let not_ready = ends.not_ready.take_if(|_| retransmitted > 0);
        let is_again = retransmitted > 0;
        for (.., message) in &mut ends.queue {
            if let Some(left) = message.left.filter(|_| is_again && message.acked.is_none()) {
                match not_ready {
                    Some(since) => {
                        let waited = begin.saturating_sub(since.max(left));
                        message.rnr_ns = message.rnr_ns.saturating_add(waited);
                    }
                    None => {
                        let since = message.last.unwrap_or(left).saturating_add(message.rnr_ns);
                        message.lost_ns = begin.saturating_sub(since);
                    }
                }
            }
            if message.first < message.end {
                let again = std::mem::take(&mut retransmitted);
                message.retransmitted = message.retransmitted.saturating_add(again);
            }
            if message.left.is_none() && (from..until).contains(&message.first) {
                message.left = Some(at(message.first));
            }
            if message.last.is_none() && message.end > from && message.end <= until {
                message.last = Some(at(message.end));
            }
        }
        ends.complete(end_ns, end_ns, &progress, &mut self.trace.messages);
    }

    /// A queue pair has processed packets or a timer.
    fn advanced(&mut self, time: u64, tid: u32, qpn: u32, input: &Input) {
        let ends = self.qps.entry(qpn).or_default();
        let before = ends.counters.replace(*input).unwrap_or(Input { naks: 0, rnr_naks: 0, ..*input });
        ends.complete(time, input.end_ns, &input.progress, &mut self.trace.messages);
        if before.rnr_naks != input.rnr_naks {
            ends.not_ready.get_or_insert(time);
        }
        let events = [
            (before.naks != input.naks, Event::SequenceNak { qpn }),
            (before.rnr_naks != input.rnr_naks, Event::RnrNak { qpn }),
            (before.probes != input.probes, Event::Probe { qpn }),
            (before.timeouts != input.timeouts, Event::Timeout { qpn }),
        ];
        for (_, event) in events.into_iter().filter(|(happened, _)| *happened) {
            self.mark(tid, time, event);
        }
    }

    /// Messages with a completion that was visible at the end, and was not polled.
    fn finish(self) {
        for mut ends in self.qps.into_values() {
            // The end of the trace came before the record of the engine.
            for poll in std::mem::take(&mut ends.early) {
                ends.take_queued(poll, &mut self.trace.messages);
            }
            let left = ends.unpolled.into_iter().map(|message| Message { is_left: true, ..message });
            self.trace.messages.extend(left);
        }
        self.trace.messages.sort_by_key(|message| message.posted);
    }
}

impl Ends {
    /// Gives a poll to the message that it is of.
    fn polled(&mut self, poll: Poll, done: &mut Vec<Message>) {
        if !self.take_completed(poll, done) {
            match poll.status {
                0 => self.early.push(poll),
                // The state of the queue pair has ended it, which the engine does not record.
                _ => self.take_queued(poll, done),
            }
        }
    }

    /// Returns whether a message has completed that the poll is of.
    fn take_completed(&mut self, poll: Poll, done: &mut Vec<Message>) -> bool {
        let at = self.unpolled.iter().position(|message| message.wr_id == poll.wr_id);
        let found = at.and_then(|at| self.unpolled.remove(at));
        let is_found = found.is_some();
        done.extend(found.map(|message| message.polled(poll)));
        is_found
    }

    fn take_queued(&mut self, poll: Poll, done: &mut Vec<Message>) {
        let at = self.queue.iter().position(|(_, _, message)| message.wr_id == poll.wr_id);
        let Some((.., message)) = at.and_then(|at| self.queue.remove(at)) else { return };
        let acked = Some(poll.at).filter(|_| poll.status == 0);
        done.push(Message { completed: poll.at, acked, ..message }.polled(poll));
    }

    /// Moves the messages that have completed: `acked` at the time of the ACK, visible at `completed`.
    fn complete(&mut self, acked: u64, completed: u64, progress: &Progress, done: &mut Vec<Message>) {
        for (.., message) in &mut self.queue {
            let is_acknowledged = message.first < message.end && message.end <= progress.acknowledged;
            if message.acked.is_none() && is_acknowledged {
                message.acked = Some(acked);
            }
        }
        let is_before = |index: u32| (index.wrapping_sub(progress.completes_next) as i32) < 0;
        while let Some((.., message)) = self.queue.front().filter(|(index, ..)| is_before(*index)) {
            let message = Message { completed, ..message.clone() };
            let is_signaled = self.queue.pop_front().is_some_and(|(_, is_signaled, _)| is_signaled);
            match message.acked {
                // An unsignaled message that succeeds leaves nothing to poll.
                Some(_) if !is_signaled => done.push(message),
                _ => self.unpolled.push_back(message),
            }
        }
        // The batch that makes a completion begins before its poll. So the polls until now that found none
        // were of messages that are not in the trace: newer events have replaced their posts.
        self.early.clear();
    }
}

impl Message {
    fn polled(self, poll: Poll) -> Self {
        Self {
            completed: self.completed.min(poll.at),
            acked: self.acked.map(|acked| acked.min(poll.at)),
            polled: Some(poll.at),
            status: Some(poll.status),
            ..self
        }
    }
}

fn message(pid: u32, qpn: u32, state: &State, send: &PostedSend, posted: u64) -> Message {
    Message {
        pid,
        qpn,
        peer: state.dest_qpn.value(),
        local: address(state.local),
        remote: address(state.remote),
        service: state.ty.to_string(),
        opcode: opcode(send.opcode).to_owned(),
        wr_id: send.wr_id,
        bytes: send.length,
        first: send.first,
        end: send.end,
        retransmitted: 0,
        rnr_ns: 0,
        lost_ns: 0,
        status: None,
        posted,
        left: None,
        last: None,
        executed: None,
        execution: None,
        acked: None,
        completed: posted,
        polled: None,
        is_left: false,
    }
}

fn opcode(opcode: WcOpcode) -> &'static str {
    match opcode {
        WcOpcode::Send => "SEND",
        WcOpcode::RdmaWrite => "WRITE",
        WcOpcode::RdmaRead => "READ",
        WcOpcode::CompSwap => "CMP_SWAP",
        WcOpcode::FetchAdd => "FETCH_ADD",
        WcOpcode::BindMw => "BIND_MW",
        WcOpcode::LocalInv => "LOCAL_INV",
        WcOpcode::Flush => "FLUSH",
        WcOpcode::AtomicWrite => "ATOMIC_WRITE",
        WcOpcode::RegMr => "REG_MR",
        WcOpcode::Tso | WcOpcode::Recv | WcOpcode::RecvRdmaWithImm => "other",
    }
}

/// The address of a GID; the unspecified one before the queue pair is connected.
fn address(gid: wire::Gid) -> IpAddr {
    if gid.0 == [0; 16] { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { gid.ip() }
}

#[cfg(test)]
mod tests;
