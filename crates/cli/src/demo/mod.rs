//! `roxie demo`: RDMA between two processes, every byte verified, then a few measurements.
//!
//! The parent starts a server and a client (this same program), reads their reports, prints them, and makes
//! sure that both end. All RDMA happens in the children. A second pair does the same with loss.

pub(crate) mod args;
mod client;
mod connection;
mod endpoint;
mod figures;
mod order;
mod pattern;
mod report;
mod server;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use roxie::port::{LocalPath, PortChoice};
use roxie::verbs::Context;
use serde_json::{Value, json};

use crate::devinfo;
use crate::failure::{During, Failure, Outcome};
use crate::nic_args::DeviceArgs;
use crate::terminal::{self, Terminal, Tone};

use args::DemoArgs;
pub(crate) use report::Report;

pub(crate) use client::run as client;
pub(crate) use server::run as server;

/// The demo fails if neither child reports anything for this long.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Time that a child has to report after its peer has failed: its reason is usually the better one.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Loss in the last run: the client's egress hook. Of some thousand packets it drops more than a hundred.
const LOSSY: (&str, &str) = ("ROXIE_EGRESS", "impair:loss=2%,seed=7");

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> Outcome {
    let terminal = if args.json { None } else { Some(Terminal::stdout()) };
    let netdev = args.netdev.clone().unwrap_or_else(|| "lo".to_owned());
    let mut run = Run::new(&netdev, terminal)?;
    let outcome = run.all(args.no_figures);
    if args.json {
        terminal::json(&run.json(outcome.as_ref().err()));
    }
    outcome
}

/// One run of the command.
pub(crate) struct Run {
    terminal: Option<Terminal>,
    start: Instant,
    netdev: String,
    /// The address of both processes.
    pub(crate) address: String,
    /// The path MTU in bytes.
    pub(crate) mtu: usize,
    /// What the children reported.
    reports: Vec<Report>,
    /// What the children of the run with loss reported.
    lossy: Vec<Report>,
}

impl Run {
    /// Opens the interface. Without `terminal` nothing is printed.
    pub(crate) fn new(netdev: &str, terminal: Option<Terminal>) -> Outcome<Self> {
        let device = DeviceArgs { netdev: Some(netdev.to_owned()), ..DeviceArgs::default() };
        let context = devinfo::open(&device, None)?.remove(0);
        Ok(Self {
            terminal,
            start: Instant::now(),
            netdev: netdev.to_owned(),
            address: address(&context)?,
            mtu: context.query_port().active_mtu.bytes(),
            reports: Vec::new(),
            lossy: Vec::new(),
        })
    }

    fn all(&mut self, no_figures: bool) -> Outcome {
        if let Some(terminal) = self.terminal {
            terminal.line(&format!(
                "{}: two processes on {} ({}), port {}, path MTU {}",
                terminal.paint(Tone::Strong, "roxie demo"),
                self.address,
                self.netdev,
                port(),
                self.mtu
            ));
        }
        let mut reports = Vec::new();
        let outcome = self.pair(no_figures, &[], &[], &mut |report| reports.push(report.clone()));
        self.reports = reports;
        outcome?;
        if !no_figures {
            self.with_loss()?;
        }
        if let Some(terminal) = self.terminal {
            let took = self.start.elapsed().as_secs_f64();
            terminal.line(&terminal.paint(Tone::Good, &format!("Everything verified, {took:.1} s.")));
        }
        Ok(())
    }

