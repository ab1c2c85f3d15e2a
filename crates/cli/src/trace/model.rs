//! What a trace consists of, whether it was just recorded or read from a file.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A trace of one or more processes of one host.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(super) processes: Vec<Process>,
    pub(super) threads: Vec<Thread>,
    pub(crate) messages: Vec<Message>,
    pub(super) slices: Vec<Slice>,
    pub(crate) marks: Vec<Mark>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) command: String,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Thread {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) name: String,
}

/// A send work request. Times are nanoseconds of CLOCK_MONOTONIC, in ascending order.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Message {
    pub(crate) pid: u32,
    /// Numbers of the queue pair and of its peer.
    pub(crate) qpn: u32,
    pub(crate) peer: u32,
    /// Addresses of both.
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) service: String,
    pub(crate) opcode: String,
    pub(crate) wr_id: u64,
    pub(crate) bytes: u32,
    /// Numbers of the first packet and of the one after the last.
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// Packets that were retransmitted while this was the oldest message in flight.
    pub(crate) retransmitted: u32,
    /// Nanoseconds between RNR NAKs and the retransmissions that follow, and between its departure and the
    /// last other retransmission, while it was in flight.
    #[serde(default)]
    pub(crate) rnr_ns: u64,
    #[serde(default)]
    pub(crate) lost_ns: u64,
    /// `enum ibv_wc_status`, if its completion was polled.
    pub(crate) status: Option<u8>,
    pub(crate) posted: u64,
    /// First and last packet left, for the first time.
    pub(crate) left: Option<u64>,
    pub(crate) last: Option<u64>,
    /// The peer had executed it; known if both ends are in the trace.
    pub(crate) executed: Option<u64>,
    /// The same in detail, in a trace that was just recorded.
    #[serde(skip)]
    pub(crate) execution: Option<Execution>,
    pub(crate) acked: Option<u64>,
    /// Its completion was in the CQ, or its place in the send queue was free.
    pub(crate) completed: u64,
    pub(crate) polled: Option<u64>,
    /// Its completion was in the CQ at the end of the trace, and was not polled.
    #[serde(default)]
    pub(crate) is_left: bool,
}

/// The execution of a message by the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Execution {
    /// The process of the peer.
    pub(crate) pid: u32,
    /// Begin and end of the receive batch with the last packet.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// False if the message may have been lost: it is not acknowledged, and the batch has later packets.
    pub(crate) is_certain: bool,
}

/// Something that took time in a thread.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) what: What,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub(super) enum What {
    /// An engine received, ran timers and sent.
    Batch { batches: u64 },
    /// A queue pair sent packets.
    Transmit { qpn: u32, packets: u16, retransmitted: u32 },
    /// A queue pair processed received packets. `executed`: it expects the request with this number next.
    Receive { qpn: u32, peer: u32, local: IpAddr, remote: IpAddr, executed: u64 },
}

/// Something that happened at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) at: u64,
    pub(crate) event: Event,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum Event {
    SequenceNak { qpn: u32 },
    RnrNak { qpn: u32 },
    Probe { qpn: u32 },
    Timeout { qpn: u32 },
    PortFull { qpn: u32 },
    FlowFull { qpn: u32 },
    WindowFull { qpn: u32 },
    State { qpn: u32, state: String, peer: u32 },
    Receive { qpn: u32, wr_id: u64, bytes: u32, status: u8 },
    Cm { message: String, own: u32, peer: u32, is_sent: bool },
}

impl Event {
    /// The name to show.
    pub(super) fn name(&self) -> String {
        match self {
            Self::SequenceNak { .. } => "sequence NAK received".to_owned(),
            Self::RnrNak { .. } => "RNR NAK received".to_owned(),
            Self::Probe { .. } => "probe sent".to_owned(),
            Self::Timeout { .. } => "local ACK timeout".to_owned(),
            Self::PortFull { .. } => "transmit queue full".to_owned(),
            Self::FlowFull { .. } => "flow full".to_owned(),
            Self::WindowFull { .. } => "window full".to_owned(),
            Self::State { state, .. } => state.clone(),
            Self::Receive { .. } => "receive polled".to_owned(),
            Self::Cm { message, is_sent, .. } => {
                format!("{message} {}", if *is_sent { "sent" } else { "received" })
            }
        }
    }
}

