//! Everything a program can address while it runs.

use super::buff::XdpBuff;
use super::space::{self, Space};
use crate::xdp::XdpMd;

/// Bytes of a function's stack frame, and frames at most (`MAX_BPF_STACK`, `MAX_CALL_FRAMES`).
pub(super) const FRAME_LEN: usize = 512;
pub(super) const FRAMES: usize = 8;

/// The stacks of one thread.
pub(super) type Stack = [u8; FRAME_LEN * FRAMES];

/// Memory of one run.
pub(super) struct Memory<'r, 'b> {
    pub(super) stack: &'r mut Stack,
    pub(super) buff: &'r mut XdpBuff<'b>,
    pub(super) space: &'r Space,
}

impl Memory<'_, '_> {
    /// `N` bytes, 1, 2, 4 or 8, zero-extended. `None` if they are not all in one window.
    #[inline]
    pub(super) fn load<const N: usize>(&self, address: u64) -> Option<u64> {
        let bytes: &[u8; N] = match address >> space::SEGMENT_BITS {
            space::PACKET => {
                let (at, window) = (space::offset(address), self.buff.window());
                if at < window.start || at + N > window.end {
                    return None;
                }
                self.buff.buffer().get(at..)?.first_chunk()?
            }
            space::STACK => self.stack.get(space::offset(address)..)?.first_chunk()?,
            space::CTX if N == 4 => return self.context(space::offset(address)),
            _ => return self.space.load(address, N),
        };
        let mut word = [0; 8];
        word[..N].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }

    /// The `N` low bytes of `value`.
    #[inline]
    pub(super) fn store<const N: usize>(&mut self, address: u64, value: u64) -> Option<()> {
        let to: &mut [u8; N] = match address >> space::SEGMENT_BITS {
            space::PACKET => {
                let (at, window) = (space::offset(address), self.buff.window());
                if at < window.start || at + N > window.end {
                    return None;
                }
                self.buff.buffer_mut().get_mut(at..)?.first_chunk_mut()?
            }
            space::STACK => self.stack.get_mut(space::offset(address)..)?.first_chunk_mut()?,
            _ => return self.space.store(address, N, value),
        };
        to.copy_from_slice(&value.to_le_bytes()[..N]);
        Some(())
    }

    /// Atomic read-modify-write of 4 or 8 bytes; the old ones. As in the kernel, packets have none.
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

    /// Puts `len` bytes into `out`, in place of what is there.
    pub(super) fn read(&self, address: u64, len: usize, out: &mut Vec<u8>) -> Option<()> {
        out.clear();
        let at = space::offset(address);
        match address >> space::SEGMENT_BITS {
            space::PACKET => {
                let window = self.buff.window();
                if at < window.start || at + len > window.end {
                    return None;
                }
                out.extend_from_slice(self.buff.buffer().get(at..at + len)?);
            }
            space::STACK => out.extend_from_slice(self.stack.get(at..at + len)?),
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

    /// Stores all the bytes, or none of them.
    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        let at = space::offset(address);
        match address >> space::SEGMENT_BITS {
            space::PACKET => {
                let window = self.buff.window();
                if at < window.start || at + bytes.len() > window.end {
                    return None;
                }
                self.buff.buffer_mut().get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
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

    fn context(&self, at: usize) -> Option<u64> {
        let (field, _) = XdpMd::FIELDS.iter().find(|(field, _)| *field as usize == at)?;
        let packet = |at: usize| space::base(space::PACKET) + at as u64;
        Some(match field {
            XdpMd::Data => packet(self.buff.range().start),
            XdpMd::DataEnd => packet(self.buff.range().end),
            XdpMd::DataMeta => packet(self.buff.meta()),
            XdpMd::IngressIfindex => self.buff.ingress_ifindex.into(),
            XdpMd::RxQueueIndex => self.buff.rx_queue_index.into(),
            XdpMd::EgressIfindex => self.buff.egress_ifindex.into(),
        })
    }
}
