//! The command line: what can be said, and the help that explains it.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::builder::PossibleValuesParser;
use clap::{Args as ClapArgs, Parser, Subcommand};
use roxie::port::PortChoice;
use roxie::verbs::{Engines, Traffic};

use crate::capture::CaptureArgs;
use crate::hook::args::{HookArgs, HookToolArgs};
use crate::interop::InteropArgs;
use crate::lab::args::{HoldArgs, LabArgs};
use crate::metrics::MetricsArgs;
use crate::sim::args::SimArgs;
use crate::top::TopArgs;
use crate::xdp::args::XdpArgs;

/// RDMA without RDMA hardware.
#[derive(Debug, Parser)]
#[command(
    name = "roxie",
    version,
    about = "RDMA programs on machines without RDMA hardware",
    long_about = "roxie is a RoCEv2 RDMA NIC in user space. Unmodified verbs and rdma_cm programs run on it: \
                  no RDMA hardware, no kernel module, no root. On the wire it is RoCEv2 (UDP port 4791), so \
                  Linux Soft-RoCE and real RoCE NICs are its peers.",
    after_help = "Start with 'roxie demo'. If something does not work, 'roxie doctor' says why.",
    after_long_help = EXAMPLES,
    max_term_width = 100
)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  roxie demo
          Two processes, RDMA between them, every byte verified, figures printed
  roxie doctor
          What works on this machine and what does not, with the remedy
  roxie run -- ibv_devinfo -v
          Any verbs program; the device is called roxie0
  roxie run -- rping -s -a 127.0.0.1 & roxie run -- rping -c -a 127.0.0.1 -C 10 -V
          A server and a client on one machine
  roxie capture read FILE.pcapng
          RoCEv2 packets of a capture, decoded
  eval \"$(roxie env --netdev eth0)\"
          The device for everything this shell starts

Start with 'roxie demo'. If something does not work, 'roxie doctor' says why.";

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Env(EnvArgs),
    Devinfo(DevinfoArgs),
    Doctor(DoctorArgs),
    Xdp(XdpArgs),
    Hook(HookToolArgs),
    Capture(CaptureArgs),
    Top(TopArgs),
    Metrics(MetricsArgs),
    Lab(LabArgs),
    Interop(InteropArgs),
    Sim(SimArgs),
    Demo(DemoArgs),
    /// The process that holds a lab.
    #[command(hide = true, name = "lab-hold")]
    LabHold(HoldArgs),
    /// The passive process of the demo.
    #[command(hide = true, name = "demo-server")]
    DemoServer(DemoRoleArgs),
    /// The active process of the demo.
    #[command(hide = true, name = "demo-client")]
    DemoClient(DemoRoleArgs),
}

/// Which device a program sees.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct DeviceArgs {
    /// Network interface under the device [default: the one of the default route, else the first that is up]
    ///
    /// Its addresses become the device's GIDs and its MTU decides the path MTU. 127.0.0.1 and ::1 work whatever
    /// is chosen here. Also: environment variable ROXIE_NETDEV.
    #[arg(long, short = 'i', value_name = "IF")]
    pub(crate) netdev: Option<String>,
    /// Name of the device [default: roxie0]
    ///
    /// Some programs and scripts expect rxe0 or mlx5_0. Also: environment variable ROXIE_NAME.
    #[arg(long, short = 'n', value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// How the device's packets get to the network.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct PortArgs {
    /// UDP sockets, AF_XDP sockets, or AF_XDP where it is possible [default: udp]
    ///
    /// 'xsk' puts an XDP program on the network interface, which steers the device's packets past the network stack and
    /// leaves everything else to it; it needs root (CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW), an Ethernet interface, and
    /// no other XDP program there. If it is not possible the program gets an error. One process at a time has an
    /// interface; further ones use UDP sockets, and say so. 'auto' uses UDP sockets, and says so, whenever AF_XDP is
    /// not possible. Also: environment variable ROXIE_PORT.
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(PortChoice::KINDS))]
    pub(crate) port: Option<String>,
    /// Where the XDP program runs: in the driver, or in the network stack [default: auto, in the driver if it can]
    ///
    /// Without effect on UDP sockets. Also: environment variable ROXIE_XDP_MODE.
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(PortChoice::MODES))]
    pub(crate) xdp_mode: Option<String>,
    /// Whether connections between processes of this host and user go through shared memory [default: on]
    ///
    /// With 'off' on either side they take the kernel's way to the other, where tcpdump and XDP programs see them. Hooks and
    /// 'roxie capture -p' see them in any case. Also: environment variable ROXIE_SHM.
    #[arg(long, value_name = "ON|OFF", value_parser = PossibleValuesParser::new(PortChoice::SHM))]
    pub(crate) shm: Option<String>,
}

