//! Prints the table once, as text or JSON.

use serde_json::{Map, Value, json};

use super::TopArgs;
use super::item::{Key, Metric};
use super::process::Engine;
use super::table::{Row, Table};
use super::units::{short, time};
use crate::terminal::{self, Terminal, Tone};

/// A column: its heading, and the text of a row.
type Column = (&'static str, fn(&Row) -> String);

const COLUMNS: [Column; 19] = [
    ("PID", |row| row.pid().map_or_else(|| "-".to_owned(), |pid| pid.to_string())),
    ("COMMAND", |row| or_dash(&row.item.command)),
    ("DEVICE", |row| or_dash(&row.item.device)),
    ("NETDEV", |row| or_dash(&row.item.netdev)),
    ("QP", |row| format!("{:#08x}", row.item.status.qpn.value())),
    ("TYPE", |row| row.item.status.service.clone()),
    ("STATE", |row| or_dash(&row.item.status.state)),
    ("PEER", |row| row.peer(false)),
    ("PEER-QP", |row| match row.item.status.dest_qpn {
        Some(qpn) => format!("{:#08x}", qpn.value()),
        None => "-".to_owned(),
    }),
    ("TX-B/s", |row| short(row.rate(Metric::TxBytes))),
    ("RX-B/s", |row| short(row.rate(Metric::RxBytes))),
    ("TX-MSG/s", |row| short(row.rate(Metric::TxMessages))),
    ("RX-MSG/s", |row| short(row.rate(Metric::RxMessages))),
    ("RTT", |row| time(row.item.status.round_trip_ns)),
    ("RETX/s", |row| short(row.rate(Metric::Retransmitted))),
    ("NAK/s", |row| short(row.rate(Metric::Naks))),
    ("RNR/s", |row| short(row.rate(Metric::RnrNaks))),
    ("CNP/s", |row| short(row.rate(Metric::Cnps))),
    ("IN-FLIGHT", |row| short(f64::from(row.item.status.in_flight))),
];
/// Columns of words, aligned left; the others are numbers, aligned right.
const WORDS: std::ops::Range<usize> = 1..9;

fn or_dash(word: &str) -> String {
    if word.is_empty() { "-".to_owned() } else { word.to_owned() }
}

/// Prints the table.
pub(super) fn print(table: &Table, args: &TopArgs) {
    let rows = table.chosen(args.sort, &args.filter);
    if args.json {
        return terminal::json(&json(table, &rows));
    }
    let terminal = Terminal::stdout();
    if rows.is_empty() {
        say!("roxie: {}", nothing_shown(table, args));
    }
    for (number, line) in lines(&rows).iter().enumerate() {
        terminal.line(&terminal.paint(if number == 0 { Tone::Strong } else { Tone::Plain }, line));
    }
    for line in table.devices.iter().filter_map(Engine::pressure) {
        terminal.line(&line);
    }
    args.users.hidden_note(table.hidden).iter().for_each(|note| terminal.line(note));
}

/// Explains an empty table.
pub(super) fn nothing_shown(table: &Table, args: &TopArgs) -> String {
    match (&args.interface, args.filter.as_str()) {
        (Some(netdev), "") => format!("no RoCEv2 traffic was seen on {netdev}"),
        (None, "") if !table.devices.is_empty() || !table.unresponsive.is_empty() => {
            format!("no queue pairs on roxie ({})", table.summary)
        }
        (None, "") => "no queue pairs: no process of this user runs on roxie in this network namespace. \
                       For another one, as root: ip netns exec NAME roxie top, or nsenter -t PID -n roxie top"
            .to_owned(),
        (_, filter) => {
            format!(
                "no queue pair has '{filter}' in its process, device, number, state, service or addresses"
            )
        }
    }
}

/// The lines of the table; each column is as wide as its longest text.
pub(super) fn lines(rows: &[&Row]) -> Vec<String> {
    let heading = COLUMNS.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let cells = rows.iter().map(|row| COLUMNS.iter().map(|(_, cell)| cell(row)).collect());
    let cells: Vec<Vec<String>> = std::iter::once(heading).chain(cells).collect();
    let width = |column: usize| cells.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let pad = |(column, cell): (usize, &String)| {
        let width = widths[column];
        if WORDS.contains(&column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
    };
    cells.iter().map(|line| line.iter().enumerate().map(pad).collect::<Vec<_>>().join(" ")).collect()
}

/// The table as JSON.
pub(super) fn json(table: &Table, rows: &[&Row]) -> Value {
    let queue_pairs: Vec<Value> = rows.iter().map(|row| queue_pair(row)).collect();
    let devices: Vec<Value> = table.devices.iter().map(device).collect();
    json!({
        "summary": table.summary,
        "hidden_processes": table.hidden,
        "unresponsive_processes": table.unresponsive,
        "queue_pairs": queue_pairs,
        "devices": devices,
    })
}

/// A device, with its counters that are not zero.
fn device(device: &Engine) -> Value {
    let counters = device.status.counters.iter().filter(|counter| counter.1 > 0);
    let counters: Map<String, Value> =
        counters.map(|(name, value)| (name.clone(), (*value).into())).collect();
    json!({
        "pid": device.pid,
        "command": device.command,
        "slot": device.slot,
        "device": device.status.device,
        "netdev": device.status.netdev,
        "port": device.status.port,
        "counters": counters,
    })
}

fn named<T: Into<Value>>(values: [T; Metric::NAMES.len()]) -> Map<String, Value> {
    Metric::NAMES.map(str::to_owned).into_iter().zip(values.map(Into::into)).collect()
}

fn queue_pair(row: &Row) -> Value {
    let (status, totals) = (&row.item.status, &row.item.totals);
    let mut object = json!({
        "netdev": row.item.netdev,
        "qpn": status.qpn.value(),
        "service": status.service,
        "local": status.local,
        "remote": status.remote,
        "dest_qpn": status.dest_qpn.map(::wire::Qpn::value),
        "round_trip_ns": status.round_trip_ns,
        "rates": named(row.rates),
        "totals": named(*totals),
    });
    if let (Key::Process { pid, slot, .. }, Some(object)) = (&row.item.key, object.as_object_mut()) {
        let counters: Map<String, Value> =
            status.counters.rows().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let more = json!({
            "pid": pid,
            "command": row.item.command,
            "device": row.item.device,
            "slot": slot,
            "state": status.state,
            "path_mtu": status.path_mtu,
            "in_flight_packets": status.in_flight,
            "pending_packets": status.pending,
            "paced_bps": status.paced_bps,
            "counters": counters,
        });
        object.extend(more.as_object().cloned().unwrap_or_default());
    }
    object
}
