//! A trace of this process: events of fixed size, which each thread writes to a ring of its own in a file.
//!
//! A thread maps its file and only stores into it, so recording needs no lock and no system call, and the
//! events of a process that is killed remain. The newest events of a thread replace its oldest ones. While
//! the trace is off, a place that records costs one test of [`SEMAPHORE`].
//!
//! Layout of a file: a header of one page ([`HEADER_LEN`]), then the storage, a power of two of events. The
//! byte order is the native one: writer and reader are on one host.

mod file;
mod probe;
mod ring;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

pub use file::{EVENT_LEN, HEADER_LEN, Recording};
use ring::Ring;

/// Not 0 while the events are wanted: one for [`start`], and one for each tracer (bpftrace, perf) that is
/// attached to a probe. The kernel counts the tracers here: it is the semaphore of every probe
/// ([`usdt!`](crate::usdt)).
#[unsafe(link_section = ".probes")]
pub static SEMAPHORE: AtomicU16 = AtomicU16::new(0);

/// The base section of the probes. perf computes the place of a probe in the file from its distance to this
/// section, so it must be in the segment of the code.
#[doc(hidden)]
#[unsafe(link_section = ".stapsdt.base")]
pub extern "C" fn probe_base() {}

/// Files of one process at most. Each takes [`HEADER_LEN`] and the events that were recorded. Half: programs
/// with more than 128 threads that use the device are recorded in part. Double: twice the memory at worst.
pub const FILES_MAX: usize = 256;

/// The most events of a file: 4 GiB of them. The length of a file must fit a `usize`.
pub const CAPACITY_MAX: usize = 1 << 26;

/// One event. What the numbers mean is the business of the caller.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
pub struct Event {
    /// When it happened or began ([`now_ns`](crate::now_ns)).
    pub time_ns: u64,
    /// What happened.
    pub kind: u8,
    /// Further facts about it.
    pub flags: u8,
    /// How many.
    pub count: u16,
    /// The object.
    pub id: u32,
    /// The rest.
    pub args: [u64; 6],
}

/// Where the files go.
#[derive(Debug)]
struct Place {
    dir: PathBuf,
    /// Events of one file, a power of two.
    capacity: usize,
    /// Files that were begun.
    files: AtomicUsize,
}

static PLACE: OnceLock<Place> = OnceLock::new();

/// The ring of a thread.
enum Slot {
    Unopened,
    Open(Ring),
    /// The file could not be made in this process, which has this number of forks.
    Failed(u32),
}

thread_local! {
    static SLOT: RefCell<Slot> = const { RefCell::new(Slot::Unopened) };
}

/// Whether events are wanted.
#[inline(always)]
pub fn is_on() -> bool {
    SEMAPHORE.load(Ordering::Relaxed) != 0
}

/// Events that a thread keeps if `capacity` are wanted.
fn kept(capacity: usize) -> usize {
    capacity.clamp(ring::CHUNK, CAPACITY_MAX).next_power_of_two()
}

/// From now on the threads of this process record events in files in `dir`: the newest `capacity` events
/// each, rounded up to a power of two, at least 4096 and at most [`CAPACITY_MAX`]. Only the first call has an
/// effect.
pub fn start(dir: PathBuf, capacity: usize) {
    // The linker keeps what code refers to.
    std::hint::black_box(probe_base as extern "C" fn());
    let capacity = kept(capacity);
    if PLACE.set(Place { dir, capacity, files: AtomicUsize::new(0) }).is_ok() {
        SEMAPHORE.fetch_add(1, Ordering::Relaxed);
    }
}

/// Records an event, unless only tracers want it. Returns why the file of this thread could not be made, once
/// for a thread.
///
/// # Errors
/// Those of open(2), fallocate(2) and mmap(2).
pub fn record(event: &Event) -> std::io::Result<()> {
    let Some(place) = PLACE.get() else { return Ok(()) };
    // Fails at the end of a thread, and in a signal handler that interrupted this function.
    let done =
        SLOT.try_with(|slot| slot.try_borrow_mut().map_or(Ok(()), |mut slot| slot.record(place, event)));
    done.unwrap_or(Ok(()))
}

impl Slot {
    fn record(&mut self, place: &Place, event: &Event) -> std::io::Result<()> {
        let generation = crate::generation();
        match self {
            Slot::Open(ring) if ring.generation() == generation => {
                ring.push(event);
                return Ok(());
            }
            Slot::Failed(then) if *then == generation => return Ok(()),
            Slot::Open(_) | Slot::Failed(_) | Slot::Unopened => {}
        }
        // The thread may hold locks of the device.
        let _cancellation = crate::Cancellation::disable();
        // Drops a ring that this forked child inherited: its descriptor is closed, and `Mmap` leaves the
        // addresses alone.
        *self = Slot::Failed(generation);
        let number = place.files.fetch_add(1, Ordering::Relaxed);
        if number >= FILES_MAX {
            let why = format!("a process records the events of {FILES_MAX} threads");
            return if number == FILES_MAX { Err(std::io::Error::other(why)) } else { Ok(()) };
        }
        let mut ring = Ring::create(&place.dir, place.capacity)?;
        ring.push(event);
        *self = Slot::Open(ring);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
