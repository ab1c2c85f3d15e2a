//! `roxie metrics`: exports the counters of all processes to Prometheus, over HTTP or once.

mod client;
mod hosts;
mod listener;
mod request;
mod scraper;
mod server;
mod shares;
mod text;

use clap::Args;
use nix::sys::signal::Signal;

use crate::ending::Ending;
use crate::engines::UsersArgs;
use crate::failure::Outcome;
use crate::terminal;
use crate::top::Processes;
use listener::Address;
use request::Host;

/// Serve the counters of all processes to Prometheus
///
/// Serves the text exposition format at /metrics, for all processes of this user and network namespace that
/// run on roxie. The counters of a reply are at most 0.1 s old. There is no authentication: every client
/// that reaches the address can read them. Web pages of other hosts cannot: the server answers only requests
/// to its own names and addresses. A Unix socket is for this user and root only.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = include_str!("../help/metrics.txt"))]
pub(crate) struct MetricsArgs {
    /// Address and port of the HTTP server, or unix:PATH for a Unix socket with mode 0600
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9791")]
    listen: Address,
    /// Answer requests to this host name as well (may be given several times)
    ///
    /// The server answers requests to its address, to localhost, and to the name of this host, with the
    /// domain that /etc/hosts gives it. If it listens on an address that other hosts reach, it answers
    /// requests to every IP address. With a Unix socket it answers requests to every host.
    #[arg(long, value_name = "NAME", value_parser = host)]
    host: Vec<Host>,
    /// Export series for each queue pair as well, about 35 each
    #[arg(long)]
    queue_pairs: bool,
    #[command(flatten)]
    users: UsersArgs,
    /// Print the counters once
    #[arg(long, conflicts_with_all = ["listen", "host"])]
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
        text::exposition(&engines, processes.hidden(), processes.unresponsive().len(), queue_pairs)
    };
    if args.once {
        terminal::print_lines(&scrape());
        return Ok(());
    }
    // Before any thread starts, so that all inherit the mask. A shell starts background jobs with SIGINT
    // ignored; here SIGINT ends the server all the same.
    let ending = Ending::by(&[Signal::SIGINT, Signal::SIGTERM])?;
    server::serve(&args.listen, &args.host, Box::new(scrape), &ending)
}

fn host(text: &str) -> Result<Host, String> {
    let is_bare =
        text.starts_with('[') == text.ends_with(']') && (text.starts_with('[') || !text.contains(':'));
    let host = Host::parse(text.as_bytes()).filter(|_| is_bare);
    host.ok_or_else(|| "a host name or IP address without a port (IPv6 in brackets)".to_owned())
}

/// Fuzz target: a request that ends is valid or has a status, wherever its bytes are cut.
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub fn check_request(bytes: &[u8]) {
    let whole = request::parse(bytes);
    let ends_at = (0..=bytes.len()).find(|len| request::parse(&bytes[..*len]).is_some());
    assert_eq!(whole.is_some(), ends_at.is_some(), "more bytes take nothing back");
    if let Some(at) = ends_at {
        assert_eq!(request::parse(&bytes[..at]), whole, "bytes behind the request change nothing");
    }
}
