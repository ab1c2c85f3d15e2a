//! Runs a server and a client, and requires that both succeed.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::lab::{Lab, Side};
use crate::place::Place;
use crate::process::{Ended, Running, eventually};

/// A server that does not listen fails when it has not used the CPU for this long,
const STILL_MAX: Duration = Duration::from_secs(5);
/// and if it uses the CPU, after this time. A busy machine slows down the server too.
const READY_MAX: Duration = Duration::from_secs(60);
/// Time for the server to end after the client.
const AFTER_MAX: Duration = Duration::from_secs(5);

/// How a server shows that it listens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ready {
    /// A TCP socket listens on this port (perftest and the pingpongs exchange their addresses over it).
    Tcp(u16),
    /// The connection manager's abstract socket for this port exists (crate `roxie`, module `registry`).
    Cm(u16),
    /// A UDP socket with this port exists (rsockets for datagrams).
    Udp(u16),
    /// The host has joined this multicast group.
    Group(IpAddr),
}

/// Results of both programs.
#[derive(Clone, Debug)]
pub struct Both {
    /// Result of the server.
    pub server: Ended,
    /// Result of the client.
    pub client: Ended,
}

/// Two command lines and their time limits.
#[derive(Clone, Debug)]
pub struct Pair<'a> {
    /// Name of the case, for its logs.
    pub name: &'a str,
    /// Server's program and arguments.
    pub server: Vec<&'a str>,
    /// Client's program and arguments.
    pub client: Vec<&'a str>,
    /// When the client may start.
    pub ready: Ready,
    /// Time limit for the client.
    pub limit: Duration,
}

impl Pair<'_> {
    /// Runs both programs and requires exit code 0 of both.
    ///
    /// # Errors
    /// A description with both command lines and outputs.
    pub fn run(&self, lab: &Lab, place: &Place) -> Result<Both, String> {
        let (mut server, mut client) = self.begin(lab, place)?;
        let client = client.wait(self.limit);
        let server = server.wait(if client.succeeded() { AFTER_MAX } else { Duration::from_millis(500) });
        // Another process with the interface would make roxie fall back to UDP sockets; there is none here.
        let fell_back = [&server, &client].iter().any(|side| side.output.contains("uses UDP sockets"));
        if client.succeeded() && server.succeeded() && !fell_back {
            return Ok(Both { server, client });
        }
        Err(format!("{}{}", client.describe(), server.describe()))
    }

    /// Starts both programs, the client when the server is ready.
    ///
    /// # Errors
    /// If one cannot be started, or the server does not listen.
    pub fn begin(&self, lab: &Lab, place: &Place) -> Result<(Running, Running), String> {
        let mut server = start(lab, place, Side::Server, self.name, &self.server)?;
        wait_ready(&mut server, self.ready)?;
        let client = start(lab, place, Side::Client, self.name, &self.client)?;
        Ok((server, client))
    }
}

/// Starts one side.
///
/// # Errors
/// If it cannot be started.
pub fn start(lab: &Lab, place: &Place, side: Side, name: &str, program: &[&str]) -> Result<Running, String> {
    lab.run(place, side, name, program).map_err(|error| format!("starting {}: {error}", program.join(" ")))
}

/// Waits until a server listens.
///
/// # Errors
/// What the server printed, if it ended, or neither listens nor uses the CPU.
pub fn wait_ready(server: &mut Running, ready: Ready) -> Result<(), String> {
    let (mut ran, mut since) = (Duration::ZERO, Instant::now());
    let mut what = None;
    let decided = eventually(READY_MAX, || {
        if server.has_ended() {
            what = Some("the server ended before it listened");
        } else if listens(server, ready) {
            return true;
        } else if server.ran() != ran {
            (ran, since) = (server.ran(), Instant::now());
        } else if since.elapsed() > STILL_MAX {
            what = Some("the server waits for something, and does not listen");
        }
        what.is_some()
    });
    match what.or((!decided).then_some("the server does not listen")) {
        None => Ok(()),
        Some(what) => Err(format!("{what}\n{}", server.wait(Duration::ZERO).describe())),
    }
}

