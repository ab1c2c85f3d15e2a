//! Remembers accesses by remote keys that succeeded, to explain those that are refused.

use std::collections::HashMap;

use wire::{Operation, Packet, Rkey};

use super::finding::At;

/// Most keys remembered for a direction.
const KEYS_MAX: usize = 4096;

/// The access of a request to the responder's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Access {
    /// The access right that it needs.
    pub what: Right,
    /// The remote key.
    pub key: Rkey,
    /// First virtual address.
    pub va: u64,
    /// Length in bytes.
    pub len: u64,
}

/// An access right.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Right {
    /// `IBV_ACCESS_REMOTE_WRITE`.
    Write,
    /// `IBV_ACCESS_REMOTE_READ`.
    Read,
    /// `IBV_ACCESS_REMOTE_ATOMIC`.
    Atomic,
    /// `IBV_ACCESS_FLUSH_GLOBAL` or `IBV_ACCESS_FLUSH_PERSISTENT`.
    Flush,
}

impl Right {
    const fn name(self) -> &'static str {
        match self {
            Self::Write => "REMOTE_WRITE",
            Self::Read => "REMOTE_READ",
            Self::Atomic => "REMOTE_ATOMIC",
            Self::Flush => "FLUSH",
        }
    }
}

impl Access {
    /// The access of a request packet; `None` if it names no memory.
    #[must_use]
    pub(super) fn of(packet: &Packet<'_>) -> Option<Self> {
        let what = match packet.row().operation {
            Operation::Write | Operation::WriteImm | Operation::AtomicWrite => Right::Write,
            Operation::ReadRequest => Right::Read,
            Operation::CompareSwap | Operation::FetchAdd => Right::Atomic,
            Operation::Flush => Right::Flush,
            _ => return None,
        };
        match (packet.reth(), packet.atomic_eth()) {
            (Some(reth), _) => Some(Self { what, key: reth.r_key, va: reth.va, len: reth.dma_len.into() }),
            (None, Some(atomic)) => Some(Self { what, key: atomic.r_key, va: atomic.va, len: 8 }),
            (None, None) => None,
        }
    }

    fn end(&self) -> u64 {
        self.va.saturating_add(self.len)
    }
}

/// Successful accesses by a key: the rights used and the range; and the packet that invalidated it, or 0.
#[derive(Clone, Copy, Debug)]
struct Known {
    rights: [bool; 4],
    low: u64,
    high: u64,
    invalidated: u64,
}

/// The keys used successfully in one direction.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    list: Vec<(u32, Known)>,
    index: HashMap<u32, usize>,
    /// Index of the key used last; most often the next request uses it too.
    latest: usize,
}

impl Keys {
    /// Adds a successful access. An access of zero bytes proves nothing: the responder does not check its key
    /// (IBA C9-88).
    pub(super) fn worked(&mut self, access: &Access) {
        if access.len == 0 {
            return;
        }
        let key = access.key.0;
        if self.list.get(self.latest).is_none_or(|(latest, _)| *latest != key) {
            self.latest = match self.index.get(&key) {
                Some(at) => *at,
                None if self.list.len() >= KEYS_MAX => return,
                None => {
                    let nothing =
                        Known { rights: [false; 4], low: access.va, high: access.end(), invalidated: 0 };
                    self.list.push((key, nothing));
                    self.index.insert(key, self.list.len() - 1);
                    self.list.len() - 1
                }
            };
        }
        let (_, known) = &mut self.list[self.latest];
        known.rights[access.what as usize] = true;
        known.low = known.low.min(access.va);
        known.high = known.high.max(access.end());
    }

    /// Notes that a SEND with invalidate named the key.
    pub(super) fn invalidated(&mut self, key: Rkey, at: At) {
        if let Some((_, known)) = self.index.get(&key.0).and_then(|at| self.list.get_mut(*at)) {
            known.invalidated = at.number;
        }
    }

    /// The likely cause of a refused access.
    #[must_use]
    pub(super) fn explain(&self, access: &Access) -> String {
        let key = format!("R_Key {}", access.key);
        let Some((_, known)) = self.index.get(&access.key.0).and_then(|at| self.list.get(*at)) else {
            return format!(
                "{key} never worked in this capture: it does not exist, belongs to another protection \
                 domain, lacks {}, or does not cover the range",
                access.what.name()
            );
        };
        if known.invalidated != 0 {
            return format!("{key} was invalidated by packet {}", known.invalidated);
        }
        let (low, high) = (known.low, known.high);
        let beyond = format!("{:#x}..{:#x} reaches beyond", access.va, access.end());
        let is_beyond = access.va < low || access.end() > high;
        let right = access.what.name();
        match (known.rights[access.what as usize], is_beyond) {
            (false, false) => format!("{key} worked for other operations: it lacks {right}"),
            (false, true) => format!(
                "{key} worked for other operations, in {low:#x}..{high:#x}: it lacks {right}, or {beyond} \
                 its memory region"
            ),
            (true, true) => {
                format!("{key} worked for {low:#x}..{high:#x}; {beyond}, probably beyond its memory region")
            }
            (true, false) => {
                format!("{key} worked for this range before: it was deregistered or invalidated meanwhile")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_explanation_compares_a_refused_access_with_successful_ones() {
        let mut keys = Keys::default();
        let write = Access { what: Right::Write, key: Rkey(7), va: 0x1000, len: 0x100 };
        assert!(keys.explain(&write).contains("never worked"));
        keys.worked(&write);
        assert!(keys.explain(&Access { what: Right::Read, ..write }).contains("lacks REMOTE_READ"));
        let further = Access { what: Right::Read, len: 0x200, ..write };
        assert!(
            keys.explain(&further)
                .contains("it lacks REMOTE_READ, or 0x1000..0x1200 reaches beyond its memory")
        );
        assert!(keys.explain(&Access { len: 0x101, ..write }).contains("0x1000..0x1101 reaches beyond"));
        assert!(keys.explain(&write).contains("deregistered"));
        keys.invalidated(Rkey(7), At { number: 12, ns: 0 });
        assert!(keys.explain(&write).contains("by packet 12"));
    }

    #[test]
    fn an_access_of_zero_bytes_proves_nothing() {
        let mut keys = Keys::default();
        let access = Access { what: Right::Write, key: Rkey(7), va: 0, len: 0 };
        keys.worked(&access);
        assert!(keys.explain(&access).contains("never worked"));
    }
}
