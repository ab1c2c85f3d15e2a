//! Memory that is unmapped, read-only, or beyond the end of its file.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

use super::*;
use crate::memory_file;

const PAGE: usize = 4096;

/// Two pages; the second one has the given access rights.
struct Pages(u64);

impl Pages {
    fn new(second: libc::c_int) -> Self {
        Self::map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, second)
    }

    fn map(flags: libc::c_int, fd: libc::c_int, second: libc::c_int) -> Self {
        // SAFETY: a new mapping, to which no reference exists.
        unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(ptr::null_mut(), 2 * PAGE, rw, flags, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(PAGE), PAGE, second), 0);
            Self(at as u64)
        }
    }

    fn second(&self) -> u64 {
        self.0 + PAGE as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.0 as *mut _, 2 * PAGE) };
    }
}

#[test]
fn reading_unmapped_memory_is_an_error() {
    watch();
    let pages = Pages::new(libc::PROT_NONE);
    for len in [1, 4, 8, 15, 16, 100, 128, 1000, PAGE] {
        let mut bytes = vec![7; len];
        // SAFETY: the first page is mapped, the second one faults.
        unsafe {
            let last_fit = pages.second() - len as u64;
            assert_eq!(write(&bytes, last_fit), Ok(()));
            assert_eq!(read(last_fit, &mut bytes), Ok(()));
            assert_eq!(write(&bytes, last_fit + 1), Err(Unmapped));
            assert_eq!(read(last_fit + 1, &mut bytes), Err(Unmapped));
            assert_eq!(read(0, &mut bytes), Err(Unmapped));
            assert_eq!(read(1 << 63, &mut bytes), Err(Unmapped), "not an address at all");
        }
    }
    // SAFETY: as above.
    unsafe {
        assert_eq!(fetch_add(pages.second(), 1), Err(Unmapped));
        assert_eq!(compare_swap(pages.second(), 0, 1), Err(Unmapped));
    }
}

#[test]
fn writing_read_only_memory_is_an_error() {
    watch();
    let pages = Pages::new(libc::PROT_READ);
    let mut bytes = [7; 64];
    // SAFETY: the second page is ours to read.
    unsafe {
        assert_eq!(read(pages.second(), &mut bytes), Ok(()));
        assert_eq!(write(&bytes, pages.second()), Err(Unmapped));
        assert_eq!(fetch_add(pages.second(), 1), Err(Unmapped));
        assert_eq!(compare_swap(pages.second(), 0, 1), Err(Unmapped));
    }
}

/// A file that became shorter: SIGBUS.
#[test]
fn memory_beyond_the_end_of_its_file_is_an_error() {
    watch();
    let file: File = memory_file(c"guarded").expect("memory");
    file.set_len(2 * PAGE as u64).expect("memory");
    let pages = Pages::map(libc::MAP_SHARED, file.as_raw_fd(), libc::PROT_READ | libc::PROT_WRITE);
    let mut bytes = [7; 64];
    // SAFETY: ours, until the file is cut.
    assert_eq!(unsafe { read(pages.second(), &mut bytes) }, Ok(()));
    file.set_len(PAGE as u64).expect("shorter");
    // SAFETY: the access faults.
    assert_eq!(unsafe { read(pages.second(), &mut bytes) }, Err(Unmapped));
    // SAFETY: the access faults.
    assert_eq!(unsafe { write(&bytes, pages.second()) }, Err(Unmapped));
}