    /// Verifies everything once more, while the client loses packets.
    fn with_loss(&mut self) -> Outcome {
        let terminal = self.terminal;
        if let Some(terminal) = terminal {
            terminal.line(&format!("Loss: the client's egress hook is {}", LOSSY.1));
        }
        let mut reports = Vec::new();
        let run = Self { terminal: None, ..Self::new(&self.netdev, None)? };
        let outcome = run.pair(true, &[], &[LOSSY], &mut |report| {
            if let (Some(terminal), Report::Doing { what }) = (terminal, report) {
                terminal.progress(what);
            }
            reports.push(report.clone());
        });
        self.lossy = reports;
        outcome?;
        let counters = |report: &Report| match report {
            Report::Counters { dropped, retransmitted } => Some((*dropped, *retransmitted)),
            _ => None,
        };
        let (dropped, retransmitted) = self.lossy.iter().find_map(counters).unwrap_or_default();
        if dropped == 0 || retransmitted == 0 {
            return Err(Failure::new(format!(
                "the hook dropped {dropped} packets, and {retransmitted} were retransmitted"
            )));
        }
        if let Some(terminal) = terminal {
            let what = format!("{dropped} packets dropped, {retransmitted} retransmitted, same operations");
            terminal.line(&format!(
                "  {:<18} {what}  {}",
                "loss 2 %",
                terminal.paint(Tone::Good, "verified")
            ));
        }
        Ok(())
    }

    /// Runs a server and a client with further environment variables; `seen` gets every report.
    pub(crate) fn pair(
        &self,
        no_figures: bool,
        server: &[(&str, &str)],
        client: &[(&str, &str)],
        seen: &mut dyn FnMut(&Report),
    ) -> Outcome {
        let mut words =
            vec!["--address".to_owned(), self.address.clone(), "--netdev".to_owned(), self.netdev.clone()];
        if no_figures {
            words.push("--no-figures".to_owned());
        }
        let mut family = Family::new();
        family.spawn(Role::Server, &words, server)?;
        let outcome = watch(self.terminal, &mut family, &words, client, seen);
        family.end();
        outcome
    }

    fn json(&self, failure: Option<&Failure>) -> Value {
        let mut loss = rows(&self.lossy, "counters").pop().unwrap_or(Value::Null);
        if loss.is_object() {
            loss["hook"] = LOSSY.1.into();
            loss["verified"] = rows(&self.lossy, "verified").into();
        }
        json!({
            "ok": failure.is_none(),
            "error": failure.map(|failure| failure.what.clone()),
            "address": self.address,
            "netdev": self.netdev,
            "port": PortChoice::from_env().unwrap_or_default().local.to_string(),
            "path_mtu": self.mtu,
            "verified": rows(&self.reports, "verified"),
            "figures": rows(&self.reports, "figure"),
            "loss": loss,
            "seconds": self.start.elapsed().as_secs_f64(),
        })
    }
}

/// The reports of a kind as JSON, without the text for people.
fn rows(reports: &[Report], kind: &str) -> Vec<Value> {
    let rows = reports.iter().map(|report| json!(report)).filter(|row| row["say"] == kind);
    let bare = |mut row: Value| {
        row.as_object_mut().into_iter().for_each(|row| row.retain(|key, _| key != "say" && key != "value"));
        row
    };
    rows.map(bare).collect()
}

/// The ports that move packets between the two processes.
fn port() -> &'static str {
    match PortChoice::from_env().unwrap_or_default().local {
        LocalPath::Shm => "shm, where there are no ICRCs",
        LocalPath::Network => "udp, ICRC made and checked on every packet",
    }
}

/// The address that both processes use: the first IPv4 address of the interface, else the first address.
fn address(context: &Context) -> Outcome<String> {
    let ips: Vec<_> = context.gids().iter().map(|entry| entry.gid.ip()).collect();
    let ip = ips.iter().find(|ip| ip.is_ipv4()).or(ips.first());
    ip.map(ToString::to_string)
        .ok_or_else(|| Failure::new("the interface has no address").hint("choose another with --netdev"))
}

fn watch(
    terminal: Option<Terminal>,
    family: &mut Family,
    words: &[String],
    env: &[(&str, &str)],
    seen: &mut dyn FnMut(&Report),
) -> Outcome {
    let mut figures = false;
    loop {
        let (role, report) = family.next()?;
        seen(&report);
        if let Some(terminal) = terminal {
            show(terminal, &report, &mut figures);
        }
        match (role, report) {
            (_, Report::Listening { port }) => {
                let port = ["--port".to_owned(), port.to_string()];
                family.spawn(Role::Client, &[words, &port].concat(), env)?;
            }
            (Role::Client, Report::Done) => return Ok(()),
            (role, Report::Failed { why }) => return Err(Failure::new(format!("{}: {why}", role.name()))),
            (role, Report::Ended { how }) => {
                return Err(Failure::new(format!("the {} process {how}", role.name())));
            }
            _ => {}
        }
    }
}

