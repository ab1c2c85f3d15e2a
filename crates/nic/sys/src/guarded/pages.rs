//! Memory of the application that this process protects, so that its own accesses fault: for checkers.
//!
//! Guarded copies bypass the protection: they go through /proc/self/mem, where the kernel allows access to
//! pages of any rights. Where it does not (shared memory, hardened kernels), and for atomics, the checker
//! opens the page: it may be read and written then. The handler tells the checker of the faults of other
//! instructions. The checker opens the page, and the instruction runs again.
//!
//! Nothing here runs before [`set_protector`].

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::{Unmapped, machine};
use crate::Cancellation;

/// A fault of an instruction of the application.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The address that the instruction uses.
    pub address: usize,
    /// The address of the instruction.
    pub pc: usize,
    /// Whether it writes, if this machine says so.
    pub is_write: Option<bool>,
}

/// The checker that protects memory. Its functions run in signal handlers: they allocate nothing.
#[derive(Debug)]
pub struct Protector {
    /// Opens the page of a fault if the checker has protected it; returns whether it has.
    pub fault: fn(&Fault) -> bool,
    /// Whether the checker protects memory in this range, which the device reads or writes next.
    pub covers: fn(first: usize, length: usize, writes: bool) -> bool,
    /// Opens the pages of this range.
    pub open: fn(first: usize, length: usize),
    /// A request of the peer of this queue pair begins to read or write this memory.
    pub begins: fn(first: usize, length: usize, writes: bool, queue: u32),
}

/// What the application may do with a page.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Rights {
    /// Read and write.
    All,
    /// Read.
    Read,
    /// Nothing.
    Nothing,
}

static PROTECTOR: AtomicPtr<Protector> = AtomicPtr::new(ptr::null_mut());
/// The checker is told of the requests of peers.
static HEARS_REQUESTS: AtomicBool = AtomicBool::new(false);

/// Attempts of a guarded copy while other threads protect and open the same page.
const ATTEMPTS: usize = 8;
/// `SEGV_ACCERR` (siginfo.h): the memory is mapped, and the access is forbidden.
const ACCESS_FORBIDDEN: c_int = 2;

/// Names the checker of this process. [`watch`](super::watch) installs the handlers.
pub fn set_protector(protector: &'static Protector) {
    PROTECTOR.store(ptr::from_ref(protector).cast_mut(), Ordering::Release);
}

/// From now on the checker of this process is told of the requests of peers ([`Protector::begins`]).
pub fn hear_requests() {
    HEARS_REQUESTS.store(true, Ordering::Relaxed);
}

/// Whether the checker is told of the requests of peers.
#[inline]
#[must_use]
pub fn hears_requests() -> bool {
    HEARS_REQUESTS.load(Ordering::Relaxed)
}

fn protector() -> Option<&'static Protector> {
    // SAFETY: null or set by `set_protector`, to one that lives forever.
    unsafe { PROTECTOR.load(Ordering::Acquire).as_ref() }
}

/// Changes what the application may do with whole pages.
///
/// # Safety
/// The pages are memory that the application may read and write ([`is_plain`]), and not the stack of a
/// thread.
///
/// # Errors
/// `ENOMEM`: too many mappings, or the memory is unmapped; `EINVAL`: a part of a huge page.
pub unsafe fn protect(first: usize, end: usize, rights: Rights) -> io::Result<()> {
    let protection = match rights {
        Rights::All => libc::PROT_READ | libc::PROT_WRITE,
        Rights::Read => libc::PROT_READ,
        Rights::Nothing => libc::PROT_NONE,
    };
    // SAFETY: upheld by the caller.
    let changed = unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(first), end - first, protection) };
    crate::check(changed).map(drop)
}

