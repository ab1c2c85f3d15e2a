//! `roxie lab`: several hosts on one machine, as network namespaces.
//!
//! A background process (`hold.rs`) makes the namespaces (`net.rs`) and keeps them open. A file
//! (`state.rs`) records which process that is. Commands enter the namespaces through its descriptors
//! (`enter.rs`).

pub(crate) mod args;
mod enter;
mod hold;
mod net;
mod spec;
mod state;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::failure::{During, Failure, Outcome};
use crate::terminal::{self, Terminal};
use args::{DownArgs, LabArgs, LabCommand, ListArgs, UpArgs};
use hold::{Report, STAY};
use spec::Spec;
use state::{State, lock, start_time};

pub(crate) use hold::hold;

/// Time for programs on the hosts to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// Runs the subcommand.
pub(crate) fn lab(args: &LabArgs) -> Outcome {
    match &args.command {
        LabCommand::Up(args) => up(args),
        LabCommand::Down(args) => down(args),
        LabCommand::Exec(args) => enter::exec(args),
        LabCommand::List(args) => list(args),
    }
}

fn no_lab(name: &str) -> Failure {
    Failure::new(format!("no lab '{name}' is up")).hint(format!("create it first: roxie lab up {name}"))
}

/// Says that a list of labs is empty.
fn note_none<T>(labs: &[T]) {
    if labs.is_empty() {
        say!("roxie: no lab is up; 'roxie lab up' makes one");
    }
}

fn up(args: &UpArgs) -> Outcome {
    let spec = args.spec()?;
    let _lock = lock()?;
    let state = match State::load(&spec.name)? {
        Some(state) if state.spec == spec => state,
        Some(state) => {
            return Err(Failure::new(format!(
                "a lab with this name but other options exists: {}",
                state.spec
            ))
            .hint(format!("remove it first: roxie lab down {}", spec.name)));
        }
        None => start(spec)?,
    };
    show(Terminal::stdout(), &state);
    Ok(())
}

/// Starts the holder and reads its report.
fn start(spec: Spec) -> Outcome<State> {
    let exe = std::env::current_exe().during("finding my own executable")?;
    let description = serde_json::to_string(&spec).during("describing the lab")?;
    let mut command = Command::new(exe);
    command.args(["lab-hold", &description]);
    let mut holder = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .during("starting the process that holds the lab")?;
    let mut line = String::new();
    if let Some(output) = holder.stdout.take() {
        BufReader::new(output).read_line(&mut line).during("waiting for the lab")?;
    }
    let report = serde_json::from_str(&line)
        .map_err(|_| Failure::new("the process that holds the lab ended without a report"))?;
    let (hosts_up, lossy, user_namespace) = match report {
        Report::Up { hosts, lossy, user_namespace } => (hosts, lossy, user_namespace),
        Report::Failed { what, hint } => {
            return Err(Failure::new(what).hint_if(hint));
        }
    };
    let pid = holder.id();
    let started = start_time(pid).ok_or_else(|| Failure::new("the process that holds the lab has ended"))?;
    let state = State { spec, hosts_up, lossy, user_namespace, pid, started };
    state.store()?;
    if let Some(mut input) = holder.stdin.take() {
        input.write_all(&[STAY]).during("handing over the lab")?;
    }
    Ok(state)
}

fn down(args: &DownArgs) -> Outcome {
    let _lock = lock()?;
    let names = if args.all {
        State::load_all()?.into_iter().map(|state| state.spec.name).collect()
    } else {
        vec![args.name.clone()]
    };
    note_none(&names);
    for name in &names {
        match State::load(name)? {
            Some(state) => remove(&state)?,
            None => terminal::print(&format!("no lab '{name}' is up")),
        }
        State::forget(name)?;
    }
    Ok(())
}

fn remove(state: &State) -> Outcome {
    if state.inhabitants().contains(&std::process::id()) {
        return Err(Failure::new("this shell is on one of its hosts").hint("leave it first: exit"));
    }
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let deadline = Instant::now() + GRACE;
        let mut left = state.inhabitants();
        left.iter().for_each(|pid| send(*pid, signal));
        while !left.is_empty() && Instant::now() < deadline {
            thread::sleep(PAUSE);
            left = state.inhabitants();
        }
    }
    send(state.pid, Signal::SIGKILL);
    while state.is_up() {
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Sends a signal; the process may have ended already.
fn send(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        let _gone = kill(Pid::from_raw(pid), signal);
    }
}

fn list(args: &ListArgs) -> Outcome {
    let labs = State::load_all()?;
    if args.json {
        return terminal::json_lines(&labs);
    }
    note_none(&labs);
    let terminal = Terminal::stdout();
    labs.iter().for_each(|state| show(terminal, state));
    Ok(())
}

fn show(terminal: Terminal, state: &State) {
    let how = state.lossy.as_ref().map_or_else(String::new, |how| format!(" (by {how})"));
    let note = if state.user_namespace { ", in a user namespace" } else { "" };
    terminal.line(&format!("{}{how}{note}", state.spec));
    for host in &state.hosts_up {
        let addresses: Vec<String> = host.addresses.iter().map(ToString::to_string).collect();
        terminal.line(&format!("  {:<5} {}", host.name, addresses.join(" ")));
    }
}
