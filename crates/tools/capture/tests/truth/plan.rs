//! What a run does, drawn from its seed: senders, their messages, the network and its faults, the capture.

use crate::packet::{COMPARE_SWAP, FETCH_ADD, RC, READ_REQUEST, UC, UD, XRC};
use crate::random::Rng;

const US: u64 = 1000;
const MS: u64 = 1000 * US;

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) conversations: Vec<Conversation>,
    pub(crate) net_faults: Vec<NetFault>,
    /// Each packet is lost with a probability of 1 / n; 0: none.
    pub(crate) random_loss: usize,
    /// Pause frames: time of the first one, their number, a millisecond apart.
    pub(crate) pause: Option<(u64, u64)>,
    pub(crate) tap: Tap,
    /// From host 1 to the tap, and from there to the other hosts.
    pub(crate) delay_ns: [u64; 2],
    pub(crate) view: View,
}

/// Where the capture is taken. End 0 of each conversation is host 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Tap {
    Host1,
    Between,
    Others,
    /// At both ends, as two interfaces.
    Both,
}

/// What of the packets at the tap is in the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// In thousandths of the packets.
    pub(crate) begin: usize,
    pub(crate) end: usize,
    /// Only packets from this end.
    pub(crate) only_from: Option<usize>,
    pub(crate) snap: usize,
    /// One packet of so many is missing, and counted.
    pub(crate) drop_one_in: usize,
    /// pcap in microseconds or nanoseconds, pcapng; the odd ones in the other byte order.
    pub(crate) format: usize,
}

/// How a sender fills the identification of IPv4.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ids {
    Constant(u16),
    Random,
    /// One counter of the host.
    Host,
    /// A counter of the queue pair.
    Queue,
}

/// Two queue pairs.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    pub(crate) service: u8,
    pub(crate) v6: bool,
    pub(crate) vlan: Option<u16>,
    pub(crate) hosts: [u8; 2],
    pub(crate) qps: [u32; 2],
    pub(crate) mtu: usize,
    pub(crate) p_key: u16,
    pub(crate) flags: u8,
    pub(crate) ids: [Ids; 2],
    /// 0: a random source port for each packet.
    pub(crate) ports: [u16; 2],
    /// Requests from end 0, and from end 1.
    pub(crate) halves: [Half; 2],
}

/// Requests of one end and their answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Half {
    pub(crate) messages: Vec<Message>,
    /// RC and XRC: there are answers.
    pub(crate) reliable: bool,
    pub(crate) start_psn: u32,
    pub(crate) window: u64,
    pub(crate) gap_ns: u64,
    pub(crate) timer_ns: u64,
    pub(crate) retries: u32,
    pub(crate) reads_max: usize,
    pub(crate) asks: Asks,
    pub(crate) answers: Asks,
    pub(crate) answer_delay_ns: u64,
    /// Credits in the syndrome of an ACK.
    pub(crate) credits: u8,
    /// The responder leaves the message sequence number 0.
    pub(crate) no_msn: bool,
    pub(crate) fault: Option<EndFault>,
}

/// Which packets ask for an ACK, or get one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Asks {
    #[default]
    Each,
    /// The last packet of each message.
    Messages,
    /// What the other end asked for; as a requester: some messages.
    Some,
}

/// A work request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) op: Op,
    pub(crate) len: usize,
    pub(crate) imm: bool,
    pub(crate) invalidate: bool,
    pub(crate) signaled: bool,
    pub(crate) post_ns: u64,
    pub(crate) address: u64,
    pub(crate) r_key: u32,
    /// Sequence numbers, from the first one of the half on.
    pub(crate) first: u64,
    pub(crate) psns: u64,
    /// The sender leaves out the last packet.
    pub(crate) cut: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Op {
    #[default]
    Send,
    Write,
    Read,
    Atomic(u8),
}

impl Op {
    /// The first sequence number is answered by a response with data.
    pub(crate) fn is_fetch(self) -> bool {
        matches!(self, Self::Read | Self::Atomic(_))
    }

