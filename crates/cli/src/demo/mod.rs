//! `roxie demo`: RDMA between two processes, every byte verified, then a few measurements.
//!
//! The parent starts a server and a client (this same program), reads their reports, prints them, and makes
//! sure that both end. All RDMA happens in the children.

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

use crate::args::{DemoArgs, DeviceArgs};
use crate::devinfo;
use crate::failure::{During, Failure, Outcome};
use crate::terminal::{Terminal, Tone};
use report::Report;

pub(crate) use client::run as client;
pub(crate) use server::run as server;

/// Time limit for the whole demo.
const DEADLINE: Duration = Duration::from_secs(30);
/// Time that a child has to report after its peer has failed: its reason is usually the better one.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> Outcome {
    let terminal = Terminal::stdout();
    let start = Instant::now();
    let netdev = args.netdev.clone().unwrap_or_else(|| "lo".to_owned());
    let context = devinfo::open(&DeviceArgs { netdev: Some(netdev.clone()), name: None }, None)?;
    let address = address(&context)?;
    let mtu = context.query_port().active_mtu.bytes();
    terminal.line(&format!(
        "{}: two processes on {address} ({netdev}), port {}, path MTU {mtu}",
        terminal.paint(Tone::Strong, "roxie demo"),
        port()
    ));

    let mut words = vec!["--address".to_owned(), address, "--netdev".to_owned(), netdev];
    if args.no_figures {
        words.push("--no-figures".to_owned());
    }
    let mut family = Family::new(start);
    family.spawn(Role::Server, &words)?;
    let outcome = watch(terminal, &mut family, &words);
    family.end();
    outcome?;
    let took = start.elapsed().as_secs_f64();
    terminal.line(&terminal.paint(Tone::Good, &format!("Everything verified, {took:.1} s.")));
    Ok(())
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

fn watch(terminal: Terminal, family: &mut Family, words: &[String]) -> Outcome {
    let mut figures = false;
    loop {
        match family.next()? {
            (_, Report::Listening { port }) => {
                let port = ["--port".to_owned(), port.to_string()];
                family.spawn(Role::Client, &[words, &port].concat())?;
            }
            (_, Report::Doing { what }) => terminal.progress(&what),
            (_, Report::Connected { local_qpn, remote_qpn, took_us }) => terminal.line(&format!(
                "  {:<18} REQ, REP, RTU: QP {local_qpn:#08x} <-> {remote_qpn:#08x} in {:.1} ms",
                "connect",
                f64::from(took_us) / 1000.0
            )),
            (_, Report::Verified { operation, what }) => {
                terminal
                    .line(&format!("  {operation:<18} {what}  {}", terminal.paint(Tone::Good, "verified")));
            }
            (_, Report::Figure { what, value, note }) => {
                if !figures {
                    terminal.line(&format!("Figures: one core a process, port {}", port()));
                    figures = true;
                }
                terminal.line(&format!(
                    "  {what:<18} {}  {note}",
                    terminal.paint(Tone::Strong, &format!("{value:<22}"))
                ));
            }
            (Role::Client, Report::Done) => return Ok(()),
            (Role::Server, Report::Done) => {}
            (role, Report::Failed { why }) => return Err(Failure::new(format!("{}: {why}", role.name()))),
            (role, Report::Ended { how }) => {
                return Err(Failure::new(format!("the {} process {how}", role.name())));
            }
        }
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
    start: Instant,
}

impl Family {
    fn new(start: Instant) -> Self {
        let (says, said) = channel();
        Self { children: Vec::new(), said, says, start }
    }

    fn spawn(&mut self, role: Role, words: &[String]) -> Outcome {
        let exe = std::env::current_exe().during("finding my own executable")?;
        let mut command = Command::new(exe);
        command.arg(format!("demo-{}", role.name())).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
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
            let left = DEADLINE.saturating_sub(self.start.elapsed());
            match self.said.recv_timeout(left) {
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
                    return Err(Failure::new(format!("not finished after {} s", DEADLINE.as_secs())));
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
