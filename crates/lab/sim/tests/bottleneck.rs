//! Two flows through one switch that marks packets, in virtual time.
//!
//! Goal: DCQCN shares a bottleneck fairly and keeps its queue short; windows alone fill the queue. Method:
//! two senders at 40 Gbit/s share a 10 Gbit/s port that marks by the thresholds of the paper; for comparison
//! one that does not mark.

#[path = "goodput/link.rs"]
#[expect(dead_code, reason = "only `End` is needed here")]
mod link;

use std::collections::VecDeque;

use roxie_sim::{LOCAL_BASE, LOCAL_KEY, REMOTE_BASE, REMOTE_KEY, Rng};
use transport::{Instant, MAX_PACKET, QpEvent, SendFlags, SendWr, Sge, WcStatus, WrOp};
use wire::Packet;

use link::{End, Peer, end};

const SIZE: u64 = 64 << 10;
const POLL_NS: u64 = 5_000;
const DELAY_NS: u64 = 5_000;
/// IPv4, UDP, ICRC, and Ethernet with preamble, checksum and inter-frame gap.
const OVERHEAD_BYTES: u64 = 70;
/// Picoseconds per byte: 40 and 10 Gbit/s.
const SENDER_PS: u64 = 200;
const BOTTLENECK_PS: u64 = 800;
/// Section 5 of the DCQCN paper: no packet is marked below K_MIN, one in a hundred at K_MAX, all above.
const K_MIN: u64 = 5_000;
const K_MAX: u64 = 200_000;
const P_MAX_PER_MILLION: u64 = 10_000;
const CE: u8 = 3;
const ECT_0: u8 = 2;

struct Flow {
    sender: End,
    receiver: End,
    /// In flight, with time of arrival and traffic class.
    there: VecDeque<(u64, u8, Vec<u8>)>,
    back: VecDeque<(u64, u8, Vec<u8>)>,
    line_free_ps: u64,
    posted: u64,
    done: u64,
}

impl Flow {
    fn new() -> Self {
        Self {
            sender: end(0, Peer::SelectiveRepeat, SIZE),
            receiver: end(1, Peer::SelectiveRepeat, SIZE),
            there: VecDeque::new(),
            back: VecDeque::new(),
            line_free_ps: 0,
            posted: 0,
            done: 0,
        }
    }

    fn post(&mut self) {
        while self.posted < self.done + 16 {
            let sge = Sge { addr: LOCAL_BASE, length: SIZE as u32, lkey: LOCAL_KEY };
            let op = WrOp::Write { remote_addr: REMOTE_BASE, r_key: REMOTE_KEY };
            let wr =
                SendWr { wr_id: self.posted, op, sg_list: &[sge], flags: SendFlags::empty(), dest: None };
            self.sender.qp.post_send(&wr, &self.sender.memory).expect("the send queue has room");
            self.posted += 1;
        }
    }
}

/// Delivers to an end the packets that have arrived, as an engine does.
fn receive(end: &mut End, arriving: &mut VecDeque<(u64, u8, Vec<u8>)>, now: u64) {
    while arriving.front().is_some_and(|(at, ..)| *at <= now)
        && let Some((_, tos, bytes)) = arriving.pop_front()
    {
        let packet = Packet::parse(&bytes).expect("the packet is well formed");
        end.from.tos = tos;
        // A probe while the queue grows causes duplicates, which are counted below.
        let _: Result<_, _> =
            end.qp.handle_packet(Instant(now), &packet, &end.from, &end.memory, None, &mut end.reorder);
    }
    end.qp.end_of_batch(Instant(now), false);
    if end.qp.poll_timeout().is_some_and(|at| at.0 <= now) {
        end.qp.handle_timeout(Instant(now));
    }
}

/// State of the switch port during a part of the run.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    queue_max: u64,
    bytes: [u64; 2],
}

struct Switch {
    flows: [Flow; 2],
    marks: bool,
    free_ps: u64,
    rng: Rng,
}

impl Switch {
    fn new(marks: bool) -> Self {
        Self { flows: [Flow::new(), Flow::new()], marks, free_ps: 0, rng: Rng(11) }
    }

