//! `roxie top`: queue pairs by what they do, live or once.
//!
//! `source` looks at all queue pairs once in a while, `table` makes rates of what has changed, `once` prints it, `app` and what
//! is below it show it until somebody has seen enough.

mod app;
mod detail;
mod draw;
mod once;
mod process;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod units;
mod wire;

use std::io::IsTerminal;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::failure::{Failure, Outcome};
pub(crate) use process::{Engine, Processes};
use source::Source;
use table::Table;

/// Show queue pairs and what they do, live
///
/// Of all processes of this user and network namespace that run on roxie (root sees everybody's): traffic, round-trip times, what was
/// sent again, NAKs, congestion. Enter shows one queue pair with its attributes, counters and packets; ? shows the keys.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "\
Messages are work requests completed, and messages received that made a completion; WRITEs and READs of a peer make none here.

Examples:
  roxie top
          Everything of this user
  roxie top -p 4711 --sort retransmissions
          One process, what loses most first
  roxie top --once --json | jq '.queue_pairs[] | select(.rates.retransmitted > 0)'
          For scripts
  roxie top -i eth0
          Connections that pass an interface, anybody's (needs root)")]
pub(crate) struct TopArgs {
    /// Only this process (any of them, if given several times)
    #[arg(short = 'p', long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// Connections that are seen on this network interface instead, whoever has them (needs root)
    #[arg(short = 'i', long, value_name = "IF", conflicts_with = "pid")]
    pub(crate) interface: Option<String>,
    /// Time between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
    /// What comes first
    #[arg(long, value_enum, default_value_t, value_name = "KEY")]
    pub(crate) sort: Sort,
    /// Only queue pairs that have this in their process, number, state, service or addresses
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
    /// Print one table and end; rates are those of one interval
    #[arg(long)]
    pub(crate) once: bool,
    /// One JSON object instead of a table
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
}

/// What comes first.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum Sort {
    /// Bytes, both ways
    #[default]
    Traffic,
    /// Bytes sent
    Sent,
    /// Bytes received
    Received,
    /// Messages, both ways
    Messages,
    /// Round-trip time
    RoundTrip,
    /// Packets sent again
    Retransmissions,
    /// Process id and number
    Process,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds: 2 or 0.5".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("between 0.1 and 3600 seconds".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Runs the subcommand.
///
/// # Errors
/// What the user must know: no such process, an interface that cannot be listened to.
pub(crate) fn run(args: &TopArgs) -> Outcome {
    let is_seen = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !args.once && !is_seen {
        return Err(Failure::new("there is no terminal").hint("--once prints one table").code(2));
    }
    let mut source = Source::open(args)?;
    let mut table = Table::default();
    table.update(&mut source)?;
    if !args.once {
        return app::run(args, source, table);
    }
    std::thread::sleep(args.interval);
    table.update(&mut source)?;
    once::print(&table, args);
    Ok(())
}
