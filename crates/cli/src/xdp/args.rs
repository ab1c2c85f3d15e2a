//! The command line of `roxie xdp`.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs, Subcommand};
use roxie::xdp::Mode;
use sys::XdpMode;

use super::map::NetdevArgs;
use crate::bpf_data::args::{MapArgs, RecordsArgs};
use crate::words::{Word, one_of};

/// XDP programs on network interfaces: attach, detach, list, count, fill maps, test, send
///
/// Programs come from object files built by clang, or from recipes, which need no C compiler. They are
/// ordinary XDP programs: ip(8), bpftool and xdp-loader see them, and roxie sees the programs that those
/// tools attached.
#[derive(Debug, ClapArgs)]
pub(crate) struct XdpArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: XdpCommand,
}

/// Subcommands of `roxie xdp`.
#[derive(Debug, Subcommand)]
pub(crate) enum XdpCommand {
    Attach(AttachArgs),
    Detach(DetachArgs),
    List(ListArgs),
    Stats(StatsArgs),
    #[command(after_long_help = include_str!("../help/xdp-map.txt"))]
    Map(MapArgs<NetdevArgs>),
    Samples(SamplesArgs),
    Log(LogArgs),
    Object(ObjectArgs),
    Diff(DiffArgs),
    Bench(BenchArgs),
    Test(TestArgs),
    Send(SendArgs),
}

/// Where the kernel runs a program.
const MODES: [Word<Mode>; 4] = [
    ("auto", Mode::Auto, "In the driver if it supports XDP, else in the network stack"),
    ("native", Mode::Only(XdpMode::Native), "In the driver ('xdpdrv')"),
    (
        "generic",
        Mode::Only(XdpMode::Generic),
        "In the network stack, on any interface ('xdpgeneric', SKB mode)",
    ),
    ("offload", Mode::Only(XdpMode::Offload), "On the NIC ('xdpoffload')"),
];

/// Attach an XDP program to an interface
///
/// The program stays attached until it is detached, as with 'ip link set dev IF xdp'; with --foreground
/// until this command ends, for whatever reason. If the interface has a program already, the command fails
/// unless --replace is given. Replacing is atomic: every packet sees the old or the new program. If the
/// kernel rejects the program, the message of its verifier is shown.
///
/// Needs root, or CAP_BPF and CAP_NET_ADMIN.
#[derive(Debug, ClapArgs)]
#[command(override_usage = "roxie xdp attach [OPTIONS] <IF> <OBJ|--recipe RECIPE>")]
#[command(after_long_help = include_str!("../help/xdp-attach.txt"))]
pub(crate) struct AttachArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Where the program runs
    #[arg(long, short, value_parser = one_of(&MODES), default_value = "auto", value_name = "MODE")]
    pub(crate) mode: Mode,
    /// Replace the program that is attached, if there is one
    #[arg(long)]
    pub(crate) replace: bool,
    /// Pin the maps under their names in this directory of a bpf file system (/sys/fs/bpf/...)
    ///
    /// Other programs can then open them, for example to put AF_XDP sockets into 'xsks'. The directory is
    /// created if it does not exist; remove it to free the maps.
    #[arg(long, value_name = "DIR")]
    pub(crate) pin: Option<PathBuf>,
    /// Keep running, and detach the program at the end, also after Ctrl-C and kill -9 (a bpf_link)
    #[arg(long, conflicts_with = "replace")]
    pub(crate) foreground: bool,
    /// Print the instructions instead of loading them; needs no privileges
    #[arg(long)]
    pub(crate) dump: bool,
}

/// The program to load.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("program").required(true).args(["object", "recipe"]))]
pub(crate) struct SourceArgs {
    /// Object file, built by 'clang -O2 -g -target bpf -c'
    #[arg(value_name = "OBJ")]
    pub(crate) object: Option<PathBuf>,
    /// Build the program from a recipe; see below
    #[arg(long, short, value_name = "RECIPE")]
    pub(crate) recipe: Option<String>,
    /// Section of the object file with the program, of any name
    #[arg(long, short, value_name = "NAME", conflicts_with = "recipe")]
    pub(crate) section: Option<String>,
    /// Function of the object file, in a section of any name
    #[arg(long, short, value_name = "NAME", conflicts_with = "recipe")]
    pub(crate) prog: Option<String>,
}

/// Detach the XDP program from an interface
///
/// Works for every program, also if another tool attached it. A program that a bpf_link holds may be in use
/// by a process or a pin; use --force to detach it.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/xdp-detach.txt"))]
pub(crate) struct DetachArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
    /// Detach only a program in this mode [default: any mode]
    #[arg(long, short, value_parser = one_of(&MODES), default_value = "auto", value_name = "MODE",
          hide_default_value = true)]
    pub(crate) mode: Mode,
    /// Detach also a program that a bpf_link holds
    #[arg(long)]
    pub(crate) force: bool,
}

/// List interfaces, what their drivers can do with XDP, and the programs on them
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/xdp-list.txt"))]
pub(crate) struct ListArgs {
    /// Print one JSON array instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what the XDP program of an interface did: packets and bytes by verdict, driver counters
///
/// Programs made with --recipe count their verdicts. For other programs, only the counters of the interface
/// and its driver are available, and, while the sysctl kernel.bpf_stats_enabled is 1, how often the program
/// ran and for how long.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/xdp-stats.txt"))]
pub(crate) struct StatsArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
    /// Print JSON objects instead of lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Repeat every SECONDS (default 1) and print rates, until Ctrl-C
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) watch: Option<u32>,
}

