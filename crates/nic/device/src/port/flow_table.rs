//! Flows by key, with their holders, and the eviction of idle flows.
//!
//! Queue pairs hold their flows. Single datagrams (management datagrams, UD) do not, so that a process
//! that answers every address does not need memory for every address. Flows without a holder are kept for
//! the next datagram, up to [`IDLE_MAX`]; then the one that was idle for longest is evicted. A new flow
//! costs no system call.

use std::collections::{HashMap, VecDeque};

use super::FlowKey;

/// Flows held at once: one per queue pair, if each has a peer of its own.
const HELD_MAX: usize = 65_536;
/// Flows without a holder. More than the bursts between two flushes, so one without queued packets is
/// always found.
const IDLE_MAX: usize = 1024;

/// Keys and holder counts of a port's flows, by index.
#[derive(Debug, Default)]
pub(super) struct FlowTable {
    rows: Vec<Row>,
    by_key: HashMap<FlowKey, u32>,
    /// Flows that had no holder when they were listed, the oldest first.
    idle: VecDeque<u32>,
}

#[derive(Debug)]
struct Row {
    key: FlowKey,
    holders: u32,
    /// The flow is in `idle`; it may have got holders since.
    is_listed: bool,
}

impl FlowTable {
    #[inline]
    pub(super) fn find(&self, key: &FlowKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// Returns the key of the flow with this index.
    pub(super) fn key(&self, index: u32) -> Option<&FlowKey> {
        self.rows.get(index as usize).map(|row| &row.key)
    }

    /// Adds a flow without a holder and returns its index: the next free one, or that of the evicted
    /// flow. `busy` flows are not evicted. `None` if there is no space.
    pub(super) fn add(&mut self, key: FlowKey, busy: impl Fn(u32) -> bool) -> Option<u32> {
        let index = match self.evict(busy) {
            Some(index) => index,
            None if self.rows.len() < HELD_MAX + IDLE_MAX => {
                self.rows.push(Row { key, holders: 0, is_listed: false });
                self.rows.len() as u32 - 1
            }
            None => return None,
        };
        let row = &mut self.rows[index as usize];
        self.by_key.remove(&row.key);
        row.key = key;
        self.by_key.insert(key, index);
        self.list(index);
        Some(index)
    }

    pub(super) fn hold(&mut self, index: u32) {
        self.rows[index as usize].holders += 1;
    }

    pub(super) fn release(&mut self, index: u32) {
        let row = &mut self.rows[index as usize];
        row.holders -= 1;
        if row.holders == 0 {
            self.list(index);
        }
    }

    fn list(&mut self, index: u32) {
        let row = &mut self.rows[index as usize];
        if !row.is_listed {
            row.is_listed = true;
            self.idle.push_back(index);
        }
    }

    /// Removes the flow that was idle for longest, once there are enough of them.
    fn evict(&mut self, busy: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..self.idle.len() {
            if self.idle.len() < IDLE_MAX && self.rows.len() < HELD_MAX + IDLE_MAX {
                return None;
            }
            let index = self.idle.pop_front()?;
            let row = &mut self.rows[index as usize];
            row.is_listed = false;
            if row.holders > 0 {
                continue;
            }
            if !busy(index) {
                return Some(index);
            }
            self.list(index);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::FlushIcrc;

    fn key(n: u32) -> FlowKey {
        let src = std::net::Ipv4Addr::LOCALHOST.into();
        let dst = std::net::Ipv4Addr::from(n).into();
        FlowKey { src, dst, dst_slot: 0, tos: 0, ttl: 64, flush_icrc: FlushIcrc::Iba, above: 0 }
    }

    #[test]
    fn the_flow_idle_for_longest_is_evicted_unless_it_is_held_or_busy() {
        let mut table = FlowTable::default();
        for n in 0..IDLE_MAX as u32 {
            assert_eq!(table.add(key(n), |_| false), Some(n));
        }
        table.hold(0);
        assert_eq!(table.add(key(4000), |_| false), Some(IDLE_MAX as u32), "a held one is not idle");
        assert_eq!(table.add(key(5000), |index| index == 1), Some(2));
        assert_eq!((table.find(&key(2)), table.find(&key(5000))), (None, Some(2)));
        assert_eq!((table.find(&key(0)), table.find(&key(1))), (Some(0), Some(1)));
        // After its release it is the most recent idle one.
        table.release(0);
        for n in 0..IDLE_MAX as u32 {
            assert_ne!(table.add(key(6000 + n), |_| false), Some(0));
        }
        assert_eq!(table.add(key(9000), |_| false), Some(0));
        assert_eq!(table.rows.len(), IDLE_MAX + 1);
    }

    #[test]
    fn held_flows_are_limited_and_reusable_after_their_release() {
        let mut table = FlowTable::default();
        let mut held = Vec::new();
        while let Some(index) = table.add(key(held.len() as u32), |_| false) {
            table.hold(index);
            held.push(index);
        }
        assert_eq!(held.len(), HELD_MAX + IDLE_MAX);
        held.iter().for_each(|index| table.release(*index));
        assert!(table.add(key(u32::MAX), |_| false).is_some());
        assert_eq!(table.by_key.len(), HELD_MAX + IDLE_MAX);
    }
}
