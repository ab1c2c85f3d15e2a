//! Runs a plan in virtual time, and notes what became of each packet.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::ends::{Cause, Emit, Requester, Responder, What};
use crate::packet::{
    ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, CNP, Outer, Packet, READ_FIRST, READ_LAST, READ_MIDDLE, READ_ONLY, UD,
    XRC, aeth, deth, pause, reth,
};
use crate::plan::{Conversation, EndWhat, Ids, Message, NetWhat, Op, Plan, Tap};
use crate::random::Rng;

/// A packet that an end sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) conversation: usize,
    pub(crate) half: usize,
    pub(crate) from: usize,
    pub(crate) psn: u64,
    pub(crate) what: What,
    pub(crate) again: Option<Cause>,
    pub(crate) ns: u64,
    /// What the network did with it, and whether before the tap.
    pub(crate) fate: Option<(NetWhat, bool)>,
    /// The receiver drops it for its key.
    pub(crate) other_key: bool,
    /// Marked by the network before the tap.
    pub(crate) marked: bool,
    /// Times of arrival at the receiver, without those of damaged packets.
    pub(crate) arrivals: Vec<u64>,
    /// The responder took it as the next one in sequence.
    pub(crate) accepted: bool,
    /// Bytes before the BTH.
    pub(crate) outer_len: usize,
}

impl Sent {
    pub(crate) fn is_answer(&self) -> bool {
        self.from != self.half
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.fate, Some((NetWhat::Lose | NetWhat::Flip, _)))
    }
}

/// A packet at a tap.
#[derive(Clone, Debug)]
pub(crate) struct AtTap {
    pub(crate) ns: u64,
    pub(crate) tap: usize,
    pub(crate) bytes: Vec<u8>,
    /// Number of the sent packet; none for a pause frame.
    pub(crate) sent: Option<usize>,
    /// The second copy that the network made.
    pub(crate) copy: bool,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    Requester(usize, usize),
    Responder(usize, usize),
    Arrival(usize),
    Pause(u64),
}

/// What happened.
pub(crate) struct Story {
    pub(crate) sent: Vec<Sent>,
    pub(crate) at_taps: Vec<AtTap>,
    pub(crate) requesters: Vec<[Requester; 2]>,
}

struct World<'a> {
    plan: &'a Plan,
    rng: Rng,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    story: Story,
    responders: Vec<[Responder; 2]>,
    /// Packets so far, by conversation, half, and whether answers.
    counts: BTreeMap<(usize, usize, bool), usize>,
    host_ids: [u16; 4],
    queue_ids: Vec<[u16; 2]>,
    /// Time of the last packet at each point of a path: source, destination, point.
    last: BTreeMap<(u8, u8, usize), u64>,
    paused_until: u64,
}

/// A run ends here: virtual hours.
const END_NS: u64 = 20_000_000_000_000;

pub(crate) fn run(plan: &Plan, mut rng: Rng) -> Story {
    let both = |_: &Conversation| [0, 1].map(|_| Requester::default());
    let requesters = plan.conversations.iter().map(both).collect();
    let responders = plan.conversations.iter().map(|_| [0, 1].map(|_| Responder::default())).collect();
    let queue_ids = plan.conversations.iter().map(|_| [0, 1].map(|_| rng.next() as u16)).collect();
    let mut world = World {
        plan,
        host_ids: [0; 4].map(|_: u16| rng.next() as u16),
        rng,
        events: BinaryHeap::new(),
        number: 0,
        story: Story { sent: Vec::new(), at_taps: Vec::new(), requesters },
        responders,
        counts: BTreeMap::new(),
        queue_ids,
        last: BTreeMap::new(),
        paused_until: 0,
    };
    for conversation in 0..plan.conversations.len() {
        for half in 0..2 {
            world.at(0, Event::Requester(conversation, half));
        }
    }
    if let Some((at, count)) = plan.pause {
        for each in 0..count {
            world.at(at + each * 1_000_000, Event::Pause(count - each));
        }
    }
    while let Some(Reverse((now, _, event))) = world.events.pop() {
        if now > END_NS || world.story.sent.len() > 4000 {
            break;
        }
        world.event(now, event);
    }
    world.story.at_taps.sort_by_key(|packet| packet.ns);
    world.story
}

