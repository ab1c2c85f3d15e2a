//! `roxie pair`: a server, and a client that is started when the server listens.
//!
//! Each is started as `roxie run` with the options of the pair.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::ending::{Ending, STOPPED};
use crate::failure::{During, Failure, Outcome};
use crate::run_args::RunArgs;
use crate::supervised::{self, Supervised};

/// The signals that end both programs. SIGCHLD ends a wait.
const SIGNALS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGCHLD];
/// How long the server may take until it listens: as long as a program under valgrind on a busy machine.
const LISTEN_MAX: Duration = Duration::from_secs(30);
/// How long the server may go on after the client ended. Half: a server that prints a long result loses it.
const SERVER_MAX: Duration = Duration::from_secs(3);
/// How long the server has to end after SIGTERM.
const END_MAX: Duration = Duration::from_secs(2);
/// Milliseconds between two checks of the programs.
const STEP_MS: u16 = 20;
/// So many checks must find that the server listens: rdma_bind_addr takes a port shortly before rdma_listen.
const CHECKS: u32 = 2;

/// Run a server, and a client as soon as the server listens
///
/// Starts SERVER as 'roxie run' does, waits until it listens on a TCP port or on a port of rdma_cm, and then
/// starts CLIENT. The options apply to both, and both print to the same output. When the client has ended,
/// the server has three seconds to end by itself; after that it gets SIGTERM, which is no failure, and two
/// seconds later SIGKILL. SERVER reads nothing from standard input, and is not found if it starts a session
/// of its own. The first '--' after SERVER begins CLIENT, so the words of SERVER cannot contain '--': roxie
/// lab exec h1 --run ib_write_bw.
#[derive(Debug, ClapArgs)]
#[command(
    override_usage = "roxie pair [OPTIONS] -- SERVER [ARG]... -- CLIENT [ARG]...",
    after_long_help = include_str!("help/pair.txt")
)]
pub(crate) struct PairArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Runs both programs; returns the exit code of the client, or of the server if only that failed.
pub(crate) fn run(args: &PairArgs) -> Outcome<ExitCode> {
    if args.run.recording.is_wanted() {
        return Err(Failure::new("--capture has the packets of one command")
            .hint(
                "give it to one of the programs: roxie pair -- SERVER -- roxie run --capture FILE -- CLIENT",
            )
            .code(2));
    }
    args.run.chaos.refuse_search("roxie pair runs both programs once", "use --chaos seed=N")?;
    let words: Vec<OsString> = std::env::args_os().collect();
    let (options, server, client) = parts(&words, &args.run.command)?;
    let signals = Ending::by(&SIGNALS)?;
    let mut server = Server(start(options, server, true)?);
    if let Some(code) = server.wait_until_it_listens(&signals)? {
        return Ok(code);
    }
    let mut client = Supervised(start(options, client, false)?);
    let status = loop {
        if let Some(status) = client.0.try_wait().during("waiting for the client")? {
            break status;
        }
        if is_ended_by(&signals)? {
            return Ok(ExitCode::from(STOPPED));
        }
    };
    let status_of_server = server.wait_after_client(&signals, args.run.is_quiet())?;
    let failed = [Some(status), status_of_server].into_iter().flatten().find(|status| !status.success());
    Ok(failed.map_or(ExitCode::SUCCESS, supervised::exit_code))
}

/// The options in `words`, the words of this process, and the two programs of `command`, which ends them.
type Parts<'a> = (&'a [OsString], &'a [OsString], &'a [OsString]);

fn parts<'a>(words: &'a [OsString], command: &'a [OsString]) -> Outcome<Parts<'a>> {
    let missing = || {
        let usage = "roxie pair [OPTIONS] -- SERVER [ARG]... -- CLIENT [ARG]...";
        Failure::new("roxie pair needs two programs with '--' between them").hint(usage).code(2)
    };
    let at = command.iter().position(|word| word == "--").ok_or_else(missing)?;
    let (server, client) = (&command[..at], &command[at + 1..]);
    if server.is_empty() || client.is_empty() {
        return Err(missing());
    }
    let options = words.get(2..words.len() - command.len()).unwrap_or_default();
    Ok((options.strip_suffix(&[OsString::from("--")]).unwrap_or(options), server, client))
}

/// Starts a program by `roxie run`, which becomes the program. A server has a process group of its own, by
/// which the programs that it starts are known.
fn start(options: &[OsString], program: &[OsString], is_server: bool) -> Outcome<Child> {
    let own = std::env::current_exe().during("finding this program")?;
    let mut process = Command::new(own);
    process.arg("run").args(options).arg("--").args(program);
    sys::unblock_signals(&mut process, &SIGNALS.map(|signal| signal as i32));
    if is_server {
        process.process_group(0).stdin(Stdio::null());
    }
    let name = program[0].to_string_lossy();
    process.spawn().during(&format!("starting {name}"))
}