/// How connections send, and what carries them.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct TrafficArgs {
    /// Send packets that are ECN-capable, so that switches mark them instead of dropping [default: off]
    ///
    /// Peers must answer marked packets by congestion notifications (CNPs), as hardware and roxie do and rxe does not; the
    /// sender then slows down as DCQCN has it. Also: environment variable ROXIE_ECN, on or off.
    #[arg(long)]
    pub(crate) ecn: bool,
    /// Most that a queue pair sends, in bits per second on the wire, such as 500M or 10G
    ///
    /// A rate limit that the program sets itself (ibv_modify_qp) counts instead. Also: environment variable
    /// ROXIE_RATE_LIMIT.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) rate_limit: Option<String>,
    /// What the ICRC of a FLUSH covers: the packet, or its headers twice as Linux rxe has it [default: iba]
    ///
    /// rxe drops a FLUSH whose ICRC is right; hardware and roxie take it, and roxie takes rxe's. Also: environment variable
    /// ROXIE_FLUSH_ICRC.
    #[arg(long, value_name = "WHOSE", value_parser = PossibleValuesParser::new(Traffic::FLUSH_ICRC_WORDS))]
    pub(crate) flush_icrc: Option<String>,
    /// Engines that carry the queue pairs: sockets, a lock and a thread each, 1 to 32 [default: 1]
    ///
    /// A queue pair lives on the engine of its completion queue, and those take turns; the completion vector of ibv_create_cq
    /// chooses one, 0 leaves it to the device. More than one pays where several threads poll completion queues of their
    /// own. With AF_XDP the first has the interface, the others use UDP sockets. Also: environment variable ROXIE_ENGINES.
    #[arg(long, value_name = "N", value_parser = engines)]
    pub(crate) engines: Option<Engines>,
}

fn engines(text: &str) -> Result<Engines, String> {
    let engines = Engines::from_word(text).ok().filter(|_| !text.is_empty());
    engines.ok_or_else(|| Engines::WORDS.concat())
}

fn rate(text: &str) -> Result<String, String> {
    let fits = !text.is_empty() && Traffic::from_words("", text, "").is_ok();
    fits.then(|| text.to_owned()).ok_or_else(|| Traffic::RATE_WORDS.concat())
}

/// Run a program that sees the device
///
/// Starts COMMAND with our libibverbs.so.1 and librdmacm.so.1 found before the system's. roxie replaces itself by
/// the command: process id, standard streams, signals and exit status are the command's own.
///
/// The libraries are expected beside this executable ('cargo build --release' puts them there) or in ../lib/roxie.
/// Their names are linked into a private directory under XDG_RUNTIME_DIR, or in TMPDIR or /tmp, which is put first in
/// LD_LIBRARY_PATH. Setuid programs and statically linked ones cannot be reached this way; a warning says so. Real
/// RDMA hardware is invisible to programs started by this command.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Exit status:
  The command's own; 127 if it was not found, 126 if it could not be executed, 1 if the device
  could not be set up,
  2 if the command line, or a variable that stands for it, makes no sense.

Examples:
  roxie run -- ibv_devinfo
          Shows device roxie0
  roxie run -- ib_write_bw -d roxie0 & roxie run -- ib_write_bw -d roxie0 127.0.0.1
          Bandwidth between two processes
  roxie run --netdev eth0 --name rxe0 -- python3 train.py
          The device on eth0, under a name the program expects
  roxie run --netdev eth0 --port xsk -- ib_write_bw -d roxie0 10.0.0.2
          Over AF_XDP sockets on eth0, as root
  UCX_TLS=rc_verbs,ud_verbs roxie run --device-files -- ucx_perftest 10.0.0.2 -t ucp_put_bw
          Programs that use UCX, such as Open MPI
  roxie run --ingress impair:loss=1% -- rping -c -a 10.0.0.2 -C 100
          With every hundredth packet lost
  roxie run -- bash
          A shell in which every program sees it")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) port: PortArgs,
    #[command(flatten)]
    pub(crate) hooks: HookArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    /// Let the command find the device in /dev/infiniband and /sys/class/infiniband too, as UCX does
    ///
    /// They are in a mount namespace of the command's own. Whoever may not make one gets a user namespace as well, in which
    /// setuid programs such as sudo are without effect.
    #[arg(long)]
    pub(crate) device_files: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Print the variables that 'roxie run' sets
