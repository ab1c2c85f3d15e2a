//! Memory of a peer.

use wire::Rkey;

use roxie::verbs::Buffer;

/// Memory of a peer that permits one-sided operations. The owner sends it to the peer as bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RemoteMemory {
    /// Address of the first byte at the peer.
    pub addr: u64,
    /// Key of the registration.
    pub rkey: Rkey,
    /// Length in bytes.
    pub len: u32,
}

impl RemoteMemory {
    /// Length of [`to_bytes`](Self::to_bytes).
    pub const LEN: usize = 16;

    /// Describes a buffer; what the peer may do with it was chosen when it was registered.
    #[must_use]
    pub fn of(buffer: &Buffer) -> Self {
        let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        Self { addr: buffer.addr(), rkey: buffer.rkey(), len }
    }

    /// Returns `len` bytes from `offset`; `None` unless they are inside.
    #[must_use]
    pub fn slice(self, offset: u32, len: u32) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { addr: self.addr.wrapping_add(u64::from(offset)), len, ..self })
    }

    /// Address, key and length, each in network byte order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// The inverse of [`to_bytes`](Self::to_bytes).
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let addr = u64::from(word(0)) << 32 | u64::from(word(4));
        Self { addr, rkey: Rkey(word(8)), len: word(12) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_of_memory_survives_the_wire() {
        let memory = RemoteMemory { addr: 0x0102_0304_0506_0708, rkey: Rkey(0x0a0b_0c0d), len: 4096 };
        assert_eq!(memory.to_bytes()[..12], [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13]);
        assert_eq!(RemoteMemory::from_bytes(&memory.to_bytes()), memory);
    }

    #[test]
    fn a_slice_stays_inside() {
        let memory = RemoteMemory { addr: 100, rkey: Rkey(1), len: 64 };
        assert_eq!(memory.slice(16, 48), Some(RemoteMemory { addr: 116, rkey: Rkey(1), len: 48 }));
        assert_eq!(memory.slice(16, 49), None);
        assert_eq!(memory.slice(u32::MAX, 2), None);
    }
}
