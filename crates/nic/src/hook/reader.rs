//! Whoever reads what hooks redirect to XSKMAPs, in place of an AF_XDP socket.
//!
//! As with sockets, an entry of such a map is there only while somebody reads; without a reader, the program finds nothing
//! and does with the packet what it does on a miss.

use bpf::{Map, MapKind, UpdateMode};

use super::Hook;
use super::ring::{FrameRing, KeptFrame};

/// The reader, if there is one, and what waits for him.
#[derive(Debug)]
pub(super) struct Reader {
    ring: FrameRing,
    /// When somebody read last; `None` while the maps' entries are not there.
    read_ns: Option<u64>,
}

/// Bytes that wait at most.
const BYTES_MAX: usize = 4 << 20;
/// Whoever has not read for so long is gone.
const READER_NS: u64 = 2_000_000_000;
/// Entries of a map that lead here.
const ENTRIES_MAX: u32 = 1024;

impl Default for Reader {
    fn default() -> Reader {
        Reader { ring: FrameRing::new(BYTES_MAX), read_ns: None }
    }
}

impl Reader {
    /// Somebody is there to read: from now on the maps of these hooks have entries.
    pub(super) fn open<'h>(&mut self, now_ns: u64, hooks: impl Iterator<Item = &'h Hook>) {
        self.read_ns = Some(now_ns);
        for map in hooks.flat_map(maps) {
            for key in 0..map.def().max_entries.min(ENTRIES_MAX) {
                // Of the right length and within the map, so that it has room.
                let _there = map.update(&key.to_le_bytes(), &1u32.to_le_bytes(), UpdateMode::Any);
            }
        }
    }

    /// Whether a reader is there; if it has gone, so have the entries of the maps.
    pub(super) fn is_there<'h>(&mut self, now_ns: u64, hooks: impl Iterator<Item = &'h Hook>) -> bool {
        let Some(read_ns) = self.read_ns else { return false };
        if now_ns.saturating_sub(read_ns) < READER_NS {
            return true;
        }
        *self = Reader::default();
        for map in hooks.flat_map(maps) {
            for key in map.keys() {
                let _gone = map.delete(&key);
            }
        }
        false
    }

    /// As [`FrameRing::push`].
    pub(super) fn push(&mut self, frame: KeptFrame) -> bool {
        self.ring.push(frame)
    }

    /// As [`FrameRing::take`].
    pub(super) fn take(&mut self, bytes_max: usize) -> Vec<KeptFrame> {
        self.ring.take(bytes_max)
    }
}

fn maps(hook: &Hook) -> impl Iterator<Item = &Map> {
    hook.maps().iter().map(AsRef::as_ref).filter(|map| map.def().kind == MapKind::Xskmap)
}

#[cfg(test)]
mod tests {
    use super::super::ring::tests::frame;
    use super::*;

    #[test]
    fn a_reader_that_stays_away_is_gone() {
        let mut reader = Reader::default();
        let none = || std::iter::empty();
        assert!(!reader.is_there(5, none()));
        reader.open(5, none());
        assert!(reader.push(frame(9)) && reader.is_there(4 + READER_NS, none()));
        assert!(!reader.is_there(5 + READER_NS, none()));
        assert_eq!(reader.take(100), [], "and what was for it");
    }
}
