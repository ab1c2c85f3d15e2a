//! The results as a table with a column for each variant.

use ::sim::{Bytes, Percentiles, Rate, Results, Time};

use super::Column;
use crate::terminal::{Terminal, Tone};

/// Figures of a run: a name and the values to be shown in one cell.
type Row = (String, Cell);

/// The values of one cell.
#[derive(Clone, Debug)]
enum Cell {
    Count(f64),
    Bytes(f64),
    Rate(f64),
    Seconds(f64),
    /// A number with three decimals.
    Ratio(f64),
    /// Median, 95th and 99th percentile.
    Slowdown([f64; 3]),
    Times([f64; 3]),
    Queues([f64; 3]),
}

fn three(percentiles: &Percentiles) -> [f64; 3] {
    [percentiles.p50, percentiles.p95, percentiles.p99]
}

/// All figures of a run, in the order of the table.
fn rows(results: &Results) -> Vec<Row> {
    let Results { frames, .. } = results;
    let row = |name: &str, cell| (name.to_owned(), cell);
    let mut rows = vec![
        row("virtual time", Cell::Seconds(results.virtual_seconds)),
        row("flows", Cell::Count(results.flows as f64)),
        row("  complete", Cell::Count(results.complete as f64)),
        row("  failed", Cell::Count(results.failed as f64)),
        row("goodput", Cell::Rate(results.goodput_bps)),
        row("  per receiver", Cell::Rate(results.goodput_per_receiver_bps)),
    ];
    rows.extend(results.fairness.map(|fairness| row("fairness (Jain)", Cell::Ratio(fairness))));
    for collective in &results.collectives {
        rows.push(row("all-reduce", Cell::Seconds(collective.seconds)));
    }
    for class in &results.classes {
        let name = |what: &str| format!("{what}, {}", class.name);
        rows.push((name("flows"), Cell::Count(class.flows as f64)));
        rows.push((name("  completion"), Cell::Times(three(&class.seconds))));
        rows.push((name("  slow-down"), Cell::Slowdown(three(&class.slowdown))));
        rows.push((name("    mean"), Cell::Ratio(class.slowdown_mean)));
    }
    rows.extend([
        row("queues", Cell::Queues(three(&results.queue_bytes))),
        row("  the fullest", Cell::Queues(three(&results.fullest_queue_bytes))),
        row("  longest", Cell::Bytes(results.queue_bytes.max)),
        row("frames sent", Cell::Count(frames.sent as f64)),
        row("  dropped", Cell::Count(frames.dropped as f64)),
        row("  lost on links", Cell::Count(frames.lost as f64)),
        row("  marked", Cell::Count(frames.marked as f64)),
        row("pauses to hosts", Cell::Count(frames.pauses_to_hosts as f64)),
        row("  to switches", Cell::Count(frames.pauses_to_switches as f64)),
        row("  paused, hosts", Cell::Seconds(results.paused_hosts_seconds)),
        row("  paused, switches", Cell::Seconds(results.paused_switches_seconds)),
        row("retransmitted", Cell::Count(results.retransmitted as f64)),
        row("  duplicates", Cell::Count(results.duplicates as f64)),
        row("  ACK timeouts", Cell::Count(results.timeouts as f64)),
        row("  probes", Cell::Count(results.probes as f64)),
        row("CNPs", Cell::Count(results.cnps as f64)),
    ]);
    rows
}

/// The median of a value over runs.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

impl Cell {
    /// The cell with the median of each value.
    fn median_of(cells: &[&Self]) -> Option<Self> {
        let of = |get: &dyn Fn(&Self) -> f64| median(cells.iter().map(|cell| get(cell)).collect());
        let one = |cell: &Self| cell.values()[0];
        let all = || [0, 1, 2].map(|n| of(&|cell| cell.values()[n]));
        Some(match cells.first()? {
            Self::Count(_) => Self::Count(of(&one)),
            Self::Bytes(_) => Self::Bytes(of(&one)),
            Self::Rate(_) => Self::Rate(of(&one)),
            Self::Seconds(_) => Self::Seconds(of(&one)),
            Self::Ratio(_) => Self::Ratio(of(&one)),
            Self::Slowdown(_) => Self::Slowdown(all()),
            Self::Times(_) => Self::Times(all()),
            Self::Queues(_) => Self::Queues(all()),
        })
    }

