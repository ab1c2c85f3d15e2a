//! Reads the counters of processes with a device of roxie, over connections that stay open.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use roxie::registry::DomainConfig;
use roxie::status::{EngineStatus, QpStatus};
use roxie_hook::control::{ControlError, Listing, Remote, Users};

use super::item::{Counts, Item, Key};
use crate::engines::{command_of, engines_of, is_hidden};
use crate::failure::{During, Outcome};

/// Timeout for an answer. A process that takes longer is probably stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);
/// Time after which a look asks no further engine: ten stopped processes. Half is short for many large
/// processes, with double a scrape of `roxie metrics` may fail.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections to all processes, or to the named ones.
pub(crate) struct Processes {
    domain: DomainConfig,
    pids: Vec<u32>,
    users: Users,
    /// Ids of the processes of other users, as of the last time.
    hidden: BTreeSet<u32>,
    open: BTreeMap<(u32, u16), (Remote, String)>,
    /// Ids of the processes that did not answer the last time.
    unresponsive: Vec<u32>,
}

/// The state of an engine at one time.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    /// Id of its process.
    pub(crate) pid: u32,
    /// Its slot: bits 23..12 of its queue pairs' numbers.
    pub(crate) slot: u16,
    /// Name of the program.
    pub(crate) command: String,
    /// Status and counters of the engine.
    pub(crate) status: EngineStatus,
    /// Status of its queue pairs.
    pub(crate) queue_pairs: Vec<QpStatus>,
}

impl Processes {
    /// The processes with these ids, of any user; if `pids` is empty, all processes of `users`.
    ///
    /// # Errors
    /// If a named process cannot be connected to.
    pub(crate) fn new(pids: &[u32], users: Users) -> Outcome<Self> {
        for pid in pids {
            engines_of(*pid)?;
        }
        let domain = DomainConfig::from_env().during("ROXIE_DOMAIN")?;
        let users = if pids.is_empty() { users } else { Users::All };
        Ok(Self {
            domain,
            pids: pids.to_vec(),
            users,
            hidden: BTreeSet::new(),
            open: BTreeMap::new(),
            unresponsive: Vec::new(),
        })
    }

    /// The present state of each engine. Processes that have ended or do not answer are left out. Those that
    /// did not answer before are asked last, so that they take no time from the others.
    pub(crate) fn look(&mut self) -> Vec<Engine> {
        self.connect();
        let begun = Instant::now();
        self.look_until(|| begun.elapsed() > LOOK_TIMEOUT)
    }

    /// A look that asks no further engine once `is_over` is true.
    fn look_until(&mut self, is_over: impl Fn() -> bool) -> Vec<Engine> {
        let before = std::mem::take(&mut self.unresponsive);
        let mut keys: Vec<(u32, u16)> = self.open.keys().copied().collect();
        keys.sort_by_key(|(pid, _)| before.iter().position(|there| there == pid));
        let (mut states, mut silent) = (Vec::new(), Vec::new());
        for (pid, slot) in keys {
            let Some((remote, command)) = self.open.get(&(pid, slot)) else { continue };
            if is_over() {
                // The first ones of the next look.
                self.unresponsive.extend(before.contains(&pid).then_some(pid));
                continue;
            }
            match status(remote) {
                Ok((status, queue_pairs)) => {
                    let command = command.clone();
                    states.push(Engine { pid, slot, command, status, queue_pairs });
                }
                Err(error) => {
                    // The connection is closed: a late answer on it would count as that to the next request.
                    self.open.remove(&(pid, slot));
                    if matches!(error, ControlError::Silent | ControlError::Refused { .. }) {
                        silent.push(pid);
                    }
                }
            }
        }
        self.unresponsive.append(&mut silent);
        states.sort_by_key(|engine| (engine.pid, engine.slot));
        states
    }

    /// Ids of running processes that did not answer the last time.
    pub(crate) fn unresponsive(&self) -> &[u32] {
        &self.unresponsive
    }

    /// Number of processes of other users that were left out the last time.
    pub(crate) fn hidden(&self) -> usize {
        self.hidden.len()
    }

