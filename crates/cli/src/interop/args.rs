//! The command line of `roxie interop`.

use std::net::{IpAddr, ToSocketAddrs};

use clap::Args as ClapArgs;
use clap::builder::PossibleValuesParser;
use roxie::port::PortChoice;

/// Try a peer: unmodified programs, in both directions
///
/// Runs pingpongs, rping, ucmatose, udaddy, rdma_server and perftest between this host, where they run on roxie, and a peer, where they
/// run on whatever RoCEv2 device it has: Soft-RoCE, a NIC, or roxie. Each once with the peer as server and once as client. Both
/// ends need the programs (Debian: ibverbs-utils, rdmacm-utils, perftest); those that are not there are skipped, and named.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Exit status:
  0 if nothing failed; 1 if something did, or the peer cannot be used; 2 for a wrong
  command line; 130 if a signal stopped it, which ends what runs at both ends too.

Examples:
  roxie interop 10.0.0.2 --via 'ssh root@10.0.0.2'
          All programs against the device of another host
  roxie interop 10.0.0.2 --via 'ssh root@10.0.0.2' --only rping --json
          One program, for scripts
  roxie interop 10.0.0.2 --via 'ssh h2 sudo roxie run --port xsk --'
          roxie at both ends, there over AF_XDP
  roxie interop fd00::2 --via 'ssh h2' --exchange 10.0.0.2
          Over IPv6; perftest and the pingpongs exchange their addresses over IPv4")]
pub struct InteropArgs {
    /// Address of the peer's device, and where it takes TCP connections
    #[arg(required_unless_present = "list", value_parser = address)]
    pub(super) peer: Option<IpAddr>,
    /// Command in front of every command on the peer, words separated by spaces
    #[arg(long, value_name = "COMMAND", required_unless_present = "list")]
    pub(super) via: Option<String>,
    /// Device of the peer [default: the one with that address]
    #[arg(long, value_name = "NAME")]
    pub(super) peer_device: Option<String>,
    /// Where the peer takes TCP connections, if not at its device's address
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(super) exchange: Option<IpAddr>,
    /// The same of this host [default: this host's address towards --exchange]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(super) local_exchange: Option<IpAddr>,
    /// Network interface under our device [default: the one that leads to the peer]
    #[arg(long, short = 'i', value_name = "IF")]
    pub(super) netdev: Option<String>,
    /// How our packets get to the network, as for 'roxie run' [default: udp]
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(PortChoice::KINDS))]
    pub(super) port: Option<String>,
    /// Only programs whose command line has this in it
    #[arg(long, value_name = "TEXT")]
    pub(super) only: Option<String>,
    /// Seconds that one program may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) timeout: u64,
    /// Print the programs, and run nothing
    #[arg(long)]
    pub(super) list: bool,
    /// One JSON object a line for each program and direction
    #[arg(long)]
    pub(super) json: bool,
}

/// An address, or the first that a name has.
fn address(text: &str) -> Result<IpAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut found = (text, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().map(|address| address.ip()).ok_or_else(|| "the name has no address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_taken() {
        assert_eq!(address("fd00::2"), Ok("fd00::2".parse().unwrap()));
        assert!(address("localhost").is_ok_and(|address| address.is_loopback()));
        assert!(address("no.such.name.invalid").is_err());
    }
}
