//! The description of a data centre: topology, links, switches, hosts, workloads. `docs/fabric.md` has the
//! same keys.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::mix::Mix;
use super::units::{Bytes, Rate, Time};

/// Most hosts: each has an IPv4 address in 10.0.0.0/8.
const HOSTS_MAX: usize = 65_536;
/// Most switches.
const SWITCHES_MAX: usize = 8_192;
/// Most pairs of a leaf switch and a link between switches: each has an entry of the routing tables.
const ROUTES_MAX: usize = 1 << 26;

/// A data centre and its work, as a file describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Spec {
    /// Shape of the network.
    pub topology: Shape,
    /// Hosts of a star, or of a dumbbell (half on each side).
    #[serde(default)]
    pub hosts: Option<usize>,
    /// Leaf switches, in a fat-tree of each pod.
    #[serde(default)]
    pub leaves: Option<usize>,
    /// Spine switches, in a fat-tree of each pod.
    #[serde(default)]
    pub spines: Option<usize>,
    /// Hosts of each leaf switch.
    #[serde(default)]
    pub hosts_per_leaf: Option<usize>,
    /// Pods of a fat-tree.
    #[serde(default)]
    pub pods: Option<usize>,
    /// Core switches above each spine of a pod.
    #[serde(default)]
    pub cores_per_spine: Option<usize>,
    /// Rate of the links of hosts.
    pub rate: Rate,
    /// Rate of the links between leaf and spine switches, or in the middle of a dumbbell; that of hosts if
    /// absent.
    #[serde(default)]
    pub uplink_rate: Option<Rate>,
    /// Rate of the links between spine and core switches; `uplink_rate` if absent.
    #[serde(default)]
    pub core_rate: Option<Rate>,
    /// Propagation delay of each link.
    pub delay: Time,
    /// Memory of each switch for frames, shared by its ports.
    pub buffer: Bytes,
    /// Without PFC: most bytes of a queue; longer ones drop. Unlimited within `buffer` if absent.
    #[serde(default)]
    pub queue: Option<Bytes>,
    /// Whether switches mark packets, and hosts send ECN-capable packets.
    #[serde(default)]
    pub ecn: bool,
    /// Queue from which on packets are marked, at a port with the rate of hosts; faster ports have
    /// proportionally more.
    #[serde(default = "default_kmin")]
    pub kmin: Bytes,
    /// Queue above which all packets are marked.
    #[serde(default = "default_kmax")]
    pub kmax: Bytes,
    /// Share of packets marked at a queue of `kmax`.
    #[serde(default = "default_pmax")]
    pub pmax: f64,
    /// Whether switches pause their neighbours instead of dropping (IEEE 802.1Qbb).
    #[serde(default)]
    pub pfc: bool,
    /// Bytes of one priority from one neighbour above which it is paused; an eighth of the free buffer if
    /// absent.
    #[serde(default)]
    pub pfc_xoff: Option<Bytes>,
    /// Share of frames lost on each link.
    #[serde(default)]
    pub loss: f64,
    /// What receivers do with packets behind a gap.
    #[serde(default)]
    pub recovery: Recovery,
    /// Bytes of a packet's payload, at most: a path MTU.
    #[serde(default = "default_mtu")]
    pub mtu: usize,
    /// Bytes that a queue pair sends before the next queue pair of its host does; at least one packet.
    #[serde(default)]
    pub burst: Bytes,
    /// Time between two polls of a host's device; 0: each packet is handled when it arrives.
    #[serde(default)]
    pub poll: Time,
    /// No flow starts later.
    pub duration: Time,
    /// The run ends at this time even if flows are incomplete; ten times `duration` if absent.
    #[serde(default)]
    pub limit: Option<Time>,
    /// What the hosts do.
    #[serde(default)]
    pub workload: Vec<Workload>,
}

fn default_kmin() -> Bytes {
    Bytes(5_000)
}

fn default_kmax() -> Bytes {
    Bytes(200_000)
}

fn default_pmax() -> f64 {
    0.01
}

fn default_mtu() -> usize {
    4096
}

/// Shape of a network.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Two switches with a link between them, and half of the hosts at each.
    Dumbbell,
    /// All hosts at one switch.
    Star,
    /// Each leaf switch has a link to each spine switch.
    LeafSpine,
    /// Pods of leaves and spines; each spine of a pod has links to core switches of its own plane.
    FatTree,
}

/// What a receiver does with packets behind a gap.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// It keeps them, as roxie does.
    #[default]
    SelectiveRepeat,
    /// It drops them, as hardware does.
    GoBackN,
}

