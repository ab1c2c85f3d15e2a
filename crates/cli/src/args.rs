//! The command line of `roxie`: subcommands, options and their help texts.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use roxie::port::PortChoice;
use roxie::verbs::{DeviceSettings, Engines, Traffic};

use crate::capture::CaptureArgs;
use crate::cdi::CdiArgs;
use crate::chaos::ChaosArgs;
use crate::check::CheckArgs;
use crate::explain::ExplainArgs;
use crate::hook::args::{HookArgs, HookToolArgs};
use crate::interop::InteropArgs;
use crate::lab::args::{HoldArgs, LabArgs};
use crate::metrics::MetricsArgs;
use crate::own::args::OwnArgs;
use crate::recording::RecordingArgs;
use crate::sim::args::SimArgs;
use crate::top::TopArgs;
use crate::trace::TraceArgs;
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
    after_long_help = include_str!("help/roxie.txt"),
    max_term_width = 100
)]
pub(crate) struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Check(CheckArgs),
    Trace(Box<TraceArgs>),
    Env(EnvArgs),
    Cdi(CdiArgs),
    Devinfo(DevinfoArgs),
    Doctor(DoctorArgs),
    Explain(ExplainArgs),
    Xdp(XdpArgs),
    Hook(HookToolArgs),
    Capture(CaptureArgs),
    Top(TopArgs),
    Metrics(MetricsArgs),
    Lab(LabArgs),
    Interop(InteropArgs),
    Sim(SimArgs),
    Demo(DemoArgs),
    Bench(BenchArgs),
    #[command(name = "self")]
    Own(OwnArgs),
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

/// Which devices a program sees.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct DeviceArgs {
    /// Network interfaces, a device on each [default: those that reach this host, see below]
    ///
    /// The GIDs of a device are the addresses of its interface, which also decides the path MTU, and of VLAN,
    /// macvlan, bond and bridge interfaces above it. 127.0.0.1 and ::1 work with every interface for programs
    /// that connect by rdma_cm. Also: environment variable ROXIE_NETDEV.
    ///
    /// By default there is a device for each interface that is up, has a global address, and is not lo, a
    /// tunnel, the bridge of a container engine or hypervisor, or a VLAN, macvlan, bond or bridge interface
    /// above an interface with a device. The first device is that of the default route; its interface may
    /// be a tunnel or such a bridge; the others follow in the order of ip link. If there is no such
    /// interface, the first that is up and has an address has the device, else lo.
    #[arg(long, short = 'i', value_name = "IF[,IF...]")]
    pub(crate) netdev: Option<String>,
    /// Names of the devices [default: roxie0, roxie1 ...]
    ///
    /// Set them for programs and scripts that expect rxe0 or mlx5_0. Further devices count on from the last
    /// name: mlx5_0, mlx5_1. Also: environment variable ROXIE_NAME.
    #[arg(long, short = 'n', value_name = "NAME[,NAME...]")]
    pub(crate) name: Option<String>,
    /// Number of devices, 1 to 32, distributed over the interfaces in turn [default: one for each]
    ///
    /// Devices on one interface have the same GIDs, and a node GUID each. '--devices 8 --name mlx5_' makes
    /// mlx5_0 to mlx5_7; '--devices 1' leaves the first device only. Also: environment variable
    /// ROXIE_DEVICES.
    #[arg(long, value_name = "N")]
    pub(crate) devices: Option<String>,
    /// Names and interfaces of the devices: short for --name and --netdev
    #[arg(long, value_name = "NAME=IF[,NAME=IF...]", value_parser = pairs,
          conflicts_with_all = ["netdev", "name", "devices"])]
    pub(crate) device: Option<Pairs>,
    /// Order of the GID table: IPv4 addresses first (ipv4), or the link-local address first (kernel)
    /// [default: ipv4]
    ///
    /// In the kernel the default GID, which is link-local, has index 0, and IPv4 addresses follow. Some
    /// programs use an index without reading the table, and ibstat shows the lower half of the GID with
    /// index 0 as port GUID. Also: environment variable ROXIE_GIDS.
    #[arg(long, value_name = "ORDER", value_parser = PossibleValuesParser::new(DeviceSettings::GID_ORDERS))]
    pub(crate) gids: Option<String>,
}

