//! `roxie interop`: runs common RDMA programs between roxie on this host and a peer, in both directions.

mod args;
pub mod flows;
mod host;
mod program;

use std::net::IpAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;
use sys::Netlink;

pub use args::InteropArgs;
use flows::{FLOWS, Flow};
use host::Host;

use crate::ending::{Ending, STOPPED};
use crate::failure::{During, Failure, Outcome};
use crate::terminal::{self, Terminal, Tone};

/// Ports of the servers: another one for each program and direction, so that leftovers of one do not block
/// the next, and other ports in the next run; all below the ephemeral ports of the kernel.
const FIRST_PORT: u16 = 12_000;
const RUNS: u32 = 300;
const PORTS: u16 = 2 * FLOWS.len() as u16;
/// A client that fails within this time may have started before its server listened.
const EARLY_MAX: Duration = Duration::from_secs(6);
/// Pause before such a client is started again.
const RETRY_AFTER: Duration = Duration::from_millis(300);
/// Time for a server to end after its client.
const AFTER_MAX: Duration = Duration::from_secs(8);
/// Lines of a program's output that are shown when it fails.
const LINES: usize = 6;

/// Result of one program in one direction.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Verdict {
    Pass,
    Fail,
    Skip,
}

/// The words for verdicts, in order: for programs, for people, and how that one is shown.
const WORDS: [(&str, &str, Tone); 3] =
    [("pass", "pass", Tone::Good), ("fail", "FAIL", Tone::Bad), ("skip", "skip", Tone::Warn)];

/// One program in one direction.
struct Attempt {
    verdict: Verdict,
    /// Why it failed or did not run.
    reason: String,
    took: Duration,
    /// How often the client was started until the server listened.
    tries: u32,
}

