//! The memory that a program can address while it runs.

use std::ops::Range;

use super::buff::XdpBuff;
use super::space::{self, Space};
use crate::xdp::XdpMd;

/// Length of a function's stack frame in bytes, and maximum number of frames (`MAX_BPF_STACK`,
/// `MAX_CALL_FRAMES`).
pub(super) const FRAME_LEN: usize = 512;
pub(super) const FRAMES: usize = 8;

/// Longest key of a map in bytes. The key of each frame's callback has its own place.
pub(super) const KEY_MAX: usize = 512;

/// The stack frames of one thread.
pub(super) type Stack = [u8; FRAME_LEN * FRAMES];

/// Memory of one run.
pub(super) struct Memory<'r, 'b> {
    pub(super) stack: &'r mut Stack,
    pub(super) buff: &'r mut XdpBuff<'b>,
    pub(super) space: &'r Space,
    /// Keys for callbacks; empty until one is needed.
    pub(super) keys: &'r mut Vec<u8>,
}

impl Memory<'_, '_> {
    /// Loads `N` bytes (1, 2, 4 or 8), zero-extended. Returns `None` if they are not all in one window.
    #[inline(always)]
    pub(super) fn load<const N: usize>(&mut self, address: u64) -> Option<u64> {
        if let Some(bytes) = self.packet_chunk::<N>(address) {
            return Some(number(bytes));
        }
        if let Some(bytes) = self.stack_chunk::<N>(address) {
            return Some(number(bytes));
        }
        self.load_elsewhere(address, N)
    }

    #[inline(never)]
    fn load_elsewhere(&mut self, address: u64, len: usize) -> Option<u64> {
        let at = space::offset(address);
        let bytes = match address >> space::SEGMENT_BITS {
            space::PACKET => {
                let range = self.in_packet(at, len)?;
                self.buff.buffer().get(range)?
            }
            space::CTX if len == 4 => return self.context(at),
            space::KEYS => self.keys.get(at..)?.get(..len)?,
            _ => return self.space.load(address, len),
        };
        let mut word = [0; 8];
        word[..len].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }

    /// Returns the place of `len` bytes in the packet's buffer, which then has them; `None` if they are not
    /// all in the packet.
    fn in_packet(&mut self, at: usize, len: usize) -> Option<Range<usize>> {
        let end = at.checked_add(len)?;
        if end > self.buff.window().end {
            self.buff.fetch_rest();
        }
        let window = self.buff.window();
        (window.start <= at && end <= window.end).then_some(at..end)
    }

    #[inline(always)]
    fn packet_chunk<const N: usize>(&self, address: u64) -> Option<&[u8; N]> {
        let at = usize::try_from(address.wrapping_sub(space::base(space::PACKET))).ok()?;
        let window = self.buff.window();
        if at < window.start { None } else { self.buff.buffer().get(..window.end)?.get(at..)?.first_chunk() }
    }

    #[inline(always)]
    fn stack_chunk<const N: usize>(&self, address: u64) -> Option<&[u8; N]> {
        let at = usize::try_from(address.wrapping_sub(space::base(space::STACK))).ok()?;
        self.stack.get(at..)?.first_chunk()
    }

    /// Stores the `N` low bytes of `value`.
    #[inline(always)]
    pub(super) fn store<const N: usize>(&mut self, address: u64, value: u64) -> Option<()> {
        let bytes = value.to_le_bytes();
        let bytes = bytes.first_chunk::<N>()?;
        let at = address.wrapping_sub(space::base(space::STACK)) as usize;
        if let Some(to) = self.stack.get_mut(at..).and_then(|stack| stack.first_chunk_mut::<N>()) {
            *to = *bytes;
            return Some(());
        }
        let at = address.wrapping_sub(space::base(space::PACKET)) as usize;
        let window = self.buff.window();
        if at >= window.start
            && let Some(packet) = self.buff.buffer_mut().get_mut(..window.end)
            && let Some(to) = packet.get_mut(at..).and_then(|packet| packet.first_chunk_mut::<N>())
        {
            *to = *bytes;
            self.buff.mark_changed();
            return Some(());
        }
        self.store_elsewhere(address, N, value)
    }

