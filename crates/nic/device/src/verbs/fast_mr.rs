//! Fast registration: memory regions that work requests make valid and invalid (IBA 10.6.3.4). libibverbs has
//! no interface for it; only the Rust interface does.

use std::sync::Arc;

use transport::{Access, FastReg, VerbsError, refuse};
use wire::Rkey;

use super::quota::Share;
use super::{Buffer, Pd};
use crate::mr::DmaMemory;

/// A region that is valid from a REG_MR work request ([`transport::WrOp::RegMr`]) to a LOCAL_INV or a peer's
/// SEND with Invalidate. Each REG_MR chooses a new low byte of the key, so that the old key of a peer is
/// rejected.
pub struct FastMr {
    pd: Pd,
    key: u32,
    /// The mapped memory; kept while peers may access it.
    memory: Option<Arc<DmaMemory>>,
    _share: Share,
}

impl Drop for FastMr {
    fn drop(&mut self) {
        self.pd.engine().with_keys(|keys| keys.remove(self.key));
    }
}

impl Pd {
    /// Allocates a region that REG_MR work requests make valid.
    ///
    /// # Errors
    /// `ENOMEM` at the limit of the device.
    pub fn alloc_fast_mr(&self) -> Result<FastMr, VerbsError> {
        let _share = self.context().quotas().mrs.take()?;
        let key = self.engine().with_keys(|keys| keys.alloc_fast(self.id()))?;
        Ok(FastMr { pd: self.clone(), key, memory: None, _share })
    }
}

impl FastMr {
    /// Selects `len` bytes of a buffer, `offset` from its start, for the next REG_MR.
    ///
    /// # Errors
    /// `EBUSY` while the region is valid, `EINVAL` if the range is not inside the buffer.
    pub fn map(&mut self, buffer: &Buffer, offset: usize, len: usize) -> Result<(), VerbsError> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= buffer.len());
        if !inside {
            let has = buffer.len();
            return Err(refuse!(EINVAL, "fast-registered region", "offset"; offset, len, has;
                "{len} bytes at {offset} are not inside the buffer of {has} bytes"));
        }
        let memory = buffer.memory();
        let base = memory.addr() + offset as u64;
        self.pd.engine().with_keys(|keys| keys.map_fast(self.key, base, len as u64))?;
        self.memory = Some(Arc::clone(memory));
        Ok(())
    }

    /// Returns the registration to post, with `variant` as low byte of the key. Its L_Key is the same number.
    #[must_use]
    pub fn registration(&self, variant: u8, iova: u64, access: Access) -> FastReg {
        FastReg { key: Rkey((self.key & !0xff) | u32::from(variant)), iova, access }
    }
}