/// Runs the subcommand.
///
/// # Errors
/// The peer or the device here cannot be used.
pub fn run(args: &InteropArgs) -> Outcome<ExitCode> {
    let wanted =
        |flow: &&Flow| args.only.as_ref().is_none_or(|text| flow.words.join(" ").contains(text.as_str()));
    let flows: Vec<Flow> = FLOWS.iter().filter(wanted).copied().collect();
    if flows.is_empty() {
        let failure = Failure::new(format!("no program has '{}' in it", args.only.as_deref().unwrap_or("")));
        return Err(failure.hint("'roxie interop --list' prints them").code(2));
    }
    if args.list {
        for flow in flows {
            terminal::print(&flow.words.join(" "));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (Some(peer), Some(via)) = (args.peer, &args.via) else {
        return Err(Failure::new("no peer given").code(2));
    };
    args.netdev.as_deref().map(crate::netdev::link).transpose()?;
    let ending = Rc::new(Ending::by(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?);
    let found = hosts(args, peer, via, &ending);
    if ending.is_due() {
        return Ok(ExitCode::from(STOPPED));
    }
    let (here, there) = found?;
    let first_port = FIRST_PORT + (std::process::id() % RUNS) as u16 * PORTS;
    let view =
        View { terminal: if args.json { Terminal::plain() } else { Terminal::stdout() }, json: args.json };
    view.title(&here, &there);
    let mut counts = [0; WORDS.len()];
    let mut gone = Ok(());
    for (number, flow) in flows.into_iter().enumerate() {
        let mut both = Vec::new();
        for (direction, (client, server)) in [(&here, &there), (&there, &here)].into_iter().enumerate() {
            view.terminal.progress(&format!("{} on {}", flow.words.join(" "), client.name));
            let port = flow.port(first_port + 2 * number as u16 + direction as u16);
            let limit = Duration::from_secs(args.timeout);
            let result = match flow.obstacle(peer, args.exchange.unwrap_or(peer)) {
                Some(why) => {
                    let (verdict, reason) = (Verdict::Skip, why.to_owned());
                    Attempt { verdict, reason, took: Duration::ZERO, tries: 0 }
                }
                None => attempt(flow, client, server, port, limit),
            };
            if ending.is_due() {
                view.total(counts);
                return Ok(ExitCode::from(STOPPED));
            }
            counts[result.verdict as usize] += 1;
            view.json(flow, client, &result);
            both.push(result);
        }
        view.row(flow, &both);
        if both.iter().any(|result| result.verdict == Verdict::Fail) {
            gone = here.check().and_then(|()| there.check());
        }
        if gone.is_err() {
            break;
        }
    }
    view.total(counts);
    // The remaining programs would fail in the same way.
    gone?;
    Ok(if counts[Verdict::Fail as usize] > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// This host and the peer, each with its device.
fn hosts(args: &InteropArgs, peer: IpAddr, via: &str, ending: &Rc<Ending>) -> Outcome<(Host, Host)> {
    let exchange = args.exchange.unwrap_or(peer);
    let here = towards(peer)?;
    let local_exchange = match args.local_exchange {
        Some(address) => address,
        None => towards(exchange)?,
    };
    let roxie = std::env::current_exe().during("finding this program")?;
    let mut ours = vec![roxie.to_string_lossy().into_owned(), "run".to_owned()];
    let options = [("--netdev", args.netdev.as_ref()), ("--port", args.port.as_ref())];
    for (option, value) in options {
        ours.extend(value.into_iter().flat_map(|value| [option.to_owned(), value.clone()]));
    }
    if args.netdev.is_none() {
        ours.extend(
            crate::netdev::with_address(here).into_iter().flat_map(|name| ["--netdev".to_owned(), name]),
        );
    }
    ours.push("--".to_owned());
    let theirs = via.split_whitespace().map(str::to_owned).collect();
    let here = Host::find("this host", ours, here, local_exchange, ending)?;
    let there = Host::find("the peer", theirs, peer, exchange, ending)?;
    Ok((here, there))
}

/// This host's source address for packets to `peer`.
fn towards(peer: IpAddr) -> Outcome<IpAddr> {
    let route = Netlink::new().and_then(|mut netlink| netlink.route(peer, None, 0));
    let route = route.during(&format!("finding the way to {peer}"))?;
    route.prefsrc.ok_or_else(|| Failure::new(format!("the route to {peer} has no source address")))
}

/// Runs a server, then a client, and waits until both have ended.
fn attempt(flow: Flow, client: &Host, server: &Host, port: u16, limit: Duration) -> Attempt {
    let began = Instant::now();
    let mut tries = 0;
    let (verdict, reason) = pair(flow, client, server, &port.to_string(), limit, &mut tries)
        .unwrap_or_else(|error| (Verdict::Fail, error.to_string()));
    Attempt { verdict, reason, took: began.elapsed(), tries }
}

fn pair(
    flow: Flow,
    client: &Host,
    server: &Host,
    port: &str,
    limit: Duration,
    tries: &mut u32,
) -> std::io::Result<(Verdict, String)> {
    let mut serving = server.start(&server.words(flow, server, port))?;
    let began = Instant::now();
    let client_ended = loop {
        std::thread::sleep(RETRY_AFTER);
        *tries += 1;
        let started = Instant::now();
        let ended = client.start(&client.words(flow, server, port))?.wait_beside(&mut serving, limit);
        // The time until a server listens depends on the load of its host.
        let early = started.elapsed() < EARLY_MAX && began.elapsed() < limit;
        if ended.succeeded() || ended.is_missing() || !early || !serving.runs() {
            break ended;
        }
    };
    let server_ended = serving.wait(if client_ended.succeeded() { AFTER_MAX } else { Duration::ZERO });
    for (ended, host) in [(&server_ended, server), (&client_ended, client)] {
        if ended.is_missing() {
            return Ok((Verdict::Skip, format!("not installed: {}", host.name)));
        }
    }
    let complaint = ["invalid data", "ompletion with error"]
        .into_iter()
        .find(|words| client_ended.output.contains(words) || server_ended.output.contains(words));
    if client_ended.succeeded() && server_ended.succeeded() && complaint.is_none() {
        return Ok((Verdict::Pass, String::new()));
    }
    let mut reason = String::new();
    for (ended, host) in [(&client_ended, client), (&server_ended, server)] {
        reason.push_str(&format!("{}: {}\n", host.name, ended.how()));
        for line in ended.last_lines(LINES) {
            reason.push_str(&format!("  {line}\n"));
        }
    }
    Ok((Verdict::Fail, reason))
}

/// Prints the results, as text or JSON.
struct View {
    terminal: Terminal,
    json: bool,
}

impl View {
    fn title(&self, here: &Host, there: &Host) {
        if !self.json {
            self.terminal.line(&format!("roxie {} and peer {}", here.describe(), there.describe()));
            let head = format!("{:<58} {:<12} {}", "program", "as client", "as server");
            self.terminal.heading(&head);
        }
    }

    fn json(&self, flow: Flow, client: &Host, result: &Attempt) {
        if !self.json {
            return;
        }
        terminal::json(&json!({
            "program": flow.words.join(" "),
            "client": client.name,
            "verdict": WORDS[result.verdict as usize].0,
            "seconds": (result.took.as_secs_f64() * 1000.0).round() / 1000.0,
            "tries": result.tries,
            "reason": (result.verdict != Verdict::Pass).then_some(&result.reason),
        }));
    }

    fn row(&self, flow: Flow, both: &[Attempt]) {
        if self.json {
            return;
        }
        let mut line = format!("{:<58}", flow.words.join(" "));
        for result in both {
            let (_, word, tone) = WORDS[result.verdict as usize];
            let cell = format!("{word} {:>4.1} s", result.took.as_secs_f64());
            line.push(' ');
            line.push_str(&self.terminal.paint(tone, &format!("{cell:<12}")));
        }
        self.terminal.line(line.trim_end());
        let results = ["as client", "as server"].into_iter().zip(both);
        for (role, result) in results.filter(|(_, result)| result.verdict != Verdict::Pass) {
            self.terminal.line(&format!("  {role}:"));
            for line in result.reason.lines() {
                self.terminal.line(&format!("    {}", line.replace('\t', "        ")));
            }
        }
    }

    fn total(&self, [passed, failed, skipped]: [usize; 3]) {
        if !self.json {
            self.terminal.line(&format!("{passed} passed, {failed} failed, {skipped} skipped"));
        }
    }
}