///
/// For eval in a POSIX shell, or as one JSON object for other programs. Same effect as 'roxie run' for everything
/// the shell starts.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  eval \"$(roxie env)\"
          This shell's programs see the device
  roxie env --json
          {\"LD_LIBRARY_PATH\":\"/tmp/roxie-1000/lib-...\"}")]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) port: PortArgs,
    #[command(flatten)]
    pub(crate) hooks: HookArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    /// One JSON object instead of shell commands
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the device, its port, GIDs and limits
///
/// What ibv_devinfo would show, without needing it, and what would move the packets. Opens no port.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Examples:
  roxie devinfo
          Device, port and GIDs
  roxie devinfo -v --netdev lo
          The limits too, of the device on the loopback interface
  roxie devinfo --netdev eth0 --port auto
          Whether AF_XDP would work on eth0, and if not, why
  roxie devinfo --json | jq -r '.gids[].ip'
          The addresses peers can use")]
pub(crate) struct DevinfoArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) port: PortArgs,
    /// Also the limits
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// One JSON object, limits included
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say what works on this machine and what does not
///
/// Looks at the kernel, UDP segmentation offload, port 4791 and who has it, limits of this process, socket
/// buffers, network interfaces, the path MTU each gives and its XDP modes, the privileges for AF_XDP, the libraries,
/// kernel Soft-RoCE, and user namespaces. Changes nothing. Every line that is not 'ok' says what to do.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Exit status:
  0 if the device can work, warnings or not; 1 if something must be mended first.

Examples:
  roxie doctor
          The report
  roxie doctor --json | jq '.checks[] | select(.status != \"ok\")'
          Only what needs attention")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// One JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Do RDMA between two processes, verify every byte, print figures
///
/// Starts two processes, connects them through the connection manager (REQ, REP, RTU), then does SEND, WRITE, READ,
/// compare-and-swap and fetch-and-add at sizes from 0 to 1 MiB and compares every byte, also those that must not
/// change. At the end it measures bandwidth, message rate and latency for a few seconds. Nothing needs to be
/// installed, no root, no configuration.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = "\
Exit status:
  0 if everything was verified, 1 with the reason if not.

Examples:
  roxie demo
          Over 127.0.0.1
  roxie demo --netdev eth0
          Over the address of eth0, both processes on this machine
  roxie demo --no-figures
          Only the verification: about a second")]
pub(crate) struct DemoArgs {
    /// Network interface whose first address both processes use [default: lo, 127.0.0.1]
    #[arg(long, short = 'i', value_name = "IF")]
    pub(crate) netdev: Option<String>,
    /// Skip the measurements
    #[arg(long)]
    pub(crate) no_figures: bool,
}

/// What one process of the demo must know.
#[derive(Debug, ClapArgs)]
pub(crate) struct DemoRoleArgs {
    /// Address of the passive side.
    #[arg(long)]
    pub(crate) address: IpAddr,
    /// Its port; 0 takes any.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Interface under the device.
    #[arg(long)]
    pub(crate) netdev: String,
    /// Skip the measurements.
    #[arg(long)]
    pub(crate) no_figures: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    /// Lines of which the terminal would make two have no indentation in the second.
    #[test]
    fn what_stands_below_the_options_fits_a_terminal() {
        fn check(command: &clap::Command) {
            let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines() {
                let fits = !line.starts_with(' ') || line.chars().count() <= 100;
                assert!(fits, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Args::command());
    }

    #[test]
    fn everything_after_the_command_belongs_to_it() {
        let args = Args::parse_from(["roxie", "run", "--netdev", "lo", "--", "rping", "-s", "--name", "x"]);
        let Command::Run(run) = args.command else { panic!("run") };
        assert_eq!(run.device.netdev.as_deref(), Some("lo"));
        assert_eq!(run.device.name, None);
        assert_eq!(run.command, ["rping", "-s", "--name", "x"]);
        let args = Args::parse_from(["roxie", "run", "rping", "-s", "--name", "x"]);
        let Command::Run(run) = args.command else { panic!("run") };
        assert_eq!(run.command, ["rping", "-s", "--name", "x"]);
        assert!(Args::try_parse_from(["roxie", "run", "--bogus", "--", "true"]).is_err());
        assert!(Args::try_parse_from(["roxie", "run", "--port", "tcp", "--", "true"]).is_err());
    }
}