    pub(crate) fn low_bits(self) -> u8 {
        match self {
            Self::Send => 0,
            Self::Write => 6,
            Self::Read => READ_REQUEST,
            Self::Atomic(code) => code,
        }
    }
}

/// A fault of an end, at a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct EndFault {
    pub(crate) message: usize,
    pub(crate) what: EndWhat,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EndWhat {
    /// RNR NAKs: how often, timer code.
    NotReady(u32, u8),
    /// A NAK that ends the connection, with this syndrome.
    Refuses(u8),
    /// The responder no longer answers.
    Dead,
    /// The requester has another P_Key or Q_Key from this message on, and the responder drops its packets.
    OtherKey,
    /// The requester has a larger path MTU than the responder, which refuses the full packets.
    LargerMtu,
    /// The RETH announces another length than the packets carry.
    OtherLength,
    /// The last packet of the message is missing.
    NoLast,
    /// Retransmissions of the message carry other bytes.
    OtherBytes,
    /// The responder expects other sequence numbers from the start.
    OtherPsn,
    /// The responder takes more than a second for its answer; the requester waits.
    Slow,
    /// The packets of the message are marked by the network, and the responder sends a notification.
    Marked,
}

/// A fault of the network, at the `nth` packet of a class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetFault {
    pub(crate) conversation: usize,
    pub(crate) half: usize,
    pub(crate) answers: bool,
    pub(crate) nth: usize,
    pub(crate) what: NetWhat,
    pub(crate) before_tap: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NetWhat {
    Lose,
    /// A second copy, so much later.
    Copy(u64),
    /// Later than the packets behind it.
    Overtake(u64),
    /// Later, with all packets behind it.
    Delay(u64),
    /// A bit is flipped.
    Flip,
}

pub(crate) fn draw(rng: &mut Rng) -> Plan {
    let delay_ns = [0, 1].map(|_| rng.pick(&[1, 3, 20, 150]) * US + rng.below(1000) as u64);
    let count = 1 + rng.below(3) / 2 + rng.below(4) / 3;
    let hosts_ids = [rng.one_in(2), rng.one_in(2), rng.one_in(2)];
    let conversations: Vec<_> =
        (0..count).map(|index| conversation(rng, index as u32, &hosts_ids, delay_ns)).collect();
    let tap = rng.pick(&[Tap::Host1, Tap::Between, Tap::Others, Tap::Both]);
    let mut plan = Plan {
        conversations,
        net_faults: Vec::new(),
        random_loss: 0,
        pause: None,
        tap,
        delay_ns,
        view: View { format: rng.below(6), ..View::default() },
    };
    // A third of the runs has no fault, and a third is captured completely.
    match rng.below(3) {
        0 => {}
        1 => faults(rng, &mut plan),
        _ => {
            for _ in 0..1 + rng.below(3) {
                faults(rng, &mut plan);
            }
        }
    }
    if !rng.one_in(3) {
        view(rng, &mut plan.view);
    }
    plan
}

fn view(rng: &mut Rng, view: &mut View) {
    match rng.below(6) {
        0 => view.begin = rng.below(600),
        1 => view.end = rng.below(600),
        2 => view.only_from = Some(rng.below(2)),
        3 => view.snap = rng.pick(&[54, 60, 64, 70, 96, 128, 256]),
        4 => view.drop_one_in = rng.pick(&[2, 5, 20, 100]),
        _ => {
            view.begin = rng.below(400);
            view.end = rng.below(400);
            view.snap = rng.pick(&[0, 96, 128]);
        }
    }
}