/// Something that hosts do.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Workload {
    /// Which hosts send to which.
    pub kind: Kind,
    /// Bytes of each flow; of the whole vector in an all-reduce. Absent: flows last until `duration`.
    #[serde(default)]
    pub size: Option<Bytes>,
    /// Incast: how many hosts send; all others if absent.
    #[serde(default)]
    pub senders: Option<usize>,
    /// Incast: time from one to the next, each to another host. Absent: one incast, to the last host.
    #[serde(default)]
    pub every: Option<Time>,
    /// Incast: each sender starts so much later than the one before.
    #[serde(default)]
    pub stagger: Time,
    /// Poisson: share of the links of hosts that the payload takes on average.
    #[serde(default)]
    pub load: Option<f64>,
    /// Poisson: the distribution of flow sizes.
    #[serde(default)]
    pub mix: Option<Mix>,
    /// All-to-all: flows that each host sends at a time.
    #[serde(default)]
    pub parallel: Option<usize>,
    /// When it begins.
    #[serde(default)]
    pub start: Time,
    /// DSCP of the packets. Its three highest bits are the priority in queues and for PFC.
    #[serde(default = "default_dscp")]
    pub dscp: u8,
}

/// The value that adapters and switches usually have for RoCE: priority 3.
fn default_dscp() -> u8 {
    26
}

/// Which hosts send to which.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Many hosts to one.
    Incast,
    /// Each host to one other, and each host receives from one.
    Permutation,
    /// Each host to each other, one after the other.
    AllToAll,
    /// A ring: each host passes a part of the vector on, 2 (N - 1) times.
    RingAllReduce,
    /// A binary tree: sums go up to the root, the result comes down.
    TreeAllReduce,
    /// Flows of random sizes between random hosts, with Poisson arrivals.
    Poisson,
}

/// A description that cannot be simulated.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SpecError {
    /// The key that is wrong or missing.
    pub key: &'static str,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

impl std::error::Error for SpecError {}

/// An error about this key.
pub(crate) fn wrong(key: &'static str, why: impl Into<String>) -> SpecError {
    SpecError { key, why: why.into() }
}

impl Spec {
    /// The time at which a run ends.
    #[must_use]
    pub fn end(&self) -> Time {
        self.limit.unwrap_or(Time { ps: self.duration.ps.saturating_mul(10) })
    }

    /// A description with the values of keys that a file need not have, and without workloads.
    #[must_use]
    pub fn new(topology: Shape, rate: Rate, delay: Time, buffer: Bytes, duration: Time) -> Self {
        Self {
            topology,
            hosts: None,
            leaves: None,
            spines: None,
            hosts_per_leaf: None,
            pods: None,
            cores_per_spine: None,
            rate,
            uplink_rate: None,
            core_rate: None,
            delay,
            buffer,
            queue: None,
            ecn: false,
            kmin: default_kmin(),
            kmax: default_kmax(),
            pmax: default_pmax(),
            pfc: false,
            pfc_xoff: None,
            loss: 0.0,
            recovery: Recovery::default(),
            mtu: default_mtu(),
            burst: Bytes::default(),
            poll: Time::default(),
            duration,
            limit: None,
            workload: Vec::new(),
        }
    }

    /// A number that this topology needs.
    pub(crate) fn count(&self, key: &'static str, value: Option<usize>) -> Result<usize, SpecError> {
        match value {
            Some(value) if (1..=HOSTS_MAX).contains(&value) => Ok(value),
            Some(value) => Err(wrong(key, format!("{value} is not between 1 and {HOSTS_MAX}"))),
            None => Err(wrong(key, "this topology needs it")),
        }
    }

    /// Checks the size of the whole network.
    pub(crate) fn check_size(hosts: usize, switches: usize, routes: usize) -> Result<(), SpecError> {
        if !(2..=HOSTS_MAX).contains(&hosts) {
            return Err(wrong("hosts", format!("{hosts} hosts are not between 2 and {HOSTS_MAX}")));
        }
        if switches > SWITCHES_MAX {
            return Err(wrong("leaves", format!("{switches} switches are more than {SWITCHES_MAX}")));
        }
        if routes > ROUTES_MAX {
            return Err(wrong("leaves", format!("{routes} routes are more than {ROUTES_MAX}")));
        }
        Ok(())
    }
}

impl Workload {
    /// A workload of this kind with the values of keys that a file need not have.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            size: None,
            senders: None,
            every: None,
            stagger: Time::default(),
            load: None,
            mix: None,
            parallel: None,
            start: Time::default(),
            dscp: default_dscp(),
        }
    }

    /// Whether its flows last until `duration`.
    pub(crate) fn is_endless(&self) -> bool {
        self.size.is_none() && self.kind != Kind::Poisson
    }
}
