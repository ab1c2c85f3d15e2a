//! Regions of dma-buf descriptors (ibv_reg_dmabuf_mr(3)): buffers of a device driver that the driver lets the
//! process map, such as those of udmabuf and of DMA heaps. The memory of a GPU cannot be mapped in general.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use transport::{Access, refuse};

use super::{Mr, Pd};
use crate::keys::Range;
use sys::{Mmap, is_dma_buf, page_size};

impl Pd {
    /// Registers `len` bytes at `offset` of a dma-buf; peers and work requests address the first as `iova`.
    /// The region keeps the buffer, also after the descriptor is closed.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is no dma-buf, and as for [`Pd::reg_mr`]; what mmap(2) returns if the
    /// driver does not let processes map the buffer.
    pub fn reg_dmabuf_mr(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> io::Result<Mr> {
        is_dma_buf(file)?;
        self.reg_mapped(file, offset, len, iova, access)
    }

    fn reg_mapped(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> io::Result<Mr> {
        let before = (offset % page_size() as u64) as usize;
        let mapped = len.checked_add(before).filter(|_| len > 0).ok_or_else(|| {
            refuse!(EINVAL, "memory region", "length"; len, offset;
                "{len} bytes at {offset} of the dma-buf: no bytes, or past the last address")
        })?;
        let start = offset - before as u64;
        let map = if access.contains(Access::LOCAL_WRITE) {
            Mmap::shared_lazily(file, mapped, start)?
        } else {
            Mmap::shared_read_only(file, mapped, start)?
        };
        let base = map.start().as_ptr() as u64 + before as u64;
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        let range = Range { base, len: len as u64, iova };
        self.register_backed(range, access, Some(Arc::new(map))).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use transport::Sge;
    use wire::Lkey;

    use super::*;
    use crate::registry::DomainConfig;
    use crate::verbs::{Device, DeviceConfig};

    /// A file in memory stands in for the buffer: it is mapped in the same way.
    #[test]
    fn a_region_of_a_file_starts_at_its_offset_and_outlives_the_descriptor() {
        let config = DeviceConfig {
            netdev: Some("lo".to_owned()),
            domain: DomainConfig::parse("dmabuf-test:14793"),
            ..DeviceConfig::default()
        };
        let context = Device::open(&config).expect("lo").context().expect("a descriptor");
        let pd = context.alloc_pd().expect("an engine");
        let file = sys::memory_file(c"buffer").expect("memory");
        file.set_len(3 * 4096).expect("memory");
        file.write_all_at(b"dma", 4096 + 16).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.reg_mapped(file.as_fd(), 4096 + 16, 100, 0x5000, access).expect("a region");
        let copy = File::from(file.as_fd().try_clone_to_owned().expect("a descriptor"));
        drop(file);
        assert_eq!((mr.len(), mr.iova()), (100, 0x5000));
        let sge = Sge { addr: 0x5000, length: 3, lkey: Lkey(mr.rkey().0) };
        assert_eq!(pd.locate(&sge, Access::LOCAL_WRITE), Ok(mr.addr()));
        assert_eq!(mr.addr() % 4096, 16);
        drop(mr);
        assert!(pd.locate(&sge, Access::empty()).is_err());
        assert!(pd.reg_dmabuf_mr(copy.as_fd(), 0, 4096, 0, access).is_err(), "it is no dma-buf");
        assert!(pd.reg_mapped(copy.as_fd(), 0, 0, 0, access).is_err());
        assert!(pd.reg_mapped(copy.as_fd(), 1, usize::MAX, 0, access).is_err());
    }
}
