//! Device memory (ibv_alloc_dm(3)): memory that the application reaches by copies, and peers and work
//! requests by zero-based regions. This device has no memory of its own, so it is memory of the process.

use std::sync::Arc;

use transport::{Access, VerbsError, refuse};

use super::quota::{Share, no_memory};
use super::{Context, Mr, Pd};
use crate::keys::Range;
use crate::mr::DmaMemory;
use crate::same_device;

/// Zeroed device memory. It is freed with the last handle and the last region.
#[derive(Clone)]
pub struct Dm(Arc<DmInner>);

struct DmInner {
    context: Context,
    memory: DmaMemory,
    len: usize,
    _share: Share,
}

/// Largest alignment, as a power of two: 1 MiB. Programs ask for at most a page.
const LOG_ALIGN_MAX: u32 = 20;

impl Context {
    /// Allocates `len` bytes of device memory at a multiple of 2^`log_align` bytes.
    ///
    /// # Errors
    /// `EINVAL` for no bytes or an alignment above 1 MiB; `ENOMEM` beyond `max_dm_size`.
    pub fn alloc_dm(&self, len: usize, log_align: u32) -> Result<Dm, VerbsError> {
        if len == 0 || log_align > LOG_ALIGN_MAX {
            return Err(refuse!(EINVAL, "device memory", "length"; len, log_align;
                "{len} bytes at a multiple of 2^{log_align}: at least 1 byte, and at most \
                 2^{LOG_ALIGN_MAX}"));
        }
        let bytes = u32::try_from(len).map_err(|_| no_memory(len))?;
        let _share = self.quotas().dm_bytes.take_many(bytes)?;
        let memory = DmaMemory::zeroed_at(len, 1 << log_align).ok_or_else(|| no_memory(len))?;
        let context = self.clone();
        Ok(Dm(Arc::new(DmInner { context, memory, len, _share })))
    }
}

impl Dm {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// True if the length is 0, which does not occur.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// True if regions or other handles still use it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn check(&self, offset: u64, len: usize) -> Result<usize, VerbsError> {
        let has = self.0.len;
        let at = usize::try_from(offset).ok();
        at.filter(|at| at.checked_add(len).is_some_and(|end| end <= has)).ok_or_else(|| {
            refuse!(EINVAL, "device memory", "offset"; offset, len, has;
                "{len} bytes at {offset} are not inside the device memory of {has} bytes")
        })
    }

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    /// `EINVAL` if the range is not inside the memory.
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), VerbsError> {
        let at = self.check(offset, src.len())?;
        self.0.memory.write(at, src);
        Ok(())
    }

    /// Copies from `offset` to `dst`.
    ///
    /// # Errors
    /// `EINVAL` if the range is not inside the memory.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), VerbsError> {
        let at = self.check(offset, dst.len())?;
        self.0.memory.read(at, dst);
        Ok(())
    }
}

impl Pd {
    /// Registers `len` bytes of device memory at `offset`; peers and work requests address the first as 0.
    ///
    /// # Errors
    /// As [`Pd::reg_mr`]; `EINVAL` without `ZERO_BASED`, if the range is not inside the memory, and for
    /// memory of another device.
    pub fn reg_dm_mr(&self, dm: &Dm, offset: u64, len: usize, access: Access) -> Result<Mr, VerbsError> {
        if !access.contains(Access::ZERO_BASED) {
            let access = access.bits();
            return Err(refuse!(EINVAL, "memory region", "access"; access;
                "regions of device memory need IBV_ACCESS_ZERO_BASED"));
        }
        same_device!("memory region", "dm"; self.device(), dm.0.context.device())?;
        let at = dm.check(offset, len)?;
        let range = Range { base: dm.0.memory.addr() + at as u64, len: len as u64, iova: 0 };
        self.register_backed(range, access, Some(Arc::clone(&dm.0) as _))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{Device, DeviceConfig};
    use transport::Errno;

    fn context() -> Context {
        let config = DeviceConfig { netdev: Some("lo".to_owned()), ..DeviceConfig::default() };
        Device::open(&config).expect("lo").context().expect("a descriptor")
    }

    #[test]
    fn device_memory_is_zeroed_bounded_and_aligned() {
        let context = context();
        let dm = context.alloc_dm(100, 16).expect("room");
        assert!(dm.0.memory.addr().is_multiple_of(1 << 16));
        let mut bytes = [9; 100];
        assert_eq!(dm.read(0, &mut bytes), Ok(()));
        assert_eq!(bytes, [0; 100]);
        assert_eq!(dm.write(97, b"end"), Ok(()));
        assert_eq!(dm.write(98, b"end").map_err(|refused| refused.kind()), Err(Errno::EINVAL));
        assert_eq!(dm.write(u64::MAX, b"end").map_err(|refused| refused.kind()), Err(Errno::EINVAL));
        assert_eq!(dm.read(97, &mut bytes[..3]), Ok(()));
        assert_eq!(&bytes[..3], b"end");
        assert_eq!(dm.read(1, &mut bytes).map_err(|refused| refused.kind()), Err(Errno::EINVAL));
    }

    #[test]
    fn device_memory_beyond_the_limit_is_refused_until_some_is_freed() {
        let context = context();
        let max = context.query_device().max_dm_size;
        let all = context.alloc_dm(max, 0).expect("the limit");
        assert_eq!(context.alloc_dm(1, 0).err().map(|refused| refused.kind()), Some(Errno::ENOMEM));
        assert!(!all.in_use());
        drop(all);
        assert_eq!(context.alloc_dm(max + 1, 0).err().map(|refused| refused.kind()), Some(Errno::ENOMEM));
        assert_eq!(context.alloc_dm(usize::MAX, 0).err().map(|refused| refused.kind()), Some(Errno::ENOMEM));
        assert_eq!(context.alloc_dm(0, 0).err().map(|refused| refused.kind()), Some(Errno::EINVAL));
        assert_eq!(
            context.alloc_dm(8, LOG_ALIGN_MAX + 1).err().map(|refused| refused.kind()),
            Some(Errno::EINVAL)
        );
        assert!(context.alloc_dm(1, 0).is_ok());
    }
}