/// Waits a step; returns whether a signal asks this process to end.
fn is_ended_by(signals: &Ending) -> Outcome<bool> {
    supervised::wait(signals, STEP_MS);
    while let Some(info) = signals.next().during("signals")? {
        if info.ssi_signo != Signal::SIGCHLD as u32 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The server, and the programs that it has started: they do not outlive this process.
struct Server(Child);

impl Server {
    /// Returns an exit code if a signal asks this process to end.
    fn wait_until_it_listens(&mut self, signals: &Ending) -> Outcome<Option<ExitCode>> {
        let (until, mut found) = (Instant::now() + LISTEN_MAX, 0);
        while found < CHECKS {
            if let Some(status) = self.0.try_wait().during("waiting for the server")? {
                let code = supervised::code(status);
                return Err(Failure::new(format!("the server ended, and was not seen to listen ({status})"))
                    .hint("the client was not started")
                    .code(if code == 0 { 1 } else { code }));
            }
            if Instant::now() >= until {
                let limit = LISTEN_MAX.as_secs();
                return Err(Failure::new(format!(
                    "the server listens neither on a TCP port nor on a port of rdma_cm after {limit} s: the \
                     client was not started"
                ))
                .hint("start both by 'roxie run', in two terminals, to see where the server waits"));
            }
            if is_ended_by(signals)? {
                return Ok(Some(ExitCode::from(STOPPED)));
            }
            found = if listens(self.group()) { found + 1 } else { 0 };
        }
        Ok(None)
    }

    /// Waits until the server has ended; returns nothing if it has not ended by itself.
    fn wait_after_client(&mut self, signals: &Ending, is_quiet: bool) -> Outcome<Option<ExitStatus>> {
        let until = Instant::now() + SERVER_MAX;
        while Instant::now() < until {
            let ended = self.0.try_wait().during("waiting for the server")?;
            if ended.is_some() || is_ended_by(signals)? {
                return Ok(ended);
            }
        }
        if !is_quiet {
            let limit = SERVER_MAX.as_secs();
            say!("roxie pair: the server still runs {limit} s after the client ended, and gets SIGTERM");
        }
        Ok(None)
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The group exists until its last process has ended, which may be one that the server has started.
        let until = Instant::now() + END_MAX;
        killpg(self.group(), Signal::SIGTERM).ok();
        while killpg(self.group(), None).is_ok() && Instant::now() < until {
            self.0.try_wait().ok();
            thread::sleep(Duration::from_millis(STEP_MS.into()));
        }
        // A server of another user cannot be ended, and is not waited for.
        if killpg(self.group(), Signal::SIGKILL) != Err(Errno::EPERM) {
            self.0.wait().ok();
        }
    }
}

/// Whether a process of the group listens on a TCP port or on a port of rdma_cm.
fn listens(group: Pid) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut names = processes.filter_map(|entry| entry.file_name().into_string().ok());
    names.any(|id| group_of(&id) == Some(group) && listens_itself(&id))
}

/// The process group of a process.
fn group_of(id: &str) -> Option<Pid> {
    id.parse::<u32>().ok()?;
    sys::stat_fields(id)?.split(' ').nth(2)?.parse().ok().map(Pid::from_raw)
}

fn listens_itself(id: &str) -> bool {
    let sockets = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    let links =
        sockets.filter_map(|entry| fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok());
    let number = |link: String| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    let sockets: HashSet<String> = links.filter_map(number).collect();
    let table = |name| fs::read(format!("/proc/{id}/net/{name}")).unwrap_or_default();
    [("tcp", of_tcp as fn(&[&str]) -> bool, 9), ("tcp6", of_tcp, 9), ("unix", of_cm, 6)].into_iter().any(
        |(name, is_listener, inode)| {
            String::from_utf8_lossy(&table(name)).lines().any(|line| {
                let fields: Vec<&str> = line.split_ascii_whitespace().collect();
                is_listener(&fields) && fields.get(inode).is_some_and(|inode| sockets.contains(*inode))
            })
        },
    )
}

/// Whether a line of /proc/net/tcp is a listener: its state is 0A.
fn of_tcp(fields: &[&str]) -> bool {
    fields.get(3) == Some(&"0A")
}

/// Whether a line of /proc/net/unix is the name of a port of rdma_cm: a listener (flag 0x10000).
fn of_cm(fields: &[&str]) -> bool {
    let is_service = |name: &&str| name.starts_with("@roxie/") && name.contains("/svc/");
    fields.get(3) == Some(&"00010000") && fields.get(7).is_some_and(is_service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_server_and_client_are_told_apart_with_and_without_the_first_dashes() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let command = words("a -s -- b -c");
        for line in ["roxie pair --netdev lo -- a -s -- b -c", "roxie pair --netdev lo a -s -- b -c"] {
            let all = words(line);
            let (options, server, client) = parts(&all, &command).expect("two programs");
            assert_eq!((options, server, client), (&words("--netdev lo")[..], &command[..2], &command[3..]));
        }
        for bad in ["a -s", "a --", "-- b"] {
            parts(&words(&format!("roxie pair -- {bad}")), &words(bad)).expect_err("one program");
        }
    }

    #[test]
    fn a_listener_is_found_by_its_process() {
        let own = std::process::id().to_string();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listens_itself(&own) && group_of(&own).is_some_and(listens));
        drop(listener);
        let line = "0000000000000000: 00000002 00000000 00010000 0005 01 4711 @roxie/2/0/svc/0106/1c06/any4";
        assert!(of_cm(&line.split(' ').collect::<Vec<_>>()));
        assert!(!of_cm(&line.replace("svc", "slot").split(' ').collect::<Vec<_>>()));
    }
}
