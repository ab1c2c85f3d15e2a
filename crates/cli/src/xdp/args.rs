//! The command line of `roxie xdp`.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs, Subcommand, ValueEnum};
use roxie::xdp::Mode;
use sys::XdpMode;

/// XDP programs on network interfaces: attach, detach, list, count, fill maps, test, send
///
/// Programs come from clang-built object files, or are composed of blocks at run time, without a C compiler. They are
/// ordinary XDP programs: ip(8), bpftool and xdp-loader see them, and what those tools attached is seen here.
#[derive(Debug, ClapArgs)]
pub(crate) struct XdpArgs {
    /// What to do.
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
    Map(MapArgs),
    Samples(SamplesArgs),
    Object(ObjectArgs),
    Test(TestArgs),
    Send(SendArgs),
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum ModeArg {
    /// In the driver if it can, else in the network stack
    #[default]
    Auto,
    /// In the driver ('xdpdrv')
    Native,
    /// In the network stack, on any interface ('xdpgeneric', SKB mode)
    Generic,
    /// On the NIC ('xdpoffload')
    Offload,
}

impl ModeArg {
    /// As the library has it.
    pub(crate) fn mode(self) -> Mode {
        match self {
            ModeArg::Auto => Mode::Auto,
            ModeArg::Native => Mode::Only(XdpMode::Native),
            ModeArg::Generic => Mode::Only(XdpMode::Generic),
            ModeArg::Offload => Mode::Only(XdpMode::Offload),
        }
    }
}

/// Put an XDP program on an interface, where it stays
///
/// As with 'ip link set dev IF xdp', the program stays until it is detached; with --foreground only until this command
/// ends, however it ends. If there is a program already, it is refused unless --replace is given; replacing is atomic,
/// every packet sees the one program or the other. If the kernel refuses the program, what its verifier said is shown.
///
/// Needs root, or CAP_BPF and CAP_NET_ADMIN.
#[derive(Debug, ClapArgs)]
#[command(override_usage = "roxie xdp attach [OPTIONS] <IF> <OBJ|--recipe RECIPE>", after_long_help = concat!(recipes!(), "
Examples:
  roxie xdp attach eth0 count.o
          The program of an object file
  roxie xdp attach eth0 --recipe police:rate=125M,burst=1M --mode native
          No source sends more than 1 Gbit/s through eth0
  for i in eth0 eth1; do roxie xdp attach $i --recipe forward:to=eth0+eth1; done
          A router between eth0 and eth1 that leaves to the stack what it cannot do itself
  roxie xdp attach eth0 --recipe lb:to=cpu,ways=4 --dump
          The instructions that would be loaded"))]
pub(crate) struct AttachArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Where the program runs
    #[arg(long, short, value_enum, default_value_t, value_name = "MODE")]
    pub(crate) mode: ModeArg,
    /// Take the place of the program that is there, if one is
    #[arg(long)]
    pub(crate) replace: bool,
    /// Pin the maps under their names in this directory of a bpf file system (/sys/fs/bpf/...)
    ///
    /// Other programs open them there, for example to put AF_XDP sockets into 'xsks'. The directory is made if it is
    /// missing; remove it to let go of the maps.
    #[arg(long, value_name = "DIR")]
    pub(crate) pin: Option<PathBuf>,
    /// Stay, and take the program off at the end, also after Ctrl-C and kill -9 (a bpf_link)
    #[arg(long, conflicts_with = "replace")]
    pub(crate) foreground: bool,
    /// Print the instructions instead of loading them; needs no privilege
    #[arg(long)]
    pub(crate) dump: bool,
}

/// Which program.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("program").required(true).args(["object", "recipe"]))]
pub(crate) struct SourceArgs {
    /// Object file, built by 'clang -O2 -g -target bpf -c'
    #[arg(value_name = "OBJ")]
    pub(crate) object: Option<PathBuf>,
    /// Compose the program instead; see below
    #[arg(long, short, value_name = "RECIPE")]
    pub(crate) recipe: Option<String>,
    /// Section of the object file: xdp, xdp.frags
    #[arg(long, short, value_name = "NAME", conflicts_with = "recipe")]
    pub(crate) section: Option<String>,
    /// Function of the object file, if it has several programs
    #[arg(long, short, value_name = "NAME", conflicts_with = "recipe")]
    pub(crate) prog: Option<String>,
}

