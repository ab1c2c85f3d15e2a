//! SIGKILL of one side: the other side fails with the right error in bounded time, and the next run works.
//! After other signals the dying process notifies its peer at once.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, flowing, start, wait_ready};
use roxie_tests::place::{Family, Place};
use roxie_tests::process::{Ended, Running};
use transport::{ack_timeout_ns, further_timeout_ns};

use crate::case::{Case, LONG, SHORT, Scale, Spread, places, says};

/// Bytes that show that a stream, or an rping, is running.
pub(crate) const STREAM_BYTES: u64 = 20 << 20;
pub(crate) const PING_BYTES: u64 = 20 << 10;
/// Eight transmissions with timeout 17 (537 ms), which rdma_cm negotiates with `-R`; doubled for the
/// programs. With perftest's timeout of 14 (67 ms) they take 1.8 s.
const BOUND: Duration = Duration::from_millis(2 * 8 * 537);
/// Time for a program to end after the error, on a busy machine.
const PROGRAM_MAX: Duration = Duration::from_secs(1);
/// A notified peer waits for no retry; the first would come after 537 ms at the earliest and the last after
/// 4 s.
const TOLD_MAX: Duration = Duration::from_millis(1500);
/// The peer of a killed process that was alone on its host hears of it from the host's kernel; without that
/// after eight timeouts of 537 ms.
const ALONE_MAX: Duration = Duration::from_millis(2500);
/// perftest's message for IBV_WC_RETRY_EXC_ERR.
pub(crate) const RETRY_EXCEEDED: &str = "Failed status 12";
/// A server's message when the TCP connection of its client ends too early.
const NO_EXCHANGE: &str = "Failed to exchange data between server and clients";

