//! Copies of every length and alignment, compared with the standard library; memory that is unmapped,
//! read-only, or beyond the end of its file.

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
fn copies_are_exact_at_every_length_and_alignment() {
    let from: Vec<u8> = (0..1200).map(|i| (i * 7 + i / 256) as u8).collect();
    for len in (0..300).chain([511, 512, 513, 1023, 1024, 1025]) {
        for (shift_from, shift_to) in [(0, 0), (1, 0), (0, 1), (7, 3), (31, 17)] {
            let mut to = vec![0xee; len + 64];
            let src = &from[shift_from..shift_from + len];
            // SAFETY: both are ours.
            let done = unsafe { write(src, to[shift_to..].as_mut_ptr() as u64) };
            assert_eq!(done, Ok(()));
            assert_eq!(&to[shift_to..shift_to + len], src);
            assert!(to[..shift_to].iter().chain(&to[shift_to + len..]).all(|b| *b == 0xee));
            let mut back = vec![0; len];
            // SAFETY: both are ours.
            assert_eq!(unsafe { read(to[shift_to..].as_ptr() as u64, &mut back) }, Ok(()));
            assert_eq!(back, src);
        }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
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

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
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
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
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

#[test]
fn atomics_return_the_previous_value() {
    let mut word = 5u64;
    let at = &raw mut word as u64;
    // SAFETY: ours.
    unsafe {
        assert_eq!(fetch_add(at, 3), Ok(5));
        assert_eq!(compare_swap(at, 8, 1), Ok(8));
        assert_eq!(compare_swap(at, 8, 2), Ok(1));
    }
    assert_eq!(word, 1);
}

/// Prints how much slower a guarded copy is than the compiler's. Run it with `--release -- --ignored
/// --nocapture`.
#[test]
#[ignore = "measures"]
fn a_guarded_copy_costs_what_a_copy_costs() {
    let (from, mut to) = (vec![1u8; 1 << 16], vec![0u8; 1 << 16]);
    for len in [8, 64, 256, 1024, 4096, 65536] {
        let rounds = (1 << 30) / len.max(256);
        let time = |copy: &mut dyn FnMut()| {
            let begun = std::time::Instant::now();
            (0..rounds).for_each(|_| copy());
            begun.elapsed().as_secs_f64() * 1e9 / rounds as f64
        };
        // SAFETY: both are ours, in either way.
        let guarded = time(&mut || unsafe { write(&from[..len], to.as_mut_ptr() as u64).expect("ours") });
        let plain = time(&mut || {
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), std::hint::black_box(to.as_mut_ptr()), len) }
        });
        println!("{len:6} bytes: guarded {guarded:8.1} ns, plain {plain:8.1} ns");
    }
}