    fn values(&self) -> [f64; 3] {
        match *self {
            Self::Count(v) | Self::Bytes(v) | Self::Rate(v) | Self::Seconds(v) | Self::Ratio(v) => [v; 3],
            Self::Slowdown(all) | Self::Times(all) | Self::Queues(all) => all,
        }
    }

    fn text(&self) -> String {
        let [first, ..] = self.values();
        let each = |show: &dyn Fn(f64) -> String| self.values().map(show).join(" / ");
        match self {
            Self::Count(_) => format!("{first:.0}"),
            Self::Bytes(_) => bytes(first),
            Self::Rate(_) => rate(first),
            Self::Seconds(_) => time(first),
            Self::Ratio(_) => format!("{first:.3}"),
            Self::Slowdown(_) => each(&|value| format!("{value:.2}")),
            Self::Times(_) => each(&time),
            Self::Queues(_) => each(&bytes),
        }
    }
}

fn time(seconds: f64) -> String {
    Time { ps: (seconds * 1e12) as u64 }.to_string()
}

fn bytes(bytes: f64) -> String {
    Bytes(bytes as u64).to_string()
}

fn rate(bps: f64) -> String {
    Rate { bps: bps as u64 }.to_string()
}

/// Names of all rows, and the cells of each column, if it has the row.
pub(super) fn cells(columns: &[Column]) -> Vec<(String, Vec<Option<String>>)> {
    let all: Vec<Vec<Vec<Row>>> =
        columns.iter().map(|column| column.runs.iter().map(rows).collect()).collect();
    let mut names: Vec<String> = Vec::new();
    for (name, _) in all.iter().flatten().flatten() {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    // Classes that only some runs have go to their places among those of the others.
    let order =
        |name: &str| all.iter().flatten().find_map(|rows| rows.iter().position(|(row, _)| row == name));
    names.sort_by_key(|name| order(name));
    let cell = |runs: &Vec<Vec<Row>>, name: &str| {
        let found = runs.iter().filter_map(|rows| rows.iter().find(|(row, _)| row == name));
        Cell::median_of(&found.map(|(_, cell)| cell).collect::<Vec<_>>()).map(|cell| cell.text())
    };
    names.iter().map(|name| (name.clone(), all.iter().map(|runs| cell(runs, name)).collect())).collect()
}

/// Prints the table.
pub(super) fn show(terminal: Terminal, name: &str, columns: &[Column], seconds: f64) {
    let Some(first) = columns.first().and_then(|column| column.runs.first()) else {
        return terminal.line("No run has begun");
    };
    let runs: usize = columns.iter().map(|column| column.runs.len()).sum();
    let frames: u64 = columns.iter().flat_map(|column| &column.runs).map(|run| run.frames.sent).sum();
    terminal.heading(&format!("{name}: {} hosts, switches: {}", first.hosts, first.switches));
    let rows = cells(columns);
    let label = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let width = |index: usize, column: &Column| {
        let cells = rows.iter().filter_map(|(_, cells)| cells[index].as_ref().map(String::len));
        cells.chain([column.name.len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = columns.iter().enumerate().map(|(index, column)| width(index, column)).collect();
    if columns.len() > 1 {
        let names = columns.iter().zip(&widths).map(|(column, width)| format!("  {:>width$}", column.name));
        terminal
            .line(&terminal.paint(Tone::Strong, &format!("  {:label$}{}", "", names.collect::<String>())));
    }
    for (name, cells) in &rows {
        let cells = cells.iter().zip(&widths);
        let cells: String =
            cells.map(|(cell, width)| format!("  {:>width$}", cell.as_deref().unwrap_or("-"))).collect();
        terminal.line(&format!("  {name:label$}{cells}"));
    }
    let note = format!(
        "Three values are the median, the 95th and the 99th percentile. {runs} runs in {seconds:.1} s, \
         {:.0} k frames a second.",
        frames as f64 / seconds.max(0.001) / 1000.0
    );
    terminal.line(&terminal.paint(Tone::Faint, &note));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_the_medians_of_its_runs() {
        let cells = [[3.0, 4.0, 5.0], [1.0, 9.0, 9.0], [2.0, 2.0, 2.0]].map(Cell::Slowdown);
        let cells: Vec<&Cell> = cells.iter().collect();
        assert_eq!(Cell::median_of(&cells).map(|cell| cell.text()), Some("2.00 / 4.00 / 5.00".to_owned()));
        assert_eq!(median(vec![1.0, 2.0]), 1.5);
        assert!(Cell::median_of(&[]).is_none());
    }
}
