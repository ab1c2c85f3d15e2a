//! The memory region of the responding end: 64 KiB at a fixed address with known contents, under one or
//! more keys.

use std::cell::RefCell;
use std::ops::Range;

use roxie_transport::{Access, AccessFault, AtomicOp, Memory, PdId};
use wire::{Lkey, Qpn, Rkey};

pub(crate) const PD: PdId = PdId(1);
pub(crate) const MR_ADDR: u64 = 0x10_0000_0000;
pub(crate) const MR_LEN: u64 = 65536;

pub(crate) struct Region {
    bytes: RefCell<Vec<u8>>,
    keys: RefCell<Vec<Rkey>>,
    access: Access,
}

impl Region {
    /// `keys` exist and grant `access`. The contents are the pattern that the captures were made with, from
    /// the `seed` of the end, behind a first word of this value, if given.
    pub(crate) fn new(keys: Vec<Rkey>, access: Access, seed: u64, word: Option<u64>) -> Self {
        let mut bytes: Vec<u8> = (0..MR_LEN).map(|i| (i * 7 + seed * 31 + (i >> 8)) as u8).collect();
        if let Some(word) = word {
            bytes[..8].copy_from_slice(&word.to_ne_bytes());
        }
        Self { bytes: RefCell::new(bytes), keys: RefCell::new(keys), access }
    }

    fn range(addr: u64, len: u64) -> Result<Range<usize>, AccessFault> {
        let start = addr.checked_sub(MR_ADDR).ok_or(AccessFault::OutOfBounds)?;
        let end = start.checked_add(len).filter(|end| *end <= MR_LEN).ok_or(AccessFault::OutOfBounds)?;
        Ok(start as usize..end as usize)
    }

    fn remote(&self, rkey: Rkey, va: u64, len: u64, access: Access) -> Result<Range<usize>, AccessFault> {
        if !self.keys.borrow().contains(&rkey) {
            return Err(AccessFault::BadKey);
        }
        if !self.access.contains(access) {
            return Err(AccessFault::Permission);
        }
        Self::range(va, len)
    }
}

impl Memory for Region {
    fn read_inline(&self, _: u64, _: &mut [u8]) -> Result<(), AccessFault> {
        Err(AccessFault::Unmapped)
    }

    fn check_local(&self, _: PdId, _: Lkey, addr: u64, len: u64, _: Access) -> Result<(), AccessFault> {
        Self::range(addr, len).map(|_| ())
    }

    fn read_local(&self, _: PdId, _: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        dst.copy_from_slice(&self.bytes.borrow()[Self::range(addr, dst.len() as u64)?]);
        Ok(())
    }

    fn write_local(&self, _: PdId, _: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessFault> {
        self.bytes.borrow_mut()[Self::range(addr, src.len() as u64)?].copy_from_slice(src);
        Ok(())
    }

    fn check_remote(
        &self,
        _: PdId,
        _: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault> {
        self.remote(rkey, va, len, access).map(|_| ())
    }

    fn read_remote(&self, _: PdId, _: Qpn, rkey: Rkey, va: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        let range = self.remote(rkey, va, dst.len() as u64, Access::REMOTE_READ)?;
        dst.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn write_remote(&self, _: PdId, _: Qpn, rkey: Rkey, va: u64, src: &[u8]) -> Result<(), AccessFault> {
        let range = self.remote(rkey, va, src.len() as u64, Access::REMOTE_WRITE)?;
        self.bytes.borrow_mut()[range].copy_from_slice(src);
        Ok(())
    }

    fn atomic_remote(&self, _: PdId, _: Qpn, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        let range = self.remote(rkey, va, 8, Access::REMOTE_ATOMIC)?;
        let bytes = &mut self.bytes.borrow_mut()[range];
        let original = u64::from_ne_bytes((&*bytes).try_into().expect("eight bytes"));
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
        };
        bytes.copy_from_slice(&new.to_ne_bytes());
        Ok(original)
    }

    /// Forgets the key.
    fn invalidate(&self, _: PdId, _: Qpn, rkey: Rkey) -> Result<(), AccessFault> {
        let mut keys = self.keys.borrow_mut();
        let before = keys.len();
        keys.retain(|key| *key != rkey);
        if keys.len() < before { Ok(()) } else { Err(AccessFault::BadKey) }
    }
}