impl World<'_> {
    fn at(&mut self, ns: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((ns, self.number, event)));
    }

    fn event(&mut self, now: u64, event: Event) {
        let plan = self.plan;
        match event {
            Event::Requester(conversation, half) => {
                let planned = &plan.conversations[conversation].halves[half];
                let (emit, wake) = self.story.requesters[conversation][half].step(planned, now);
                if let Some(emit) = emit {
                    self.transmit(conversation, half, half, emit, now);
                }
                if let Some(wake) = wake.filter(|&wake| wake < u64::MAX) {
                    self.at(wake.max(now + 1), event);
                }
            }
            Event::Responder(conversation, half) => {
                let planned = &plan.conversations[conversation].halves[half];
                let (emit, wake) = self.responders[conversation][half].step(planned, now);
                if let Some(emit) = emit {
                    self.transmit(conversation, half, 1 - half, emit, now);
                }
                if let Some(wake) = wake {
                    self.at(wake.max(now + 1), event);
                }
            }
            Event::Arrival(number) => self.arrive(now, number),
            Event::Pause(left) => {
                let last = left == 1;
                self.paused_until = if last { now } else { now + 1_100_000 };
                let class = plan.pause.map_or(3, |(at, _)| (at % 9) as u8);
                let bytes = pause(99, class, if last { 0 } else { 0xffff });
                self.story.at_taps.push(AtTap { ns: now, tap: 0, bytes, sent: None, copy: false });
            }
        }
    }

    fn arrive(&mut self, now: u64, number: usize) {
        let sent = &mut self.story.sent[number];
        sent.arrivals.push(now);
        if sent.other_key {
            return;
        }
        let (conversation, half, psn, what) = (sent.conversation, sent.half, sent.psn, sent.what.clone());
        let marked = sent.marked;
        let planned = &self.plan.conversations[conversation].halves[half];
        if matches!(what, What::Request { .. }) {
            if planned.reliable {
                let responder = &mut self.responders[conversation][half];
                let before = responder.expected;
                responder.on_request(planned, now, psn, &what);
                self.story.sent[number].accepted |= responder.expected > before;
                self.at(now, Event::Responder(conversation, half));
            }
            if marked {
                let emit = Emit { psn: 0, what: What::Notification, again: None };
                self.transmit(conversation, half, 1 - half, emit, now);
            }
        } else {
            self.story.requesters[conversation][half].on_answer(planned, now, psn, &what);
            self.at(now, Event::Requester(conversation, half));
        }
    }

    fn transmit(&mut self, conversation: usize, half: usize, from: usize, emit: Emit, now: u64) {
        let plan = self.plan;
        let planned = &plan.conversations[conversation];
        let answers = from != half;
        let notifies = matches!(emit.what, What::Notification);
        let count = self.counts.entry((conversation, half, answers)).or_default();
        let nth = *count;
        *count += usize::from(!notifies);
        let fault = plan.net_faults.iter().find(|fault| {
            (fault.conversation, fault.half, fault.answers, fault.nth) == (conversation, half, answers, nth)
        });
        let by_chance = plan.random_loss > 0 && self.rng.one_in(plan.random_loss);
        let mut fate = fault.filter(|_| !notifies).map(|fault| (fault.what, fault.before_tap));
        if by_chance && fate.is_none() {
            fate = Some((NetWhat::Lose, self.rng.one_in(2)));
        }
        if let Some((_, before)) = &mut fate {
            let own_tap = if from == 0 { Tap::Host1 } else { Tap::Others };
            let other_tap = if from == 0 { Tap::Others } else { Tap::Host1 };
            *before = plan.tap == other_tap || *before && plan.tap != own_tap && plan.tap != Tap::Both;
        }
        let end_fault = planned.halves[half].fault;
        let message = match emit.what {
            What::Request { message, .. } => message,
            _ => usize::MAX,
        };
        let is = |what: EndWhat| end_fault.is_some_and(|fault| fault.what == what && !answers);
        let at_fault = end_fault.is_some_and(|fault| fault.message == message);
        let other_key = is(EndWhat::OtherKey)
            && end_fault.is_some_and(|fault| message != usize::MAX && message >= fault.message);
        let sent = Sent {
            conversation,
            half,
            from,
            psn: emit.psn,
            what: emit.what,
            again: emit.again,
            ns: now,
            fate,
            other_key,
            marked: is(EndWhat::Marked)
                && at_fault
                && plan.tap == if from == 0 { Tap::Others } else { Tap::Host1 },
            arrivals: Vec::new(),
            accepted: false,
            outer_len: 0,
        };
        self.put_on_path(sent, is(EndWhat::Marked) && at_fault);
    }

    /// Passes the packet through the network: at each tap, and at the receiver.
    fn put_on_path(&mut self, mut sent: Sent, notify: bool) {
        let plan = self.plan;
        let planned = &plan.conversations[sent.conversation];
        let outer = self.outer(planned, &sent);
        sent.outer_len = outer.len();
        let mut bytes = packet(planned, &sent).frame(&outer);
        let number = self.story.sent.len();
        let whole: u64 = plan.delay_ns.iter().sum();
        let between = if sent.from == 0 { plan.delay_ns[0] } else { plan.delay_ns[1] };
        let near = if sent.from == 0 { Tap::Host1 } else { Tap::Others };
        // Position of each tap on the path, and behind them the receiver.
        let mut points = match plan.tap {
            Tap::Between => vec![(0, between)],
            Tap::Both => vec![(sent.from, 0), (1 - sent.from, whole)],
            tap => vec![(0, if tap == near { 0 } else { whole })],
        };
        points.push((usize::MAX, whole));
        let hosts = (outer.hosts[0], outer.hosts[1]);
        let start = if hosts.0 == 1 { sent.ns.max(self.paused_until) } else { sent.ns };
        for (index, &(tap, distance)) in points.iter().enumerate() {
            let (fate, before) = sent.fate.map_or((None, true), |(what, before)| (Some(what), before));
            let fate = fate.filter(|_| before || index > 0);
            if fate == Some(NetWhat::Lose) {
                break;
            }
            let mut ns = start + distance;
            if let Some(NetWhat::Delay(by) | NetWhat::Overtake(by)) = fate {
                ns += by;
            }
            let last = self.last.entry((hosts.0, hosts.1, index)).or_default();
            if !matches!(fate, Some(NetWhat::Overtake(_))) {
                ns = ns.max(*last + 1);
                *last = ns;
            }
            let flip_now = fate == Some(NetWhat::Flip) && (index == 0 || index == 1 && !before);
            if flip_now && tap != usize::MAX {
                flip(&mut bytes, outer.len(), &mut self.rng);
            }
            let mut copies = vec![(ns, false)];
            if let Some(NetWhat::Copy(after)) = fate {
                copies.push((ns + after.max(1), true));
            }
            for (ns, copy) in copies {
                if tap == usize::MAX {
                    if fate != Some(NetWhat::Flip) {
                        self.at(ns, Event::Arrival(number));
                    }
                    continue;
                }
                let mut bytes = bytes.clone();
                if distance > 0 {
                    bytes.resize(bytes.len().max(60), 0);
                }
                self.story.at_taps.push(AtTap { ns, tap, bytes, sent: Some(number), copy });
            }
        }
        sent.marked |= notify;
        self.story.sent.push(sent);
    }

    fn outer(&mut self, planned: &Conversation, sent: &Sent) -> Outer {
        let end = sent.from;
        let hosts = if end == 0 { planned.hosts } else { [planned.hosts[1], planned.hosts[0]] };
        let counter = match planned.ids[end] {
            Ids::Host => &mut self.host_ids[usize::from(hosts[0])],
            _ => &mut self.queue_ids[sent.conversation][end],
        };
        *counter = counter.wrapping_add(1);
        let id = match planned.ids[end] {
            Ids::Constant(id) => id,
            Ids::Random => self.rng.next() as u16,
            _ => *counter,
        };
        let source_port = match planned.ports[end] {
            0 => 0xc000 | self.rng.below(0x4000) as u16,
            port => port,
        };
        let traffic_class = if sent.marked { 0x6b } else { 0x6a };
        Outer { v6: planned.v6, hosts, id, source_port, traffic_class, ttl: 64, vlan: planned.vlan }
    }
}