fn conversation(rng: &mut Rng, index: u32, host_ids: &[bool; 3], delay_ns: [u64; 2]) -> Conversation {
    let service = rng.pick(&[RC, RC, RC, RC, XRC, UC, UD]);
    let hosts = [1, 2 + rng.below(2) as u8];
    let ids = hosts.map(|host: u8| match rng.below(5) {
        _ if host_ids[usize::from(host) - 1] => Ids::Host,
        0 => Ids::Constant(0),
        1 => Ids::Constant(rng.next() as u16),
        2 => Ids::Random,
        _ => Ids::Queue,
    });
    let mtu = rng.pick(&[256, 512, 1024, 2048, 4096]);
    let rtt = 2 * (delay_ns[0] + delay_ns[1]);
    let mut halves = [half(rng, service, mtu, rtt), half(rng, service, mtu, rtt)];
    if rng.one_in(2) {
        halves[rng.below(2)].messages.clear();
    }
    Conversation {
        service,
        v6: rng.one_in(4),
        vlan: rng.one_in(5).then(|| 1 + rng.below(4000) as u16),
        hosts,
        qps: [0, 1].map(|end| 0x11 + index * 16 + end + (rng.below(0xffff) as u32 * 256)),
        mtu,
        p_key: rng.pick(&[0xffff, 0xffff, 0x8001, 0x1234]),
        flags: if rng.one_in(2) { 0x40 } else { 0 },
        ids,
        ports: [0, 1].map(|_| if rng.one_in(8) { 0 } else { 0xc000 | rng.below(0x3fff) as u16 }),
        halves,
    }
}

fn half(rng: &mut Rng, service: u8, mtu: usize, rtt: u64) -> Half {
    let mut messages = Vec::new();
    let mut first = 0;
    let mut post_ns = rng.below(2_000_000) as u64;
    // Applications: all at once, at random times, ping-pong by a fixed rate.
    let pace = rng.pick(&[0, 0, 30 * US, 2 * MS, 50 * MS]);
    let most = rng.pick(&[3, 12, 40]);
    for _ in 0..1 + rng.below(most) {
        let message = message(rng, service, mtu, first, post_ns);
        first += message.psns;
        messages.push(message);
        post_ns += rng.below(2 * pace as usize + 1) as u64;
    }
    if let Some(last) = messages.last_mut() {
        last.signaled = true;
    }
    let any = rng.next() as u32;
    let asks = rng.pick(&[Asks::Each, Asks::Messages, Asks::Some]);
    Half {
        messages,
        reliable: matches!(service, RC | XRC),
        start_psn: rng.pick(&[0, 1, any & 0xff_ffff, 0xff_ffff - any % 20]),
        window: rng.pick(&[2, 8, 64, 200]),
        gap_ns: rng.pick(&[200, 1000, 5000]) + rng.below(300) as u64,
        timer_ns: rng.pick(&[MS, 4 * MS, 67 * MS, 536 * MS]).max(8 * rtt + MS),
        retries: rng.pick(&[1, 3, 7]),
        reads_max: rng.pick(&[1, 4, 16]),
        asks,
        answers: rng.pick(&[Asks::Each, Asks::Messages, Asks::Some, Asks::Some]),
        answer_delay_ns: rng.pick(&[300, 2000, 20_000, 100_000]),
        credits: rng.pick(&[31, 31, any as u8 % 31]),
        no_msn: rng.one_in(6),
        fault: None,
    }
}

fn message(rng: &mut Rng, service: u8, mtu: usize, first: u64, post_ns: u64) -> Message {
    let op = match (service, rng.below(8)) {
        (UD, _) | (_, 0..=2) => Op::Send,
        (UC, _) | (_, 3 | 4) => Op::Write,
        (_, 5 | 6) => Op::Read,
        _ => Op::Atomic(rng.pick(&[COMPARE_SWAP, FETCH_ADD])),
    };
    let len = match (op, rng.below(6)) {
        (Op::Atomic(_), _) => 8,
        (_, 0) => rng.below(2),
        (_, 1) => 1 + rng.below(64),
        (_, 2) => mtu,
        (_, 3) => rng.below(mtu),
        _ => rng.below(7 * mtu),
    };
    let len = if service == UD { len.min(mtu) } else { len };
    let imm = matches!(op, Op::Send | Op::Write) && rng.one_in(4);
    Message {
        op,
        len,
        imm,
        invalidate: op == Op::Send && !imm && matches!(service, RC | XRC) && rng.one_in(5),
        signaled: rng.one_in(3),
        post_ns,
        address: 0x7f00_0000_0000 + (rng.next() & 0xffff_fff8),
        r_key: 0x100 + rng.below(3) as u32 * 0x101,
        first,
        psns: if matches!(op, Op::Atomic(_)) { 1 } else { len.div_ceil(mtu).max(1) as u64 },
        cut: false,
    }
}

