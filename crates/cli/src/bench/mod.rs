//! `roxie bench`: this machine's figures in one table, RDMA beside TCP.

mod tcp;

use std::fs;
use std::net::IpAddr;

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use crate::demo::{Report, Run};
use crate::failure::{During, Failure, Outcome};
use crate::terminal::{self, Progress, Terminal};

/// Measure this machine: RDMA over UDP sockets, RDMA through shared memory, and TCP
///
/// Measures bandwidth, message rate and latency between two processes of this machine, first as 'roxie demo'
/// does, with packets through UDP sockets and then through shared memory, then over TCP sockets between two
/// threads. Prints a Markdown table with the CPU and the kernel, for reports and comparisons. Takes about
/// twenty seconds; other programs that run meanwhile change the result.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/bench.txt"))]
pub(crate) struct BenchArgs {
    /// Network interface; its first address is used [default: lo, 127.0.0.1]
    #[arg(long, short = 'i', value_name = "IF")]
    pub(crate) netdev: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// How packets travel between the two processes: heading, and the environment of both.
const PATHS: [(&str, &str); 2] = [("RDMA, UDP sockets", "off"), ("RDMA, shared memory", "on")];
/// Rows: the demo's name of the figure, the name here, the unit, and the divisor for it.
const ROWS: [(&str, &str, &str, f64); 5] = [
    ("WRITE 64 KiB", "WRITE 64 KiB", "GB/s", 1e9),
    ("READ 64 KiB", "READ 64 KiB", "GB/s", 1e9),
    ("SEND 64 KiB", "SEND 64 KiB", "GB/s", 1e9),
    ("WRITE 8 B", "8 B, 64 a call", "M messages/s", 1e6),
    ("SEND 8 B", "8 B one way", "us", 1.0),
];

/// A row of the table.
#[derive(Debug)]
struct Row {
    name: &'static str,
    unit: &'static str,
    /// One value for each of [`PATHS`], then TCP.
    values: [f64; 3],
}

/// Measures and prints the table.
pub(crate) fn run(args: &BenchArgs) -> Outcome {
    let progress = Progress::stderr();
    let netdev = args.netdev.as_deref().unwrap_or("lo");
    let run = Run::new(netdev, None)?;
    let ip: IpAddr = run.address.parse().during("the address of the interface")?;
    let mut columns = Vec::new();
    for (heading, shm) in PATHS {
        progress.show(&format!("{heading} ..."));
        columns.push(rdma(&run, shm)?);
    }
    progress.show("TCP ...");
    let tcp = tcp::measure(ip)?;
    progress.done();
    let rows: Vec<Row> = ROWS.iter().map(|row| fill(*row, &columns, &tcp)).collect::<Outcome<_>>()?;
    if args.json {
        terminal::json(&report(netdev, &run, &rows));
    } else {
        show(netdev, &run, &rows);
    }
    Ok(())
}

/// The figures of one path, by the demo's names.
fn rdma(run: &Run, shm: &str) -> Outcome<Vec<(String, f64)>> {
    let mut figures = Vec::new();
    let env = [("ROXIE_SHM", shm)];
    run.pair(false, &env, &env, &mut |report| {
        if let Report::Figure { what, number, .. } = report {
            figures.push((what.clone(), *number));
        }
    })?;
    Ok(figures)
}

fn fill(
    (figure, name, unit, divisor): (&str, &'static str, &'static str, f64),
    columns: &[Vec<(String, f64)>],
    tcp: &tcp::Figures,
) -> Outcome<Row> {
    let mut values = [0.0; 3];
    for (value, column) in values.iter_mut().zip(columns) {
        let found = column.iter().find(|(what, _)| what == figure);
        *value = found.ok_or_else(|| Failure::new(format!("{figure} was not measured")))?.1 / divisor;
    }
    values[2] = match unit {
        "GB/s" => tcp.bandwidth,
        "us" => tcp.latency_us,
        _ => tcp.rate,
    } / divisor;
    Ok(Row { name, unit, values })
}

fn report(netdev: &str, run: &Run, rows: &[Row]) -> Value {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let [udp, shm, tcp] = row.values;
            json!({ "name": row.name, "unit": row.unit, "rdma_udp": udp, "rdma_shm": shm, "tcp": tcp })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cpu": cpu(),
        "cpus": cpus(),
        "kernel": kernel(),
        "netdev": netdev,
        "address": run.address,
        "path_mtu": run.mtu,
        "rows": rows,
    })
}

fn show(netdev: &str, run: &Run, rows: &[Row]) {
    let terminal = Terminal::stdout();
    terminal.line(&format!(
        "roxie {} bench: {}, {} CPUs, Linux {}, {netdev}, path MTU {}",
        env!("CARGO_PKG_VERSION"),
        cpu(),
        cpus(),
        kernel(),
        run.mtu
    ));
    terminal.line("");
    terminal.line(&format!("| {:<15} | {:<20} | {:<20} | {:<20} |", "", PATHS[0].0, PATHS[1].0, "TCP"));
    terminal.line("|---|---|---|---|");
    for row in rows {
        let [udp, shm, tcp] = row.values.map(|value| format!("{value:.2} {}", row.unit));
        terminal.line(&format!("| {:<15} | {udp:<20} | {shm:<20} | {tcp:<20} |", row.name));
    }
    terminal.line("");
    terminal.line("RDMA: two processes, content checked. TCP: two threads, content not checked.");
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn kernel() -> String {
    nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_units_of_all_three_columns() {
        let columns = [vec![("SEND 8 B".to_owned(), 4.0)], vec![("SEND 8 B".to_owned(), 2.0)]];
        let tcp = tcp::Figures { bandwidth: 3e9, rate: 2e6, latency_us: 9.0 };
        let row = fill(ROWS[4], &columns, &tcp).unwrap();
        assert_eq!(row.values, [4.0, 2.0, 9.0]);
        let missing = fill(ROWS[0], &columns, &tcp).unwrap_err();
        assert_eq!(missing.what, "WRITE 64 KiB was not measured");
    }
}
