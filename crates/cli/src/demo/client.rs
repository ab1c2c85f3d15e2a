//! The demo's client process: does every operation at every size and checks both ends.

use std::net::SocketAddr;
use std::time::Instant;

use transport::WrOp;

use super::args::DemoRoleArgs;
use super::endpoint::{Endpoint, GUARD, MESSAGE_MAX, Remote};
use super::order::{Answer, Order};
use super::report::{Report, child};
use super::{connection, figures, pattern, server};
use crate::failure::{During, Failure, Outcome};

/// Sizes around every boundary: words, header fields, path MTUs, windows.
const SIZES: [usize; 24] = [
    0, 1, 2, 3, 4, 7, 8, 63, 64, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537,
    262_145, 1_048_575, 1_048_576,
];
/// Rounds of each atomic operation.
const ATOMICS: u64 = 1000;

/// Runs the client.
pub(crate) fn run(args: &DemoRoleArgs) -> Outcome {
    child(|| {
        let context = server::open(args)?;
        let pd = context.alloc_pd().map_err(|error| Failure::of_device("starting the engine", &error))?;
        let end = Endpoint::new(&context, &pd)?;
        let start = Instant::now();
        let (_connection, remote) =
            connection::connect(&context, &end, SocketAddr::new(args.address, args.port))?;
        Report::Connected {
            local_qpn: end.qp.qpn().value(),
            remote_qpn: end.qp.query().during("querying the queue pair")?.dest_qp.value(),
            took_us: u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX),
        }
        .say()?;
        sends(&end)?;
        writes(&end, remote)?;
        reads(&end, remote)?;
        compare_and_swap(&end, remote)?;
        fetch_and_add(&end, remote)?;
        if !args.no_figures {
            figures::measure(&end, remote)?;
        }
        expect("the end", end.ask(Order::Bye)?)?;
        let counters = context.device().counters();
        let count = |name| counters.iter().find(|(found, _)| *found == name).map_or(0, |(_, count)| *count);
        let (dropped, retransmitted) = (count("tx_xdp_drop"), count("retransmitted_pkts"));
        Report::Counters { dropped, retransmitted }.say()
    })
}

fn sends(end: &Endpoint) -> Outcome {
    // The server's target starts out as zeroes; the first check of it expects untouched bytes.
    let clean = Order::CheckTarget { at: 0, len: 0, seed: 0 };
    end.ask(clean)?;
    each_size("SEND", |size, seed| {
        let len = size as u32;
        expect("SEND", end.ask(Order::TakeSend { len, seed })?)?;
        fill_outbox(end, size, seed);
        end.expect_order()?;
        end.perform("SEND", WrOp::Send, &[end.outbox.sge(0, size)])?;
        expect("SEND", end.answer()?)
    })
}

fn writes(end: &Endpoint, remote: Remote) -> Outcome {
    each_size("WRITE", |size, seed| {
        let at = misalign(size);
        fill_outbox(end, size, seed);
        let op = WrOp::Write { remote_addr: remote.at(at), r_key: remote.r_key };
        end.perform("WRITE", op, &[end.outbox.sge(0, size)])?;
        expect("WRITE", end.ask(Order::CheckTarget { at: at as u32, len: size as u32, seed })?)
    })
}

fn reads(end: &Endpoint, remote: Remote) -> Outcome {
    each_size("READ", |size, seed| {
        let at = misalign(size);
        expect("READ", end.ask(Order::FillTarget { at: at as u32, len: size as u32, seed })?)?;
        let room = MESSAGE_MAX + GUARD;
        end.outbox.write(0, &vec![pattern::UNTOUCHED; room]);
        let op = WrOp::Read { remote_addr: remote.at(at), r_key: remote.r_key };
        end.perform("READ", op, &[end.outbox.sge(0, size)])?;
        let mut bytes = vec![0; room];
        end.outbox.read(0, &mut bytes);
        let behind = || pattern::touched(&bytes[size..]).map(|at| size + at);
        match pattern::difference(&bytes[..size], seed).or_else(behind) {
            Some(at) => Err(Failure::new(format!("READ of {size} bytes: byte {at} differs"))),
            None => Ok(()),
        }
    })
}

