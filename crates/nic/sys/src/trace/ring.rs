//! The writing end: the ring of one thread.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Event;
use super::file::{EVENT_LEN, HEADER_LEN, Header, LOST_AT, WRITTEN_AT};
use crate::{Cancellation, Dir, Mmap, WriteSignals, random_u64};

/// Events that the file grows by; the kernel clears their pages at once, about 40 us. Half: more and shorter
/// pauses. Double: the first event of a thread takes more memory.
pub(super) const CHUNK: usize = 4096;

/// A ring of events in a file.
#[derive(Debug)]
pub(super) struct Ring {
    map: Mmap,
    file: File,
    /// Forks that led to the process that made the ring.
    generation: u32,
    capacity: usize,
    /// Events that the file has memory for.
    backed: usize,
    written: u64,
    lost: u64,
}

impl Ring {
    /// Creates the file of the calling thread in `dir`.
    pub(super) fn create(dir: &Path, capacity: usize) -> io::Result<Ring> {
        let len = HEADER_LEN + capacity * EVENT_LEN;
        let file = new_file(dir)?;
        let signals = WriteSignals::block();
        file.set_len(len as u64)?;
        drop(signals);
        let map = Mmap::shared_lazily(file.as_fd(), len, 0)?;
        let (generation, backed) = (crate::generation(), 0);
        let mut ring = Ring { map, file, generation, capacity, backed, written: 0, lost: 0 };
        ring.grow()?;
        let header = Header::of_this_thread(capacity).bytes();
        // SAFETY: the header has a page of its own at the start of the mapping, which `grow` has backed with
        // memory, and no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), ring.map.start().as_ptr(), header.len()) };
        Ok(ring)
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Adds an event; on a full disk it is counted as lost.
    #[inline]
    pub(super) fn push(&mut self, event: &Event) {
        let at = self.written as usize & (self.capacity - 1);
        if at >= self.backed && self.grow().is_err() {
            self.lost += 1;
            self.number(LOST_AT).store(self.lost, Ordering::Relaxed);
            return;
        }
        // SAFETY: `at` is less than `backed`, so the event is inside the mapping and has memory; its place is
        // aligned, and no reference to it exists.
        unsafe {
            let to = self.map.start().add(HEADER_LEN + at * EVENT_LEN).cast::<Event>();
            to.write(*event);
        }
        self.written += 1;
        // Release: the event is complete.
        self.number(WRITTEN_AT).store(self.written, Ordering::Release);
    }

    /// Gives the file memory for more events. Without it, a store on a full disk would kill the process.
    #[cold]
    fn grow(&mut self) -> io::Result<()> {
        // The thread may hold locks of the device.
        let _cancellation = Cancellation::disable();
        let _signals = WriteSignals::block();
        let backed = (self.backed + CHUNK).min(self.capacity);
        let len = (HEADER_LEN + backed * EVENT_LEN) as libc::off_t;
        let done = loop {
            // SAFETY: takes no pointer.
            match crate::check(unsafe { libc::fallocate(self.file.as_raw_fd(), 0, 0, len) }) {
                // By a signal: a profiler sends many.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => break done,
            }
        };
        done?;
        self.backed = backed;
        Ok(())
    }

    fn number(&self, at: usize) -> &AtomicU64 {
        // SAFETY: in the header, aligned, and only accessed atomically after its creation.
        unsafe { self.map.start().add(at).cast().as_ref() }
    }
}

/// A file with a name of its own: other programs and PID namespaces have the same process numbers.
fn new_file(dir: &Path) -> io::Result<File> {
    let name = format!("{}-{:016x}.ring", std::process::id(), random_u64());
    Dir::own(dir)?.create_new(OsStr::new(&name), 0o600)
}
