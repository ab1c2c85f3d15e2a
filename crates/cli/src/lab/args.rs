//! The command line of `roxie lab`.

use std::ffi::OsString;

use clap::{Args as ClapArgs, Subcommand};

use super::spec::{self, Delay, Loss};

/// A bench of several hosts on this machine
///
/// Hosts are network namespaces, called h1, h2, ..., each with an interface eth0 and the address 10.77.0.1, .2, ...; they
/// are on one link. Nothing outside sees them. As root, or without any privilege in a user namespace of their own,
/// which is what continuous integration usually has.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  roxie lab up
          Two hosts joined by a veth pair
  roxie lab exec h1 --run -- rping -s -a h1 &
  roxie lab exec h2 --run -- rping -c -a h1 -C 10 -v
          Two programs that see a device on different hosts
  roxie lab up lossy --hosts 3 --loss 0.1% --mtu 9000
          Three hosts behind a bridge that loses one packet in a thousand
  roxie lab exec --lab lossy h2 -- ping -c 3 h3
          Any program, in the network of a host
  roxie lab down --all
          Everything is as it was")]
pub(crate) struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

/// Subcommands of `roxie lab`.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    Up(UpArgs),
    Down(DownArgs),
    Exec(ExecArgs),
    List(ListArgs),
}

/// Make a lab
///
/// Two hosts without loss or delay are joined by one veth pair; otherwise every host has a veth pair to a bridge, in a
/// namespace of its own. A process in the background holds everything; when it ends, by 'roxie lab down' or because it
/// was killed, the kernel removes it all. If the lab is there already, as it is wanted, nothing happens.
///
/// Loss is every packet's own, with the kernel's random numbers: by an XDP program at the bridge's end of each pair, so
/// that the hosts' interfaces stay free for programs under test; or by netem where programs may not be loaded (in user
/// namespaces). A delay needs netem (kernel option CONFIG_NET_SCH_NETEM).
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Exit status:
  0 if the lab is up; 1 with the reason if not, and then nothing is left of it.

Examples:
  roxie lab up --hosts 4 --queues 2
          Four hosts whose interfaces have two receive queues
  roxie lab up slow --delay 1ms --loss 1%
          Two hosts, 2 ms there and back, one packet in a hundred lost on the way")]
pub(crate) struct UpArgs {
    /// Name of the lab: 1 to 32 letters, digits and '-'
    #[arg(default_value = "lab", value_parser = spec::lab_name)]
    pub(crate) name: String,
    /// Hosts, 2 to 200
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=200))]
    pub(crate) hosts: u8,
    /// MTU of all interfaces, in bytes
    #[arg(long, default_value_t = 1500, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(68..=65535))]
    pub(crate) mtu: u32,
    /// Receive and transmit queues of each interface
    #[arg(long, default_value_t = 1, value_name = "Q", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) queues: u32,
    /// Share of packets lost on the way from each host: '1%', '0.01%' or '1/1000'
    #[arg(long, default_value = "0%", value_name = "SHARE")]
    pub(crate) loss: Loss,
    /// Time each packet takes longer: '1ms', '250us', at most 10s
    #[arg(long, default_value = "0us", value_name = "TIME")]
    pub(crate) delay: Delay,
    /// IPv6 addresses as well: fd77::1, fd77::2, ...; needs an MTU of 1280 or more
    #[arg(long)]
    pub(crate) ipv6: bool,
}

/// Remove a lab and everything in it
///
/// Programs that still run on its hosts are asked to end (SIGTERM), and killed 2 seconds later. A lab that is not there is
/// no error.
#[derive(Debug, ClapArgs)]
pub(crate) struct DownArgs {
    /// Name of the lab
    #[arg(default_value = "lab", value_parser = spec::lab_name, conflicts_with = "all")]
    pub(crate) name: String,
    /// All labs of this user
    #[arg(long)]
    pub(crate) all: bool,
}

/// Run a program on a host
///
/// As 'ip netns exec' does: the command's network is the host's, /sys shows the host's interfaces, and h1, h2, ... are in
/// /etc/hosts; files, process ids and terminal are the usual ones. roxie replaces itself by the command, so its exit
/// status, signals and standard streams are its own. In a lab made without privileges the command is root of the lab's user
/// namespace, and is you towards everything outside.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Exit status:
  The command's own; 127 if it was not found, 126 if it could not be executed, 1 if there is no
  such lab or host.

Examples:
  roxie lab exec h1 -- ip address
          The host's interfaces
  roxie lab exec h1 --run -- ib_write_bw
          Short for: roxie lab exec h1 -- roxie run --netdev eth0 -- ib_write_bw
  roxie lab exec h2 -- bash
          A shell on the host")]
pub(crate) struct ExecArgs {
    /// Name of the lab
    #[arg(long, default_value = "lab", value_name = "NAME", value_parser = spec::lab_name)]
    pub(crate) lab: String,
    /// The command sees a device on eth0, as with 'roxie run'
    #[arg(long)]
    pub(crate) run: bool,
    /// The host: h1, h2, ...
    pub(crate) host: String,
    /// Program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Show the labs of this user
#[derive(Debug, ClapArgs)]
pub(crate) struct ListArgs {
    /// One JSON array instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the holder of a lab must know.
#[derive(Debug, ClapArgs)]
pub(crate) struct HoldArgs {
    /// The lab, as JSON.
    pub(crate) spec: String,
}
