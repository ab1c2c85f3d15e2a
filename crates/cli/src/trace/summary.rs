//! Where the time of the median and of the p99 message went.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use wire::text::Printable;

use super::cpus::Waited;
use super::model::{CAUSES, Event, Message, NETWORK, PARTS, Trace};

/// Queue pairs that the text shows; those with the most messages.
const GROUPS_MAX: usize = 8;

/// Below this number of messages in flight there is one at a time: a post and the poll before it take time.
const ONE: f64 = 1.05;

/// The summary of a trace.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    processes: usize,
    threads: usize,
    messages: usize,
    /// Sequence NAKs and RNR NAKs received, probes, local ACK timeouts, and how often packets waited.
    events: BTreeMap<String, usize>,
    groups: Vec<Group>,
    /// Processes of which the threads waited for a CPU.
    waited: Vec<Waited>,
    /// Events that newer ones replaced, and those that a full disk lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

/// The messages of one queue pair and opcode.
#[derive(Debug, Serialize)]
struct Group {
    qpn: u32,
    peer: u32,
    local: String,
    remote: String,
    service: String,
    opcode: String,
    messages: usize,
    failed: usize,
    /// Completed, and not polled when the trace ended.
    left: usize,
    /// Whether the other end is in the trace.
    has_peer: bool,
    retransmitted: u64,
    bytes: (u32, u32),
    /// Messages in flight, on average while there was one.
    in_flight: f64,
    median: Share,
    p99: Share,
    /// The mean of all messages.
    mean: Share,
}

/// The time of the messages at one place of the order, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Share {
    total_ns: u64,
    /// Of each of [`PARTS`]; their sum is `total_ns` up to rounding.
    parts_ns: [u64; PARTS.len()],
    /// Of each of [`CAUSES`], which are within [`NETWORK`].
    causes_ns: [u64; CAUSES.len()],
}

impl Summary {
    /// `missing`: events that were replaced and lost in a recording; `None` for a file.
    pub(super) fn new(trace: &Trace, missing: Option<(u64, u64)>, waited: Vec<Waited>) -> Self {
        let mut groups: BTreeMap<(u32, u32, &str), Vec<&Message>> = BTreeMap::new();
        for message in &trace.messages {
            groups.entry((message.pid, message.qpn, &message.opcode)).or_default().push(message);
        }
        let mut groups: Vec<Group> = groups.into_values().filter_map(Group::new).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.messages));
        let mut events = BTreeMap::new();
        for mark in &trace.marks {
            let is_other =
                matches!(mark.event, Event::State { .. } | Event::Receive { .. } | Event::Cm { .. });
            if !is_other {
                *events.entry(mark.event.name()).or_default() += 1;
            }
        }
        let (processes, threads) = (trace.processes.len(), trace.threads.len());
        let messages = trace.messages.len();
        let (replaced, lost) = (missing.map(|(replaced, _)| replaced), missing.map(|(_, lost)| lost));
        Self { processes, threads, messages, events, groups, waited, replaced, lost }
    }
}

impl Group {
    fn new(messages: Vec<&Message>) -> Option<Self> {
        let one = *messages.first()?;
        // A failed message, or one that was not polled, says nothing about the time that one takes.
        let mut good: Vec<&Message> = messages.iter().copied().filter(|message| message.is_good()).collect();
        good.sort_by_key(|message| message.total());
        let left = messages.iter().filter(|message| message.is_left).count();
        let sizes = messages.iter().map(|message| message.bytes);
        Some(Self {
            qpn: one.qpn,
            peer: one.peer,
            local: one.local.to_string(),
            remote: one.remote.to_string(),
            service: one.service.clone(),
            opcode: one.opcode.clone(),
            messages: messages.len(),
            failed: messages.len() - good.len() - left,
            left,
            has_peer: messages.iter().any(|message| message.executed.is_some()),
            retransmitted: messages.iter().map(|message| u64::from(message.retransmitted)).sum(),
            bytes: (sizes.clone().min()?, sizes.max()?),
            in_flight: in_flight(&messages),
            median: Share::at(&good, 0.5),
            p99: Share::at(&good, 0.99),
            mean: Share::of(&good),
        })
    }
}

/// How many of these messages were in flight, on average while there was one. They are in the order of their
/// posts.
fn in_flight(messages: &[&Message]) -> f64 {
    let (mut sum, mut busy, mut until) = (0_u64, 0_u64, 0);
    for message in messages {
        let end = message.posted.saturating_add(message.total());
        sum = sum.saturating_add(message.total());
        busy = busy.saturating_add(end.saturating_sub(message.posted.max(until)));
        until = until.max(end);
    }
    sum as f64 / busy.max(1) as f64
}

