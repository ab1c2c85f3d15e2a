//! `roxie metrics`: exports the counters of all processes to Prometheus, over HTTP or once.

mod server;
mod text;

use std::net::SocketAddr;

use clap::Args;
use nix::sys::signal::Signal;

use crate::ending::Ending;
use crate::engines::UsersArgs;
use crate::failure::Outcome;
use crate::terminal;
use crate::top::Processes;

/// Serve the counters of all processes to Prometheus
///
/// Serves the text exposition format at /metrics, for all processes of this user and network namespace that
/// run on roxie. Each scrape reads the present counters. There is no authentication:
/// every client that reaches the address can read them.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "\
Examples:
  roxie metrics
          Serve on 127.0.0.1, port 9791
  roxie metrics --listen [::]:9791 --queue-pairs
          Serve on all addresses, with series for each queue pair
  roxie metrics --once > /var/lib/node_exporter/roxie.prom
          Write a file for a textfile collector

Exit status:
  0 if a signal (Ctrl-C, SIGTERM) ended the server; 1 if the address cannot be used.")]
pub(crate) struct MetricsArgs {
    /// Address and port of the HTTP server
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9791")]
    listen: SocketAddr,
    /// Export series for each queue pair as well, about 35 each
    #[arg(long)]
    queue_pairs: bool,
    #[command(flatten)]
    users: UsersArgs,
    /// Print the counters once
    #[arg(long, conflicts_with = "listen")]
    once: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// If the address cannot be used.
pub(crate) fn run(args: &MetricsArgs) -> Outcome {
    let mut processes = Processes::new(&[], args.users.users())?;
    let queue_pairs = args.queue_pairs;
    let mut scrape = move || {
        let engines = processes.look();
        text::exposition(&engines, processes.hidden(), queue_pairs)
    };
    if args.once {
        terminal::print(scrape().trim_end());
        return Ok(());
    }
    // Before any thread starts, so that all inherit the mask. A shell starts background jobs with SIGINT
    // ignored; here SIGINT ends the server all the same.
    let ending = Ending::by(&[Signal::SIGINT, Signal::SIGTERM])?;
    server::serve(args.listen, Box::new(scrape), &ending)
}