fn flip(bytes: &mut [u8], outer_len: usize, rng: &mut Rng) {
    let mut at = outer_len + rng.below(bytes.len() - outer_len);
    if at == outer_len + 4 {
        // The ICRC does not cover this byte.
        at += 1;
    }
    bytes[at] ^= 1 << rng.below(8);
}

/// The packet of what was sent.
fn packet(planned: &Conversation, sent: &Sent) -> Packet {
    let half = &planned.halves[sent.half];
    let mut out = Packet {
        opcode: planned.service,
        flags: planned.flags,
        p_key: planned.p_key,
        dest_qp: planned.qps[1 - sent.from],
        psn: (half.start_psn.wrapping_add(sent.psn as u32)) & 0xff_ffff,
        ..Packet::default()
    };
    match sent.what {
        What::Request { message: number, index, ask } => {
            let message = &half.messages[number];
            out.ack_req = ask && half.reliable;
            request(planned, sent, message, index, &mut out);
            let changed = half.fault.is_some_and(|fault| {
                fault.what == EndWhat::OtherBytes && fault.message == number && sent.again.is_some()
            });
            if changed && let Some(byte) = out.payload.first_mut() {
                *byte ^= 0x55;
            }
            if sent.other_key && planned.service != UD {
                out.p_key ^= 0x0101;
            }
        }
        What::Ack { syndrome, msn } => {
            out.opcode |= ACKNOWLEDGE;
            out.headers = aeth(syndrome, msn);
        }
        What::Response { message, index, opens, closes, msn } => {
            let message = &half.messages[message];
            out.headers = if opens || closes { aeth(half.credits, msn) } else { Vec::new() };
            if matches!(message.op, Op::Atomic(_)) {
                out.opcode |= ATOMIC_ACKNOWLEDGE;
                out.headers.extend(message.address.to_be_bytes());
            } else {
                out.opcode |= match (opens, closes) {
                    (true, true) => READ_ONLY,
                    (true, false) => READ_FIRST,
                    (false, true) => READ_LAST,
                    (false, false) => READ_MIDDLE,
                };
                out.payload = payload(message, index, planned.mtu);
            }
        }
        What::Notification => {
            out.opcode = CNP;
            out.flags = 0;
            out.becn = true;
            out.psn = 0;
            out.payload = vec![0; 16];
        }
    }
    out
}

