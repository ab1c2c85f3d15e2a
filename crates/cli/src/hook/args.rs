//! The command line of hooks: options of `roxie run`, and `roxie hook`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

/// What sees every packet of the device.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct HookArgs {
    /// Hook on the way in: OBJECT[:PROGRAM], count, impair:loss=1%,... or police:rate=125M,...; several joined by '+'
    ///
    /// An object file that 'clang -target bpf' has made, whose XDP program sees every packet before the transport
    /// does, in a machine of roxie's own: no privileges are needed. Its verdicts are those of XDP. 'count' counts
    /// packets and bytes; 'impair:loss=1%,duplicate=0.1%,delay=2ms,jitter=1ms,ecn=5%,seed=7' is a bad network,
    /// 'impair:loss=100%,opcode=write-last,nth=3' one that loses the third packet of that kind;
    /// 'police:rate=125M,burst=1M' or 'police:pps=10K,burst=100' drops what a source sends beyond that. Also:
    /// environment variable ROXIE_INGRESS.
    #[arg(long, value_name = "HOOK")]
    pub(crate) ingress: Option<String>,
    /// Hook on the way out, as --ingress
    ///
    /// Sees every packet that the transport has built, before it leaves. Also: environment variable ROXIE_EGRESS.
    #[arg(long, value_name = "HOOK")]
    pub(crate) egress: Option<String>,
}

/// Programs in roxie's own receive and transmit path: attach, detach, list, count, redirected frames
///
/// For processes that run; 'roxie run --ingress' and '--egress' are for those that start. Programs see every packet of
/// the process in user space: no privileges are needed, but to be the same user, or root.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  roxie hook list
          Processes with a device, and their hooks
  roxie hook attach 4711 ingress drop.o
          From now on drop.o sees every packet that process 4711 receives
  roxie hook attach 4711 egress impair:loss=1% --replace
          Instead of what is there
  roxie hook stats 4711 --json | jq '.[].hooks[].counters.drop'
          Packets dropped")]
pub(crate) struct HookToolArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: HookCommand,
}

/// Subcommands of `roxie hook`.
#[derive(Debug, Subcommand)]
pub(crate) enum HookCommand {
    Attach(HookAttachArgs),
    Detach(HookDetachArgs),
    List(HookListArgs),
    Stats(HookStatsArgs),
    Frames(HookFramesArgs),
}

/// Where a hook is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum PointArg {
    /// Before the transport
    Ingress,
    /// After the transport has built the packet
    Egress,
}

/// Attach a hook to a running process
///
/// No packet is lost or disturbed by it: each is judged by what was there before or by what is there now. If there is
/// a hook already, it is refused unless --replace is given.
#[derive(Debug, ClapArgs)]
pub(crate) struct HookAttachArgs {
    /// Process id
    pub(crate) pid: u32,
    /// Where
    pub(crate) point: PointArg,
    /// What: OBJECT[:PROGRAM], count, impair:..., police:...; several joined by '+'
    pub(crate) hook: String,
    /// In place of what is there
    #[arg(long)]
    pub(crate) replace: bool,
}

/// Detach a hook from a running process
#[derive(Debug, ClapArgs)]
pub(crate) struct HookDetachArgs {
    /// Process id
    pub(crate) pid: u32,
    /// Where
    pub(crate) point: PointArg,
}

/// List processes with a device, and their hooks
#[derive(Debug, ClapArgs)]
pub(crate) struct HookListArgs {
    /// Process id [default: all of this network namespace that are ours]
    pub(crate) pid: Option<u32>,
    /// JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what the hooks of a process have counted
///
/// Verdicts since the hook was attached, and what its stages count themselves.
#[derive(Debug, ClapArgs)]
pub(crate) struct HookStatsArgs {
    /// Process id
    pub(crate) pid: u32,
    /// JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the frames that hooks of a process redirect to an XSKMAP, or write them to a capture file
///
/// Until Ctrl-C. As with AF_XDP sockets, an entry of such a map is there only while somebody reads: programs then
/// redirect what they would pass or drop otherwise. The last four bytes of frames on the way out, the ICRC, are zeros.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  roxie hook frames 4711 --write - | roxie capture read -
          What the hooks of process 4711 redirect, decoded")]
pub(crate) struct HookFramesArgs {
    /// Process id
    pub(crate) pid: u32,
    /// A capture file (pcap with nanoseconds) instead of lines; - for standard output
    #[arg(long, short, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// End after so many frames
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}
