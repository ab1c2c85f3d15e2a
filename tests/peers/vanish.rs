//! A peer that vanishes: its client ends with IBV_WC_RETRY_EXC_ERR after (retry count + 1) times its
//! timeout, on roxie as on Soft-RoCE. Prints the time it took; docs/interop.md has the figures.

use std::time::Duration;

use nix::sys::signal::Signal;
use roxie_tests::pair::{Ready, flowing};
use roxie_tests::place::Port;
use roxie_tests::process::{Ended, Running, eventually};

use crate::dispatcher::Case;
use crate::end::End;
use crate::machine::Machine;

/// Bytes that show that a stream is running.
const STREAM_BYTES: u64 = 2 << 20;
/// Longer than all of the times below.
const LIMIT: Duration = Duration::from_secs(40);
/// Time for a program to end after its completion with an error.
const PROGRAM_MAX: Duration = Duration::from_secs(1);
/// The message of perftest for IBV_WC_RETRY_EXC_ERR.
const RETRY_EXCEEDED: &str = "Failed status 12";
/// perftest's default retry count.
const RETRIES: u32 = 7;
/// The timeout that rdma_cm gives roxie's queue pairs: twice the packet lifetime of newer kernels, 4.096 us
/// << 16.
const CM_TIMEOUT: u32 = 17;
/// The timeouts of rxe, with that lifetime or with the 18 of Linux 6.1 (CMA_IBOE_PACKET_LIFETIME).
const CM_TIMEOUTS_OF_RXE: [u32; 2] = [CM_TIMEOUT, 19];

pub(crate) const CASES: [Case; 4] = [
    ("vanish/the machine of a server on rxe, timeout 14", |machine, name| of_rxe(machine, name, Some("14"))),
    ("vanish/the machine of a server on rxe, timeout 16", |machine, name| of_rxe(machine, name, Some("16"))),
    ("vanish/the machine of a server on rxe, with rdma_cm", |machine, name| of_rxe(machine, name, None)),
    ("vanish/the only process of a server on roxie, with rdma_cm", of_roxie),
];

/// Stops the machine while a client here writes to it.
fn of_rxe(machine: &Machine, name: &str, timeout: Option<&str>) -> Result<(), String> {
    let options = |end: End| match timeout {
        Some(timeout) => vec!["-u", timeout, "-x", end.gid_index(false)],
        None => vec!["-R"],
    };
    let (_server, mut client) = stream(machine, name, End::Roxie, options)?;
    // Before that, its counters are those of the namespace that it was started from.
    eventually(LIMIT, || client.has_ended() || client.net("dev").contains(End::Roxie.netdev()));
    flowing(&mut client, STREAM_BYTES)?;
    let ended = machine.while_stopped(|| client.wait(LIMIT))?;
    let timeout = timeout.map_or(Ok(CM_TIMEOUT), str::parse).map_err(|_| "a timeout")?;
    in_time(name, &ended, &[timeout], RETRIES)
}

/// Kills the server here while Soft-RoCE writes to it. rxe takes retry count 7 as infinite, so the client
/// gets another.
fn of_roxie(machine: &Machine, name: &str) -> Result<(), String> {
    for retries in [1, 3] {
        let option = format!("--retry_count={retries}");
        let (mut server, mut client) = stream(machine, name, End::Rxe, |_| vec!["-R", &option])?;
        flowing(&mut server, STREAM_BYTES)?;
        server.signal(Signal::SIGKILL);
        let ended = client.wait(LIMIT);
        in_time(&format!("{name}, retry count {retries}"), &ended, &CM_TIMEOUTS_OF_RXE, retries)?;
    }
    Ok(())
}

/// Starts a server, and a client at `end` that writes to it until it is stopped.
fn stream<'a>(
    machine: &Machine,
    name: &str,
    end: End,
    options: impl Fn(End) -> Vec<&'a str>,
) -> Result<(Running, Running), String> {
    let port = machine.port();
    let word = port.to_string();
    let words = |end: End| {
        let common = ["ib_write_bw", "-F", "-n", "1000000", "-p", &word, "-d", end.device()];
        [&common[..], &options(end)].concat()
    };
    let server_end = end.other();
    let mut server = machine.start(server_end, name, Port::Udp, &words(server_end))?;
    let ready = if options(end).contains(&"-R") { Ready::Cm(port) } else { Ready::Tcp(port) };
    machine.wait_ready(server_end, &mut server, ready)?;
    let client = [&words(end)[..], &[server_end.address(false)]].concat();
    Ok((server, machine.start(end, name, Port::Udp, &client)?))
}

/// The last acknowledgement arrived less than one timeout before the peer ended.
fn in_time(name: &str, ended: &Ended, timeouts: &[u32], retries: u32) -> Result<(), String> {
    if ended.status.is_none() || ended.succeeded() || !ended.output.contains(RETRY_EXCEEDED) {
        return Err(format!(
            "expected '{RETRY_EXCEEDED}' and an exit code that says so\n{}",
            ended.describe()
        ));
    }
    let mut times = timeouts.iter().map(|timeout| Duration::from_nanos(4096 << timeout));
    let all = |each: &Duration| retries * *each..(retries + 1) * *each + PROGRAM_MAX;
    match times.find(|each| all(each).contains(&ended.took)) {
        Some(each) => {
            println!("{name}: ended after {:.2?}, {} times {each:.2?}", ended.took, retries + 1);
            Ok(())
        }
        None => Err(format!(
            "not after {} times the timeout, but after {:?}\n{}",
            retries + 1,
            ended.took,
            ended.describe()
        )),
    }
}