/// The lists of `--device`.
#[derive(Clone, Debug)]
pub(crate) struct Pairs {
    pub(crate) given: String,
    pub(crate) names: String,
    pub(crate) netdevs: String,
}

pub(crate) fn pairs(list: &str) -> Result<Pairs, String> {
    let pairs: Option<Vec<(&str, &str)>> = list.split(',').map(|pair| pair.split_once('=')).collect();
    let pairs =
        pairs.filter(|pairs| pairs.iter().all(|(name, netdev)| !name.is_empty() && !netdev.is_empty()));
    let pairs = pairs.ok_or("each part is NAME=IF, such as mlx5_0=eth0,mlx5_1=eth1")?;
    let (names, netdevs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    Ok(Pairs { given: list.to_owned(), names: names.join(","), netdevs: netdevs.join(",") })
}

/// How packets get from the device to the network.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct PortArgs {
    /// Send and receive packets by UDP sockets (udp) or AF_XDP sockets (xsk) [default: udp]
    ///
    /// udp: UDP sockets; works everywhere, without privileges.
    ///
    /// xsk: AF_XDP sockets. roxie attaches an XDP program to the network interface; it redirects the
    /// device's packets to the sockets and passes all others to the network stack. Needs root (CAP_BPF,
    /// CAP_NET_ADMIN and CAP_NET_RAW), an Ethernet interface, and no other XDP program on it; otherwise
    /// opening the device fails. Only one process at a time can have an interface; further processes use
    /// UDP sockets and print a message.
    ///
    /// auto: xsk where it is possible, otherwise udp with a message that gives the reason.
    ///
    /// Also: environment variable ROXIE_PORT.
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(PortChoice::KINDS))]
    pub(crate) port: Option<String>,
    /// Run the XDP program in the driver (native) or in the network stack (generic) [default: auto]
    ///
    /// auto: in the driver if the driver supports it, but on a veth in the network stack, which moves bursts
    /// as one packet. UDP sockets ignore this option. Also: environment variable ROXIE_XDP_MODE.
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(PortChoice::MODES))]
    pub(crate) xdp_mode: Option<String>,
    /// Use shared memory between processes of this host and user [default: on]
    ///
    /// If either process has 'off', their packets go through the kernel, where tcpdump and XDP programs see
    /// them. Hooks and 'roxie capture -p' see the packets in both cases. Also: environment variable
    /// ROXIE_SHM.
    #[arg(long, value_name = "ON|OFF", value_parser = PossibleValuesParser::new(PortChoice::SHM))]
    pub(crate) shm: Option<String>,
}

/// How connections send, and on how many engines.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct TrafficArgs {
    /// Mark packets as ECN-capable, so that switches mark them on congestion instead of dropping them
    /// [default: off]
    ///
    /// on or off; without a value: on, for all devices. A list has the values of single devices, such as
    /// mlx5_0=on,mlx5_1=off; --rate-limit and --flush-icrc take such lists, too. The peer must reply to
    /// marked packets with congestion notification packets (CNPs): RoCE NICs and roxie do, Linux rxe does
    /// not. The sender then reduces its rate (DCQCN). Also: environment variable ROXIE_ECN.
    #[arg(long, value_name = "VALUE|NAME=VALUE[,NAME=VALUE...]", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = ecn)]
    pub(crate) ecn: Option<String>,
    /// Limit the rate of each queue pair, in bits per second on the wire, such as 500M or 10G
    ///
    /// A rate limit that the program sets itself (ibv_modify_qp) takes precedence. Also: environment
    /// variable ROXIE_RATE_LIMIT.
    #[arg(long, value_name = "RATE|NAME=RATE[,NAME=RATE...]", value_parser = rate)]
    pub(crate) rate_limit: Option<String>,
    /// Compute the ICRC of FLUSH packets by the standard (iba) or as Linux rxe does (rxe) [default: iba]
    ///
    /// rxe includes the headers twice, and drops a FLUSH with a standard ICRC. NICs use the standard ICRC.
    /// roxie accepts both. Also: environment variable ROXIE_FLUSH_ICRC.
    #[arg(long, value_name = "KIND|NAME=KIND[,NAME=KIND...]", value_parser = flush_icrc)]
    pub(crate) flush_icrc: Option<String>,
    /// Engines of the device, auto or 1 to 32; each has its own sockets, lock and thread [default: auto]
    ///
    /// A queue pair runs on the engine of its completion queue. With auto the device begins with one
    /// engine, and starts one for each further thread that creates queue pairs, up to the CPUs of the
    /// process and to an eighth of its descriptors, of which each takes 17. Completion queues with the same
    /// completion vector of ibv_create_cq, if it is not 0, share an engine. With a number the device
    /// assigns completion queues in turn, and vector N selects engine N. Devices with hooks, --chaos or
    /// AF_XDP start no further engines with auto. Also: environment variable ROXIE_ENGINES.
    #[arg(long, value_name = "N", value_parser = engines)]
    pub(crate) engines: Option<Engines>,
}

