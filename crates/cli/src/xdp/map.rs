//! `roxie xdp map`: reads and changes the maps of the program on an interface while it runs.

use std::io;

use bpf::MapKind;
use serde_json::{Value, json};
use sys::bpf::{Map, Program};

use super::args::{MapArgs, MapCommand};
use super::{entry, interface};
use crate::failure::{Failure, Outcome};
use crate::terminal::{self, Terminal};

/// Runs the subcommand.
pub(super) fn map(args: &MapArgs) -> Outcome {
    match &args.command {
        MapCommand::List { netdev, json } => list(netdev, *json),
        MapCommand::Get { netdev, map, key, json } => get(netdev, map, key.as_deref(), *json),
        MapCommand::Set { netdev, map, key, value } => {
            let map = find(netdev, map)?;
            let (key, value) = (entry::key(&map, key)?, entry::value(&map, value)?);
            map.update(&key, &value).map_err(|error| refused(netdev, &map, "setting an entry", &error))
        }
        MapCommand::Delete { netdev, map, key } => {
            let map = find(netdev, map)?;
            let found = entry::key(&map, key)?;
            // Maps that cannot be read are not checked first.
            if has(&map, &found).is_ok_and(|there| !there) {
                return Err(Failure::new(format!("{netdev}: there is no entry {key}")));
            }
            map.delete(&found).map_err(|error| refused(netdev, &map, "deleting an entry", &error))
        }
    }
}

/// The maps of the program on an interface, with their names.
fn maps(netdev: &str) -> Outcome<Vec<(String, Map)>> {
    let link = interface(netdev)?;
    let there = link.xdp.first().ok_or_else(|| {
        Failure::new(format!("{netdev}: no XDP program")).hint("'roxie xdp attach' puts one there")
    })?;
    let unseen = |error: io::Error| {
        let failure = Failure::new(format!("{netdev}: its program: {error}"));
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                failure.hint("maps are for root (CAP_SYS_ADMIN): try with sudo")
            }
            _ => failure,
        }
    };
    let program = Program::by_id(there.program_id).map_err(unseen)?;
    let mut maps = Vec::new();
    for id in program.map_ids().map_err(unseen)? {
        match Map::by_id(id) {
            Ok(map) => maps.push((map.name().map_err(unseen)?, map)),
            // Kinds that roxie's programs do not have.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => return Err(unseen(error)),
        }
    }
    Ok(maps)
}

fn find(netdev: &str, name: &str) -> Outcome<Map> {
    let (mut found, mut names) = (None, Vec::new());
    for (known, map) in maps(netdev)? {
        if known == name {
            found = Some(map);
        }
        names.push(known);
    }
    let there =
        if names.is_empty() { "it has none".to_owned() } else { format!("there are: {}", names.join(", ")) };
    found.ok_or_else(|| Failure::new(format!("{netdev}: its program has no map '{name}'")).hint(there))
}

fn list(netdev: &str, is_json: bool) -> Outcome {
    let maps = maps(netdev)?;
    if is_json {
        let rows: Vec<Value> = maps
            .iter()
            .map(|(name, map)| {
                let (kind, size) = (map.kind().name(), map.value_len());
                json!({ "name": name, "kind": kind, "key_size": map.key_size(), "value_size": size })
            })
            .collect();
        terminal::print(&Value::Array(rows).to_string());
        return Ok(());
    }
    for (name, map) in &maps {
        let (kind, key, value) = (map.kind().name(), map.key_size(), map.value_len());
        Terminal::stdout().line(&format!("{name:<16} {kind:<16} {key:>3} bytes to {value:>4} bytes"));
    }
    Ok(())
}

fn get(netdev: &str, name: &str, key: Option<&str>, is_json: bool) -> Outcome {
    let map = find(netdev, name)?;
    let mut rows = Vec::new();
    match key {
        Some(text) => {
            let key = entry::key(&map, text)?;
            let there = has(&map, &key).map_err(|error| refused(netdev, &map, "reading", &error))?;
            let value = if there { read(netdev, &map, &key)? } else { None };
            let value = value.ok_or_else(|| Failure::new(format!("{netdev}: {name} has no entry {text}")))?;
            rows.push((key, value));
        }
        None => {
            let mut key = None;
            let mut next = vec![0; map.key_size()];
            while map
                .next_key(key.as_deref(), &mut next)
                .map_err(|error| refused(netdev, &map, "reading", &error))?
            {
                // The entry may have been deleted meanwhile.
                if let Some(value) = read(netdev, &map, &next)? {
                    rows.push((next.clone(), value));
                }
                key = Some(next.clone());
            }
        }
    }
    // Arrays have every entry; those that are all zero are left out, unless asked for.
    let is_array = matches!(map.kind(), MapKind::Array | MapKind::PercpuArray);
    rows.retain(|(_, values)| key.is_some() || !is_array || values.concat().iter().any(|byte| *byte != 0));
    if is_json {
        let row = |(key, values): &(Vec<u8>, Vec<Vec<u8>>)| {
            let values: Vec<String> = values.iter().map(|value| entry::show(&map, value, false)).collect();
            json!({ "key": entry::show(&map, key, true), "values": values })
        };
        terminal::print(&Value::Array(rows.iter().map(row).collect()).to_string());
        return Ok(());
    }
    for (key, values) in &rows {
        let values: Vec<String> = values.iter().map(|value| entry::show(&map, value, false)).collect();
        Terminal::stdout().line(&format!("{:<40} {}", entry::show(&map, key, true), values.join("  ")));
    }
    Ok(())
}

/// Whether there is an entry with exactly this key: a look-up in a table of prefixes also finds a shorter
/// prefix.
fn has(map: &Map, key: &[u8]) -> io::Result<bool> {
    if map.kind() != MapKind::LpmTrie {
        return map.lookup(key, &mut vec![0; map.value_size()]);
    }
    let mut next = vec![0; map.key_size()];
    let mut there = map.next_key(None, &mut next)?;
    while there && next != key {
        let last = next.clone();
        there = map.next_key(Some(&last), &mut next)?;
    }
    Ok(there)
}

/// The value of an entry, or one per CPU in a per-CPU map. `None` if there is no such entry.
fn read(netdev: &str, map: &Map, key: &[u8]) -> Outcome<Option<Vec<Vec<u8>>>> {
    let mut value = vec![0; map.value_size()];
    let there = map.lookup(key, &mut value).map_err(|error| refused(netdev, map, "reading", &error))?;
    let len = map.value_len();
    let each = if map.kind().is_percpu() { len.next_multiple_of(8) } else { value.len() };
    Ok(there.then(|| value.chunks(each.max(1)).map(|one| one[..len.min(one.len())].to_vec()).collect()))
}

fn refused(netdev: &str, map: &Map, what: &str, error: &io::Error) -> Failure {
    let kind = map.kind();
    if error.raw_os_error() == Some(nix::libc::E2BIG) {
        return Failure::new(format!(
            "{netdev}: {what}: the key is beyond the map's size, or the map is full"
        ));
    }
    let failure = Failure::new(format!("{netdev}: {what}: {error}"));
    match kind {
        MapKind::Xskmap | MapKind::ProgArray | MapKind::Ringbuf => failure
            .hint(format!("a map of kind {} can be read only by the process that made it", kind.name())),
        MapKind::Array | MapKind::PercpuArray => {
            failure.hint("an array has every entry up to its size, and none can be deleted")
        }
        _ => failure,
    }
}
