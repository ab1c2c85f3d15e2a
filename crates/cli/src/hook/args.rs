//! The options of `roxie run` that name hooks, and the command line of `roxie hook`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use roxie_hook::HookPoint;

use crate::bpf_data::args::{MapArgs, RecordsArgs};
use crate::engines::UsersArgs;
use crate::words::{Word, one_of};

/// Hooks that see every packet of the device.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct HookArgs {
    /// Hook on received packets: OBJECT[:PROGRAM], count, sample, impair:..., police:..., joined by '+'
    ///
    /// OBJECT is a file built by 'clang -target bpf'. roxie runs its XDP program in user space, without
    /// privileges, on every packet before the transport handles it. The verdicts are those of XDP.
    ///
    /// 'count' counts packets and bytes. 'sample:every=1,snap=256' copies packets for 'roxie hook samples'.
    /// 'impair:loss=1%,duplicate=0.1%,delay=2ms,jitter=1ms,ecn=5%,seed=7'
    /// imitates a bad network; 'impair:loss=100%,opcode=write-last,nth=3' drops the third packet with that
    /// opcode. 'police:rate=125M,burst=1M' and 'police:pps=10K,burst=100' drop the packets of a source
    /// above that rate.
    ///
    /// Also: environment variable ROXIE_INGRESS of this command.
    #[arg(long, value_name = "HOOK")]
    pub(crate) ingress: Option<String>,
    /// Hook on sent packets; takes the same values as --ingress
    ///
    /// Runs on every packet that the transport has built, before it is sent. Also: environment variable
    /// ROXIE_EGRESS of this command.
    #[arg(long, value_name = "HOOK")]
    pub(crate) egress: Option<String>,
}

/// Programs in roxie's own receive and transmit path: attach, detach, list, count, maps, samples, log
///
/// These commands change running processes; 'roxie run --ingress' and '--egress' start a process with
/// hooks. Hooks see every packet of the process in user space. They need no privileges: the caller must be
/// the user of the process, or root.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/hook.txt"))]
pub(crate) struct HookToolArgs {
    /// The subcommand.
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
    #[command(after_long_help = include_str!("../help/hook-map.txt"))]
    Map(MapArgs<ProcessArgs>),
    Samples(HookSamplesArgs),
    Log(HookLogArgs),
}

/// Positions of hooks.
pub(super) const POINTS: [Word<HookPoint>; 2] = [
    ("ingress", HookPoint::Ingress, "Before the transport"),
    ("egress", HookPoint::Egress, "After the transport has built the packet"),
];

/// A process, and the programs in it.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ProcessArgs {
    /// Process id
    pub(crate) pid: u32,
    /// Only the programs at this point
    #[arg(long, value_name = "POINT", value_parser = one_of(&POINTS))]
    pub(crate) at: Option<HookPoint>,
}

/// Attach a hook to a running process
///
/// No packet is lost by it: every packet is handled by the old hook or by the new one. If the process has a
/// hook there already, the command fails unless --replace is given.
#[derive(Debug, ClapArgs)]
pub(crate) struct HookAttachArgs {
    /// Process id
    pub(crate) pid: u32,
    /// Position of the hook
    #[arg(value_parser = one_of(&POINTS))]
    pub(crate) point: HookPoint,
    /// OBJECT[:PROGRAM], count, sample, impair:... or police:...; several joined by '+'
    pub(crate) hook: String,
    /// Replace the hook that is attached, if there is one
    #[arg(long)]
    pub(crate) replace: bool,
}

/// Detach a hook from a running process
#[derive(Debug, ClapArgs)]
pub(crate) struct HookDetachArgs {
    /// Process id
    pub(crate) pid: u32,
    /// Position of the hook
    #[arg(value_parser = one_of(&POINTS))]
    pub(crate) point: HookPoint,
}

/// List processes with a device, and their hooks
#[derive(Debug, ClapArgs)]
pub(crate) struct HookListArgs {
    /// Process id [default: all processes of this user and network namespace]
    pub(crate) pid: Option<u32>,
    #[command(flatten)]
    pub(crate) users: UsersArgs,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the counters of the hooks of a process
///
/// Shows the verdicts since the hook was attached, and the counters of its stages.
#[derive(Debug, ClapArgs)]
pub(crate) struct HookStatsArgs {
    /// Process id
    pub(crate) pid: u32,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the frames that hooks of a process redirect to an XSKMAP, or write them to a capture file
///
/// Runs until Ctrl-C. The map has an entry only while this command reads, as with AF_XDP sockets; without
/// one, the redirect action returns what the program names instead (pass or drop). The last four bytes of
/// sent frames, the ICRC, are zeros.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/hook-frames.txt"))]
pub(crate) struct HookFramesArgs {
    /// Process id
    pub(crate) pid: u32,
    /// Write a capture file (pcap, nanoseconds) instead of lines; - for standard output
    #[arg(long, short, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// End after N frames
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

/// Show what programs of a process send to user space: samples, ring buffers, perf events; live
///
/// Runs until Ctrl-C or the end of the process. Each record goes to one reader. Samples of 'sample' are
/// shown as packets with opcode and payload. Records of other programs are shown by the structure that
/// --type names, or that has the name of the map; otherwise as bytes. Needs no root: the caller must be the
/// user of the process.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/hook-samples.txt"))]
pub(crate) struct HookSamplesArgs {
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
    /// Attach this hook, to both directions or --at, until this command ends; show its printed lines, too
    #[arg(long, value_name = "HOOK")]
    pub(crate) attach: Option<String>,
    #[command(flatten)]
    pub(crate) records: RecordsArgs,
}

/// Show the lines that programs of a process print (bpf_printk), live
///
/// Runs until Ctrl-C or the end of the process. The process keeps lines only while this command runs, at most
/// 1 MiB. Needs no root: the caller must be the user of the process.
#[derive(Debug, ClapArgs)]
pub(crate) struct HookLogArgs {
    /// Process id
    pub(crate) pid: u32,
    /// Print JSON objects instead of lines
    #[arg(long)]
    pub(crate) json: bool,
    /// End after N lines
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}
