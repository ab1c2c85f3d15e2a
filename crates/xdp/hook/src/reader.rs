//! The reader of frames that hooks redirect to XSKMAPs, in place of an AF_XDP socket.
//!
//! As with sockets, such a map has entries only while there is a reader. Without one, the program finds
//! no entry and handles the packet as a miss.

use bpf::{Map, MapKind, UpdateMode};

use super::Hook;
use super::ring::{FrameRing, KeptFrame};

/// The reader, if there is one, and the frames for it.
#[derive(Debug)]
pub(super) struct Reader {
    ring: FrameRing,
    /// Time of the last read; `None` while the maps have no entries.
    read_ns: Option<u64>,
}

/// Most bytes of waiting frames.
const BYTES_MAX: usize = 4 << 20;
/// A reader that has not read for this time counts as gone.
const READER_NS: u64 = 2_000_000_000;
/// Number of entries with a reader in each map.
const ENTRIES_MAX: u32 = 1024;

impl Default for Reader {
    fn default() -> Reader {
        Reader { ring: FrameRing::new(BYTES_MAX), read_ns: None }
    }
}

impl Reader {
    /// Notes a read: from now on the maps of these hooks have entries.
    pub(super) fn open<'h>(&mut self, now_ns: u64, hooks: impl Iterator<Item = &'h Hook>) {
        self.read_ns = Some(now_ns);
        for map in hooks.flat_map(maps) {
            for key in 0..map.def().max_entries.min(ENTRIES_MAX) {
                // The length is right and the key within the map, so there is room.
                let _there = map.update(&key.to_le_bytes(), &1u32.to_le_bytes(), UpdateMode::Any);
            }
        }
    }

    /// Whether there is a reader; if it has stopped reading, removes the entries of the maps.
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

    /// Like [`FrameRing::push`].
    pub(super) fn push(&mut self, frame: KeptFrame) -> bool {
        self.ring.push(frame)
    }

    /// Like [`FrameRing::take`].
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
    fn a_reader_that_stops_reading_is_removed() {
        let mut reader = Reader::default();
        let none = || std::iter::empty();
        assert!(!reader.is_there(5, none()));
        reader.open(5, none());
        assert!(reader.push(frame(9)) && reader.is_there(4 + READER_NS, none()));
        assert!(!reader.is_there(5 + READER_NS, none()));
        assert_eq!(reader.take(100), [], "its frames are dropped too");
    }
}
