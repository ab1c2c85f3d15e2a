//! Processes with a device of roxie, looked at again and again over connections that stay open.

use std::collections::BTreeMap;
use std::time::Duration;

use roxie::hook::control::{ControlError, Remote};
use roxie::registry::DomainConfig;
use roxie::status::{EngineStatus, QpStatus};

use super::table::{Counts, Item, Key};
use crate::engines::engines;
use crate::failure::{During, Outcome};

/// How long an answer is waited for; whoever needs more is stopped.
const PATIENCE: Duration = Duration::from_millis(300);

/// All that there are, or those that were named.
pub struct Processes {
    domain: DomainConfig,
    pids: Vec<u32>,
    open: BTreeMap<(u32, u8), (Remote, String)>,
    /// That have not answered the last time.
    silent: Vec<u32>,
}

/// An engine at one look.
#[derive(Clone, Debug)]
pub struct Engine {
    /// Its process.
    pub pid: u32,
    /// Its slot: bits 23..16 of its queue pairs' numbers.
    pub slot: u8,
    /// The program.
    pub command: String,
    /// The engine as a whole.
    pub status: EngineStatus,
    /// Its queue pairs.
    pub queue_pairs: Vec<QpStatus>,
}

impl Processes {
    /// Those with these ids; all, if none is named.
    ///
    /// # Errors
    /// Why a named one cannot be looked at.
    pub fn new(pids: &[u32]) -> Outcome<Self> {
        for pid in pids {
            engines(Some(*pid))?;
        }
        let domain = DomainConfig::from_env().during("ROXIE_DOMAIN")?;
        Ok(Self { domain, pids: pids.to_vec(), open: BTreeMap::new(), silent: Vec::new() })
    }

    /// What each says now. Those that have gone or do not answer are left out.
    pub fn look(&mut self) -> Vec<Engine> {
        self.meet();
        self.silent.clear();
        let (mut looked, mut lost) = (Vec::new(), Vec::new());
        for ((pid, slot), (remote, command)) in &self.open {
            match ask(remote) {
                Ok((status, queue_pairs)) => looked.push(Engine {
                    pid: *pid,
                    slot: *slot,
                    command: command.clone(),
                    status,
                    queue_pairs,
                }),
                Err(error) => {
                    // A late answer would be taken for that to the next question: the connection is of no use any more.
                    lost.push((*pid, *slot));
                    if matches!(error, ControlError::Silent | ControlError::Refused { .. }) {
                        self.silent.push(*pid);
                    }
                }
            }
        }
        for key in lost {
            self.open.remove(&key);
        }
        looked
    }

    /// Processes that are there and have not answered the last time.
    pub fn silent(&self) -> &[u32] {
        &self.silent
    }

    /// Connects to those that have come.
    fn meet(&mut self) {
        let found = Remote::find(&self.domain, None);
        self.open.retain(|key, _| found.contains(key));
        for (pid, slot) in found {
            let wanted = self.pids.is_empty() || self.pids.contains(&pid);
            if !wanted || self.open.contains_key(&(pid, slot)) {
                continue;
            }
            // Other users' are not for us to see, and some may be gone by now.
            if let Ok(remote) = Remote::connect(&self.domain, pid, slot) {
                let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                let remote = remote.with_timeout(PATIENCE);
                self.open.insert((pid, slot), (remote, command.trim().to_owned()));
            }
        }
    }
}

fn ask(remote: &Remote) -> Result<(EngineStatus, Vec<QpStatus>), ControlError> {
    Ok((remote.engine()?, remote.queue_pairs()?))
}

impl Engine {
    /// Its queue pairs for a table.
    pub(super) fn items(self) -> impl Iterator<Item = Item> {
        let Engine { pid, slot, command, queue_pairs, .. } = self;
        queue_pairs.into_iter().map(move |status| Item {
            key: Key::Process { pid, slot, qpn: status.qpn },
            command: command.clone(),
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
