//! Frames that wait for the reader of an XSKMAP (`reader.rs`).

use std::collections::VecDeque;

use super::HookPoint;

/// A frame for a reader.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeptFrame {
    /// When it was redirected or copied (CLOCK_MONOTONIC, nanoseconds).
    pub time_ns: u64,
    /// The hook point.
    pub point: HookPoint,
    /// The XSKMAP's key, where an AF_XDP socket would be.
    pub key: u32,
    /// Bytes on the wire: Ethernet header to ICRC.
    pub len: u32,
    /// The frame's first bytes. On egress the ICRC is not computed yet, but zeros.
    pub bytes: Vec<u8>,
}

/// Frames that were not read yet.
#[derive(Debug)]
pub(super) struct FrameRing {
    frames: VecDeque<KeptFrame>,
    bytes: usize,
    bytes_max: usize,
}

/// Bytes that a frame takes besides its own.
const FRAME_COST: usize = 64;

impl FrameRing {
    /// Creates a ring for `bytes_max` bytes, with [`FRAME_COST`] for each frame.
    pub(super) fn new(bytes_max: usize) -> FrameRing {
        FrameRing { frames: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Whether there is room for a frame of `len` bytes.
    #[inline]
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.bytes + len + FRAME_COST <= self.bytes_max
    }

    /// Adds a frame; false if there is no space for it.
    pub(super) fn push(&mut self, frame: KeptFrame) -> bool {
        if !self.has_room(frame.bytes.len()) {
            return false;
        }
        self.bytes += frame.bytes.len() + FRAME_COST;
        self.frames.push_back(frame);
        true
    }

    /// Removes the oldest frames, at most `bytes_max` bytes with their costs.
    pub(super) fn take(&mut self, bytes_max: usize) -> Vec<KeptFrame> {
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn frame(len: usize) -> KeptFrame {
        let point = HookPoint::Ingress;
        KeptFrame { time_ns: 1, point, key: 0, len: len as u32, bytes: vec![7; len] }
    }

    #[test]
    fn the_ring_has_a_size_and_keeps_the_order() {
        const BYTES_MAX: usize = 1 << 20;
        let mut ring = FrameRing::new(BYTES_MAX);
        assert!(ring.push(frame(1)) && ring.push(frame(2)));
        let mut pushed = 2;
        while ring.push(frame(1000)) {
            pushed += 1;
        }
        assert_eq!(pushed, 2 + (BYTES_MAX - 65 - 66) / 1064);
        let taken = ring.take(65 + 66 + 1063);
        assert_eq!(taken.iter().map(|frame| frame.bytes.len()).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(ring.take(1064).len(), 1);
        // Room for one, and for what the short ones and the rest may leave.
        let more = std::iter::repeat_with(|| ring.push(frame(1000))).take_while(|taken| *taken).count();
        assert!((1..=2).contains(&more), "{more}");
        while !ring.take(1 << 17).is_empty() {}
        assert_eq!((ring.bytes, ring.frames.len()), (0, 0));
    }
}