/// Ends programs that were watched: none of them has ended yet.
///
/// # Errors
/// What the first one printed that has.
pub fn end_running(mut programs: [Running; 2]) -> Result<(), String> {
    let ended =
        programs.iter_mut().find_map(|program| program.has_ended().then(|| program.wait(Duration::ZERO)));
    ended.map_or(Ok(()), |ended| Err(ended.describe()))
}

/// Waits until that many more bytes have passed the interfaces of the program's network namespace.
///
/// # Errors
/// What it printed, if it ended before, or the bytes do not arrive.
pub fn flowing(program: &mut Running, bytes: u64) -> Result<(), String> {
    let before = carried(program);
    let mut ended = false;
    let flows = eventually(READY_MAX, || {
        ended = program.has_ended();
        ended || carried(program) >= before + bytes
    });
    if flows && !ended {
        return Ok(());
    }
    Err(format!("no traffic to cut\n{}", program.wait(Duration::ZERO).describe()))
}

/// Bytes received and sent by all interfaces (proc_pid_net(5), dev: the name, then eight receive counters
/// and eight transmit counters, bytes first).
fn carried(program: &Running) -> u64 {
    let bytes = |line: &str| {
        let counters: Vec<u64> = line.split_once(':')?.1.split_whitespace().flat_map(str::parse).collect();
        Some(counters.first()? + counters.get(8)?)
    };
    program.net("dev").lines().filter_map(bytes).sum()
}

fn listens(server: &Running, ready: Ready) -> bool {
    match ready {
        Ready::Tcp(port) => {
            // proc_net_tcp(5): local address, remote address, state; 0A is LISTEN.
            let end = format!(":{port:04X}");
            [server.net("tcp"), server.net("tcp6")].iter().flat_map(|table| table.lines()).any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                fields.next().is_some_and(|local| local.ends_with(&end)) && fields.nth(1) == Some("0A")
            })
        }
        Ready::Udp(port) => {
            let end = format!(":{port:04X}");
            [server.net("udp"), server.net("udp6")]
                .iter()
                .flat_map(|table| table.lines())
                .any(|line| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&end)))
        }
        Ready::Cm(port) => {
            let part = format!("/{port:04x}/");
            server.net("unix").lines().any(|line| line.contains("/svc/") && line.contains(&part))
        }
        // The kernel prints an IPv4 group as a number in host byte order.
        Ready::Group(IpAddr::V4(group)) => {
            server.net("igmp").contains(&format!("{:08X}", u32::from_ne_bytes(group.octets())))
        }
        Ready::Group(IpAddr::V6(group)) => {
            server.net("igmp6").contains(&format!("{:032x}", u128::from(group)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A shell that runs `script`, on an unused port.
    fn waited_for(script: &str) -> (Result<(), String>, Duration) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let log =
            std::env::temp_dir().join(format!("roxie-pair-{}-{}.log", std::process::id(), script.len()));
        let mut server = Running::start(command, script.to_owned(), &log, None).unwrap();
        let start = Instant::now();
        let result = wait_ready(&mut server, Ready::Tcp(1));
        drop(server);
        std::fs::remove_file(log).unwrap();
        (result, start.elapsed())
    }

    #[test]
    fn waiting_for_a_server_lasts_while_it_uses_the_cpu() {
        let (result, took) = waited_for("for n in 1 2 3 4; do sleep 2; done; echo done");
        let said = result.unwrap_err();
        assert!(said.starts_with("the server ended before") && said.contains("done"), "{said}");
        assert!(took >= STILL_MAX, "{took:?}");
    }

    #[test]
    fn a_server_that_sleeps_without_listening_fails() {
        let (result, took) = waited_for("exec sleep 600");
        let said = result.unwrap_err();
        assert!(said.starts_with("the server waits for something"), "{said}");
        assert!((STILL_MAX..READY_MAX).contains(&took), "{took:?}");
    }
}
