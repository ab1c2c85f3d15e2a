//! Whether a description of a data centre is complete and its values are in their ranges.

use super::spec::{Kind, Spec, SpecError, Workload, wrong};
use super::topology::Topology;
use super::units::Bytes;

/// DSCP values have six bits.
const DSCP_MAX: u8 = 63;
/// Most flows of a workload in which each host sends to each other one.
const PAIRS_MAX: usize = 1 << 24;

impl Spec {
    /// Whether each value is in its range and every key that the topology and the workloads need is there.
    ///
    /// # Errors
    /// The first key that is not.
    pub fn check(&self) -> Result<(), SpecError> {
        self.checked_topology().map(drop)
    }

    /// The network of a description that passes [`check`](Self::check).
    pub(crate) fn checked_topology(&self) -> Result<Topology, SpecError> {
        for (key, share) in [("pmax", self.pmax), ("loss", self.loss)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(wrong(key, format!("{share} is not a share between 0 and 1")));
            }
        }
        if self.kmin > self.kmax {
            return Err(wrong("kmin", format!("{} is above kmax, {}", self.kmin, self.kmax)));
        }
        if transport::PathMtu::ALL.iter().all(|mtu| mtu.bytes() != self.mtu) {
            return Err(wrong("mtu", format!("{} is no path MTU: 256, 512, 1024, 2048 or 4096", self.mtu)));
        }
        if self.duration.ps == 0 {
            return Err(wrong("duration", "no flow would start"));
        }
        if self.end() < self.duration {
            return Err(wrong("limit", format!("it is before duration, {}", self.duration)));
        }
        let topology = Topology::new(self)?;
        if self.pfc {
            let needs = topology.switch_headroom_max(self);
            if self.buffer.0 < needs * 5 / 4 {
                let needs = Bytes(needs * 5 / 4);
                return Err(wrong("buffer", format!("with pfc the largest switch needs {needs}")));
            }
        }
        if self.workload.is_empty() {
            return Err(wrong("workload", "there is none: add a [[workload]]"));
        }
        self.workload.iter().try_for_each(|workload| workload.check(topology.hosts()))?;
        Ok(topology)
    }
}

impl Workload {
    fn check(&self, hosts: usize) -> Result<(), SpecError> {
        if self.dscp > DSCP_MAX {
            return Err(wrong("dscp", format!("{} is above {DSCP_MAX}", self.dscp)));
        }
        if self.size == Some(Bytes(0)) {
            return Err(wrong("size", "a flow has at least one byte"));
        }
        if self.senders.is_some_and(|senders| senders == 0 || senders >= hosts) {
            return Err(wrong("senders", format!("use 1 to {}: one of {hosts} hosts receives", hosts - 1)));
        }
        if self.parallel == Some(0) || self.every.is_some_and(|every| every.ps == 0) {
            return Err(wrong("parallel", "parallel and every are above 0"));
        }
        match self.kind {
            Kind::Poisson if self.mix.is_none() => Err(wrong("mix", "a poisson workload needs it")),
            Kind::Poisson if self.load.is_none_or(|load| !(0.001..=1.0).contains(&load)) => {
                Err(wrong("load", "a poisson workload needs it, between 0.001 and 1"))
            }
            Kind::RingAllReduce | Kind::TreeAllReduce | Kind::AllToAll if self.size.is_none() => {
                Err(wrong("size", "an all-reduce and all-to-all need it"))
            }
            Kind::RingAllReduce | Kind::AllToAll if hosts.saturating_mul(hosts) > PAIRS_MAX => {
                Err(wrong("kind", format!("{hosts} hosts have more than {PAIRS_MAX} flows")))
            }
            Kind::Incast if self.size.is_none() && self.every.is_some() => {
                Err(wrong("size", "a repeated incast needs it"))
            }
            _ => Ok(()),
        }
    }
}
