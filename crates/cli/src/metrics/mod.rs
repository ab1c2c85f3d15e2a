//! `roxie metrics`: counters of all processes for Prometheus, over HTTP or once.

mod server;
mod text;

use std::net::SocketAddr;

use clap::Args;
use nix::sys::signal::Signal;

use crate::ending::Ending;
use crate::failure::Outcome;
use crate::terminal;
use crate::top::Processes;

/// Serve the counters of all processes to Prometheus
///
/// In its text exposition format, at /metrics. Of all processes of this user and network namespace that run on roxie (root sees
/// everybody's), as they are when they are asked for. There is no authentication: whoever reaches the address reads them.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "\
Examples:
  roxie metrics
          On 127.0.0.1, port 9791
  roxie metrics --listen [::]:9791 --queue-pairs
          For everybody, with series for each queue pair
  roxie metrics --once > /var/lib/node_exporter/roxie.prom
          For a collector of text files

Exit status:
  0 if a signal (Ctrl-C, SIGTERM) has ended it; 1 if it could not listen.")]
pub(crate) struct MetricsArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9791")]
    listen: SocketAddr,
    /// Series for each queue pair as well: some 35 of each
    #[arg(long)]
    queue_pairs: bool,
    /// Print them and end
    #[arg(long, conflicts_with = "listen")]
    once: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// If the address cannot be listened on.
pub(crate) fn run(args: &MetricsArgs) -> Outcome {
    let mut processes = Processes::new(&[])?;
    let queue_pairs = args.queue_pairs;
    let mut scrape = move || text::exposition(&processes.look(), queue_pairs);
    if args.once {
        terminal::print(scrape().trim_end());
        return Ok(());
    }
    // In time for all threads. A shell starts what runs in its background with SIGINT ignored: who sends it means it all the same.
    let ending = Ending::by(&[Signal::SIGINT, Signal::SIGTERM])?;
    server::serve(args.listen, Box::new(scrape), &ending)
}