/// The device, with all that a program can see of it.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct NicArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) port: PortArgs,
    #[command(flatten)]
    pub(crate) hooks: HookArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
}

/// A word of an option, its value, and its help.
pub(crate) type Word<T> = (&'static str, T, &'static str);

/// A parser of the words of a table.
pub(crate) fn one_of<T: Copy + Send + Sync>(words: &'static [Word<T>]) -> impl TypedValueParser<Value = T> {
    let values = words.iter().map(|(word, _, help)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(values)
        .map(|given| words.iter().find(|(word, ..)| *word == given).expect("a possible value").1)
}

fn engines(text: &str) -> Result<Engines, String> {
    let engines = Engines::from_word(text).ok().filter(|_| !text.is_empty());
    engines.ok_or_else(|| Engines::WORDS.concat())
}

/// The words of a command line with `--ecn=VALUE` for `--ecn VALUE`: the parser takes that for a command,
/// because the value is optional. `command` is the first word of the command, if one was found.
pub(crate) fn with_ecn_value(words: &[OsString], command: Option<&OsString>) -> Option<Vec<OsString>> {
    let is_value = |word: &OsString| word.to_str().is_some_and(|word| ecn(word).is_ok());
    let is_it = |pair: &[OsString]| {
        pair[0] == "--ecn" && is_value(&pair[1]) && command.is_none_or(|command| *command == pair[1])
    };
    let at = words.windows(2).take_while(|pair| pair[0] != "--").position(is_it)?;
    let mut words = words.to_vec();
    let value = words.remove(at + 1);
    words[at].push("=");
    words[at].push(value);
    Some(words)
}

impl Command {
    /// The program that is to be started, with its arguments.
    pub(crate) fn program(&self) -> Option<&OsString> {
        match self {
            Command::Run(args) => args.command.first(),
            Command::Check(args) => args.run.command.first(),
            Command::Trace(args) => args.run.command.first(),
            _ => None,
        }
    }
}

fn ecn(text: &str) -> Result<String, String> {
    traffic(text, [text, "", ""], Traffic::ECN_WORDS)
}

fn rate(text: &str) -> Result<String, String> {
    traffic(text, ["", text, ""], Traffic::RATE_WORDS)
}

fn flush_icrc(text: &str) -> Result<String, String> {
    traffic(text, ["", "", text], Traffic::FLUSH_ICRC_WORDS)
}

/// Checks one of the words of [`Traffic::from_words`]. An empty variable means the default; an empty option
/// is a mistake.
fn traffic(text: &str, [ecn, rate, flush_icrc]: [&str; 3], words: &[&str]) -> Result<String, String> {
    if text.is_empty() {
        return Err(words.join(", "));
    }
    let checked = Traffic::from_words("", ecn, rate, flush_icrc).map(|_| text.to_owned());
    checked.map_err(|bad| format!("'{}' should be {}", bad.value(), words.join(", ")))
}

/// When a command gets device files.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum When {
    /// If it probably needs them.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Run a program that sees the devices
///
/// Starts COMMAND with roxie's libibverbs.so.1 and librdmacm.so.1 in front of the system's. roxie replaces
/// itself with the command (exec), so process id, standard streams, signals and exit status are those of
/// the command. With --capture it stays, passes signals on and ends with the command's exit status, 128 + N
/// if signal N ended it.
///
/// A program that contains its libraries ('roxie self bundle') unpacks them into a private directory under
/// XDG_RUNTIME_DIR, TMPDIR or /tmp, or under XDG_CACHE_HOME if libraries cannot be loaded there. Otherwise
/// roxie looks for them beside this executable ('cargo build --release' puts them there) and in
/// ../lib/roxie. It links their names into a private directory, which is first in LD_LIBRARY_PATH. LD_AUDIT
/// names a library that also replaces copies of
/// libibverbs and librdmacm which a program brings along: under names with a hash, as in Python wheels,
/// through RPATH or RUNPATH, or opened by path. A line on standard error says so. This has no effect on
/// setuid and statically linked programs, and with another C library than glibc; a warning says so. The
/// program rdma of iproute2 shows roxie's devices, because that library has its netlink requests answered.
/// Programs started by this command do not see real RDMA hardware.
///
/// If neither the command nor a program that it started opened the device, a line on standard error says
/// so when the command ends, with the RDMA libraries that were loaded.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/run.txt"))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) nic: NicArgs,
    #[command(flatten)]
    pub(crate) chaos: ChaosArgs,
    #[command(flatten)]
    pub(crate) recording: RecordingArgs,
    /// Provide /dev/infiniband and /sys/class/infiniband entries for the devices, which UCX needs
    /// [default: auto]
    ///
    /// They exist in a mount namespace of the command only. Without the privilege to create one, the
    /// command gets a user namespace as well, in which setuid programs such as sudo have no effect.
    ///
    /// auto: for programs linked to UCX or MPI, mpirun and mpiexec, Python, scripts of these, for ibstat,
    /// ibstatus, ibdev2netdev and show_gids, and if a variable UCX_... is set. on (also without a value):
    /// always. off: never.
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
          default_value = "auto", hide_default_value = true, default_missing_value = "on",
          hide_possible_values = true)]
    pub(crate) device_files: When,
    /// Do not say which library is replaced, that the command did not use RDMA, or why there is no device or
    /// no connection
    ///
    /// Also: environment variable ROXIE_QUIET, 1.
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl RunArgs {
    /// Whether `--quiet` or ROXIE_QUIET asks for fewer messages.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet || std::env::var_os("ROXIE_QUIET").is_some_and(|value| value != "0")
    }
}

