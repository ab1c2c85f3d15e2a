//! Hosts, switches, ports and routes.
//!
//! Nodes are numbered: first the hosts, then the switches. A link has a port at each end. A frame goes up
//! until a switch has a way down to its destination; among ways of equal length the switch chooses by a hash
//! of addresses and UDP source port (ECMP), each switch with its own salt.

use std::collections::VecDeque;

use transport::split_mix64;

use super::spec::{Shape, Spec, SpecError, wrong};
use super::units::{Rate, Time};

/// Frames may arrive after a pause was sent: the link's delay twice, and a frame in each direction.
const FRAMES_IN_HEADROOM: u64 = 3;
/// Bytes of the longest frame.
pub(crate) const FRAME_MAX: u64 = 4096 + 98;

/// One end of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortPlace {
    /// The node that it belongs to.
    pub(crate) node: u32,
    /// The port at the other end.
    pub(crate) peer: u32,
    pub(crate) rate: Rate,
    pub(crate) delay: Time,
}

/// The network.
#[derive(Debug)]
pub(crate) struct Topology {
    hosts: usize,
    pub(crate) ports: Vec<PortPlace>,
    /// Ports of each node.
    of_node: Vec<Vec<u32>>,
    /// Of each switch, for each leaf switch: where its ports are in `choices`.
    routes: Vec<Vec<(u32, u32)>>,
    choices: Vec<u32>,
    /// Of each switch, its place among the leaf switches: those with hosts.
    leaf_of: Vec<Option<u32>>,
}

impl Topology {
    /// Builds the network of a description.
    pub(crate) fn new(spec: &Spec) -> Result<Self, SpecError> {
        let uplink = spec.uplink_rate.unwrap_or(spec.rate);
        let core = spec.core_rate.unwrap_or(uplink);
        let mut links: Vec<(usize, usize, Rate)> = Vec::new();
        let hosts = match spec.topology {
            Shape::Star | Shape::Dumbbell => {
                let hosts = spec.count("hosts", spec.hosts)?;
                Spec::check_size(hosts, 2, 0)?;
                if spec.topology == Shape::Dumbbell {
                    links.push((hosts, hosts + 1, uplink));
                }
                let is_right = |host| spec.topology == Shape::Dumbbell && host >= hosts / 2;
                links.extend((0..hosts).map(|host| (host, hosts + usize::from(is_right(host)), spec.rate)));
                hosts
            }
            Shape::LeafSpine | Shape::FatTree => {
                let pods = match spec.topology {
                    Shape::FatTree => spec.count("pods", spec.pods)?,
                    _ => 1,
                };
                let leaves = spec.count("leaves", spec.leaves)?;
                let spines = spec.count("spines", spec.spines)?;
                let per_leaf = spec.count("hosts-per-leaf", spec.hosts_per_leaf)?;
                let cores = match spec.topology {
                    Shape::FatTree => spec.count("cores-per-spine", spec.cores_per_spine)?,
                    _ => 0,
                };
                let hosts = pods.saturating_mul(leaves).saturating_mul(per_leaf);
                let in_pods = pods.saturating_mul(leaves.saturating_add(spines));
                let all_leaves = pods.saturating_mul(leaves);
                let links_up = all_leaves.saturating_add(pods.saturating_mul(cores)).saturating_mul(spines);
                let switches = in_pods.saturating_add(spines.saturating_mul(cores));
                Spec::check_size(hosts, switches, all_leaves.saturating_mul(links_up))?;
                let (first_spine, first_core) = (hosts + pods * leaves, hosts + in_pods);
                links.extend((0..hosts).map(|host| (host, hosts + host / per_leaf, spec.rate)));
                for pod in 0..pods {
                    for spine in 0..spines {
                        let this = first_spine + pod * spines + spine;
                        links.extend((0..leaves).map(|leaf| (hosts + pod * leaves + leaf, this, uplink)));
                        links.extend((0..cores).map(|n| (this, first_core + spine * cores + n, core)));
                    }
                }
                hosts
            }
        };
        Self::of_links(hosts, &links, spec.delay)
    }

    fn of_links(hosts: usize, links: &[(usize, usize, Rate)], delay: Time) -> Result<Self, SpecError> {
        let nodes = links.iter().map(|(a, b, _)| a.max(b) + 1).max().unwrap_or(0);
        let mut ports = Vec::with_capacity(2 * links.len());
        let mut of_node = vec![Vec::new(); nodes];
        for &(a, b, rate) in links {
            let first = ports.len() as u32;
            for (node, number) in [(a, first), (b, first + 1)] {
                ports.push(PortPlace { node: node as u32, peer: number ^ 1, rate, delay });
                of_node[node].push(number);
            }
        }
        let mut topology = Self {
            hosts,
            ports,
            of_node,
            routes: vec![Vec::new(); nodes - hosts],
            choices: Vec::new(),
            leaf_of: vec![None; nodes - hosts],
        };
        topology.find_routes()?;
        Ok(topology)
    }

