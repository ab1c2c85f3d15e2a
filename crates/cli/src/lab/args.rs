//! The command line of `roxie lab`.

use std::ffi::OsString;

use clap::{Args as ClapArgs, Subcommand};

use super::spec::{self, Delay, IPV6_MTU_MIN, Loss, Spec};
use crate::failure::{Failure, Outcome};

/// Several hosts on this machine, for tests
///
/// The hosts are network namespaces h1, h2, ... on one link, each with an interface eth0 and the address
/// 10.77.0.1, 10.77.0.2, ... The lab is isolated from all other networks. Without root it is made in a user
/// namespace, which needs no privileges and works in most CI systems.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/lab.txt"))]
pub(crate) struct LabArgs {
    /// The subcommand.
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

/// Create a lab
///
/// Two hosts without loss or delay are joined by one veth pair. Otherwise every host has a veth pair to a
/// bridge in another namespace. A background process holds the namespaces. When it ends, by 'roxie lab
/// down' or because it was killed, the kernel removes the whole lab. If a lab with this name and these
/// options exists, the command does nothing.
///
/// Packets are dropped independently, by the kernel's random numbers. An XDP program at the bridge's end of
/// each pair drops them, so the hosts' interfaces stay free for programs under test. Where XDP programs
/// cannot be loaded (in user namespaces), netem drops them. A delay needs netem (kernel option
/// CONFIG_NET_SCH_NETEM).
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/lab-up.txt"))]
pub(crate) struct UpArgs {
    /// Name of the lab: 1 to 32 letters, digits and '-'
    #[arg(default_value = "lab", value_parser = spec::lab_name)]
    pub(crate) name: String,
    /// Number of hosts, 2 to 200
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=200))]
    pub(crate) hosts: u8,
    /// MTU of all interfaces, in bytes
    #[arg(long, default_value_t = 1500, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(68..=65535))]
    pub(crate) mtu: u32,
    /// Share of packets dropped after each host: '1%', '0.01%' or '1/1000'
    #[arg(long, default_value = "0%", value_name = "SHARE")]
    pub(crate) loss: Loss,
    /// Delay of each packet: '1ms', '250us', at most 10s
    #[arg(long, default_value = "0us", value_name = "TIME")]
    pub(crate) delay: Delay,
    /// Add IPv6 addresses: fd77::1, fd77::2, ...; needs an MTU of 1280 or more
    #[arg(long)]
    pub(crate) ipv6: bool,
}

impl UpArgs {
    /// The lab that they describe.
    pub(super) fn spec(&self) -> Outcome<Spec> {
        let Self { ref name, hosts, mtu, loss, delay, ipv6 } = *self;
        if ipv6 && mtu < IPV6_MTU_MIN {
            return Err(Failure::new(format!("IPv6 needs an MTU of {IPV6_MTU_MIN} or more")).code(2));
        }
        Ok(Spec { name: name.clone(), hosts, mtu, loss, delay, ipv6 })
    }
}

/// Remove a lab and everything in it
///
/// Programs that run on its hosts get SIGTERM, and SIGKILL 2 seconds later. A lab that does not exist is no
/// error.
#[derive(Debug, ClapArgs)]
pub(crate) struct DownArgs {
    /// Name of the lab
    #[arg(default_value = "lab", value_parser = spec::lab_name, conflicts_with = "all")]
    pub(crate) name: String,
    /// Remove all labs of this user
    #[arg(long)]
    pub(crate) all: bool,
}

/// Run a program on a host
///
/// Works like 'ip netns exec': the command uses the network of the host, /sys shows the host's interfaces,
/// and /etc/hosts names h1, h2, ... Files, process ids and terminal are those of this machine. roxie
/// replaces itself with the command (exec), so exit status, signals and standard streams are those of the
/// command. In a lab made without privileges, the command is root in the user namespace of the lab, and has
/// the caller's privileges outside it.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/lab-exec.txt"))]
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
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Show the labs of this user
#[derive(Debug, ClapArgs)]
pub(crate) struct ListArgs {
    /// Print one JSON array instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of the process that holds a lab.
#[derive(Debug, ClapArgs)]
pub(crate) struct HoldArgs {
    /// The lab, as JSON.
    pub(crate) spec: String,
}
