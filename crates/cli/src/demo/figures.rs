//! Measures bandwidth, message rate and latency, about a second each; data that arrives is compared.

use std::time::{Duration, Instant};

use transport::{SendFlags, SendWr, WrOp};

use super::endpoint::{Endpoint, MESSAGE_MAX, Remote, SENDS_MAX, SLOT_LEN};
use super::order::{Answer, Order};
use super::pattern;
use super::report::Report;
use crate::failure::{During, Failure, Outcome};

/// Duration of each measurement.
const SPAN: Duration = Duration::from_millis(1200);
/// Outstanding messages of 64 KiB.
const WINDOW: usize = 32;
/// Work requests in one post list; only the last is signaled.
const LIST: usize = 64;
/// Size of a small message, in bytes.
const SMALL: usize = 8;
/// Round trips before the latency measurement starts.
const WARM_UP: usize = 200;
const SEED: u64 = 0x0f1a_90e5;

/// Runs all measurements and reports them.
pub(super) fn measure(end: &Endpoint, remote: Remote) -> Outcome {
    let mut bytes = vec![0; MESSAGE_MAX];
    pattern::fill(&mut bytes, SEED);
    end.outbox.write(0, &bytes);
    writes(end, remote)?;
    reads(end, remote)?;
    rate(end, remote)?;
    sends(end)?;
    latency(end)
}

fn writes(end: &Endpoint, remote: Remote) -> Outcome {
    let r_key = remote.r_key;
    let rate = stream(end, "WRITE", |offset| WrOp::Write { remote_addr: remote.at(offset), r_key })?;
    match end.ask(Order::CheckTarget { at: 0, len: MESSAGE_MAX as u32, seed: SEED })? {
        Answer::Good => bandwidth("WRITE 64 KiB", rate),
        answer => Err(Failure::new(format!("WRITE at speed: {answer:?}"))),
    }
}

fn reads(end: &Endpoint, remote: Remote) -> Outcome {
    let order = Order::FillTarget { at: 0, len: MESSAGE_MAX as u32, seed: SEED + 1 };
    let answer = end.ask(order)?;
    if answer != Answer::Good {
        return Err(Failure::new(format!("preparing a READ: {answer:?}")));
    }
    let r_key = remote.r_key;
    let rate = stream(end, "READ", |offset| WrOp::Read { remote_addr: remote.at(offset), r_key })?;
    let mut bytes = vec![0; MESSAGE_MAX];
    end.outbox.read(0, &mut bytes);
    match pattern::difference(&bytes, SEED + 1) {
        None => bandwidth("READ 64 KiB", rate),
        Some(at) => Err(Failure::new(format!("READ at speed: byte {at} differs"))),
    }
}

fn sends(end: &Endpoint) -> Outcome {
    many(end, Order::TakeMany, |end| {
        let rate = stream(end, "SEND", |_| WrOp::Send)?;
        bandwidth("SEND 64 KiB", rate)
    })
}

/// Keeps a window of 64 KiB messages outstanding; returns bytes per second.
fn stream(end: &Endpoint, name: &str, op: impl Fn(usize) -> WrOp) -> Outcome<f64> {
    Report::Doing { what: format!("{name} of 64 KiB, as fast as possible") }.say()?;
    let post = |n: usize| {
        let offset = n * SLOT_LEN % MESSAGE_MAX;
        end.post(name, op(offset), &[end.outbox.sge(offset, SLOT_LEN)], SendFlags::SIGNALED)
    };
    let start = Instant::now();
    (0..WINDOW).try_for_each(post)?;
    let (mut posted, mut done) = (WINDOW, 0);
    // At least one pass over the whole buffer, so that all of it can be compared.
    while start.elapsed() < SPAN || posted < MESSAGE_MAX / SLOT_LEN {
        end.sent(name)?;
        done += 1;
        post(posted)?;
        posted += 1;
    }
    while done < posted {
        end.sent(name)?;
        done += 1;
    }
    Ok((posted * SLOT_LEN) as f64 / start.elapsed().as_secs_f64())
}

fn bandwidth(what: &str, rate: f64) -> Outcome {
    let value = format!("{:.2} GB/s", rate / 1e9);
    let note = format!("{:.1} Gbit/s of payload, content checked", rate * 8.0 / 1e9);
    figure(what, value, note, (rate, "B/s"))
}

fn rate(end: &Endpoint, remote: Remote) -> Outcome {
    Report::Doing { what: format!("WRITE of {SMALL} bytes, as many as possible") }.say()?;
    let lists_max = SENDS_MAX as usize / LIST;
    let sg_list = [end.outbox.sge(0, SMALL)];
    let op = WrOp::Write { remote_addr: remote.at(0), r_key: remote.r_key };
    let post = || {
        let mut list = end.qp.begin_post();
        for n in 1..=LIST {
            let signal = if n == LIST { SendFlags::SIGNALED } else { SendFlags::empty() };
            let flags = SendFlags::INLINE | signal;
            list.send(&SendWr { wr_id: 0, op, sg_list: &sg_list, flags, dest: None })
                .during("WRITE of a small message")?;
        }
        Ok(())
    };
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while start.elapsed() < SPAN {
        while posted - done < lists_max {
            post()?;
            posted += 1;
        }
        end.sent("WRITE of a small message")?;
        done += 1;
    }
    while done < posted {
        end.sent("WRITE of a small message")?;
        done += 1;
    }
    let rate = (posted * LIST) as f64 / start.elapsed().as_secs_f64();
    let note = format!("post lists of {LIST}, inline");
    figure("WRITE 8 B", format!("{:.2} M messages/s", rate / 1e6), note, (rate, "messages/s"))
}

fn latency(end: &Endpoint) -> Outcome {
    Report::Doing { what: format!("SEND of {SMALL} bytes, there and back") }.say()?;
    many(end, Order::Echo, |end| {
        let mut took = Vec::new();
        let start = Instant::now();
        while start.elapsed() < SPAN {
            // The reply lands where the previous one did.
            end.post_recv(0, SLOT_LEN)?;
            let flags = SendFlags::INLINE | SendFlags::SIGNALED;
            let sent = Instant::now();
            end.post("SEND", WrOp::Send, &[end.outbox.sge(0, SMALL)], flags)?;
            end.received("SEND there and back")?;
            took.push(sent.elapsed());
            end.sent("SEND there and back")?;
        }
        let mut took = took.split_off(WARM_UP.min(took.len() / 2));
        took.sort_unstable();
        // One way is half a round trip.
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6 / 2.0;
        let value = format!("{:.1} us p50, {:.1} us p99", at(0.5), at(0.99));
        let note = format!("one way (half of {} round trips), both sides polling", took.len());
        figure("SEND 8 B", value, note, (at(0.5), "us"))
    })
}

/// Runs `work` while the server receives messages, then ends the server's loop with immediate data.
fn many(end: &Endpoint, order: Order, work: impl FnOnce(&Endpoint) -> Outcome) -> Outcome {
    let answer = end.ask(order)?;
    if answer != Answer::Good {
        return Err(Failure::new(format!("{order:?}: {answer:?}")));
    }
    work(end)?;
    end.perform("SEND with immediate data", WrOp::SendImm([0; 4]), &[]).map(drop)
}

fn figure(what: &str, value: String, note: String, (number, unit): (f64, &str)) -> Outcome {
    Report::Figure { what: what.to_owned(), value, note, number, unit: unit.to_owned() }.say()
}