    #[inline(never)]
    fn store_elsewhere(&mut self, address: u64, len: usize, value: u64) -> Option<()> {
        if address >> space::SEGMENT_BITS == space::PACKET {
            return self.write(address, value.to_le_bytes().get(..len)?);
        }
        self.space.store(address, len, value)
    }

    /// Atomically replaces 4 or 8 bytes and returns the old value. As in the kernel, packets do not support
    /// it.
    pub(super) fn exchange<const N: usize>(&mut self, address: u64, new: impl Fn(u64) -> u64) -> Option<u64> {
        match address >> space::SEGMENT_BITS {
            space::PACKET => None,
            space::STACK => {
                let old = self.load::<N>(address)?;
                self.store::<N>(address, new(old))?;
                Some(old)
            }
            _ => self.space.exchange(address, N, new),
        }
    }

    /// Replaces the contents of `out` by `len` bytes at `address`.
    pub(super) fn read(&mut self, address: u64, len: usize, out: &mut Vec<u8>) -> Option<()> {
        out.clear();
        let at = space::offset(address);
        match address >> space::SEGMENT_BITS {
            space::PACKET => {
                let range = self.in_packet(at, len)?;
                out.extend_from_slice(self.buff.buffer().get(range)?);
            }
            space::STACK => out.extend_from_slice(self.stack.get(at..at + len)?),
            space::KEYS => out.extend_from_slice(self.keys.get(at..at + len)?),
            _ => {
                let whole = len / 8 * 8;
                for at in (0..whole as u64).step_by(8) {
                    out.extend(self.space.load(address.checked_add(at)?, 8)?.to_le_bytes());
                }
                for at in whole..len {
                    out.push(self.space.load(address.checked_add(at as u64)?, 1)? as u8);
                }
            }
        }
        Some(())
    }

    /// Stores all of `bytes`, or none of them.
    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        let at = space::offset(address);
        match address >> space::SEGMENT_BITS {
            space::PACKET => {
                let range = self.in_packet(at, bytes.len())?;
                self.buff.mark_changed();
                self.buff.buffer_mut().get_mut(range)?.copy_from_slice(bytes);
            }
            space::STACK => self.stack.get_mut(at..at + bytes.len())?.copy_from_slice(bytes),
            _ => {
                if let Some(last) = (bytes.len() as u64).checked_sub(1) {
                    self.space.load(address.checked_add(last)?, 1)?;
                }
                for (at, &byte) in (0..).zip(bytes) {
                    self.space.store(address + at, 1, byte.into())?;
                }
            }
        }
        Some(())
    }

    /// Copies a key to where the callback in frame `depth` can read it. Returns its address.
    pub(super) fn show_key(&mut self, depth: usize, key: &[u8]) -> Option<u64> {
        let at = depth * KEY_MAX;
        if self.keys.len() < at + KEY_MAX {
            self.keys.resize(at + KEY_MAX, 0);
        }
        self.keys.get_mut(at..)?.get_mut(..key.len())?.copy_from_slice(key);
        Some(space::base(space::KEYS) + at as u64)
    }

    fn context(&self, at: usize) -> Option<u64> {
        const DATA: usize = XdpMd::Data as usize;
        const DATA_END: usize = XdpMd::DataEnd as usize;
        const DATA_META: usize = XdpMd::DataMeta as usize;
        const INGRESS_IFINDEX: usize = XdpMd::IngressIfindex as usize;
        const RX_QUEUE_INDEX: usize = XdpMd::RxQueueIndex as usize;
        const EGRESS_IFINDEX: usize = XdpMd::EgressIfindex as usize;
        let packet = |at: usize| space::base(space::PACKET) + at as u64;
        match at {
            DATA => Some(packet(self.buff.range().start)),
            DATA_END => Some(packet(self.buff.range().end)),
            DATA_META => Some(packet(self.buff.meta())),
            INGRESS_IFINDEX => Some(self.buff.ingress_ifindex.into()),
            RX_QUEUE_INDEX => Some(self.buff.rx_queue_index.into()),
            EGRESS_IFINDEX => Some(self.buff.egress_ifindex.into()),
            _ => None,
        }
    }
}

#[inline(always)]
fn number<const N: usize>(bytes: &[u8; N]) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}
