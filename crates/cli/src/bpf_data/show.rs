//! `roxie xdp map` and `roxie hook map`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use super::args::{MapArgs, MapCommand};
use super::entry;
use super::table::{Entries, Table};
use super::types::as_json;
use crate::failure::{Failure, Outcome};
use crate::terminal::{self, Terminal};

/// An interface or a process with programs that have maps.
pub(crate) trait Source: ClapArgs {
    /// Its name, for messages.
    fn subject(&self) -> String;

    /// The maps.
    ///
    /// # Errors
    /// There is no program, or it cannot be looked into.
    fn tables(&self) -> Outcome<Vec<Box<dyn Table>>>;
}

/// Runs the subcommand.
pub(crate) fn run<T: Source>(args: &MapArgs<T>) -> Outcome {
    match &args.command {
        MapCommand::List { target, json } => list(&target.tables()?, *json),
        MapCommand::Get { target, map, key, zeros, json } => {
            let tables = named(target, map)?;
            get(&target.subject(), &tables, key.as_deref(), *zeros, *json)
        }
        MapCommand::Set { target, map, key, value } => {
            only(target, map)?.iter().try_for_each(|table| set(table.as_ref(), key, value))?;
            is_kept(target, map, key)
        }
        MapCommand::Delete { target, map, key } => {
            let mut is_deleted = false;
            for table in only(target, map)? {
                is_deleted |= table.delete(&entry::key(table.view(), key)?)?;
            }
            let failure = || Failure::new(format!("{}: there is no entry {key}", target.subject()));
            is_deleted.then_some(()).ok_or_else(failure)
        }
    }
}

fn set(table: &dyn Table, key: &str, value: &str) -> Outcome {
    let key = entry::key(table.view(), key)?;
    if table.view().def.kind == bpf::MapKind::ProgArray {
        let program = table.entry_program(value)?;
        return table.update(&key, &program.as_fd().as_raw_fd().to_ne_bytes());
    }
    let Some((target, program)) = entry::split_program(table.view(), value) else {
        return table.update(&key, &entry::value(table.view(), value)?);
    };
    let mut value = entry::value(table.view(), target)?;
    // The map holds the program from the update on.
    let program = table.entry_program(program)?;
    entry::put_program(&mut value, &program)?;
    table.update(&key, &value)
}

/// How often, and how many milliseconds apart, a program array is looked at before it counts as kept: 100 ms
/// in all. Beside six busy processes on two CPUs, 150 of 150 arrays were empty within them; without a wait
/// one of 60 was not. Half: a busy machine is misread more often. Double: each value takes longer to set.
const LOOKS: u32 = 20;
const LOOK_EVERY_MS: u64 = 5;

/// Fails if the kernel has emptied a program array: it does so when the last descriptor is closed, in a
/// worker of its own that may run some milliseconds later.
fn is_kept<T: Source>(target: &T, map: &str, key: &str) -> Outcome {
    for table in only(target, map)?.iter().filter(|table| table.view().def.kind == bpf::MapKind::ProgArray) {
        let key = entry::key(table.view(), key)?;
        for _ in 0..LOOKS {
            if table.lookup(&key)?.is_none() {
                let what =
                    format!("{}: the kernel emptied {map}: no process and no pin has it", target.subject());
                return Err(Failure::new(what).hint("attach the program with --pin DIR or --foreground"));
            }
            std::thread::sleep(std::time::Duration::from_millis(LOOK_EVERY_MS));
        }
    }
    Ok(())
}