/// Print the environment variables that 'roxie run' sets
///
/// As commands for a POSIX shell (eval), or as one JSON object. With these variables, every program that
/// the shell starts sees the devices, as under 'roxie run'.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/env.txt"))]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    pub(crate) nic: NicArgs,
    /// Print one JSON object instead of shell commands
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show each device, its port, GIDs and limits
///
/// Like ibv_devinfo, without needing it installed; shows also whether packets go by UDP or AF_XDP sockets.
/// Opens no port.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/devinfo.txt"))]
pub(crate) struct DevinfoArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) port: PortArgs,
    /// Show the limits too
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Print one JSON object for each device, limits included
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check what works on this machine and what does not
///
/// Checks the kernel, UDP segmentation offload, UDP port 4791 and the process that uses it, the limits of
/// this process, socket buffers, network interfaces with their path MTU and XDP modes, the privileges for
/// AF_XDP, the libraries, kernel Soft-RoCE, user namespaces, and the kernel features that roxie uses, one by
/// one. Says of each interface why it has a device or not. Opens the devices, and sends a message from one
/// queue pair of the first to another. Changes nothing. Every line that is not 'ok' says what to do.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/doctor.txt"))]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run RDMA operations between two processes, verify every byte, measure throughput and latency
///
/// Starts two processes and connects them through the connection manager (REQ, REP, RTU). One of them does
/// SENDs, WRITEs, READs, compare-and-swaps and fetch-and-adds of 0 bytes to 1 MiB; both compare every byte,
/// including those that must not change. Then it measures bandwidth, message rate and latency for a few
/// seconds, and verifies everything again while 2 % of the client's packets are dropped. Needs no root, no
/// configuration and no other software.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/demo.txt"))]
pub(crate) struct DemoArgs {
    /// Network interface; both processes use its first address [default: lo, 127.0.0.1]
    #[arg(long, short = 'i', value_name = "IF")]
    pub(crate) netdev: Option<String>,
    /// Skip the measurements and the run with loss
    #[arg(long)]
    pub(crate) no_figures: bool,
    /// Print one JSON object at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure this machine: RDMA over UDP sockets, RDMA through shared memory, and TCP
///
/// Measures bandwidth, message rate and latency between two processes of this machine, first as 'roxie demo'
/// does, with packets through UDP sockets and then through shared memory, then over TCP sockets between two
/// threads. Prints a Markdown table with the CPU and the kernel, for reports and comparisons. Takes about
/// twenty seconds; other programs that run meanwhile change the result.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/bench.txt"))]
pub(crate) struct BenchArgs {
    /// Network interface; its first address is used [default: lo, 127.0.0.1]
    #[arg(long, short = 'i', value_name = "IF")]
    pub(crate) netdev: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of one process of the demo.
#[derive(Debug, ClapArgs)]
pub(crate) struct DemoRoleArgs {
    /// Address of the passive process.
    #[arg(long)]
    pub(crate) address: IpAddr,
    /// UDP port of the passive process; 0: any free port.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Network interface of the device.
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

