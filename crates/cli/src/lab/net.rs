//! The namespaces of a lab and the links between them. The network namespace is an attribute of a thread,
//! so a new thread enters each namespace and ends there.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use bpf::recipe::{Lose, Stage};
use bpf::{ProgramKind, Recipe, XdpAction};
use nix::sched::{CloneFlags, setns, unshare};
use roxie::xdp::{self, AttachError, Attached, Mode};
use sys::{Impairment, Netlink, VethConfig};

use super::spec::{Loss, NETDEV, Spec, host_name};
use crate::failure::{During, Failure, Outcome};

const CARRIER_MAX: Duration = Duration::from_secs(5);
/// Name of the bridge in its namespace; its ports have the names of the hosts.
const BRIDGE: &str = "bridge";

/// Network namespaces; they exist as long as this value, and as processes in them.
#[derive(Debug)]
pub(super) struct Net {
    /// Sorted by host number.
    pub(super) hosts: Vec<OwnedFd>,
    /// What drops packets, for messages.
    pub(super) lossy: Option<&'static str>,
    _bridge: Option<OwnedFd>,
    _programs: Vec<Attached>,
}

impl Net {
    pub(super) fn make(spec: &Spec) -> Outcome<Self> {
        let hosts = spec.numbers().map(|_| namespace()).collect::<io::Result<Vec<_>>>();
        let hosts = hosts.during("making network namespaces")?;
        let mut net = Self { hosts, lossy: None, _bridge: None, _programs: Vec::new() };
        if spec.has_bridge() {
            let bridge = namespace().during("making network namespaces")?;
            net.join_by_bridge(spec, &bridge)?;
            net._bridge = Some(bridge);
        } else {
            within(&net.hosts[0], || {
                Netlink::new()?.add_veth(NETDEV, NETDEV, net.hosts[1].as_fd(), config(spec))
            })
            .during("making a veth pair")?;
        }
        // All links go up before the first address: an IPv6 address that is older than its link's carrier
        // does not reply to the first neighbour solicitation.
        for step in [wake, settle, dress] {
            for (n, host) in spec.numbers().zip(&net.hosts) {
                within(host, || step(spec, n)).during(&format!("setting up {}", host_name(n)))?;
            }
        }
        Ok(net)
    }

    fn join_by_bridge(&mut self, spec: &Spec, namespace: &OwnedFd) -> Outcome {
        let ports = within(namespace, || ports(spec, &self.hosts)).during("making the bridge")?;
        (self.lossy, self._programs) =
            within(namespace, || Ok(lossy(spec, &ports))).during("losing packets")??;
        Ok(())
    }
}

/// Creates a network namespace.
fn namespace() -> io::Result<OwnedFd> {
    let made = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    };
    in_a_thread(made)
}

/// Runs `f` in a network namespace.
fn within<T: Send>(namespace: &OwnedFd, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    in_a_thread(|| {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        f()
    })
}

fn in_a_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let spawned = thread::Builder::new().spawn_scoped(scope, f)?;
        spawned.join().map_err(|_| io::Error::other("a thread has ended too early"))?
    })
}

fn config(spec: &Spec) -> VethConfig {
    VethConfig { mtu: spec.mtu }
}

/// Creates the bridge and a veth pair to every host; returns the indices of its ports.
fn ports(spec: &Spec, hosts: &[OwnedFd]) -> io::Result<Vec<u32>> {
    let mut netlink = Netlink::new()?;
    netlink.add_bridge(BRIDGE, spec.mtu)?;
    let bridge = netlink.index_of(BRIDGE)?;
    netlink.bring_up(bridge, None)?;
    let mut ports = Vec::new();
    for (n, host) in spec.numbers().zip(hosts) {
        netlink.add_veth(&host_name(n), NETDEV, host.as_fd(), config(spec))?;
        let port = netlink.index_of(&host_name(n))?;
        netlink.bring_up(port, Some(bridge))?;
        ports.push(port);
    }
    Ok(ports)
}

/// Brings a host's interfaces up.
fn wake(_spec: &Spec, _n: u8) -> io::Result<()> {
    let mut netlink = Netlink::new()?;
    ["lo", NETDEV].iter().try_for_each(|name| {
        let index = netlink.index_of(name)?;
        netlink.bring_up(index, None)
    })
}

/// Waits until the link carries packets: the kernel notices a carrier up to a second late.
fn settle(_spec: &Spec, _n: u8) -> io::Result<()> {
    let mut netlink = Netlink::new()?;
    let index = netlink.index_of(NETDEV)?;
    let deadline = Instant::now() + CARRIER_MAX;
    while !netlink.link(index)?.is_running {
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the link has no carrier"));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Gives a host's interface its addresses.
fn dress(spec: &Spec, n: u8) -> io::Result<()> {
    let mut netlink = Netlink::new()?;
    let netdev = netlink.index_of(NETDEV)?;
    spec.addresses(n).into_iter().try_for_each(|(ip, len)| netlink.add_address(netdev, ip, len))
}

/// Makes the ports drop and delay packets. An XDP program sees every packet, where netem would drop a whole
/// GSO packet at once; and the hosts' interfaces stay free for programs under test. Returns what drops them.
fn lossy(spec: &Spec, ports: &[u32]) -> Outcome<(Option<&'static str>, Vec<Attached>)> {
    let mut impairment = Impairment { loss_per_million: 0, delay_us: spec.delay.0 };
    let (mut dropper, mut attached) = (None, Vec::new());
    if spec.loss != Loss(0) {
        match programs(spec.loss, ports) {
            Ok(programs) => (dropper, attached) = (Some("XDP"), programs),
            // XDP programs cannot be loaded.
            Err(AttachError::Load(_)) => {
                impairment.loss_per_million = spec.loss.0;
                dropper = Some("netem");
            }
            Err(error) => return Err(Failure::new(format!("losing packets: {error}"))),
        }
    }
    if impairment != Impairment::default() {
        netem(ports, impairment).map_err(|error| no_netem(impairment, &error))?;
    }
    Ok((dropper, attached))
}

fn programs(loss: Loss, ports: &[u32]) -> Result<Vec<Attached>, AttachError> {
    let stages = vec![Stage::Lose(Lose { per_million: loss.0 })];
    let recipe = Recipe { stages, frags: true, ..Recipe::verdict(XdpAction::Pass) };
    let invalid = |error: bpf::RecipeError| io::Error::new(io::ErrorKind::InvalidInput, error);
    let program = recipe.program("roxie_lose", ProgramKind::Xdp).map_err(invalid)?;
    ports.iter().map(|port| xdp::attach(*port, &program, Mode::Auto)).collect()
}

fn netem(ports: &[u32], how: Impairment) -> io::Result<()> {
    let mut netlink = Netlink::new()?;
    ports.iter().try_for_each(|port| netlink.impair(*port, how))
}

fn no_netem(how: Impairment, error: &io::Error) -> Failure {
    let missing = error.raw_os_error() == Some(nix::libc::ENOENT);
    let why =
        if missing { "the kernel has no netem (CONFIG_NET_SCH_NETEM)".to_owned() } else { error.to_string() };
    if how.loss_per_million > 0 {
        return Failure::new(format!("no loss: XDP programs cannot be loaded here, and {why}"))
            .hint("as root (CAP_BPF and CAP_NET_ADMIN of the machine) an XDP program does it");
    }
    Failure::new(format!("no delay: {why}")).hint("modprobe sch_netem, or do without --delay")
}