/// Whether the addresses are mapped memory that may be read and written and not executed. Allocates nothing.
#[must_use]
pub fn is_plain(first: usize, end: usize) -> bool {
    const MAPS: &CStr = c"/proc/self/maps";
    // The thread may hold locks of the device.
    let _cancellation = Cancellation::disable();
    // SAFETY: a C string; the descriptor is closed below.
    let fd = unsafe { libc::open(MAPS.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return false;
    }
    let mut lines = Lines { next: first, end, line: Line::default() };
    let mut piece = [0; 1024];
    let is_plain = loop {
        // SAFETY: the buffer has room for so many bytes.
        let read = unsafe { libc::read(fd, piece.as_mut_ptr().cast(), piece.len()) };
        let Some(bytes) = usize::try_from(read).ok().and_then(|read| piece.get(..read)) else { break false };
        if bytes.is_empty() {
            break false;
        }
        if let Some(found) = bytes.iter().find_map(|byte| lines.add(*byte)) {
            break found;
        }
    };
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    is_plain
}

/// Reads lines of /proc/self/maps: `first-end rwxp ...`.
struct Lines {
    /// The first address that no line so far has.
    next: usize,
    end: usize,
    line: Line,
}

#[derive(Default)]
struct Line {
    numbers: [usize; 2],
    /// Fields before this byte; the minus sign ends one.
    fields: usize,
    rights: [u8; 3],
    rights_len: usize,
}

impl Lines {
    /// Adds a byte; returns the answer when it is known.
    fn add(&mut self, byte: u8) -> Option<bool> {
        let line = &mut self.line;
        match (byte, line.fields) {
            (b'\n', _) => {
                let ([first, end], is_rw) = (line.numbers, &line.rights == b"rw-");
                self.line = Line::default();
                if end <= self.next {
                    return None;
                }
                if first > self.next || !is_rw {
                    return Some(false);
                }
                self.next = end;
                return (end >= self.end).then_some(true);
            }
            (b'-', 0) | (b' ', 1..) => line.fields += 1,
            (_, field @ (0 | 1)) => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default() as usize;
                line.numbers[field] = line.numbers[field] << 4 | digit;
            }
            (_, 2) if line.rights_len < 3 => {
                line.rights[line.rights_len] = byte;
                line.rights_len += 1;
            }
            _ => {}
        }
        None
    }
}

/// Lets an instruction of the application run after the fault of a page that the checker has protected;
/// returns whether this was one.
///
/// Not inlined: the handlers need little stack while there is no checker.
///
/// # Safety
/// `info` is what the kernel gave for a signal of this thread; `pc` is from its context.
#[cold]
#[inline(never)]
pub(super) unsafe fn handle(
    signal: c_int,
    info: *const libc::siginfo_t,
    pc: usize,
    is_write: Option<bool>,
) -> bool {
    let Some(protector) = protector() else { return false };
    // SAFETY: upheld by the caller.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // A jump to memory that is not to be executed is no access.
    if signal != libc::SIGSEGV || code != ACCESS_FORBIDDEN || address == pc {
        return false;
    }
    // SAFETY: the variable of this thread.
    let errno = unsafe { *libc::__errno_location() };
    // Or another thread has ended the protection since the fault.
    let is_open = (protector.fault)(&Fault { address, pc, is_write }) || is_plain(address, address + 1);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    is_open
}

/// Whether a checker has protected memory in this range. A guarded access would fault, and the kernel ends a
/// thread that blocks the signal.
#[inline]
pub(super) fn may_fault(first: u64, length: usize, writes: bool) -> bool {
    !PROTECTOR.load(Ordering::Relaxed).is_null() && is_protected(first, length, writes)
}

#[cold]
fn is_protected(first: u64, length: usize, writes: bool) -> bool {
    protector().is_some_and(|protector| (protector.covers)(first as usize, length, writes))
}

/// Tells the checker that a request of the peer of this queue pair begins to use memory.
#[cold]
pub fn begins(first: u64, length: u64, writes: bool, queue: u32) {
    if let Some(protector) = protector() {
        (protector.begins)(first as usize, length as usize, writes, queue);
    }
}

/// Repeats a guarded read that faulted.
///
/// # Safety
/// As [`super::read`].
#[cold]
pub(super) unsafe fn read(from: u64, dst: &mut [u8]) -> Result<(), Unmapped> {
    let (to, len) = (dst.as_mut_ptr(), dst.len());
    let through = |fd| {
        // SAFETY: `dst` has room; the kernel checks the address.
        unsafe { libc::pread(fd, to.cast(), len, from as libc::off_t) }
    };
    // SAFETY: upheld by the caller.
    unsafe { again((from, len, false), Some(&through), || machine::copy(to, from as *const u8, len)) }
}

