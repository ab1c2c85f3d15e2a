//! `roxie top`: shows queue pairs and their traffic, live or once.
//!
//! `source` reads the counters of all queue pairs at intervals, `table` computes rates, `once` prints them,
//! `app` shows them until the user quits.

mod app;
mod detail;
mod draw;
mod item;
mod once;
mod process;
mod screen;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod units;
mod wire;

use std::io::IsTerminal;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::capture::input::seconds;
use crate::engines::UsersArgs;
use crate::failure::{Failure, Outcome};
use crate::terminal;
use item::Metric;
pub(crate) use process::{Engine, Processes};
use source::Source;
use table::Table;

/// Show queue pairs and their traffic, live
///
/// Shows all processes of this user and network namespace that run on roxie: traffic, round-trip times,
/// retransmissions, NAKs, congestion. Enter shows one queue pair with its attributes,
/// counters and packets; ? shows the keys.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = include_str!("../help/top.txt"))]
pub(crate) struct TopArgs {
    /// Only this process (may be given several times)
    #[arg(short = 'p', long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    #[command(flatten)]
    pub(crate) users: UsersArgs,
    /// Show connections in the traffic of this network interface instead, of all programs (needs root)
    #[arg(short = 'i', long, value_name = "IF", conflicts_with = "pid")]
    pub(crate) interface: Option<String>,
    /// Time between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Sort by this value, largest first
    #[arg(long, value_enum, default_value_t, value_name = "KEY")]
    pub(crate) sort: Sort,
    /// Only queue pairs with this text in their process, device, number, state, service or addresses
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
    /// Print one table, with the rates of one interval
    #[arg(long)]
    pub(crate) once: bool,
    /// One JSON object instead of a table
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
}

/// The value to sort by.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum Sort {
    /// Bytes sent and received
    #[default]
    Traffic,
    /// Bytes sent
    Sent,
    /// Bytes received
    Received,
    /// Messages sent and received
    Messages,
    /// Round-trip time
    RoundTrip,
    /// Packets retransmitted
    Retransmissions,
    /// Process id, device and queue pair number
    Process,
}

/// The values to sort by, in order: the key of each, its name, and the rates that it adds up.
const SORTS: [(Sort, char, &str, &[Metric]); 7] = [
    (Sort::Traffic, 'b', "traffic", &[Metric::TxBytes, Metric::RxBytes]),
    (Sort::Sent, 't', "bytes sent", &[Metric::TxBytes]),
    (Sort::Received, 'r', "bytes received", &[Metric::RxBytes]),
    (Sort::Messages, 'm', "messages", &[Metric::TxMessages, Metric::RxMessages]),
    (Sort::RoundTrip, 'd', "round trip", &[]),
    (Sort::Retransmissions, 'l', "packets retransmitted", &[Metric::Retransmitted]),
    (Sort::Process, 'p', "process", &[]),
];

fn interval(text: &str) -> Result<Duration, String> {
    let is_fit = |time: &Duration| (0.1..=3600.0).contains(&time.as_secs_f64());
    Some(seconds(text)?).filter(is_fit).ok_or_else(|| "between 0.1 and 3600 seconds".to_owned())
}

/// Runs the subcommand.
///
/// # Errors
/// If a named process does not exist, the interface cannot be captured, or there is no terminal.
pub(crate) fn run(args: &TopArgs) -> Outcome {
    let has_terminal = terminal::is_stdout() && std::io::stdin().is_terminal();
    if !args.once && !has_terminal {
        return Err(Failure::new("standard input or output is not a terminal")
            .hint("--once prints one table")
            .code(2));
    }
    let mut source = Source::open(args)?;
    let mut table = Table::default();
    table.update(&mut source)?;
    if !args.once {
        return screen::run(args, source, table);
    }
    std::thread::sleep(args.interval);
    table.update(&mut source)?;
    once::print(&table, args);
    Ok(())
}
