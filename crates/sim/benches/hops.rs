//! What each step of a WRITE's way costs per message, without ports and kernel: `cargo bench -p roxie-sim`.
//!
//! Method: one burst of messages after the other goes all the way from the work request to its completion; each step is timed for the
//! whole burst, as an engine does it, and the median of all bursts is printed. The steps depend on each other, so a harness that
//! repeats one function by itself does not fit. `bench/instructions` counts the instructions of each step (its function's name).

#[path = "../tests/goodput/link.rs"]
#[expect(dead_code, reason = "only the ends are needed")]
mod link;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant as Clock};

use link::{End, Peer, end};
use roxie_sim::{LOCAL_BASE, LOCAL_KEY, REMOTE_BASE, REMOTE_KEY};
use transport::{Instant, MAX_PACKET, QpEvent, SendFlags, SendWr, Sge, WrOp};
use wire::{IcrcHeader, Packet};

/// Messages at a time: what a burst of GSO segments holds.
const BURST: usize = 62;
const BURSTS: usize = 2000;
const ICRC_LEN: usize = 4;
const NOW: Instant = Instant(1_000);

struct Way {
    requester: End,
    responder: End,
    bytes: u32,
    icrc: IcrcHeader,
    packets: Vec<[u8; MAX_PACKET]>,
    lengths: Vec<usize>,
    acknowledgement: Vec<u8>,
    written: [u8; MAX_PACKET],
}

impl Way {
    fn new(bytes: u32) -> Self {
        let [client, server] = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last));
        Self {
            requester: end(0, Peer::Keeps, u64::from(bytes)),
            responder: end(1, Peer::Keeps, u64::from(bytes)),
            bytes,
            icrc: IcrcHeader::v4(client, server, 0xc000, 4791),
            packets: vec![[0; MAX_PACKET]; BURST],
            lengths: vec![0; BURST],
            acknowledgement: Vec::with_capacity(MAX_PACKET),
            written: [0; MAX_PACKET],
        }
    }

    fn whole(&self) -> impl Iterator<Item = &[u8]> {
        self.packets.iter().zip(&self.lengths).map(|(packet, &len)| &packet[..len + ICRC_LEN])
    }
}

/// Work requests into the send queue.
#[inline(never)]
fn post(way: &mut Way) {
    let sge = Sge { addr: LOCAL_BASE, length: way.bytes, lkey: LOCAL_KEY };
    let op = WrOp::Write { remote_addr: REMOTE_BASE, r_key: REMOTE_KEY };
    for wr_id in 0..BURST as u64 {
        let wr = SendWr { wr_id, op, sg_list: &[sge], flags: SendFlags::empty(), dest: None };
        way.requester.qp.post_send(&wr, &way.requester.memory).expect("there is room");
    }
}

/// Packets out of work requests, payload included.
#[inline(never)]
fn transmit(way: &mut Way) {
    let End { qp, memory, .. } = &mut way.requester;
    let mut quantum = qp.transmit_quantum(NOW, BURST);
    for (packet, len) in way.packets.iter_mut().zip(&mut way.lengths) {
        *len = quantum.poll(memory, packet).expect("the window has room").len;
    }
}

/// Their ICRCs.
#[inline(never)]
fn seal(way: &mut Way) {
    for (packet, &len) in way.packets.iter_mut().zip(&way.lengths) {
        let icrc = way.icrc.icrc(0, &packet[..len]);
        packet[len..len + ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
    }
}

/// The receiver's check of them.
#[inline(never)]
fn verify(way: &mut Way) {
    for packet in way.whole() {
        way.icrc.verify(0, packet).expect("undamaged");
    }
}

/// Headers out of bytes.
#[inline(never)]
fn parse(way: &mut Way) {
    for packet in way.whole() {
        std::hint::black_box(Packet::parse(packet).expect("well formed"));
    }
}

/// Requests executed; parsed once more.
#[inline(never)]
fn respond(way: &mut Way) {
    let End { qp, memory, from, reorder, .. } = &mut way.responder;
    for (packet, &len) in way.packets.iter().zip(&way.lengths) {
        let packet = Packet::parse(&packet[..len + ICRC_LEN]).expect("well formed");
        qp.handle_packet(NOW, &packet, from, memory, None, reorder).expect("in order");
    }
    qp.end_of_batch(NOW);
}

/// The one ACK of the burst, a burst's share of it.
#[inline(never)]
fn acknowledge(way: &mut Way) {
    let End { qp, memory, .. } = &mut way.responder;
    let len = qp.poll_transmit(NOW, memory, BURST, &mut way.written).expect("an ACK is due").len;
    way.acknowledgement.clear();
    way.acknowledgement.extend_from_slice(&way.written[..len + ICRC_LEN]);
}

/// The ACK handled and completions taken.
#[inline(never)]
fn complete(way: &mut Way) {
    let End { qp, memory, from, reorder, .. } = &mut way.requester;
    let packet = Packet::parse(&way.acknowledgement).expect("well formed");
    qp.handle_packet(NOW, &packet, from, memory, None, reorder).expect("it is for us");
    let completions =
        std::iter::from_fn(|| qp.poll_event()).filter(|event| matches!(event, QpEvent::SendWc(_)));
    assert_eq!(completions.count(), BURST);
}

type Step = (&'static str, fn(&mut Way));
const STEPS: [Step; 8] = [
    ("post", post),
    ("transmit", transmit),
    ("seal", seal),
    ("verify", verify),
    ("parse", parse),
    ("respond", respond),
    ("acknowledge", acknowledge),
    ("complete", complete),
];

/// Nanoseconds of each step, for each message.
#[expect(clippy::disallowed_methods, reason = "what the steps take in reality is the question")]
fn measure(bytes: u32, bursts: usize) -> Vec<f64> {
    let mut way = Way::new(bytes);
    let mut times = vec![Vec::with_capacity(bursts); STEPS.len()];
    for _ in 0..bursts {
        for ((_, step), times) in STEPS.iter().zip(&mut times) {
            let start = Clock::now();
            step(&mut way);
            times.push(start.elapsed());
        }
    }
    times.iter_mut().map(|times| median(times).as_secs_f64() * 1e9 / BURST as f64).collect()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// `hops BYTES BURSTS` prints nothing: it is for counting instructions.
fn main() {
    let numbers: Vec<u32> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    if let [bytes, bursts] = numbers[..] {
        measure(bytes, bursts as usize);
        return;
    }
    let columns = [8, 1024].map(|bytes| measure(bytes, BURSTS));
    println!("ns for each message of a burst of {BURST} WRITEs\n");
    println!("{:<12} {:>8} {:>8}", "", "8 B", "1 KiB");
    for (i, (name, _)) in STEPS.iter().enumerate() {
        println!("{name:<12} {:>8.1} {:>8.1}", columns[0][i], columns[1][i]);
    }
    let [small, large] = columns.map(|column| column.iter().sum::<f64>());
    println!("{:<12} {small:>8.1} {large:>8.1}", "sum");
}
