//! `roxie hook list` and `stats`: which hooks are attached, and their counters.

use std::collections::BTreeSet;

use roxie_hook::HookStatus;
use roxie_hook::control::{ControlError, Remote};
use serde_json::{Map, Value, json};

use super::args::{HookListArgs, HookStatsArgs};
use crate::engines::{UsersArgs, all_engines, device_of, engines_of, unanswered};
use crate::failure::Outcome;
use crate::terminal::{self, Terminal};

/// An engine, the name and the interface of its device, and its hooks.
type Engine = (Remote, (String, String), Vec<HookStatus>);

/// Prints processes and the names of their hooks.
pub(super) fn list(args: &HookListArgs) -> Outcome {
    let (engines, notes) = match args.pid {
        Some(pid) => (ask(pid)?, Vec::new()),
        None => ask_all(args.users)?,
    };
    if args.json {
        notes.iter().for_each(|note| say!("roxie: {note}"));
        return print_json(&engines);
    }
    let terminal = Terminal::stdout();
    let (device_width, netdev_width) =
        engines.iter().fold(("DEVICE".len(), "NETDEV".len()), |most, engine| {
            let (device, netdev) = &engine.1;
            (most.0.max(device.chars().count()), most.1.max(netdev.chars().count()))
        });
    let line = |pid: &str, slot: &str, device: &str, netdev: &str, rest: &str| {
        format!("{pid:>8} {slot:>4} {device:<device_width$} {netdev:<netdev_width$} {rest}")
    };
    terminal.heading(&line("PROCESS", "SLOT", "DEVICE", "NETDEV", "WHERE    HOOK"));
    for (remote, (device, netdev), hooks) in &engines {
        let (pid, slot) = (remote.pid().to_string(), remote.slot().to_string());
        if hooks.is_empty() {
            terminal.line(&line(&pid, &slot, device, netdev, "-"));
        }
        for HookStatus { point, name, .. } in hooks {
            let hook = format!("{:<8} {name}", point.to_string());
            terminal.line(&line(&pid, &slot, device, netdev, &hook));
        }
    }
    notes.iter().for_each(|note| terminal.line(note));
    Ok(())
}

/// Prints counters.
pub(super) fn stats(args: &HookStatsArgs) -> Outcome {
    let engines = ask(args.pid)?;
    if args.json {
        return print_json(&engines);
    }
    let terminal = Terminal::stdout();
    let all = engines.iter().flat_map(|(_, place, hooks)| hooks.iter().map(move |hook| (place, hook)));
    for ((device, netdev), hook) in all {
        terminal.heading(&format!("{} of {device} on {netdev}: {}", hook.point, hook.name));
        for (name, value) in hook.counters.rows().into_iter().filter(|(_, value)| *value != 0) {
            terminal.line(&format!("  {name:<20} {value:>16}"));
        }
        for (name, value) in &hook.rows {
            terminal.line(&format!("  {:<20} {value:>16}", format!("stage: {name}")));
        }
        for note in &hook.notes {
            terminal.line(&format!("  {note}"));
        }
    }
    Ok(())
}

fn ask(pid: u32) -> Outcome<Vec<Engine>> {
    engines_of(pid)?.into_iter().map(ask_one).collect()
}

/// The engines that answer, and what is known of the others.
fn ask_all(users: UsersArgs) -> Outcome<(Vec<Engine>, Vec<String>)> {
    let (remotes, hidden) = all_engines(users.users())?;
    let (mut engines, mut silent) = (Vec::new(), BTreeSet::new());
    for remote in remotes {
        let pid = remote.pid();
        if silent.contains(&pid) {
            continue;
        }
        match remote.hooks() {
            Ok(hooks) => engines.extend(with_hooks(remote, hooks).ok()),
            Err(ControlError::Silent) => _ = silent.insert(pid),
            // It has exited meanwhile.
            Err(_) => {}
        }
    }
    let silent = silent.into_iter().map(|pid| unanswered(pid, &ControlError::Silent).to_string());
    Ok((engines, silent.chain(users.hidden_note(hidden)).collect()))
}

fn ask_one(remote: Remote) -> Outcome<Engine> {
    let hooks = remote.hooks().map_err(|error| unanswered(remote.pid(), &error))?;
    with_hooks(remote, hooks)
}

fn with_hooks(remote: Remote, hooks: Vec<HookStatus>) -> Outcome<Engine> {
    let device = device_of(&remote)?;
    Ok((remote, device, hooks))
}

fn print_json(engines: &[Engine]) -> Outcome {
    let rows: Vec<Value> = engines
        .iter()
        .map(|(remote, (device, netdev), hooks)| {
            let hooks: Vec<Value> = hooks.iter().map(hook).collect();
            let (pid, slot) = (remote.pid(), remote.slot());
            json!({ "pid": pid, "slot": slot, "device": device, "netdev": netdev, "hooks": hooks })
        })
        .collect();
    terminal::json_lines(&rows)
}

fn hook(status: &HookStatus) -> Value {
    let counters: Map<String, Value> =
        status.counters.rows().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let stages: Vec<Value> =
        status.rows.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    json!({
        "point": status.point.to_string(),
        "name": status.name,
        "counters": counters,
        "stages": stages,
        "notes": status.notes,
    })
}
