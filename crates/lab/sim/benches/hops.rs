//! Measures the cost of each step of a WRITE per message, without ports and kernel: `cargo bench -p
//! roxie-sim`.
//!
//! Method: bursts of messages go through all steps from the work request to its completion. Each step is
//! timed for the whole burst, as an engine executes it, and the median over all bursts is printed. The steps
//! depend on each other, so a harness that repeats one function does not fit. `bench/instructions` counts the
//! instructions of each step by the name of its function.

#[path = "../tests/goodput/link.rs"]
#[expect(dead_code, reason = "only `End` is needed here")]
mod link;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant as Clock};

use link::{End, Peer, end};
use roxie_sim::{LOCAL_BASE, LOCAL_KEY, REMOTE_BASE, REMOTE_KEY};
use transport::{Instant, MAX_PACKET, QpEvent, SendFlags, SendWr, Sge, WrOp};
use wire::{IcrcHeader, Packet};

/// Messages per burst: the number of segments of a GSO burst.
const BURST: usize = 62;
const BURSTS: usize = 2000;
const ICRC_LEN: usize = 4;
const NOW: Instant = Instant(1_000);

struct Pipeline {
    requester: End,
    responder: End,
    bytes: u32,
    icrc: IcrcHeader,
    packets: Vec<[u8; MAX_PACKET]>,
    lengths: Vec<usize>,
    acknowledgement: Vec<u8>,
    written: [u8; MAX_PACKET],
}

impl Pipeline {
    fn new(bytes: u32) -> Self {
        let [client, server] = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last));
        Self {
            requester: end(0, Peer::SelectiveRepeat, u64::from(bytes)),
            responder: end(1, Peer::SelectiveRepeat, u64::from(bytes)),
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

/// Posts the work requests to the send queue.
#[inline(never)]
fn post(pipeline: &mut Pipeline) {
    let sge = Sge { addr: LOCAL_BASE, length: pipeline.bytes, lkey: LOCAL_KEY };
    let op = WrOp::Write { remote_addr: REMOTE_BASE, r_key: REMOTE_KEY };
    for wr_id in 0..BURST as u64 {
        let wr = SendWr { wr_id, op, sg_list: &[sge], flags: SendFlags::empty(), dest: None };
        pipeline.requester.qp.post_send(&wr, &pipeline.requester.memory).expect("the send queue has room");
    }
}

/// Makes packets of the work requests, with payload.
#[inline(never)]
fn transmit(pipeline: &mut Pipeline) {
    let End { qp, memory, .. } = &mut pipeline.requester;
    let mut quantum = qp.transmit_quantum(NOW, BURST);
    for (packet, len) in pipeline.packets.iter_mut().zip(&mut pipeline.lengths) {
        *len = quantum.poll(memory, packet).expect("the window has room").len;
    }
}

/// Computes the ICRCs.
#[inline(never)]
fn seal(pipeline: &mut Pipeline) {
    for (packet, &len) in pipeline.packets.iter_mut().zip(&pipeline.lengths) {
        let icrc = pipeline.icrc.icrc(0, &packet[..len]);
        packet[len..len + ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
    }
}

/// Checks the ICRCs as the receiver does.
#[inline(never)]
fn verify(pipeline: &mut Pipeline) {
    for packet in pipeline.whole() {
        pipeline.icrc.verify(0, packet).expect("undamaged");
    }
}

/// Parses the headers.
#[inline(never)]
fn parse(pipeline: &mut Pipeline) {
    for packet in pipeline.whole() {
        std::hint::black_box(Packet::parse(packet).expect("the packet is well formed"));
    }
}

/// Executes the requests, after parsing them again.
#[inline(never)]
fn respond(pipeline: &mut Pipeline) {
    let End { qp, memory, from, reorder, .. } = &mut pipeline.responder;
    for (packet, &len) in pipeline.packets.iter().zip(&pipeline.lengths) {
        let packet = Packet::parse(&packet[..len + ICRC_LEN]).expect("the packet is well formed");
        qp.handle_packet(NOW, &packet, from, memory, None, reorder).expect("the packet is in order");
    }
    qp.end_of_batch(NOW, false);
}

/// Sends the one ACK of the burst.
#[inline(never)]
fn acknowledge(pipeline: &mut Pipeline) {
    let End { qp, memory, .. } = &mut pipeline.responder;
    let len = qp
        .poll_transmit(NOW, memory, BURST, &mut pipeline.written)
        .expect("the responder has an ACK to send")
        .len;
    pipeline.acknowledgement.clear();
    pipeline.acknowledgement.extend_from_slice(&pipeline.written[..len + ICRC_LEN]);
}

/// Handles the ACK and polls the completions.
#[inline(never)]
fn complete(pipeline: &mut Pipeline) {
    let End { qp, memory, from, reorder, .. } = &mut pipeline.requester;
    let packet = Packet::parse(&pipeline.acknowledgement).expect("the packet is well formed");
    qp.handle_packet(NOW, &packet, from, memory, None, reorder).expect("the ACK belongs to this queue pair");
    let completions =
        std::iter::from_fn(|| qp.poll_event()).filter(|event| matches!(event, QpEvent::SendWc(_)));
    assert_eq!(completions.count(), BURST);
}

type Step = (&'static str, fn(&mut Pipeline));
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

/// Returns the nanoseconds of each step per message.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn measure(bytes: u32, bursts: usize) -> Vec<f64> {
    let mut pipeline = Pipeline::new(bytes);
    let mut times = vec![Vec::with_capacity(bursts); STEPS.len()];
    for _ in 0..bursts {
        for ((_, step), times) in STEPS.iter().zip(&mut times) {
            let start = Clock::now();
            step(&mut pipeline);
            times.push(start.elapsed());
        }
    }
    times.iter_mut().map(|times| median(times).as_secs_f64() * 1e9 / BURST as f64).collect()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// `hops BYTES BURSTS` prints nothing. It is for counting instructions.
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
