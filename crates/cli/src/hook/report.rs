//! `roxie hook list` and `stats`: which hooks are attached, and their counters.

use roxie::hook::HookStatus;
use roxie::hook::control::Remote;
use serde_json::{Map, Value, json};

use super::args::{HookListArgs, HookStatsArgs};
use crate::engines::{all_engines, engines_of, unanswered};
use crate::failure::Outcome;
use crate::terminal::{self, Terminal};

/// An engine and its hooks.
type Engine = (Remote, Vec<HookStatus>);

/// Prints processes and the names of their hooks.
pub(super) fn list(args: &HookListArgs) -> Outcome {
    let (engines, hidden) = match args.pid {
        Some(pid) => (ask(pid)?, None),
        None => {
            let (engines, hidden) = all_engines(args.users.users())?;
            // One of several processes may have exited meanwhile.
            let asked = engines.into_iter().filter_map(|remote| Some((remote.hooks().ok()?, remote)));
            (asked.map(|(hooks, remote)| (remote, hooks)).collect(), args.users.hidden_note(hidden))
        }
    };
    if args.json {
        hidden.iter().for_each(|note| say!("roxie: {note}"));
        return print_json(&engines);
    }
    let terminal = Terminal::stdout();
    terminal.heading(&format!("{:>8} {:>4} {:<8} HOOK", "PROCESS", "SLOT", "WHERE"));
    for (remote, hooks) in &engines {
        let (pid, slot) = (remote.pid(), remote.slot());
        if hooks.is_empty() {
            terminal.line(&format!("{pid:>8} {slot:>4} -"));
        }
        for HookStatus { point, name, .. } in hooks {
            terminal.line(&format!("{pid:>8} {slot:>4} {:<8} {name}", point.to_string()));
        }
    }
    hidden.iter().for_each(|note| terminal.line(note));
    Ok(())
}

/// Prints counters.
pub(super) fn stats(args: &HookStatsArgs) -> Outcome {
    let engines = ask(args.pid)?;
    if args.json {
        return print_json(&engines);
    }
    let terminal = Terminal::stdout();
    for hook in engines.iter().flat_map(|(_, hooks)| hooks) {
        terminal.heading(&format!("{}: {}", hook.point, hook.name));
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
    let ask = |remote: Remote| match remote.hooks() {
        Ok(hooks) => Ok((remote, hooks)),
        Err(error) => Err(unanswered(pid, &error)),
    };
    engines_of(pid)?.into_iter().map(ask).collect()
}

fn print_json(engines: &[Engine]) -> Outcome {
    let rows: Vec<Value> = engines
        .iter()
        .map(|(remote, hooks)| {
            let hooks: Vec<Value> = hooks.iter().map(hook).collect();
            json!({ "pid": remote.pid(), "slot": remote.slot(), "hooks": hooks })
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