    /// Fills the routing tables by a breadth-first search from each leaf switch.
    fn find_routes(&mut self) -> Result<(), SpecError> {
        let leaves: Vec<u32> = (self.hosts as u32..self.of_node.len() as u32)
            .filter(|switch| self.neighbours(*switch).any(|(_, node)| self.is_host(node)))
            .collect();
        for (place, leaf) in (0..).zip(&leaves) {
            self.leaf_of[*leaf as usize - self.hosts] = Some(place);
            let mut distance = vec![u32::MAX; self.of_node.len()];
            distance[*leaf as usize] = 0;
            let mut queue = VecDeque::from([*leaf]);
            while let Some(node) = queue.pop_front() {
                for (_, next) in self.neighbours(node) {
                    if !self.is_host(next) && distance[next as usize] == u32::MAX {
                        distance[next as usize] = distance[node as usize] + 1;
                        queue.push_back(next);
                    }
                }
            }
            for switch in 0..self.routes.len() {
                let node = (switch + self.hosts) as u32;
                let here = distance[node as usize];
                if here == u32::MAX {
                    return Err(wrong("topology", "not all switches are connected"));
                }
                let is_nearer =
                    |(_, next): &(u32, u32)| !self.is_host(*next) && distance[*next as usize] < here;
                let nearer: Vec<u32> =
                    self.neighbours(node).filter(is_nearer).map(|(port, _)| port).collect();
                self.routes[switch].push((self.choices.len() as u32, nearer.len() as u32));
                self.choices.extend(nearer);
            }
        }
        Ok(())
    }

    /// The ports of a node, each with the node at the other end.
    fn neighbours(&self, node: u32) -> impl Iterator<Item = (u32, u32)> {
        let other = |port: &u32| (*port, self.ports[self.ports[*port as usize].peer as usize].node);
        self.of_node[node as usize].iter().map(other)
    }

    pub(crate) fn hosts(&self) -> usize {
        self.hosts
    }

    pub(crate) fn switches(&self) -> usize {
        self.routes.len()
    }

    pub(crate) fn is_host(&self, node: u32) -> bool {
        (node as usize) < self.hosts
    }

    /// The port of a host.
    pub(crate) fn host_port(&self, host: u32) -> u32 {
        self.of_node[host as usize][0]
    }

    /// The port by which a switch forwards a frame to this host. `hash` is that of the frame's flow.
    pub(crate) fn route(&self, switch: u32, host: u32, hash: u64) -> u32 {
        let last_link = self.ports[self.host_port(host) as usize].peer;
        let leaf = self.ports[last_link as usize].node;
        if leaf == switch {
            return last_link;
        }
        let place = self.leaf_of[leaf as usize - self.hosts].unwrap_or(0);
        let (first, count) = self.routes[switch as usize - self.hosts][place as usize];
        let mut salted = hash ^ u64::from(switch).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.choices[(first + (split_mix64(&mut salted) % u64::from(count)) as u32) as usize]
    }

    /// The ports that a frame passes from one host to another.
    pub(crate) fn path(&self, from: u32, to: u32, hash: u64) -> impl Iterator<Item = u32> {
        let mut port = Some(self.host_port(from));
        std::iter::from_fn(move || {
            let this = port?;
            let node = self.ports[self.ports[this as usize].peer as usize].node;
            port = (!self.is_host(node)).then(|| self.route(node, to, hash));
            Some(this)
        })
    }

    /// Bytes that may still arrive by this port after the switch has sent a pause.
    pub(crate) fn headroom(&self, port: u32) -> u64 {
        let PortPlace { rate, delay, .. } = self.ports[port as usize];
        2 * delay.ps / rate.ps_per_byte() + FRAMES_IN_HEADROOM * FRAME_MAX
    }

    /// Headroom of all ports of a switch, for this many priorities.
    pub(crate) fn switch_headroom(&self, switch: u32, priorities: u64) -> u64 {
        self.of_node[switch as usize].iter().map(|port| self.headroom(*port) * priorities).sum()
    }

    /// The largest headroom of a switch.
    pub(crate) fn switch_headroom_max(&self, spec: &Spec) -> u64 {
        let switches = self.hosts as u32..self.of_node.len() as u32;
        let priorities = spec.priorities();
        switches.map(|switch| self.switch_headroom(switch, priorities)).max().unwrap_or(0)
    }
}

impl Spec {
    /// How many priorities the workloads use.
    pub(crate) fn priorities(&self) -> u64 {
        let used = self.workload.iter().fold(0u8, |used, workload| used | 1 << (workload.dscp >> 3));
        u64::from(used.count_ones().max(1))
    }
}

/// The hash of a flow that ECMP uses.
pub(crate) fn flow_hash(from: u32, to: u32, src_port: u16) -> u64 {
    let mut state = u64::from(from) << 40 ^ u64::from(to) << 16 ^ u64::from(src_port);
    split_mix64(&mut state)
}