/// Repeats a guarded write that faulted.
///
/// # Safety
/// As [`super::write`].
#[cold]
pub(super) unsafe fn write(src: &[u8], to: u64) -> Result<(), Unmapped> {
    let (from, len) = (src.as_ptr(), src.len());
    let through = |fd| {
        // SAFETY: `src` has so many bytes; the kernel checks the address.
        unsafe { libc::pwrite(fd, from.cast(), len, to as libc::off_t) }
    };
    // SAFETY: upheld by the caller.
    unsafe { again((to, len, true), Some(&through), || machine::copy(to as *mut u8, from, len)) }
}

/// Repeats a guarded access that faulted if the checker has protected its memory: `through` /proc/self/mem,
/// and else after the pages were opened.
///
/// # Safety
/// `access` is a guarded access of this memory.
#[cold]
pub(super) unsafe fn again(
    (first, length, writes): (u64, usize, bool),
    through: Option<&dyn Fn(c_int) -> isize>,
    mut access: impl FnMut() -> u32,
) -> Result<(), Unmapped> {
    let Some(protector) = protector() else { return Err(Unmapped) };
    // The thread may hold locks of the device.
    let _cancellation = Cancellation::disable();
    for _ in 0..ATTEMPTS {
        if (protector.covers)(first as usize, length, writes) {
            if through.is_some_and(|through| bypass(through) == Some(length)) {
                return Ok(());
            }
            (protector.open)(first as usize, length);
        }
        // Also if the protection has ended since the fault.
        if access() == 0 {
            return Ok(());
        }
    }
    Err(Unmapped)
}

/// Calls `through` with /proc/self/mem; returns the bytes that it copied.
fn bypass(through: &dyn Fn(c_int) -> isize) -> Option<usize> {
    // Opened each time: a forked child would write to its parent.
    // SAFETY: a C string; the descriptor is closed below.
    let fd = unsafe { libc::open(c"/proc/self/mem".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    let copied = through(fd);
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    usize::try_from(copied).ok()
}

/// `None`: the context of this machine does not say whether the instruction writes.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn is_write(_context: *mut c_void) -> Option<bool> {
    None
}

/// Whether the instruction that faulted writes.
///
/// # Safety
/// `context` is what the kernel gave for a signal of this thread.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn is_write(context: *mut c_void) -> Option<bool> {
    /// Bit of the error code of a page fault (Intel SDM 3A, 4.7).
    const WRITES: i64 = 2;
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: upheld by the caller.
    Some(unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] } & WRITES != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_size;

    #[test]
    fn plain_memory_is_mapped_for_reading_and_writing() {
        let heap = vec![0_u8; 3 * page_size()];
        let at = heap.as_ptr().addr();
        assert!(is_plain(at, at + heap.len()));
        assert!(!is_plain(at, at + (1 << 46)), "not all of it is mapped");
        assert!(!is_plain(0, 1));
        let code = is_plain as *const () as usize;
        assert!(!is_plain(code, code + 1));
    }

    fn answer(text: &str, first: usize, end: usize) -> Option<bool> {
        let mut lines = Lines { next: first, end, line: Line::default() };
        text.bytes().find_map(|byte| lines.add(byte))
    }

    #[test]
    fn neighbouring_mappings_are_one_range() {
        let text = "1000-3000 rw-p 0 00:00 0 /a b\n3000-5000 rw-s 0 00:00 0\n5000-6000 r--p 0 00:00 0\n";
        assert_eq!(answer(text, 0x1000, 0x3000), Some(true));
        assert_eq!(answer(text, 0x2abc, 0x4def), Some(true));
        assert_eq!(answer(text, 0x2abc, 0x5001), Some(false));
        assert_eq!(answer(text, 0xfff, 0x2000), Some(false), "a hole before it");
        assert_eq!(answer(text, 0x7000, 0x7001), None, "beyond all");
    }
}