/// What a message waits for, from its post to its completion, in order.
pub(super) const PARTS: [&str; 6] =
    ["send queue", "sending", "network and peer", "ACK", "completion", "poll"];

/// The part of which [`CAUSES`] are known.
pub(super) const NETWORK: usize = 2;
/// Why [`NETWORK`] took so long. The last one: until the peer's engine ran.
pub(super) const CAUSES: [&str; 3] = ["no receive (RNR)", "lost packets", "peer not running"];

impl Message {
    /// Nanoseconds of each of [`CAUSES`]; the rest of [`NETWORK`] has no cause of these.
    pub(super) fn causes(&self) -> [u64; CAUSES.len()] {
        let part = self.parts()[NETWORK];
        let rnr = self.rnr_ns.min(part);
        // A retransmission after the execution was for nothing.
        let lost = Some(self.lost_ns).filter(|lost| *lost <= part - rnr).unwrap_or(0);
        let read = self.execution.map_or(0, |batch| batch.begin);
        let unread = read.saturating_sub(self.ends()[NETWORK - 1] + rnr + lost);
        [rnr, lost, unread.min(part - rnr - lost)]
    }

    /// When each of [`PARTS`] ends. A moment that is not known has the time of the one before, and parts that
    /// overlap end in order.
    pub(super) fn ends(&self) -> [u64; PARTS.len()] {
        let acked = self.acked.unwrap_or(self.completed);
        // Without the other end, the time to the ACK counts as that of network and peer.
        let executed = self.executed.unwrap_or(acked).min(acked);
        let known = [
            self.left.unwrap_or(self.posted),
            self.last.or(self.left).unwrap_or(self.posted),
            executed,
            acked,
            self.completed,
            self.polled.unwrap_or(self.completed),
        ];
        let mut before = self.posted;
        known.map(|end| {
            before = before.max(end);
            before
        })
    }

    /// Nanoseconds of each of [`PARTS`].
    pub(super) fn parts(&self) -> [u64; PARTS.len()] {
        let mut before = self.posted;
        self.ends().map(|end| {
            let part = end - before;
            before = end;
            part
        })
    }

    /// From the post to the poll, or to the completion if there was nothing to poll.
    pub(super) fn total(&self) -> u64 {
        self.polled.unwrap_or(self.completed).saturating_sub(self.posted)
    }
}

impl Trace {
    /// Adds another trace of the same host. Processes of other PID namespaces may have the same numbers;
    /// those of `other` get new ones.
    pub(super) fn add(&mut self, mut other: Trace) {
        let mut fresh = self.processes.iter().chain(&other.processes).map(|process| process.pid).max();
        for at in 0..other.processes.len() {
            let old = other.processes[at].pid;
            if self.processes.iter().any(|process| process.pid == old) {
                let new = fresh.map_or(1, |last| last.saturating_add(1));
                fresh = Some(new);
                other.renumber(old, new);
            }
        }
        self.processes.append(&mut other.processes);
        self.threads.append(&mut other.threads);
        self.messages.append(&mut other.messages);
        self.slices.append(&mut other.slices);
        self.marks.append(&mut other.marks);
    }

    fn renumber(&mut self, old: u32, new: u32) {
        let pids = self.processes.iter_mut().map(|process| &mut process.pid);
        let pids = pids.chain(self.threads.iter_mut().map(|thread| &mut thread.pid));
        let pids = pids.chain(self.messages.iter_mut().map(|message| &mut message.pid));
        let pids = pids.chain(self.slices.iter_mut().map(|slice| &mut slice.pid));
        let pids = pids.chain(self.marks.iter_mut().map(|mark| &mut mark.pid));
        pids.filter(|pid| **pid == old).for_each(|pid| *pid = new);
    }
}