/// Take the XDP program off an interface
///
/// Whoever attached it. A program that a bpf_link holds belongs to a process, or to a pin, that may rely on it; it is
/// taken off with --force only.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Exit status:
  0 if a program was taken off, 1 if there was none or the kernel refused.")]
pub(crate) struct DetachArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
    /// Only a program that runs there [default: whichever there is]
    #[arg(long, short, value_enum, default_value_t, value_name = "MODE", hide_default_value = true)]
    pub(crate) mode: ModeArg,
    /// Also a program that a bpf_link holds
    #[arg(long)]
    pub(crate) force: bool,
}

/// List interfaces, what their drivers can do with XDP, and the programs on them
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  roxie xdp list
          One line for each interface and program
  roxie xdp list --json | jq -r '.[] | select(.programs != []) | .interface'
          Interfaces with a program")]
pub(crate) struct ListArgs {
    /// One JSON array instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what the XDP program of an interface did: packets and bytes by verdict, and the counters of the driver
///
/// Verdicts are counted by programs made with --recipe. Of other programs only the counters of interface and driver
/// are known, and, while the sysctl kernel.bpf_stats_enabled is 1, how often the program ran and how long that took.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  roxie xdp stats eth0
          Since the program was attached
  roxie xdp stats eth0 --watch
          Every second, what has changed per second")]
pub(crate) struct StatsArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
    /// JSON objects instead of lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Again every SECONDS, as rates, until Ctrl-C
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) watch: Option<u32>,
}

/// Read and fill the maps of the program on an interface, while it runs
///
/// Keys and values are numbers (12, 0x1f), several of 4 or 8 bytes (1+2), addresses, prefixes, interfaces (eth0, in maps
/// of devices), or bytes (hex:00ff). Needs root.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  roxie xdp map list eth0
          The maps of its program
  roxie xdp map set eth0 access 10.1.0.0/16 0
          The recipe 'access' drops what comes from there; 1 lets it in
  roxie xdp map set eth0 devs 0 eth1
          The recipe 'redirect' goes to eth1 from now on
  roxie xdp map get eth0 buckets
          The sources that the recipe 'police' knows
  roxie xdp map delete eth0 access 10.1.0.0/16")]
pub(crate) struct MapArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: MapCommand,
}

/// Subcommands of `roxie xdp map`.
#[derive(Debug, Subcommand)]
pub(crate) enum MapCommand {
    /// List the maps
    List {
        /// Network interface
        #[arg(value_name = "IF")]
        netdev: String,
        /// One JSON array instead of lines
        #[arg(long)]
        json: bool,
    },
    /// Show an entry, or all; of arrays those that are not zero
    Get {
        /// Network interface
        #[arg(value_name = "IF")]
        netdev: String,
        /// Name of the map
        map: String,
        /// Key of one entry
        key: Option<String>,
        /// One JSON array instead of lines
        #[arg(long)]
        json: bool,
    },
    /// Set an entry
    Set {
        /// Network interface
        #[arg(value_name = "IF")]
        netdev: String,
        /// Name of the map
        map: String,
        /// Its key
        key: String,
        /// What it shall be; of maps with a value for each CPU, for all of them
        value: String,
    },
    /// Take an entry out
    Delete {
        /// Network interface
        #[arg(value_name = "IF")]
        netdev: String,
        /// Name of the map
        map: String,
        /// Its key
        key: String,
    },
}

/// Test what XDP asks of a network driver, with every packet accounted for, and measure it
///
/// Sends packets through each verdict (PASS, DROP, TX, REDIRECT to a device, to a CPU and to an AF_XDP socket), through
/// ndo_xdp_xmit, through AF_XDP sockets in both directions, and packets of several buffers. Each test compares what was
/// sent with what came out and with what somebody counted as dropped: nothing may vanish.
///
/// Without --netdev it makes a network namespace with veth pairs, which goes with this command however it ends. With
/// --netdev the programs are on that interface for as long as each test takes, never in place of another program; they
/// select the test packets (UDP port 9, discard) and pass everything else, so connections over it stay alive. The
/// counts are exact only on an interface that is idle otherwise.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Exit status:
  0 if every packet of every test that could be made is accounted for; 1 if not.