    /// Runs the flows marked in `active` for a time.
    fn run(&mut self, active: [bool; 2], from_ms: u64, to_ms: u64) -> Seen {
        let mut seen = Seen::default();
        let mut buf = [0; MAX_PACKET];
        for now in (from_ms * 1_000_000..to_ms * 1_000_000).step_by(POLL_NS as usize) {
            // Packets of both flows alternate, as those of two lines do.
            let mut leaving: Vec<(u64, usize, Vec<u8>)> = Vec::new();
            for (index, flow) in self.flows.iter_mut().enumerate() {
                if active[index] {
                    flow.post();
                }
                let Flow { sender, receiver, there, back, .. } = flow;
                receive(receiver, there, now);
                while let Some(transmit) =
                    receiver.qp.poll_transmit(Instant(now), &receiver.memory, usize::MAX, &mut buf)
                {
                    let bytes = buf[..transmit.len + 4].to_vec();
                    back.push_back((now + DELAY_NS, ECT_0, bytes));
                }
                receive(sender, back, now);
                while flow.line_free_ps < (now + POLL_NS) * 1000
                    && let Some(transmit) =
                        sender.qp.poll_transmit(Instant(now), &sender.memory, usize::MAX, &mut buf)
                {
                    let bytes = buf[..transmit.len + 4].to_vec();
                    let wire_bytes = transmit.len as u64 + OVERHEAD_BYTES;
                    flow.line_free_ps = flow.line_free_ps.max(now * 1000) + wire_bytes * SENDER_PS;
                    leaving.push((flow.line_free_ps, index, bytes));
                }
                while let Some(event) = flow.sender.qp.poll_event() {
                    let QpEvent::SendWc(wc) = event else { panic!("{event:?}") };
                    assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, flow.done));
                    flow.done += 1;
                }
            }
            leaving.sort_by_key(|(at_ps, ..)| *at_ps);
            for (at_ps, index, bytes) in leaving {
                let wire_bytes = bytes.len() as u64 - 4 + OVERHEAD_BYTES;
                let queue = self.free_ps.saturating_sub(at_ps) / BOTTLENECK_PS;
                seen.queue_max = seen.queue_max.max(queue);
                seen.bytes[index] += wire_bytes;
                let tos = if self.marks && self.is_marked(queue) { CE } else { ECT_0 };
                self.free_ps = self.free_ps.max(at_ps) + wire_bytes * BOTTLENECK_PS;
                self.flows[index].there.push_back((self.free_ps / 1000 + DELAY_NS, tos, bytes));
            }
        }
        seen
    }

    fn is_marked(&mut self, queue: u64) -> bool {
        let above = queue.saturating_sub(K_MIN);
        queue > K_MAX || self.rng.next() % 1_000_000 < P_MAX_PER_MILLION * above / (K_MAX - K_MIN)
    }
}

/// Returns the share of 10 Gbit/s used in so many milliseconds.
fn share(bytes: u64, ms: u64) -> f64 {
    bytes as f64 * BOTTLENECK_PS as f64 / (ms as f64 * 1e9)
}

#[test]
fn two_flows_share_a_port_that_marks_and_keep_its_queue_short() {
    let mut switch = Switch::new(true);
    // At first one flow has the port to itself.
    switch.run([true, false], 0, 30);
    let alone = switch.run([true, false], 30, 60);
    assert!(share(alone.bytes[0], 30) > 0.85, "{alone:?}");
    switch.run([true, true], 60, 100);
    let both = switch.run([true, true], 100, 200);
    let shares = both.bytes.map(|bytes| share(bytes, 100));
    assert!(shares.iter().all(|share| (0.35..0.65).contains(share)), "{shares:?}");
    assert!(shares.iter().sum::<f64>() > 0.85, "{shares:?}");
    let counters = switch.flows.each_ref().map(|flow| *flow.sender.qp.counters());
    let notified = switch.flows.each_ref().map(|flow| flow.receiver.qp.counters().np_cnp_sent);
    for (counters, notified) in counters.iter().zip(notified) {
        assert!(
            notified > 0 && counters.rp_cnp_handled + counters.rp_cnp_ignored == notified,
            "{counters:?}"
        );
        assert!(
            counters.retransmitted_pkts < counters.sent_pkts / 1000,
            "packets were retransmitted without loss: {counters:?}"
        );
    }

    let mut windows = Switch::new(false);
    windows.run([true, true], 0, 10);
    let unmarked = windows.run([true, true], 10, 30);
    assert!(
        unmarked.queue_max > 500_000,
        "without marks the queue does not hold two windows of 320 KB: {unmarked:?}"
    );
    assert!(both.queue_max < unmarked.queue_max / 2, "{} of {}", both.queue_max, unmarked.queue_max);

    // The other flow ends, and the first one takes the whole port again.
    switch.run([true, false], 200, 220);
    let rest = switch.run([true, false], 220, 240);
    assert!(share(rest.bytes[0], 20) > 0.85, "{rest:?}");
}