fn faults(rng: &mut Rng, plan: &mut Plan) {
    let conversation = rng.below(plan.conversations.len());
    let chosen = &mut plan.conversations[conversation];
    let reliable = matches!(chosen.service, RC | XRC);
    let half = usize::from(chosen.halves[0].messages.is_empty());
    let half = if chosen.halves[1 - half].messages.is_empty() { half } else { rng.below(2) };
    let plan_half = &mut chosen.halves[half];
    let packets = plan_half.messages.iter().map(|message| message.psns as usize).sum::<usize>();
    match rng.below(20) {
        0 => plan.random_loss = rng.pick(&[3, 10, 40]),
        1 => {
            plan.pause = Some((rng.below(3_000_000) as u64, 1 + rng.below(40) as u64));
        }
        2..=11 => {
            let answers = reliable && rng.one_in(3);
            let late = plan_half.timer_ns + plan_half.timer_ns / 3;
            let what = match rng.below(9) {
                0..=3 => NetWhat::Lose,
                4 => NetWhat::Copy(rng.pick(&[0, 2 * US, 60 * US])),
                5 => NetWhat::Overtake(rng.pick(&[3 * US, 20 * US, 200 * US])),
                6 | 7 if reliable => NetWhat::Delay(late),
                _ => NetWhat::Flip,
            };
            let nth = rng.below(packets.max(1));
            let before_tap = rng.one_in(2);
            plan.net_faults.push(NetFault { conversation, half, answers, nth, what, before_tap });
        }
        _ if plan_half.fault.is_some() => {}
        kind => {
            let mtu = chosen.mtu;
            let message = rng.below(plan_half.messages.len());
            let what = end_fault(rng, kind, chosen.service, mtu, &plan_half.messages[message]);
            match what {
                Some(EndWhat::Slow) => plan_half.timer_ns = 4000 * MS,
                Some(EndWhat::LargerMtu) => drop(plan_half.messages.drain(..message)),
                Some(EndWhat::NoLast) => {
                    plan_half.messages[message].psns -= 1;
                    plan_half.messages[message].cut = true;
                }
                _ => {}
            }
            let message = if what == Some(EndWhat::LargerMtu) { 0 } else { message };
            let mut first = 0;
            for message in &mut plan_half.messages {
                message.first = first;
                first += message.psns;
            }
            if what == Some(EndWhat::OtherBytes) {
                // Bytes that change show in a retransmission.
                let nth = plan_half.messages[message].first as usize;
                let (answers, what, before_tap) = (false, NetWhat::Lose, false);
                plan.net_faults.push(NetFault { conversation, half, answers, nth, what, before_tap });
            }
            plan_half.fault = what.map(|what| EndFault { message, what });
        }
    }
}

fn end_fault(rng: &mut Rng, kind: usize, service: u8, mtu: usize, message: &Message) -> Option<EndWhat> {
    let reliable = matches!(service, RC | XRC);
    let carries = matches!(message.op, Op::Send | Op::Write);
    match kind {
        12 if reliable => {
            let times = rng.pick(&[1, 2, 5, 7, 100]);
            carries.then(|| EndWhat::NotReady(times, 1 + rng.below(20) as u8))
        }
        13 if reliable => Some(EndWhat::Refuses(rng.pick(&[0x61, 0x62, 0x63]))),
        14 if reliable => Some(EndWhat::Dead),
        15 => Some(EndWhat::OtherKey),
        16 if reliable && carries && mtu > 256 && message.psns > 1 => Some(EndWhat::LargerMtu),
        17 if reliable && message.op == Op::Write => Some(EndWhat::OtherLength),
        18 if reliable && carries && message.psns > 1 => {
            Some(rng.pick(&[EndWhat::NoLast, EndWhat::OtherBytes]))
        }
        19 if reliable => Some(rng.pick(&[EndWhat::OtherPsn, EndWhat::Slow])),
        _ => Some(EndWhat::Marked),
    }
}
