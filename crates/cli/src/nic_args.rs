//! The options of the device: its interfaces, its port, its traffic.

use std::ffi::OsString;

use clap::Args as ClapArgs;
use clap::builder::PossibleValuesParser;
use roxie::port::PortChoice;
use roxie::verbs::{DeviceSettings, Engines, Traffic};

use crate::hook::args::HookArgs;

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
    /// process and to an eighth of its descriptors, of which each takes 18. Completion queues with the same
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