fn request(planned: &Conversation, sent: &Sent, message: &Message, index: u64, out: &mut Packet) {
    let offset = index as usize * planned.mtu;
    let last = index as usize + 1 == message.len.div_ceil(planned.mtu).max(1);
    match planned.service {
        XRC => out.headers.extend([0, 0, 0, 7]),
        UD => {
            let q_key = 0x1111_1111 ^ u32::from(sent.other_key);
            out.headers = deth(q_key, planned.qps[sent.from]);
        }
        _ => {}
    }
    out.opcode |= message.op.low_bits();
    match message.op {
        Op::Atomic(_) => {
            out.headers.extend(message.address.to_be_bytes());
            out.headers.extend(message.r_key.to_be_bytes());
            out.headers.extend([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        }
        Op::Read => {
            out.headers.extend(reth(
                message.address + offset as u64,
                message.r_key,
                (message.len - offset) as u32,
            ));
        }
        Op::Send | Op::Write => {
            out.opcode += match (index == 0, last) {
                (true, false) => 0,
                (false, false) => 1,
                (false, true) => 2 + u8::from(message.imm),
                (true, true) => 4 + u8::from(message.imm),
            };
            if last && message.invalidate {
                out.opcode = planned.service | if index == 0 { 0x17 } else { 0x16 };
            }
            if index == 0 && message.op == Op::Write {
                let fault = planned.halves[sent.half].fault;
                let other = fault.is_some_and(|fault| {
                    let at_fault = std::ptr::eq(message, &planned.halves[sent.half].messages[fault.message]);
                    fault.what == EndWhat::OtherLength && at_fault
                });
                let len = message.len + usize::from(other) * 8;
                out.headers.extend(reth(message.address, message.r_key, len as u32));
            }
            if last && (message.imm || message.invalidate) {
                out.headers.extend([0, 0, 1, 2]);
            }
            out.payload = payload(message, index, planned.mtu);
        }
    }
}

fn payload(message: &Message, index: u64, mtu: usize) -> Vec<u8> {
    let begin = index as usize * mtu;
    let end = (begin + mtu).min(message.len);
    (begin..end).map(|at| (at as u64 * 7 + message.address / 8) as u8).collect()
}