    /// The terminal must not wrap these lines: a wrapped line has no indentation.
    #[test]
    fn help_below_the_options_fits_a_terminal() {
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
        assert_eq!(run.nic.device.netdev.as_deref(), Some("lo"));
        assert_eq!(run.nic.device.name, None);
        assert_eq!(run.command, ["rping", "-s", "--name", "x"]);
        let args = Args::parse_from(["roxie", "run", "rping", "-s", "--name", "x"]);
        let Command::Run(run) = args.command else { panic!("run") };
        assert_eq!(run.command, ["rping", "-s", "--name", "x"]);
        let args = ["roxie", "run", "--device", "a=lo,b=eth0", "--", "true"];
        let Command::Run(run) = Args::parse_from(args).command else { panic!("run") };
        let pairs = run.nic.device.device.expect("given");
        assert_eq!((&*pairs.names, &*pairs.netdevs), ("a,b", "lo,eth0"));
        let when = |words: &[&str]| match Args::parse_from([&["roxie", "run"], words].concat()).command {
            Command::Run(run) => (run.device_files, run.command.len()),
            _ => panic!("run"),
        };
        assert_eq!(when(&["--device-files", "true"]), (When::On, 1), "the command is not the value");
        assert_eq!(when(&["--device-files=off", "--", "true"]), (When::Off, 1));
        assert_eq!(when(&["true"]), (When::Auto, 1));
        assert!(Args::try_parse_from(["roxie", "run", "--bogus", "--", "true"]).is_err());
        assert!(Args::try_parse_from(["roxie", "run", "--port", "tcp", "--", "true"]).is_err());
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let with_ecn =
            |line, command: Option<&str>| with_ecn_value(&words(line), command.map(OsString::from).as_ref());
        let joined = Some(words("roxie run --ecn=a=off,b=on -- true"));
        assert_eq!(with_ecn("roxie run --ecn a=off,b=on -- true", Some("a=off,b=on")), joined);
        assert_eq!(with_ecn("roxie env --ecn off", None), Some(words("roxie env --ecn=off")));
        for (line, command) in [
            ("roxie run --ecn true", "true"),
            ("roxie run --ecn -- on", "on"),
            ("roxie run ./prog --ecn on", "./prog"),
            ("roxie run -- ./prog --ecn on", "./prog"),
        ] {
            assert_eq!(with_ecn(line, Some(command)), None, "{line}");
        }
        for wrong in ["a", "a=", "=lo", "a=lo,", ",a=lo"] {
            assert!(
                Args::try_parse_from(["roxie", "run", "--device", wrong, "--", "true"]).is_err(),
                "{wrong}"
            );
        }
    }
}