/// Run a program on packets in the kernel and in roxie's machine, and compare verdicts, bytes and maps
///
/// Loads the program into the kernel without attaching it (BPF_PROG_TEST_RUN), and into the machine that
/// runs hooks. Each packet goes through both, without receive hints; maps begin empty. After a difference
/// in a map the comparison ends, because later ones follow from it. Needs root.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("packets").required(true).args(["capture", "interface"]))]
#[command(after_long_help = include_str!("../help/xdp-diff.txt"))]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Packets of this capture file; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// RoCE packets that this interface sends and receives
    #[arg(long, short, value_name = "IF")]
    pub(crate) interface: Option<String>,
    /// End after N packets
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print one JSON object at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure programs in the kernel and in roxie's machine: nanoseconds per packet
///
/// Runs each program of the object file, or the one that --prog names, many times on the same packet. The
/// column REPLAYED is the machine with the results of equal earlier packets, as hooks run programs. A program
/// that moves the start or the end of the packet does so in every run. Needs root.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/xdp-bench.txt"))]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Packets of this capture file, at most 16 [default: a RoCE packet]
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// Runs for each packet
    #[arg(long, default_value_t = 100_000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) repeat: u32,
    /// Print one JSON object at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Test the XDP features of a network driver, account for every packet, and measure rates
///
/// Tests each verdict (PASS, DROP, TX, REDIRECT to a device, to a CPU and to an AF_XDP socket),
/// ndo_xdp_xmit, AF_XDP sockets in both directions, and multi-buffer packets. Each test compares the
/// packets sent with the packets received and those counted as dropped. A packet that is in neither count
/// fails the test. LOSSY: all are counted, but more were sent than the receiver takes; the share and the
/// place are shown.
///
/// Without --netdev the tests run on veth pairs in a network namespace, which the kernel removes when the
/// command ends. With --netdev each test attaches its program to that interface and detaches it afterwards;
/// it never replaces another program. The programs handle the test packets (UDP port 9, discard) and pass
/// all others, so connections over the interface stay up. The counts are exact only if the interface
/// carries no other traffic.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/xdp-test.txt"))]
pub(crate) struct TestArgs {
    /// Network interface under test [default: a veth pair in a new namespace]
    #[arg(long, short = 'i', value_name = "IF")]
    pub(crate) netdev: Option<String>,
    /// Interface of this host at the other end of the cable, which sends and counts
    #[arg(long, value_name = "IF", requires = "netdev")]
    pub(crate) peer: Option<String>,
    /// Run only tests with TEXT in their name (case is ignored)
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// Packets of a test; a tenth of it for multi-buffer packets
    #[arg(long, short, default_value_t = 1_500_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: u64,
    /// Where programs run
    #[arg(long, short, value_parser = one_of(&MODES), default_value = "auto", value_name = "MODE")]
    pub(crate) mode: Mode,
    /// Print one JSON object at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Send test packets from an interface at the highest rate that it takes
///
/// Sends the packets of 'roxie xdp test': 60 bytes of Ethernet, IPv4 and UDP to port 9 (discard), from
/// 198.18.0.2 to 198.18.0.1 (RFC 2544). The kernel generates them if the driver supports redirected
/// packets; otherwise an AF_XDP socket sends them.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/xdp-send.txt"))]
pub(crate) struct SendArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
    /// Number of packets
    #[arg(long, short, default_value_t = 1_500_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: u64,
    /// Ethernet address of the receiver [default: that of the interface, to which no switch delivers]
    #[arg(long, value_name = "MAC")]
    pub(crate) to: Option<String>,
    /// Send by an AF_XDP socket, also if the kernel could generate the packets
    #[arg(long)]
    pub(crate) socket: bool,
}

/// Show what the program on an interface sends to user space: samples, ring buffers, perf events; live
///
/// Runs until Ctrl-C. A record is delivered to one reader only, so run one reader per interface. Samples of
/// the recipe 'sample' are shown as packets. Records of other programs are shown by the structure that
/// --type names, or that has the name of the map; otherwise as bytes.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/xdp-samples.txt"))]
pub(crate) struct SamplesArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
    #[command(flatten)]
    pub(crate) records: RecordsArgs,
}

/// Show the lines that programs in the kernel print (bpf_printk), live
///
/// Shows the lines of all programs of the machine: the kernel has one log, and does not say which program
/// printed a line. Each line goes to one reader. Needs root, and a mounted tracefs.
#[derive(Debug, ClapArgs)]
pub(crate) struct LogArgs {
    /// Print JSON objects instead of lines
    #[arg(long)]
    pub(crate) json: bool,
    /// End after N lines
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

/// Write the program of 'roxie run --port xsk' to an object file, to share an interface with other programs
///
/// The kernel runs one XDP program per interface. xdp-loader (Debian: xdp-tools) runs several behind a
/// dispatcher program; if it has loaded this object, 'roxie run --port xsk' uses it instead of attaching
/// its own. Load it once. It stays when a process ends, passes every packet while no process uses it, and
/// serves the next process. Detach it with 'xdp-loader unload'.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/xdp-object.txt"))]
pub(crate) struct ObjectArgs {
    /// Object file to write
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}
