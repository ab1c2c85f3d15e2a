//! `roxie xdp list`: interfaces and the programs on them.

use serde_json::{Value, json};
use sys::bpf::{Map, Program, XdpLink};
use sys::{AttachedXdp, Link, xdp_features};

use super::args::ListArgs;
use crate::failure::Outcome;
use crate::netdev::links;
use crate::terminal::{self, Terminal};

/// Prints all interfaces of the network namespace.
pub(super) fn list(args: &ListArgs) -> Outcome {
    let links = links()?;
    let rows: Vec<Value> = links.iter().map(describe).collect();
    if args.json {
        return terminal::json_lines(&rows);
    }
    let terminal = Terminal::stdout();
    let width = links.iter().map(|link| link.name.len()).max().unwrap_or(0).max(9);
    let head =
        format!("{:<width$} {:<8} {:>6} {:<15} {:<16} DRIVER", "INTERFACE", "MODE", "ID", "NAME", "HELD BY");
    terminal.heading(&head);
    for row in &rows {
        let (name, features) = (text(&row["interface"]), text(&row["features"]));
        let programs = row["programs"].as_array().map_or(&[][..], Vec::as_slice);
        if programs.is_empty() {
            terminal.line(&format!("{name:<width$} {:<8} {:>6} {:<15} {:<16} {features}", "-", "", "", ""));
        }
        for program in programs {
            let held = program["link"].as_u64().map_or_else(String::new, |id| format!("bpf_link {id}"));
            let (mode, id, label) = (text(&program["mode"]), text(&program["id"]), text(&program["name"]));
            terminal.line(&format!("{name:<width$} {mode:<8} {id:>6} {label:<15} {held:<16} {features}"));
        }
    }
    Ok(())
}

/// An interface as JSON.
fn describe(link: &Link) -> Value {
    let features = xdp_features(link.index).map(|features| features.to_string());
    json!({
        "interface": link.name,
        "ifindex": link.index,
        "up": link.is_up,
        "mtu": link.mtu,
        "rx_queues": link.rx_queues,
        // Kernels before 6.3 do not report features.
        "features": features.unwrap_or_else(|_| "unknown".to_owned()),
        "programs": link.xdp.iter().map(|there| program(link, *there)).collect::<Vec<_>>(),
    })
}

/// A program as JSON; fields that only root may read are null for other users.
pub(super) fn program(link: &Link, there: AttachedXdp) -> Value {
    let program = Program::by_id(there.program_id);
    let info = program.as_ref().ok().and_then(|program| program.info().ok());
    let maps = program.and_then(|program| program.map_ids()).unwrap_or_default();
    let maps: Vec<String> = maps.iter().filter_map(|id| Map::by_id(*id).ok()?.name().ok()).collect();
    let held = XdpLink::on(link.index, there.program_id).ok().flatten().map(|(id, _)| id);
    json!({
        "mode": there.mode.to_string(),
        "id": there.program_id,
        "name": info.as_ref().map(|info| info.name.as_str()),
        "tag": info.as_ref().map(|info| format!("{:016x}", info.tag)),
        "uid": info.as_ref().map(|info| info.uid),
        "link": held,
        "maps": maps,
    })
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "?".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