fn compare_and_swap(end: &Endpoint, remote: Remote) -> Outcome {
    let name = "compare-and-swap";
    let mut word = 0x0123_4567_89ab_cdef;
    expect(name, end.ask(Order::SetWord { value: word })?)?;
    for round in 0..ATOMICS {
        say_round(name, round)?;
        // Every fourth compare value does not match, so the word must stay.
        let compare = if round % 4 == 3 { !word } else { word };
        let swap = word.rotate_left(7) ^ round;
        let op = WrOp::CompareSwap { remote_addr: remote.word(), r_key: remote.r_key, compare, swap };
        let before = atomic(end, name, op)?;
        if before != word {
            return Err(Failure::new(format!("{name} {round}: returned {before:#x} instead of {word:#x}")));
        }
        if compare == word {
            word = swap;
        }
    }
    atomics_done(end, name, word, "a quarter of them without a match")
}

fn fetch_and_add(end: &Endpoint, remote: Remote) -> Outcome {
    let name = "fetch-and-add";
    let mut word = u64::MAX - 5000;
    expect(name, end.ask(Order::SetWord { value: word })?)?;
    for add in 0..ATOMICS {
        say_round(name, add)?;
        let op = WrOp::FetchAdd { remote_addr: remote.word(), r_key: remote.r_key, add };
        let before = atomic(end, name, op)?;
        if before != word {
            return Err(Failure::new(format!("{name} {add}: returned {before:#x} instead of {word:#x}")));
        }
        word = word.wrapping_add(add);
    }
    atomics_done(end, name, word, "through the wrap of 64 bits")
}

/// Reports every hundredth atomic operation as progress.
fn say_round(name: &str, round: u64) -> Outcome {
    if round.is_multiple_of(100) {
        Report::Doing { what: format!("{name} {round} of {ATOMICS}") }.say()?;
    }
    Ok(())
}

/// Performs one atomic operation and returns the value that the word had before.
fn atomic(end: &Endpoint, name: &str, op: WrOp) -> Outcome<u64> {
    end.perform(name, op, &[end.outbox.sge(0, 8)])?;
    let mut bytes = [0; 8];
    end.outbox.read(0, &mut bytes);
    Ok(u64::from_le_bytes(bytes))
}

fn atomics_done(end: &Endpoint, name: &str, word: u64, note: &str) -> Outcome {
    match end.ask(Order::GetWord)? {
        Answer::Value(value) if value == word => {
            Report::Verified { operation: name.to_owned(), what: format!("{ATOMICS} operations, {note}") }
                .say()
        }
        answer => {
            Err(Failure::new(format!("{name}: the word should be {word:#x}, the server says {answer:?}")))
        }
    }
}

/// Runs `operation` for every size, each with another pattern.
fn each_size(name: &str, mut operation: impl FnMut(usize, u64) -> Outcome) -> Outcome {
    for (n, size) in SIZES.into_iter().enumerate() {
        Report::Doing { what: format!("{name} of {size} bytes") }.say()?;
        operation(size, (n as u64 + 1) << 32 | size as u64)?;
    }
    let bytes: usize = SIZES.iter().sum();
    let what = format!("{} sizes from 0 to 1 MiB, {:.1} MB, every byte", SIZES.len(), bytes as f64 / 1e6);
    Report::Verified { operation: name.to_owned(), what }.say()
}

fn fill_outbox(end: &Endpoint, size: usize, seed: u64) {
    let mut bytes = vec![0; size];
    pattern::fill(&mut bytes, seed);
    end.outbox.write(0, &bytes);
}

/// An unaligned offset in the target where `size` bytes fit.
fn misalign(size: usize) -> usize {
    (size % 61).min(MESSAGE_MAX - size)
}

fn expect(name: &str, answer: Answer) -> Outcome {
    match answer {
        Answer::Good => Ok(()),
        Answer::Differs { at } => {
            Err(Failure::new(format!("{name}: at the server, byte {at} is not what it should be")))
        }
        Answer::Length { got } => Err(Failure::new(format!("{name}: {got} bytes arrived"))),
        Answer::Value(value) => Err(Failure::new(format!("{name}: unexpected answer {value:#x}"))),
    }
}
