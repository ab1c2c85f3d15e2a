//! Memory mappings: anonymous memory, and memory that a driver shares through a descriptor (mmap(2)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use super::generation;
use super::process::limit;

/// A mapping, unmapped on drop. A forked child does not get it: its copies of the pages would be unknown
/// to the kernel. In the child the addresses are free for other mappings, and drop leaves them alone.
#[derive(Debug)]
pub struct Mmap {
    start: NonNull<u8>,
    len: usize,
    /// [`generation`] of the process that has the mapping.
    generation: u32,
}

// SAFETY: the mapping belongs to the process, not to a thread; code that turns `start` into references is
// responsible for access to the bytes.
unsafe impl Send for Mmap {}
// SAFETY: as above.
unsafe impl Sync for Mmap {}

/// Size of a huge page on x86-64 and most arm64 systems.
const HUGE_PAGE: usize = 2 << 20;

impl Mmap {
    /// Maps zeroed memory, populated at once: in huge pages if the system has some free, else in ordinary
    /// pages that the kernel may merge into huge ones.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn anonymous(len: usize) -> io::Result<Mmap> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let in_huge_pages = len.next_multiple_of(HUGE_PAGE);
        if let Ok(map) = map(in_huge_pages, flags | libc::MAP_HUGETLB | libc::MAP_POPULATE, -1, 0) {
            return Ok(map);
        }
        let map = map(len, flags, -1, 0)?;
        // SAFETY: the range is the mapping's own. A kernel without huge pages refuses, which does no
        // harm.
        unsafe { libc::madvise(map.start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        // SAFETY: as above. Before 5.14 the kernel refuses, and the pages are populated on first use.
        unsafe { libc::madvise(map.start.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
        Ok(map)
    }

    /// Maps `len` bytes at `offset` of what `fd` shares.
    ///
    /// # Errors
    /// What the driver says.
    pub fn shared(fd: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Mmap> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        map(len, flags, fd.as_raw_fd(), offset as libc::off_t)
    }

    /// Like [`shared`](Mmap::shared), but pages are populated on first use.
    ///
    /// # Errors
    /// What the driver says.
    pub fn shared_lazily(fd: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Mmap> {
        map(len, libc::MAP_SHARED, fd.as_raw_fd(), offset as libc::off_t)
    }

    /// Like [`shared`](Mmap::shared), read-only: writing to it kills the process.
    ///
    /// # Errors
    /// What the driver says.
    pub fn shared_read_only(fd: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Mmap> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        map_with(libc::PROT_READ, len, flags, fd.as_raw_fd(), offset as libc::off_t)
    }

    /// Returns the first byte; valid for [`len`](Mmap::len) bytes while `self` lives.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0, which the kernel does not allow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Fails if a limit of the process (RLIMIT_AS, RLIMIT_DATA) forbids `len` more bytes of memory: an allocation
/// that fails aborts the process.
///
/// # Errors
/// `ENOMEM`.
pub fn memory_for(len: usize) -> io::Result<()> {
    if [libc::RLIMIT_AS, libc::RLIMIT_DATA].map(limit).iter().all(|limit| *limit == libc::RLIM_INFINITY) {
        return Ok(());
    }
    map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0).map(drop)
}

/// Checks that a descriptor is a dma-buf (linux/dma-buf.h), and makes its content visible to the CPU.
///
/// # Errors
/// `EINVAL` for another kind of file; `EBADF`.
pub fn is_dma_buf(file: BorrowedFd<'_>) -> io::Result<()> {
    // _IOW('b', 0, struct dma_buf_sync), and the flags DMA_BUF_SYNC_RW, with DMA_BUF_SYNC_END or without.
    const DMA_BUF_IOCTL_SYNC: libc::c_ulong = 0x4008_6200;
    const BEGIN: u64 = 3;
    const END: u64 = 3 | 1 << 2;
    for flags in [BEGIN, END] {
        // SAFETY: the kernel reads eight bytes. Drivers of other files refuse the request: they give it no
        // meaning of their own (Documentation/userspace-api/ioctl/ioctl-number.rst).
        let synced = unsafe { libc::ioctl(file.as_raw_fd(), DMA_BUF_IOCTL_SYNC as _, &raw const flags) };
        if synced < 0 {
            let error = io::Error::last_os_error();
            let is_bad = error.raw_os_error() == Some(libc::EBADF);
            return Err(if is_bad { error } else { io::Error::from_raw_os_error(libc::EINVAL) });
        }
    }
    Ok(())
}

fn map(len: usize, flags: libc::c_int, fd: libc::c_int, offset: libc::off_t) -> io::Result<Mmap> {
    map_with(libc::PROT_READ | libc::PROT_WRITE, len, flags, fd, offset)
}

fn map_with(
    access: libc::c_int,
    len: usize,
    flags: libc::c_int,
    fd: libc::c_int,
    offset: libc::off_t,
) -> io::Result<Mmap> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, offset) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    let map = Mmap { start, len, generation: generation() };
    // SAFETY: the range is the mapping's own.
    unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_DONTFORK) };
    Ok(map)
}

impl Drop for Mmap {
    fn drop(&mut self) {
        if self.generation != generation() {
            return;
        }
        // SAFETY: the mapping is ours, and users of `start` access it only while `self` lives.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