Examples:
  roxie xdp test
          On veth pairs of its own
  roxie xdp test --netdev eth0 --peer eth1
          eth0, with a cable between it and eth1, which sends
  roxie xdp test --netdev eth0
          What can be tested while nobody sends: transmission. The packets are addressed to eth0
          itself, so that no switch delivers them
  roxie xdp test --only af_xdp
          The AF_XDP tests
  roxie xdp test --json --count 100000 | jq '.tests[] | select(.result != \"ok\")'
          What failed or could not be made")]
pub(crate) struct TestArgs {
    /// Network interface under test [default: a veth in a namespace of its own]
    #[arg(long, short = 'i', value_name = "IF")]
    pub(crate) netdev: Option<String>,
    /// Interface of this host at the other end of its wire, which sends and counts
    #[arg(long, value_name = "IF", requires = "netdev")]
    pub(crate) peer: Option<String>,
    /// Only tests whose name contains this, in any case
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// Packets of a test; a tenth of it for those of several buffers
    #[arg(long, short, default_value_t = 1_500_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: u64,
    /// Where programs run
    #[arg(long, short, value_enum, default_value_t, value_name = "MODE")]
    pub(crate) mode: ModeArg,
    /// One JSON object at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Send test packets out of an interface, as fast as it takes them
///
/// The packets of 'roxie xdp test': 60 bytes of Ethernet, IPv4 and UDP to port 9 (discard), from 198.18.0.2 to 198.18.0.1
/// (RFC 2544). Made in the kernel if the driver takes redirected packets, else by an AF_XDP socket.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  roxie xdp send eth0 --to 02:00:00:00:00:01 --count 10000000
          To the host with that address")]
pub(crate) struct SendArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
    /// Packets
    #[arg(long, short, default_value_t = 1_500_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: u64,
    /// Ethernet address of the receiver [default: the interface's own, which no switch delivers]
    #[arg(long, value_name = "MAC")]
    pub(crate) to: Option<String>,
    /// By an AF_XDP socket in any case
    #[arg(long)]
    pub(crate) socket: bool,
}

/// Show the packets that the recipe 'sample' copies, or write them to a capture file
///
/// Until Ctrl-C. Whoever reads a sample takes it: there should be one reader of an interface only.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  roxie xdp attach eth0 --recipe sample:every=100 && roxie xdp samples eth0 --write eth0.pcap
          Every hundredth packet of eth0
  roxie xdp samples eth0 --write - | roxie capture read -
          RoCE packets among them, decoded")]
pub(crate) struct SamplesArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
    /// A capture file (pcap with nanoseconds) instead of lines; - for standard output
    #[arg(long, short, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// End after so many samples
    #[arg(long, short, value_name = "N")]
    pub(crate) count: Option<u64>,
}

/// Write the program of 'roxie run --port xsk' as an object file, for interfaces that have another program
///
/// An interface takes one XDP program. xdp-loader (Debian: xdp-tools) puts several on it, behind a dispatcher; and where it
/// has put this one, 'roxie run --port xsk' uses it instead of bringing its own. Load it once: it stays when the process
/// ends, passes everything while there is none, and serves the next one. 'xdp-loader unload' takes it off.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  roxie xdp object xsk.o && xdp-loader load eth0 xsk.o
          Beside other programs on eth0, loaded before or afterwards
  roxie run --netdev eth0 --port xsk -- rping -s
          Says 'loaded by others', or the dispatcher, with ROXIE_STATS=1
  xdpdump -i eth0 -p roxie_xsk --rx-capture entry,exit -x
          What comes to it, and what it makes of that")]
pub(crate) struct ObjectArgs {
    /// Object file to write
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Receive queues it steers to at most
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) queues: u32,
}