    /// Connects to new processes, and removes those that have ended.
    fn connect(&mut self) {
        let listing = Listing::read(&self.domain);
        self.open.retain(|(pid, slot), _| listing.contains(*pid, *slot));
        self.hidden.clear();
        for (pid, slot) in listing.engines() {
            let wanted = self.pids.is_empty() || self.pids.contains(&pid);
            if !wanted || self.open.contains_key(&(pid, slot)) {
                continue;
            }
            match listing.connect(pid, slot, self.users) {
                Ok(remote) => {
                    let remote = remote.with_timeout(ANSWER_TIMEOUT);
                    self.open.insert((pid, slot), (remote, command_of(pid)));
                }
                Err(error) if is_hidden(&error) => _ = self.hidden.insert(pid),
                // It has just ended.
                Err(_) => {}
            }
        }
    }
}

fn status(remote: &Remote) -> Result<(EngineStatus, Vec<QpStatus>), ControlError> {
    Ok((remote.engine()?, remote.queue_pairs()?))
}

impl Engine {
    /// Describes the packet memory and the steering of an AF_XDP device; `None` if its sockets received
    /// nothing, and no pool was empty.
    pub(crate) fn pressure(&self) -> Option<String> {
        let count = |name: &str| {
            let found = self.status.counters.iter().find(|counter| counter.0 == name);
            found.map_or(0, |counter| counter.1)
        };
        let (rx_empty, tx_empty) = (count("xsk_rx_pool_empty"), count("xsk_tx_pool_empty"));
        let (steered, over_udp) = (count("xsk_rx_packets"), count("xsk_tx_to_udp"));
        (rx_empty + tx_empty + steered > 0).then(|| {
            format!(
                "{} {}, {} on {}: no free chunk: {rx_empty} times to receive, {tx_empty} to send; {steered} \
                 packets steered to the AF_XDP sockets, {over_udp} sent over UDP instead",
                self.pid, self.command, self.status.device, self.status.netdev,
            )
        })
    }

    /// Takes its queue pairs, as rows of the table.
    pub(super) fn take_items(&mut self) -> impl Iterator<Item = Item> {
        let Engine { pid, slot, ref command, ref mut queue_pairs, ref status } = *self;
        let EngineStatus { device, netdev, .. } = status;
        std::mem::take(queue_pairs).into_iter().map(move |status| Item {
            key: Key::Process { pid, slot, qpn: status.qpn },
            command: command.clone(),
            device: device.clone(),
            netdev: netdev.clone(),
            totals: totals(&status),
            status,
        })
    }
}

fn totals(status: &QpStatus) -> Counts {
    let c = &status.counters;
    [
        c.sent_bytes,
        c.rcvd_bytes,
        c.rdma_sends,
        c.rdma_recvs,
        c.sent_pkts,
        c.rcvd_pkts,
        c.retransmitted_pkts,
        c.local_ack_timeout_err,
        c.rcvd_seq_err + c.send_seq_err,
        c.rcvd_rnr_err + c.send_rnr_err,
        c.np_cnp_sent + c.rp_cnp_handled + c.rp_cnp_ignored,
        c.np_ecn_marked_roce_packets,
    ]
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn engines_that_do_not_answer_are_asked_after_the_others() {
        let domain =
            DomainConfig { name: format!("roxie-test-{:x}", sys::random_u64()), ..DomainConfig::default() };
        let silent = |pid: u32| {
            let fd = sys::bind_seqpacket(&format!("{}/hook/{pid}/0/0", domain.name)).unwrap();
            sys::listen(fd.as_fd(), 8).unwrap();
            fd
        };
        let _engines = [1, 2, 3].map(silent);
        let mut processes = Processes {
            domain,
            pids: Vec::new(),
            users: Users::Own,
            hidden: BTreeSet::new(),
            open: BTreeMap::new(),
            unresponsive: Vec::new(),
        };
        // Each look has time for one engine.
        let mut asked = Vec::new();
        for _ in 0..5 {
            processes.connect();
            for (remote, _) in processes.open.values_mut() {
                let engine = Listing::read(&processes.domain).connect(remote.pid(), 0, Users::Own).unwrap();
                *remote = engine.with_timeout(Duration::ZERO);
            }
            let is_over = Cell::new(false);
            processes.look_until(|| is_over.replace(true));
            asked.extend([1, 2, 3].into_iter().filter(|pid| !processes.open.contains_key(&(*pid, 0))));
        }
        assert_eq!(asked, [1, 2, 3, 1, 2]);
        assert_eq!(processes.unresponsive(), [3, 1, 2]);
    }
}
