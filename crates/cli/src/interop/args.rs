//! The command line of `roxie interop`.

use std::net::{IpAddr, ToSocketAddrs};

use clap::Args as ClapArgs;
use clap::builder::PossibleValuesParser;
use roxie::port::PortChoice;

/// Test a peer with unmodified programs, in both directions
///
/// Runs the ibv_*_pingpong programs, rping, ucmatose, udaddy, rdma_server and perftest between this host
/// and a peer. On this host they run on roxie; on the peer they run on its RoCEv2 device: Soft-RoCE, a NIC,
/// or roxie. Each program runs once with the peer as server and once as client. Both hosts need the
/// programs (Debian: ibverbs-utils, rdmacm-utils, perftest); those that are missing are skipped and named.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/interop.txt"))]
pub struct InteropArgs {
    /// Address of the peer's device; TCP connections go there too, unless --exchange is given
    #[arg(required_unless_present = "list", value_parser = address)]
    pub(super) peer: Option<IpAddr>,
    /// Command that runs a command line on the peer, such as 'ssh root@10.0.0.2'
    #[arg(long, value_name = "COMMAND", required_unless_present = "list")]
    pub(super) via: Option<String>,
    /// Address for TCP connections to the peer [default: PEER]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(super) exchange: Option<IpAddr>,
    /// Address for TCP connections to this host [default: this host's address towards --exchange]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(super) local_exchange: Option<IpAddr>,
    /// Network interface of the device here [default: the one with the route to the peer]
    #[arg(long, short = 'i', value_name = "IF")]
    pub(super) netdev: Option<String>,
    /// Send and receive packets by these sockets, as for 'roxie run' [default: udp]
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(PortChoice::KINDS))]
    pub(super) port: Option<String>,
    /// Run only programs with TEXT in their command line
    #[arg(long, value_name = "TEXT")]
    pub(super) only: Option<String>,
    /// Time limit for each program, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) timeout: u64,
    /// Print the command lines of the programs, without running them
    #[arg(long)]
    pub(super) list: bool,
    /// Print one JSON object per line for each program and direction
    #[arg(long)]
    pub(super) json: bool,
}

/// Parses an address, or resolves a name to its first address.
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
