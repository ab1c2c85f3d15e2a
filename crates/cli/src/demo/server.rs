//! The demo's server process: carries out orders, checks its own memory, replies.

use std::net::SocketAddr;

use roxie::verbs::{Context, Device, DeviceConfig};
use transport::Wc;

use super::args::DemoRoleArgs;
use super::endpoint::{Endpoint, GUARD, MESSAGE_MAX, SLOT_LEN, SLOTS};
use super::order::{Answer, Order};
use super::report::child;
use super::{connection, pattern};
use crate::failure::{Failure, Outcome};

/// Runs the server.
pub(crate) fn run(args: &DemoRoleArgs) -> Outcome {
    child(|| {
        let context = open(args)?;
        let pd = context.alloc_pd().map_err(|error| Failure::of_device("starting the engine", &error))?;
        let end = Endpoint::new(&context, &pd)?;
        let _connection = connection::accept(&context, &end, SocketAddr::new(args.address, args.port))?;
        while obey(&end)? {}
        Ok(())
    })
}

/// Opens the device; both processes use it.
pub(super) fn open(args: &DemoRoleArgs) -> Outcome<Context> {
    let config = DeviceConfig { netdev: Some(args.netdev.clone()), ..DeviceConfig::default() };
    Device::open(&config)
        .and_then(|device| device.context())
        .map_err(|error| Failure::of_device("opening the device", &error))
}

/// Carries out orders; returns false after the last one.
fn obey(end: &Endpoint) -> Outcome<bool> {
    let order = end.order()?;
    match order {
        Order::TakeSend { len, seed } => take_send(end, len as usize, seed)?,
        Order::CheckTarget { at, len, seed } => {
            end.expect_order()?;
            end.reply(check_target(end, at as usize, len as usize, seed))?;
        }
        Order::FillTarget { at, len, seed } => {
            let mut bytes = vec![0; len as usize];
            pattern::fill(&mut bytes, seed);
            end.target.write(GUARD + at as usize, &bytes);
            end.expect_order()?;
            end.reply(Answer::Good)?;
        }
        Order::SetWord { value } => {
            end.set_word(value);
            end.expect_order()?;
            end.reply(Answer::Good)?;
        }
        Order::GetWord => {
            end.expect_order()?;
            end.reply(Answer::Value(end.word()))?;
        }
        Order::TakeMany => take_many(end, |_| Ok(()))?,
        Order::Echo => take_many(end, |wc| echo(end, wc))?,
        Order::Bye => {
            end.reply(Answer::Good)?;
            return Ok(false);
        }
    }
    Ok(true)
}

fn take_send(end: &Endpoint, len: usize, seed: u64) -> Outcome {
    let room = MESSAGE_MAX + GUARD;
    end.inbox.write(0, &vec![pattern::UNTOUCHED; room]);
    end.post_recv(0, MESSAGE_MAX)?;
    end.reply(Answer::Good)?;
    let wc = end.received("receiving a SEND")?;
    let mut bytes = vec![0; room];
    end.inbox.read(0, &mut bytes);
    let answer = if wc.byte_len as usize != len {
        Answer::Length { got: u64::from(wc.byte_len) }
    } else {
        verdict(&bytes[..len], seed, 0, &bytes[len..])
    };
    end.expect_order()?;
    end.reply(answer)
}

/// Compares the target and its guards, then fills them again.
fn check_target(end: &Endpoint, at: usize, len: usize, seed: u64) -> Answer {
    let all = MESSAGE_MAX + 2 * GUARD;
    let mut bytes = vec![0; all];
    end.target.read(0, &mut bytes);
    end.target.write(0, &vec![pattern::UNTOUCHED; all]);
    let (first, last) = (GUARD + at, GUARD + at + len);
    match pattern::touched(&bytes[..first]) {
        Some(at) => Answer::Differs { at: at as u64 },
        None => verdict(&bytes[first..last], seed, first, &bytes[last..]),
    }
}

fn verdict(bytes: &[u8], seed: u64, offset: usize, rest: &[u8]) -> Answer {
    let behind = || pattern::touched(rest).map(|at| bytes.len() + at);
    match pattern::difference(bytes, seed).or_else(behind) {
        Some(at) => Answer::Differs { at: (offset + at) as u64 },
        None => Answer::Good,
    }
}

/// Receives until a message has immediate data. Slots stay posted; the next orders arrive in them.
fn take_many(end: &Endpoint, mut each: impl FnMut(&Wc) -> Outcome) -> Outcome {
    for slot in 0..SLOTS {
        end.post_recv(slot * SLOT_LEN, SLOT_LEN)?;
    }
    end.reply(Answer::Good)?;
    loop {
        let wc = end.received("receiving many SENDs")?;
        if wc.wc_flags & Wc::WITH_IMM != 0 {
            return Ok(());
        }
        end.post_recv(wc.wr_id as usize, SLOT_LEN)?;
        each(&wc)?;
    }
}

fn echo(end: &Endpoint, wc: &Wc) -> Outcome {
    end.echo(wc.wr_id as usize, wc.byte_len as usize)
}
