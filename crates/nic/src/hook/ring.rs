//! Packets that a hook redirects to an XSKMAP: they wait here for whoever reads them, as they would for an AF_XDP socket.
//!
//! As with sockets, an entry of such a map is there only while somebody reads; without a reader, the program finds nothing
//! and does with the packet what it does on a miss.

use std::collections::VecDeque;

use bpf::{Map, MapKind, UpdateMode};

use super::{Hook, HookPoint};

/// A packet on its way to a reader.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RedirectedFrame {
    /// When it was redirected (CLOCK_MONOTONIC, nanoseconds).
    pub time_ns: u64,
    /// By the hook there.
    pub point: HookPoint,
    /// The map's key: where an AF_XDP socket would be.
    pub key: u32,
    /// Ethernet header to ICRC; on the way out the ICRC is not made yet, and zero.
    pub bytes: Vec<u8>,
}

/// What nobody has read yet.
#[derive(Debug, Default)]
pub(super) struct FrameRing {
    frames: VecDeque<RedirectedFrame>,
    bytes: usize,
    /// When somebody read last; `None` while the maps' entries are not there.
    read_ns: Option<u64>,
}

/// Bytes that wait at most, with [`FRAME_COST`] for each frame.
const BYTES_MAX: usize = 4 << 20;
const FRAME_COST: usize = 64;
/// Whoever has not read for so long is gone.
const READER_NS: u64 = 2_000_000_000;
/// Entries of a map that lead here.
const ENTRIES_MAX: u32 = 1024;

impl FrameRing {
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
    pub(super) fn has_reader<'h>(&mut self, now_ns: u64, hooks: impl Iterator<Item = &'h Hook>) -> bool {
        let Some(read_ns) = self.read_ns else { return false };
        if now_ns.saturating_sub(read_ns) < READER_NS {
            return true;
        }
        *self = FrameRing::default();
        for map in hooks.flat_map(maps) {
            for key in map.keys() {
                let _gone = map.delete(&key);
            }
        }
        false
    }

    /// Takes a frame in; false if there is no room for it.
    pub(super) fn push(&mut self, frame: RedirectedFrame) -> bool {
        let cost = frame.bytes.len() + FRAME_COST;
        if self.bytes + cost > BYTES_MAX {
            return false;
        }
        self.bytes += cost;
        self.frames.push_back(frame);
        true
    }

    /// The oldest frames, no more than `bytes_max` with what they cost.
    pub(super) fn take(&mut self, bytes_max: usize) -> Vec<RedirectedFrame> {
        let (mut frames, mut taken) = (Vec::new(), 0);
        while let Some(frame) = self.frames.front() {
            let cost = frame.bytes.len() + FRAME_COST;
            if taken + cost > bytes_max {
                break;
            }
            taken += cost;
            frames.extend(self.frames.pop_front());
        }
        self.bytes -= taken;
        frames
    }
}

fn maps(hook: &Hook) -> impl Iterator<Item = &Map> {
    hook.maps().iter().map(AsRef::as_ref).filter(|map| map.def().kind == MapKind::Xskmap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: usize) -> RedirectedFrame {
        RedirectedFrame { time_ns: 1, point: HookPoint::Ingress, key: 0, bytes: vec![7; len] }
    }

    #[test]
    fn the_ring_has_a_size_and_keeps_the_order() {
        let mut ring = FrameRing::default();
        assert!(ring.push(frame(1)) && ring.push(frame(2)));
        let mut pushed = 2;
        while ring.push(frame(1000)) {
            pushed += 1;
        }
        assert_eq!(pushed, 2 + (BYTES_MAX - 65 - 66) / 1064);
        let taken = ring.take(65 + 66 + 1063);
        assert_eq!(taken.iter().map(|frame| frame.bytes.len()).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(ring.take(1064).len(), 1);
        // Room for one, and for what the short ones and the rest may give.
        let more = std::iter::repeat_with(|| ring.push(frame(1000))).take_while(|taken| *taken).count();
        assert!((1..=2).contains(&more), "{more}");
        while !ring.take(1 << 17).is_empty() {}
        assert_eq!((ring.bytes, ring.frames.len()), (0, 0));
    }

    #[test]
    fn a_reader_that_stays_away_is_gone() {
        let mut ring = FrameRing::default();
        let none = || std::iter::empty();
        assert!(!ring.has_reader(5, none()));
        ring.open(5, none());
        assert!(ring.push(frame(9)) && ring.has_reader(4 + READER_NS, none()));
        assert!(!ring.has_reader(5 + READER_NS, none()));
        assert_eq!(ring.take(100), [], "and what was for it");
    }
}
