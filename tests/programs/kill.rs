//! SIGKILL of one side: the other ends with the proper error in bounded time, and the next run starts clean.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Ended, Running, eventually};

use crate::case::{Case, LONG, SHORT, Scale};

/// Traffic that shows that a stream, or an rping, is under way.
const STREAM_BYTES: u64 = 20 << 20;
const PING_BYTES: u64 = 20 << 10;
/// Retries of perftest's defaults: 7 times 67 ms (timeout 14), four times that as IBA allows, and some.
const BOUND: Duration = Duration::from_secs(10);

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for (topology, user) in [(Topology::TwoHosts, User::Root), (Topology::Loopback, User::Ordinary)] {
        let place = Place::new(topology, Family::V4, user);
        let tools: &[&'static str] =
            if scale == Scale::Full { &["ib_write_bw", "ib_read_bw"] } else { &["ib_write_bw"] };
        for &tool in tools {
            let words = ["-n", "1000000"];
            cases.push(Case::new(
                place,
                &format!("{tool} whose server is killed"),
                tool,
                move |lab, name| {
                    let ended = perftest(lab, &place, name, tool, &words)?;
                    // IBV_WC_RETRY_EXC_ERR
                    failed_with(&ended, "Failed status 12")?;
                    clean(lab, &place, name)
                },
            ));
        }
        // A survivor that waits with nothing unacknowledged learns of the death only if somebody tells it.
        let sides = if scale == Scale::Full { vec![Side::Server, Side::Client] } else { Vec::new() };
        for side in sides {
            let what = if side == Side::Server {
                "rping whose server is killed"
            } else {
                "rping whose client is killed"
            };
            cases.push(Case::new(place, what, "rping", move |lab, name| {
                let ended = rping(lab, &place, name, side)?;
                if ended.status.is_none() {
                    return Err(ended.describe());
                }
                clean(lab, &place, name)
            }));
        }
        cases.push(Case::new(
            place,
            "rping -P serves on after a client is killed",
            "rping",
            move |lab, name| survivor(lab, &place, name),
        ));
    }
    cases
}

/// Kills the server of a stream; how the client ended.
fn perftest(lab: &Lab, place: &Place, name: &str, tool: &str, words: &[&str]) -> Result<Ended, String> {
    let port = lab.port();
    let port_word = port.to_string();
    let common = [&[tool, "-d", "roxie0", "-F", "-p", &port_word], words].concat();
    let mut server = start(lab, place, Side::Server, name, &common)?;
    wait_ready(&mut server, Ready::Tcp(port))?;
    let client = [&common[..], &[lab.address(place)]].concat();
    let mut client = start(lab, place, Side::Client, name, &client)?;
    flowing(&mut client, STREAM_BYTES)?;
    server.signal(Signal::SIGKILL);
    Ok(client.wait(BOUND))
}

/// Kills one side of an endless rping; how the other ended.
fn rping(lab: &Lab, place: &Place, name: &str, killed: Side) -> Result<Ended, String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["-a", address, "-p", &port_word];
    let mut server = start(lab, place, Side::Server, name, &[&["rping", "-s"], &common[..]].concat())?;
    wait_ready(&mut server, Ready::Cm(port))?;
    let mut client = start(lab, place, Side::Client, name, &[&["rping", "-c"], &common[..]].concat())?;
    flowing(&mut client, PING_BYTES)?;
    let (victim, other) = match killed {
        Side::Server => (&mut server, &mut client),
        Side::Client => (&mut client, &mut server),
    };
    victim.signal(Signal::SIGKILL);
    Ok(other.wait(BOUND))
}

/// Kills one client of a persistent server, then uses the server again.
fn survivor(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["-a", address, "-p", &port_word];
    let mut server = start(lab, place, Side::Server, name, &[&["rping", "-s", "-P"], &common[..]].concat())?;
    wait_ready(&mut server, Ready::Cm(port))?;
    let mut client = start(lab, place, Side::Client, name, &[&["rping", "-c"], &common[..]].concat())?;
    flowing(&mut client, PING_BYTES)?;
    client.signal(Signal::SIGKILL);
    drop(client);
    let words = [&["rping", "-c", "-V", "-C", "100"], &common[..]].concat();
    let ended = start(lab, place, Side::Client, name, &words)?.wait(SHORT);
    if ended.succeeded() && !server.has_ended() {
        return Ok(());
    }
    Err(format!("{}{}", ended.describe(), server.wait(Duration::ZERO).describe()))
}

/// Waits until that much more has gone through the interfaces of the program's network namespace.
fn flowing(program: &mut Running, bytes: u64) -> Result<(), String> {
    let before = transmitted(program.pid());
    let mut ended = false;
    let flows = eventually(LONG, || {
        ended = program.has_ended();
        ended || transmitted(program.pid()) >= before + bytes
    });
    if flows && !ended {
        return Ok(());
    }
    Err(format!("no traffic to cut\n{}", program.wait(Duration::ZERO).describe()))
}

/// Bytes sent by all interfaces (proc_pid_net(5), dev: after the name eight counters of receive, then bytes).
fn transmitted(pid: u32) -> u64 {
    let table = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    let bytes = |line: &str| line.split_once(':')?.1.split_whitespace().nth(8)?.parse::<u64>().ok();
    table.lines().filter_map(bytes).sum()
}

fn failed_with(ended: &Ended, text: &str) -> Result<(), String> {
    if ended.status.is_some() && !ended.succeeded() && ended.output.contains(text) {
        return Ok(());
    }
    Err(format!("expected '{text}' and an exit code that says so\n{}", ended.describe()))
}

/// The next run at the same place works.
fn clean(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["-V", "-C", "20", "-a", address, "-p", &port_word];
    let next = Pair {
        name,
        server: [&["rping", "-s"], &common[..]].concat(),
        client: [&["rping", "-c"], &common[..]].concat(),
        ready: Ready::Cm(port),
        limit: LONG,
    };
    next.run(lab, place).map(drop).map_err(|why| format!("the next run\n{why}"))
}
