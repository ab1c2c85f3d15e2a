//! Memory of one queue pair: a local region, a region for the peer, and keys that can be invalidated. Both
//! regions have gaps that no access may touch.

use std::cell::RefCell;
use std::collections::BTreeSet;

use transport::{Access, AccessFault, AtomicOp, Memory, PdId};
use wire::{Lkey, Qpn, Rkey};

/// Local key of the local region.
pub const LOCAL_KEY: Lkey = Lkey(0x101);
/// Remote key of the region for the peer.
pub const REMOTE_KEY: Rkey = Rkey(0x202);
/// Address of the local region.
pub const LOCAL_BASE: u64 = 0x0001_0000_0000;
/// Address of the region for the peer.
pub const REMOTE_BASE: u64 = 0x7f12_3456_0000;

/// Memory of a queue pair.
#[derive(Debug)]
pub struct SimMemory {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// The region that local work requests use.
    pub local: RefCell<Vec<u8>>,
    /// The region that the peer's requests use.
    pub remote: RefCell<Vec<u8>>,
    /// Keys that have not been invalidated.
    pub keys: RefCell<BTreeSet<u32>>,
}

fn range(len: usize, base: u64, addr: u64, bytes: usize) -> Result<std::ops::Range<usize>, AccessFault> {
    let start = addr.checked_sub(base).ok_or(AccessFault::OutOfBounds)? as usize;
    let end = start.checked_add(bytes).ok_or(AccessFault::OutOfBounds)?;
    if end > len { Err(AccessFault::OutOfBounds) } else { Ok(start..end) }
}

impl SimMemory {
    fn local_range(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: usize,
    ) -> Result<std::ops::Range<usize>, AccessFault> {
        if lkey != LOCAL_KEY {
            return Err(AccessFault::BadKey);
        }
        if pd != self.pd {
            return Err(AccessFault::WrongPd);
        }
        range(self.local.borrow().len(), LOCAL_BASE, addr, len)
    }

    fn remote_range(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: usize,
    ) -> Result<std::ops::Range<usize>, AccessFault> {
        if rkey != REMOTE_KEY {
            return Err(AccessFault::BadKey);
        }
        if pd != self.pd || qpn != self.qpn {
            return Err(AccessFault::WrongPd);
        }
        range(self.remote.borrow().len(), REMOTE_BASE, va, len)
    }
}

impl Memory for SimMemory {
    fn read_inline(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        let local = self.local.borrow();
        dst.copy_from_slice(&local[range(local.len(), LOCAL_BASE, addr, dst.len())?]);
        Ok(())
    }

    fn check_local(&self, pd: PdId, lkey: Lkey, addr: u64, len: u64, _: Access) -> Result<(), AccessFault> {
        self.local_range(pd, lkey, addr, len as usize).map(|_| ())
    }

    fn read_local(&self, pd: PdId, lkey: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        let range = self.local_range(pd, lkey, addr, dst.len())?;
        dst.copy_from_slice(&self.local.borrow()[range]);
        Ok(())
    }

    fn write_local(&self, pd: PdId, lkey: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessFault> {
        let range = self.local_range(pd, lkey, addr, src.len())?;
        self.local.borrow_mut()[range].copy_from_slice(src);
        Ok(())
    }

    fn check_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
        _: Access,
    ) -> Result<(), AccessFault> {
        self.remote_range(pd, qpn, rkey, va, len as usize).map(|_| ())
    }

    fn check_remote_key(&self, pd: PdId, qpn: Qpn, rkey: Rkey, _: Access) -> Result<(), AccessFault> {
        self.remote_range(pd, qpn, rkey, REMOTE_BASE, 0).map(|_| ())
    }

    fn read_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessFault> {
        let range = self.remote_range(pd, qpn, rkey, va, dst.len())?;
        dst.copy_from_slice(&self.remote.borrow()[range]);
        Ok(())
    }

    fn write_remote(&self, pd: PdId, qpn: Qpn, rkey: Rkey, va: u64, src: &[u8]) -> Result<(), AccessFault> {
        let range = self.remote_range(pd, qpn, rkey, va, src.len())?;
        self.remote.borrow_mut()[range].copy_from_slice(src);
        Ok(())
    }

    fn atomic_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessFault> {
        let range = self.remote_range(pd, qpn, rkey, va, 8)?;
        let bytes = &mut self.remote.borrow_mut()[range];
        let original = u64::from_ne_bytes(bytes.try_into().unwrap());
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
        };
        bytes.copy_from_slice(&new.to_ne_bytes());
        Ok(original)
    }

    /// Fails the second time, so that a repeated invalidation is detected.
    fn invalidate(&self, _: PdId, _: Qpn, rkey: Rkey) -> Result<(), AccessFault> {
        if self.keys.borrow_mut().remove(&rkey.0) { Ok(()) } else { Err(AccessFault::BadKey) }
    }
}
