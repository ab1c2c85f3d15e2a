//! Memory of the bench: a local and a remote region, and switches that make accesses fail.

use std::cell::{Cell, RefCell};

use wire::{Lkey, Qpn, Rkey};

use super::{LKEY, LOCAL, REMOTE, RKEY, SIZE};
use crate::{Access, AccessFault, AtomicOp, FastReg, Memory, MwBind, PdId};

pub(crate) struct TestMemory {
    pub(crate) local: RefCell<Vec<u8>>,
    pub(crate) remote: RefCell<Vec<u8>>,
    /// The peer's key was taken back.
    pub(crate) revoked: Cell<bool>,
    /// Local memory was taken back.
    pub(crate) local_gone: Cell<bool>,
    pub(crate) read_only: Cell<bool>,
    pub(crate) invalidated: RefCell<Vec<u32>>,
    /// Keys that were bound or registered.
    pub(crate) changed: RefCell<Vec<u32>>,
    /// The domain of the last access.
    pub(crate) last_pd: Cell<PdId>,
}

impl TestMemory {
    fn range(base: u64, addr: u64, len: usize) -> Result<core::ops::Range<usize>, AccessFault> {
        let start = addr.checked_sub(base).ok_or(AccessFault::OutOfBounds)? as usize;
        let end = start.checked_add(len).filter(|&end| end <= SIZE).ok_or(AccessFault::OutOfBounds)?;
        Ok(start..end)
    }

    fn local(&self, lkey: Lkey, addr: u64, len: usize) -> Result<core::ops::Range<usize>, AccessFault> {
        if lkey == LKEY && !self.local_gone.get() {
            Self::range(LOCAL, addr, len)
        } else {
            Err(AccessFault::BadKey)
        }
    }

    fn remote(
        &self,
        rkey: Rkey,
        va: u64,
        len: usize,
        write: bool,
    ) -> Result<core::ops::Range<usize>, AccessFault> {
        if rkey != RKEY || self.revoked.get() {
            return Err(AccessFault::BadKey);
        }
        if write && self.read_only.get() {
            return Err(AccessFault::Permission);
        }
        Self::range(REMOTE, va, len)
    }

    pub(crate) fn put_local(&self, at: u64, bytes: &[u8]) {
        self.local.borrow_mut()[Self::range(LOCAL, at, bytes.len()).unwrap()].copy_from_slice(bytes);
    }

    pub(crate) fn put_remote(&self, at: u64, bytes: &[u8]) {
        self.remote.borrow_mut()[Self::range(REMOTE, at, bytes.len()).unwrap()].copy_from_slice(bytes);
    }

    pub(crate) fn local_at(&self, at: u64, len: usize) -> Vec<u8> {
        self.local.borrow()[Self::range(LOCAL, at, len).unwrap()].to_vec()
    }

    pub(crate) fn remote_at(&self, at: u64, len: usize) -> Vec<u8> {
        self.remote.borrow()[Self::range(REMOTE, at, len).unwrap()].to_vec()
    }
}

impl Memory for TestMemory {
    fn read_inline(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        dst.copy_from_slice(&self.local.borrow()[Self::range(LOCAL, addr, dst.len())?]);
        Ok(())
    }

    fn check_local(&self, _: PdId, lkey: Lkey, addr: u64, len: u64, _: Access) -> Result<(), AccessFault> {
        self.local(lkey, addr, len as usize).map(|_| ())
    }

    fn read_local(&self, _: PdId, lkey: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        let range = self.local(lkey, addr, dst.len())?;
        dst.copy_from_slice(&self.local.borrow()[range]);
        Ok(())
    }

    fn write_local(&self, pd: PdId, lkey: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessFault> {
        self.last_pd.set(pd);
        let range = self.local(lkey, addr, src.len())?;
        self.local.borrow_mut()[range].copy_from_slice(src);
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
        self.remote(rkey, va, len as usize, access.contains(Access::REMOTE_WRITE)).map(|_| ())
    }

    fn check_remote_key(&self, _: PdId, _: Qpn, rkey: Rkey, _: Access) -> Result<(), AccessFault> {
        if rkey == RKEY { Ok(()) } else { Err(AccessFault::BadKey) }
    }

    fn read_remote(&self, pd: PdId, _: Qpn, rkey: Rkey, va: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        self.last_pd.set(pd);
        let range = self.remote(rkey, va, dst.len(), false)?;
        dst.copy_from_slice(&self.remote.borrow()[range]);
        Ok(())
    }

    fn write_remote(&self, pd: PdId, _: Qpn, rkey: Rkey, va: u64, src: &[u8]) -> Result<(), AccessFault> {
        self.last_pd.set(pd);
        let range = self.remote(rkey, va, src.len(), true)?;
        self.remote.borrow_mut()[range].copy_from_slice(src);
        Ok(())
    }

    fn atomic_remote(&self, pd: PdId, _: Qpn, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        self.last_pd.set(pd);
        let range = self.remote(rkey, va, 8, true)?;
        let bytes = &mut self.remote.borrow_mut()[range];
        let original = u64::from_ne_bytes((&*bytes).try_into().unwrap());
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
        };
        bytes.copy_from_slice(&new.to_ne_bytes());
        Ok(original)
    }

    fn invalidate(&self, _: PdId, _: Qpn, rkey: Rkey) -> Result<(), AccessFault> {
        if rkey == RKEY {
            return Err(AccessFault::Permission);
        }
        self.invalidated.borrow_mut().push(rkey.0);
        Ok(())
    }

    fn bind(&self, _: PdId, _: Qpn, bind: &MwBind) -> Result<(), AccessFault> {
        if self.read_only.get() {
            return Err(AccessFault::Permission);
        }
        self.changed.borrow_mut().push(bind.r_key.0);
        Ok(())
    }

    fn register_fast(&self, _: PdId, reg: &FastReg) -> Result<(), AccessFault> {
        self.changed.borrow_mut().push(reg.key.0);
        Ok(())
    }
}