/// A stream, the side that is killed, and the message of the other side.
#[derive(Clone, Copy)]
struct Stream<'a> {
    spread: Spread,
    tool: &'static str,
    words: &'a [&'static str],
    killed: Side,
    says: &'static str,
}

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for stream in streams(scale) {
        let Stream { spread, tool, words, killed, says } = stream;
        let title = format!("{}: {}", [&[tool], words].concat().join(" "), is_killed(killed));
        for place in of_two_kinds(scale, spread) {
            cases.push(Case::new(place, &title, tool, move |lab, name| {
                failed_with(&perftest(lab, &place, name, &stream)?, says)?;
                clean(lab, &place, name)
            }));
        }
    }
    for place in of_two_kinds(scale, Spread::Two) {
        for side in [Side::Server, Side::Client] {
            let what = format!("rping: {}", is_killed(side));
            cases.push(Case::new(place, &what, "rping", move |lab, name| {
                let ended = rping(lab, &place, name, side)?;
                if ended.status.is_none() {
                    return Err(ended.describe());
                }
                clean(lab, &place, name)
            }));
            let what = format!("rping: {}", is_killed(side).replace("killed", "asked to end"));
            cases.push(Case::new(place, &what, "rping", move |lab, name| {
                for signal in [Signal::SIGINT, Signal::SIGTERM] {
                    let told = asked_to_end(endless_rping(lab, &place, name)?, side, signal)?;
                    says(&told, "DISCONNECT EVENT")?;
                }
                clean(lab, &place, name)
            }));
            let what = what.replace("rping", "rstream");
            cases.push(Case::new(place, &what, "rstream", move |lab, name| {
                for signal in [Signal::SIGINT, Signal::SIGTERM] {
                    asked_to_end(endless_rstream(lab, &place, name)?, side, signal)?;
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

/// Those with a bound on the time. The kernel spends its ICMP messages on all hosts of the machine.
pub(crate) fn timed(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for place in of_two_kinds(scale, Spread::Root) {
        cases.push(Case::new(place, "rping -S 60000: a process alone on its host is killed", "rping", {
            move |lab, name| {
                let apart = lab.apart();
                for side in [Side::Server, Side::Client, Side::Server, Side::Client] {
                    alone(&apart, &place, name, side)?;
                }
                clean(&apart, &place, name)
            }
        }));
    }
    for (timeout, spread) in [("14", Spread::Root), ("16", Spread::Ordinary)] {
        for place in of_two_kinds(scale, spread) {
            let title = format!("ib_write_bw -u {timeout}: server is killed, in time");
            cases.push(Case::new(place, &title, "ib_write_bw", move |lab, name| {
                in_time(lab, &place, name, timeout)
            }));
        }
    }
    cases
}

/// A client always has unacknowledged packets. A server waits for its client's TCP connection, or, with
/// `-R` and in `ib_send_bw`, for messages; on no device is it notified that none will arrive.
fn streams(scale: Scale) -> Vec<Stream<'static>> {
    use Spread::{Ordinary, Root};
    let stream = |spread, tool, words, killed, says| Stream { spread, tool, words, killed, says };
    let (server, client) = (Side::Server, Side::Client);
    let mut streams = vec![
        stream(Root, "ib_write_bw", &[][..], server, RETRY_EXCEEDED),
        stream(Ordinary, "ib_read_bw", &[], server, RETRY_EXCEEDED),
        stream(Root, "ib_send_bw", &[], server, RETRY_EXCEEDED),
        stream(Ordinary, "ib_write_bw", &["-R"], server, RETRY_EXCEEDED),
        stream(Ordinary, "ib_write_bw", &[], client, NO_EXCHANGE),
        stream(Root, "ib_read_bw", &[], client, NO_EXCHANGE),
    ];
    if scale == Scale::Full {
        for tool in ["ib_read_bw", "ib_send_bw"] {
            streams.push(stream(Root, tool, &["-R"], server, RETRY_EXCEEDED));
        }
    }
    streams
}

/// The client fails after it has transmitted eight times, each time waiting for a local ACK timeout (IBA
/// 9.7.6.1.3).
fn in_time(lab: &Lab, place: &Place, name: &str, timeout: &'static str) -> Result<(), String> {
    let (words, killed, says) = (["-u", timeout], Side::Server, RETRY_EXCEEDED);
    let stream = Stream { spread: Spread::Two, tool: "ib_write_bw", words: &words, killed, says };
    let ended = perftest(lab, place, name, &stream)?;
    failed_with(&ended, RETRY_EXCEEDED)?;
    let code: u8 = timeout.parse().map_err(|_| "a timeout")?;
    let first = Duration::from_nanos(ack_timeout_ns(code).ok_or("a timeout")?);
    let further = 7 * Duration::from_nanos(further_timeout_ns(code).ok_or("a timeout")?);
    // The last acknowledgement arrived less than one timeout before the kill.
    if (further..first + further + PROGRAM_MAX).contains(&ended.took) {
        return Ok(());
    }
    Err(format!("expected the end after {:?}, not {:?}\n{}", first + further, ended.took, ended.describe()))
}

/// The IPv4 places: the address family makes no difference here.
fn of_two_kinds(scale: Scale, spread: Spread) -> impl Iterator<Item = Place> {
    places(scale, spread).into_iter().filter(|place| place.family == Family::V4)
}

fn is_killed(side: Side) -> &'static str {
    match side {
        Side::Server => "server is killed",
        Side::Client => "client is killed",
    }
}

/// Kills one side of a stream; returns how the other side ended.
fn perftest(lab: &Lab, place: &Place, name: &str, stream: &Stream<'_>) -> Result<Ended, String> {
    let port = lab.port();
    let port_word = port.to_string();
    let common =
        [&[stream.tool, "-d", "roxie0", "-F", "-p", &port_word, "-n", "1000000"], stream.words].concat();
    let client = [&common[..], &[lab.address(place)]].concat();
    let ready = if stream.words.contains(&"-R") { Ready::Cm(port) } else { Ready::Tcp(port) };
    let pair = Pair { name, server: common, client, ready, limit: LONG };
    let (mut server, mut client) = under_way(lab, place, &pair, STREAM_BYTES)?;
    Ok(kill(stream.killed, &mut server, &mut client))
}

/// Kills one program; returns how the other one ended.
fn kill(side: Side, server: &mut Running, client: &mut Running) -> Ended {
    let (victim, other) = match side {
        Side::Server => (server, client),
        Side::Client => (client, server),
    };
    victim.signal(Signal::SIGKILL);
    other.wait(BOUND)
}

/// Kills one side of an endless rping; returns how the other side ended. That side may wait without an
/// unacknowledged packet; then only another process on the host of the killed one can notify it.
fn rping(lab: &Lab, place: &Place, name: &str, killed: Side) -> Result<Ended, String> {
    let (bystander_port, bystander_name) = (lab.port(), format!("{name}-bystander"));
    let words = ["rping", "-s", "-P", "-p", &bystander_port.to_string()];
    let mut bystander = start(lab, place, killed, &bystander_name, &words)?;
    wait_ready(&mut bystander, Ready::Cm(bystander_port))?;
    let (mut server, mut client) = endless_rping(lab, place, name)?;
    Ok(kill(killed, &mut server, &mut client))
}

/// Kills one side of an rping with large messages, of which it is the only process on its host. Its kernel
/// spends the ICMP messages that it sends in a second on the data in flight.
fn alone(lab: &Lab, place: &Place, name: &str, killed: Side) -> Result<(), String> {
    let (mut server, mut client) = rping_of(lab, place, name, &["-S", "60000"])?;
    let ended = kill(killed, &mut server, &mut client);
    if ended.status.is_some() && ended.took < ALONE_MAX {
        return Ok(());
    }
    Err(format!("expected the end within {ALONE_MAX:?}: {}\n{}", is_killed(killed), ended.describe()))
}

/// Starts an endless rping of two processes, and waits until it runs.
fn endless_rping(lab: &Lab, place: &Place, name: &str) -> Result<(Running, Running), String> {
    rping_of(lab, place, name, &[])
}

/// As [`endless_rping`], with further arguments of both programs.
fn rping_of(lab: &Lab, place: &Place, name: &str, words: &[&str]) -> Result<(Running, Running), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = [&["-a", address, "-p", &port_word], words].concat();
    let (server, client) =
        ([&["rping", "-s"], &common[..]].concat(), [&["rping", "-c"], &common[..]].concat());
    let pair = Pair { name, server, client, ready: Ready::Cm(port), limit: LONG };
    under_way(lab, place, &pair, PING_BYTES)
}

/// Starts a ping-pong over rsockets, and waits until it runs. Both ends call rsend and rrecv all the time,
/// so a signal interrupts them there.
fn endless_rstream(lab: &Lab, place: &Place, name: &str) -> Result<(Running, Running), String> {
    let port = lab.port();
    let port_word = port.to_string();
    let server = vec!["rstream", "-p", &port_word, "-S", "64", "-C", "1", "-I", "100000000"];
    let client = [&server[..], &["-s", lab.address(place)]].concat();
    let pair = Pair { name, server, client, ready: Ready::Cm(port), limit: LONG };
    under_way(lab, place, &pair, PING_BYTES)
}

/// Starts both and waits until they have exchanged this many bytes.
fn under_way(lab: &Lab, place: &Place, pair: &Pair<'_>, bytes: u64) -> Result<(Running, Running), String> {
    let (server, mut client) = pair.begin(lab, place)?;
    flowing(&mut client, bytes)?;
    Ok((server, client))
}

/// Ends one side of a pair by a signal. There is no other process on its host, so it must notify its peer
/// itself. Returns how that peer ended.
fn asked_to_end(pair: (Running, Running), side: Side, signal: Signal) -> Result<Ended, String> {
    let (mut server, mut client) = pair;
    let (asked, other) = match side {
        Side::Server => (&mut server, &mut client),
        Side::Client => (&mut client, &mut server),
    };
    asked.signal(signal);
    let (told, ended) = (other.wait(TOLD_MAX), asked.wait(TOLD_MAX));
    if ended.status.and_then(|status| status.signal()) != Some(signal as i32) {
        return Err(format!("expected the end by {signal}\n{}", ended.describe()));
    }
    if told.status.is_none() {
        return Err(format!("still waits for its peer, which {signal} has ended\n{}", told.describe()));
    }
    Ok(told)
}

/// Kills one client of a persistent server, then uses the server again.
fn survivor(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["-a", address, "-p", &port_word];
    let server = [&["rping", "-s", "-P"], &common[..]].concat();
    let client = [&["rping", "-c"], &common[..]].concat();
    let pair = Pair { name, server, client, ready: Ready::Cm(port), limit: LONG };
    let (mut server, client) = under_way(lab, place, &pair, PING_BYTES)?;
    client.signal(Signal::SIGKILL);
    drop(client);
    let words = [&["rping", "-c", "-V", "-C", "100"], &common[..]].concat();
    let ended = start(lab, place, Side::Client, name, &words)?.wait(SHORT);
    if ended.succeeded() && !server.has_ended() {
        return Ok(());
    }
    Err(format!("{}{}", ended.describe(), server.wait(Duration::ZERO).describe()))
}

pub(crate) fn failed_with(ended: &Ended, text: &str) -> Result<(), String> {
    if ended.status.is_some() && !ended.succeeded() && ended.output.contains(text) {
        return Ok(());
    }
    Err(format!("expected '{text}' and an exit code that says so\n{}", ended.describe()))
}

/// Checks that the next run at the same place works.
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