/// Prints what a person wants to see of a report; `figures` says whether their heading is printed.
fn show(terminal: Terminal, report: &Report, figures: &mut bool) {
    match report {
        Report::Doing { what } => terminal.progress(what),
        Report::Connected { local_qpn, remote_qpn, took_us } => terminal.line(&format!(
            "  {:<18} REQ, REP, RTU: QP {local_qpn:#08x} <-> {remote_qpn:#08x} in {:.1} ms",
            "connect",
            f64::from(*took_us) / 1000.0
        )),
        Report::Verified { operation, what } => {
            terminal.line(&format!("  {operation:<18} {what}  {}", terminal.paint(Tone::Good, "verified")));
        }
        Report::Figure { what, value, note, .. } => {
            if !*figures {
                terminal.line(&format!("Figures: one core a process, port {}", port()));
                *figures = true;
            }
            let value = terminal.paint(Tone::Strong, &format!("{value:<22}"));
            terminal.line(&format!("  {what:<18} {value}  {note}"));
        }
        _ => {}
    }
}

/// One of the two processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    Server,
    Client,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// The children and their reports. They end with the parent: by `end`, or by the kernel's parent-death
/// signal.
struct Family {
    children: Vec<(Role, Child)>,
    said: Receiver<(Role, Report)>,
    says: Sender<(Role, Report)>,
}

impl Family {
    fn new() -> Self {
        let (says, said) = channel();
        Self { children: Vec::new(), said, says }
    }

    fn spawn(&mut self, role: Role, words: &[String], env: &[(&str, &str)]) -> Outcome {
        let exe = std::env::current_exe().during("finding my own executable")?;
        let mut command = Command::new(exe);
        command.arg(format!("demo-{}", role.name())).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        command.envs(env.iter().copied());
        let mut child = command.spawn().during("starting a process")?;
        let output = child.stdout.take();
        self.children.push((role, child));
        let says = self.says.clone();
        thread::spawn(move || {
            for line in
                output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok)
            {
                // A child that crashes may cut its last line short; its exit status is reported below.
                if let Ok(report) = serde_json::from_str(&line) {
                    let _ = says.send((role, report));
                }
            }
            let _ = says.send((role, Report::Ended { how: String::new() }));
        });
        Ok(())
    }

    /// The next report of a child, including its end.
    fn next(&mut self) -> Outcome<(Role, Report)> {
        loop {
            match self.said.recv_timeout(SILENCE_MAX) {
                Ok((role, Report::Ended { .. })) => {
                    let how = self.how_ended(role);
                    if let Some(how) = how {
                        return Ok(self.better_reason((role, Report::Ended { how })));
                    }
                }
                Ok((role, Report::Failed { why })) => {
                    return Ok(self.better_reason((role, Report::Failed { why })));
                }
                Ok(said) => return Ok(said),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new(format!("no progress for {} s", SILENCE_MAX.as_secs())));
                }
            }
        }
    }

    /// A child that was killed explains the failure of the other, so its end is reported first.
    fn better_reason(&mut self, first: (Role, Report)) -> (Role, Report) {
        while let Ok((role, report)) = self.said.recv_timeout(LAST_WORDS) {
            if let Report::Ended { .. } = report
                && role != first.0
                && let Some(how) = self.how_ended(role).filter(|how| how.contains("signal"))
            {
                return (role, Report::Ended { how });
            }
        }
        first
    }

    /// How a child ended; `None` after exit status 0.
    fn how_ended(&mut self, role: Role) -> Option<String> {
        let (_, child) = self.children.iter_mut().find(|(r, _)| *r == role)?;
        describe(child.wait().ok()?)
    }

    fn end(&mut self) {
        for (_, child) in &mut self.children {
            // The child may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.end();
    }
}

fn describe(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("ended with exit code {code}")),
        (None, signal) => Some(format!("was killed by signal {}", signal.unwrap_or_default())),
    }
}