impl Message {
    fn is_good(&self) -> bool {
        !self.is_left && self.status.unwrap_or_default() == 0
    }
}

impl Share {
    /// The mean of the messages within half a percent of this place; `sorted` by their time.
    fn at(sorted: &[&Message], place: f64) -> Self {
        let count = sorted.len();
        let middle = ((count as f64 * place) as usize).min(count.saturating_sub(1));
        let reach = count / 200;
        let from = middle.saturating_sub(reach);
        Self::of(sorted.get(from..(middle + reach + 1).min(count)).unwrap_or_default())
    }

    /// The mean of messages.
    fn of(messages: &[&Message]) -> Self {
        let mean = |of: &dyn Fn(&Message) -> u64| {
            messages.iter().map(|message| of(message)).sum::<u64>() / messages.len().max(1) as u64
        };
        Self {
            total_ns: mean(&Message::total),
            parts_ns: std::array::from_fn(|n| mean(&|message| message.parts()[n])),
            causes_ns: std::array::from_fn(|n| mean(&|message| message.causes()[n])),
        }
    }

    /// What the text shows: the parts, of which [`NETWORK`] is without its causes, which come before it.
    fn rows(&self) -> Vec<(&'static str, u64)> {
        let mut rows: Vec<(&str, u64)> = PARTS.into_iter().zip(self.parts_ns).collect();
        rows[NETWORK].1 = rows[NETWORK].1.saturating_sub(self.causes_ns.iter().sum());
        rows.splice(NETWORK..NETWORK, CAUSES.into_iter().zip(self.causes_ns));
        rows.push(("total", self.total_ns));
        rows
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: usize| if n == 1 { "" } else { "es" };
        let Self { processes, threads, messages, .. } = self;
        writeln!(f, "{messages} messages, {processes} process{}, {threads} threads", plural(*processes))?;
        for (name, count) in &self.events {
            writeln!(f, "  {name}: {count}")?;
        }
        for waited in &self.waited {
            writeln!(f, "  {waited}")?;
        }
        for group in self.groups.iter().take(GROUPS_MAX) {
            write!(f, "{group}")?;
        }
        if self.groups.len() > GROUPS_MAX {
            writeln!(
                f,
                "and {} more queue pairs and opcodes (--json shows all)",
                self.groups.len() - GROUPS_MAX
            )?;
        }
        if let Some(replaced) = self.replaced.filter(|replaced| *replaced > 0) {
            writeln!(f, "{replaced} older events were replaced by newer ones (--events N keeps more)")?;
        }
        if let Some(lost) = self.lost.filter(|lost| *lost > 0) {
            writeln!(f, "{lost} events were lost: no space for the files of the threads")?;
        }
        Ok(())
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, peer, local, remote, service, opcode, messages, failed, left, .. } = self;
        let bytes = match self.bytes {
            (least, most) if least == most => format!("{least}"),
            (least, most) => format!("{least} to {most}"),
        };
        // A datagram queue pair has no peer of its own.
        let peer = match *peer {
            0 => String::new(),
            peer => format!(" ({local}) to {peer:#08x} ({remote})"),
        };
        let (named, opcode) = (Printable(service), Printable(opcode));
        writeln!(f, "{named} QP {qpn:#08x}{peer}: {messages} {opcode} of {bytes} bytes")?;
        if *failed > 0 {
            writeln!(f, "  failed: {failed}")?;
        }
        if *left > 0 {
            writeln!(f, "  completed, not polled: {left}")?;
        }
        if self.retransmitted > 0 {
            writeln!(f, "  retransmitted packets: {}", self.retransmitted)?;
        }
        if !self.has_peer && service == "RC" {
            writeln!(f, "  the other end is not in the trace: 'network and peer' contains the ACK")?;
        }
        let one = match self.in_flight < ONE && *messages > 1 {
            true => ": the next one is posted when the one before is complete",
            false => "",
        };
        writeln!(f, "  messages in flight: {:.1}{one}", self.in_flight)?;
        writeln!(f, "  {:<18} {:>12} {:>12} {:>8}", "microseconds", "median", "p99", "share")?;
        let us = |ns: u64| ns as f64 / 1e3;
        let (median, p99, mean) = (self.median.rows(), self.p99.rows(), self.mean.rows());
        for (((name, median), (_, p99)), (_, mean)) in median.into_iter().zip(p99).zip(mean) {
            if median + p99 + mean == 0 && CAUSES.contains(&name) {
                continue;
            }
            let share = 100.0 * mean as f64 / self.mean.total_ns.max(1) as f64;
            writeln!(f, "  {name:<18} {:>12.2} {:>12.2} {share:>6.0} %", us(median), us(p99))?;
        }
        Ok(())
    }
}