/// The maps of this name.
fn named<T: Source>(target: &T, name: &str) -> Outcome<Vec<Box<dyn Table>>> {
    let tables = target.tables()?;
    let mut names: Vec<String> = tables.iter().map(|table| table.view().def.name.clone()).collect();
    let mut found: Vec<_> = tables.into_iter().filter(|table| table.is_called(name)).collect();
    let mut prefer = |is_meant: &dyn Fn(&dyn Table) -> bool| {
        if found.iter().filter(|table| is_meant(table.as_ref())).count() == 1 {
            found.retain(|table| is_meant(table.as_ref()));
        }
    };
    prefer(&|table| table.view().def.name == name);
    prefer(&|table| table.place().is_none());
    if found.len() > 1 && found.iter().all(|table| table.id().is_some()) {
        let all = found.iter().map(|table| format!("{} {}", table.id().unwrap_or(0), table.view().def.name));
        let all: Vec<String> = all.collect();
        let failure = format!("{}: several maps are called '{name}': {}", target.subject(), all.join(", "));
        return Err(Failure::new(failure).hint("choose one by its number").code(2));
    }
    if !found.is_empty() {
        return Ok(found);
    }
    names.sort();
    names.dedup();
    let there = match names.as_slice() {
        [] => "it has none".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    Err(Failure::new(format!("{}: its program has no map '{name}'", target.subject())).hint(there))
}

/// The map of this name of one program; a process with several devices has one for each.
fn only<T: Source>(target: &T, name: &str) -> Outcome<Vec<Box<dyn Table>>> {
    let found = named(target, name)?;
    let places: Vec<(String, String)> = found.iter().filter_map(|table| table.place()).collect();
    let owner = |(program, at): &(String, String)| {
        (program.clone(), at.split(' ').next().unwrap_or_default().to_owned())
    };
    if places.windows(2).all(|pair| owner(&pair[0]) == owner(&pair[1])) {
        return Ok(found);
    }
    let places: Vec<String> = places.into_iter().map(|(_, at)| at).collect();
    let failure =
        format!("{}: several programs have a map '{name}': {}", target.subject(), places.join(", "));
    Err(Failure::new(failure).hint("choose one with --at ingress or --at egress").code(2))
}

fn list(tables: &[Box<dyn Table>], is_json: bool) -> Outcome {
    if is_json {
        let row = |table: &dyn Table| {
            let def = &table.view().def;
            let mut row = json!({
                "name": def.name,
                "kind": def.kind.name(),
                "key_size": def.key_size,
                "value_size": def.value_size,
                "max_entries": def.max_entries,
                "typed": table.view().value.is_known(),
            });
            if let Some((program, point)) = table.place() {
                row["program"] = json!(program);
                row["point"] = json!(point);
            }
            if let Some(id) = table.id() {
                row["id"] = json!(id);
            }
            row
        };
        terminal::json(&Value::Array(tables.iter().map(|table| row(table.as_ref())).collect()));
        return Ok(());
    }
    let terminal = Terminal::stdout();
    for table in tables {
        let def = &table.view().def;
        let place = table.place().map(|(program, at)| format!("{at:<8} {program:<15} ")).unwrap_or_default();
        let place = table.id().map_or(String::new(), |id| format!("{id:<6} ")) + &place;
        let sizes = match (def.key_size, def.value_size) {
            (0, 0) => format!("{} bytes", def.max_entries),
            (key, value) => format!("{key:>3} bytes to {value:>4} bytes"),
        };
        terminal.line(&format!("{place}{:<16} {:<16} {sizes}", def.name, def.kind.name()));
    }
    Ok(())
}

fn get(subject: &str, tables: &[Box<dyn Table>], key: Option<&str>, zeros: bool, is_json: bool) -> Outcome {
    let mut all = Vec::new();
    let mut found = false;
    for table in tables {
        let view = table.view();
        if let (Some((program, at)), false) = (table.place(), is_json || tables.len() == 1) {
            let terminal = Terminal::stdout();
            terminal.heading(&format!("{at}: {program}"));
        }
        let mut rows = Vec::new();
        let mut take = |entries: Entries| {
            for (key, values) in &entries {
                if is_json {
                    rows.push(as_object(view, key, values));
                } else {
                    let values: Vec<_> = values.iter().map(|value| entry::show_value(view, value)).collect();
                    let key = entry::show_key(view, key);
                    Terminal::stdout().line(&format!("{key:<24} {}", values.join("  ")));
                }
            }
            Ok(())
        };
        match key {
            // An address is looked up as by a program, a prefix as it is.
            Some(text) if view.def.kind == bpf::MapKind::LpmTrie && !text.contains('/') => {
                let (key, mut best) = (entry::key(view, text)?, None);
                table.each(true, &mut |entries| {
                    let fits = entries.into_iter().filter(|(prefix, _)| entry::is_within(&key, prefix));
                    best = fits.chain(best.take()).max_by_key(|(prefix, _)| entry::bits(prefix));
                    Ok(())
                })?;
                found |= best.is_some();
                best.map_or(Ok(()), |entry| take(vec![entry]))?;
            }
            Some(text) => {
                let key = entry::key(view, text)?;
                if let Some(values) = table.lookup(&key)? {
                    found = true;
                    take(vec![(key, values)])?;
                }
            }
            None => {
                found = true;
                table.each(zeros, &mut take)?;
            }
        }
        all.push((table.place(), rows));
    }
    if let (Some(key), false) = (key, found) {
        let name = &tables[0].view().def.name;
        return Err(Failure::new(format!("{subject}: {name} has no entry {key}")));
    }
    if is_json {
        let value = |(place, rows): (Option<(String, String)>, Vec<Value>)| match place {
            Some((program, point)) => vec![json!({ "program": program, "point": point, "entries": rows })],
            None => rows,
        };
        terminal::json(&Value::Array(all.into_iter().flat_map(value).collect()));
    }
    Ok(())
}

/// An entry as JSON: by its types, or as the text that `set` takes.
fn as_object(view: &super::MapView, key: &[u8], values: &[Vec<u8>]) -> Value {
    let is_text_key = view.def.kind == bpf::MapKind::LpmTrie;
    let key = match view.key.decode(key).filter(|_| !is_text_key) {
        Some(typed) => as_json(&typed),
        None => json!(entry::show_key(view, key)),
    };
    let value = |value: &Vec<u8>| match view.value.decode(value) {
        Some(typed) => as_json(&typed),
        None => json!(entry::show_value(view, value)),
    };
    json!({ "key": key, "values": values.iter().map(value).collect::<Vec<_>>() })
}

/// A failure to look into the program on an interface.
pub(crate) fn unseen(netdev: &str, error: &io::Error) -> Failure {
    let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
    Failure::new(format!("{netdev}: its program: {error}"))
        .hint_if(is_denied.then_some("maps are for root (CAP_SYS_ADMIN): try with sudo"))
}
