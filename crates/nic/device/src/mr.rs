//! Access to application memory: every copy between frames and application memory, after a check of the key.
//!
//! Invariant: application memory is never a Rust reference, because peers and application threads write it at
//! any time. Every access is one check of the key, then a raw copy or a CPU atomic, which fails if the memory
//! is not mapped.

use std::alloc::{self, Layout};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering, fence};

use transport::{Access, AccessFault, AtomicOp, FastReg, Instant, Memory, MwBind, PdId};
use wire::{Lkey, Qpn, Rkey};

use crate::chaos::late_writes::{LateWrites, Piece, Which};
use crate::keys::KeyTable;
use sys::guarded;

impl KeyTable {
    /// Places bytes that are late.
    #[inline]
    fn place(&self, which: Which) {
        if let Some(late) = &self.late {
            place_pieces(late.take(which));
        }
    }

    /// Places all late bytes.
    #[inline]
    pub(crate) fn place_all(&self) {
        self.place(Which::All);
    }

    /// Places those that this side asked for.
    #[inline]
    pub(crate) fn place_local(&self) {
        self.place(Which::Local);
    }

    /// Places those that are due.
    #[inline]
    pub(crate) fn place_due(&self, now: Instant) {
        if let Some(late) = &self.late {
            late.set_now(now);
            self.place(Which::Due);
        }
    }
}

/// Time between the first and the second of several pieces, in nanoseconds. Half: a polling thread sees the
/// first one alone less often. Double: programs are slower under `--chaos`.
const ALONE_NS: u64 = 5_000;

/// Accepts bytes for application memory at `to`, and places them and others as chaos decides.
///
/// # Safety
/// As [`copy_out`]; the application permits it until the key changes.
#[cold]
unsafe fn copy_late(late: &LateWrites, qpn: Option<Qpn>, src: &[u8], to: u64) -> Result<(), AccessFault> {
    if src.is_empty() {
        return Ok(());
    }
    for at in [to, to + src.len() as u64 - 1] {
        // SAFETY: upheld by the caller. A packet reaches over two pages at most.
        unsafe { copy_in(at, &mut [0])? };
    }
    place_pieces(late.write(qpn, to, src));
    Ok(())
}

fn place_pieces(pieces: Vec<Piece>) {
    for (at, piece) in pieces.iter().enumerate() {
        if at == 1 {
            // Long enough for another thread to see the first piece alone.
            let until = sys::now_ns() + ALONE_NS;
            while sys::now_ns() < until {
                std::hint::spin_loop();
            }
        }
        // SAFETY: `copy_late` got these bytes for this address; they are placed before the key changes.
        // Memory that the application has unmapped meanwhile stays as it is.
        let _unmapped = unsafe { copy_out(&piece.bytes, piece.to) };
    }
}

impl Memory for KeyTable {
    fn read_inline(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        // SAFETY: the application posts inline data from memory it can read; `post_send` is the only caller
        // and runs in the posting thread before it returns (ibv_post_send(3), IBV_SEND_INLINE).
        unsafe { copy_in(addr, dst) }
    }

    fn check_local(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault> {
        self.local(pd, lkey.0, addr, len, access)
            .map(|_| ())
            .or_else(|fault| if self.is_null(pd, lkey.0) { Ok(()) } else { Err(fault) })
    }

    #[inline]
    fn read_local(&self, pd: PdId, lkey: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        let at = match self.local(pd, lkey.0, addr, dst.len() as u64, Access::empty()) {
            Ok(at) => at,
            Err(_) if self.is_null(pd, lkey.0) => {
                dst.fill(0);
                return Ok(());
            }
            Err(fault) => return Err(fault),
        };
        self.place_local();
        // SAFETY: the table placed the range inside a live registration (see `Pd::reg_mr`).
        unsafe { copy_in(at, dst) }
    }

    #[inline]
    fn write_local(&self, pd: PdId, lkey: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessFault> {
        let at = match self.local(pd, lkey.0, addr, src.len() as u64, Access::LOCAL_WRITE) {
            Ok(at) => at,
            Err(_) if self.is_null(pd, lkey.0) => return Ok(()),
            Err(fault) => return Err(fault),
        };
        if let Some(late) = &self.late {
            // SAFETY: see below.
            return unsafe { copy_late(late, None, src, at) };
        }
        // SAFETY: see `read_local`; the region is registered writable.
        unsafe { copy_out(src, at) }
    }

    fn check_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault> {
        if access != Access::REMOTE_WRITE {
            // A READ or a FLUSH.
            self.place_all();
        }
        self.remote(pd, qpn, rkey.0, va, len, access).map(|_| ())
    }

    fn check_remote_key(&self, pd: PdId, qpn: Qpn, rkey: Rkey, access: Access) -> Result<(), AccessFault> {
        self.place_all();
        self.remote_key(pd, qpn, rkey.0, access)
    }

    #[inline]
    fn read_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessFault> {
        let at = self.remote(pd, qpn, rkey.0, va, dst.len() as u64, Access::REMOTE_READ)?;
        self.place_all();
        // SAFETY: see `read_local`.
        unsafe { copy_in(at, dst) }
    }

    #[inline]
    fn write_remote(&self, pd: PdId, qpn: Qpn, rkey: Rkey, va: u64, src: &[u8]) -> Result<(), AccessFault> {
        let at = self.remote(pd, qpn, rkey.0, va, src.len() as u64, Access::REMOTE_WRITE)?;
        if let Some(late) = &self.late {
            // SAFETY: see `write_local`.
            return unsafe { copy_late(late, Some(qpn), src, at) };
        }
        // SAFETY: see `write_local`.
        unsafe { copy_out(src, at) }
    }

    #[inline]
    fn message_begins(&self, pd: PdId, qpn: Qpn, rkey: Rkey, va: u64, len: u64, access: Access) {
        let writes = access == Access::REMOTE_WRITE;
        if let Some(late) = self.late.as_ref().filter(|_| writes) {
            late.message_begins(qpn);
        }
        if guarded::pages::hears_requests()
            && len > 0
            && let Ok(at) = self.remote(pd, qpn, rkey.0, va, len, access)
        {
            guarded::pages::begins(at, len, writes, qpn.value());
        }
    }

    fn atomic_remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessFault> {
        let at = self.remote(pd, qpn, rkey.0, va, 8, Access::REMOTE_ATOMIC)?;
        if !at.is_multiple_of(8) {
            return Err(AccessFault::Misaligned);
        }
        self.place_all();
        // SAFETY: `at` is 8-byte aligned and inside a live registration with write access; concurrent
        // accesses by the application are outside Rust's view of this memory.
        let original = unsafe {
            match op {
                AtomicOp::CompareSwap { compare, swap } => guarded::compare_swap(at, compare, swap),
                AtomicOp::FetchAdd { add } => guarded::fetch_add(at, add),
            }
        };
        original.map_err(|guarded::Unmapped| AccessFault::Unmapped)
    }

    fn invalidate(&self, pd: PdId, qpn: Qpn, rkey: Rkey) -> Result<(), AccessFault> {
        KeyTable::invalidate(self, pd, qpn, rkey.0)
    }

    fn bind(&self, pd: PdId, qpn: Qpn, bind: &MwBind) -> Result<(), AccessFault> {
        KeyTable::bind(self, pd, qpn, bind)
    }

    fn register_fast(&self, pd: PdId, reg: &FastReg) -> Result<(), AccessFault> {
        KeyTable::register_fast(self, pd, reg)
    }
}

/// Copies application memory into `dst`.
///
/// # Safety
/// The application permits reading `[from, from + dst.len())`; the range need not be mapped.
#[inline]
unsafe fn copy_in(from: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
    // SAFETY: upheld by the caller; `dst` is borrowed mutably, so the ranges cannot overlap.
    unsafe { guarded::read(from, dst) }.map_err(|guarded::Unmapped| AccessFault::Unmapped)
}

/// Copies `src` into application memory, the last byte last and with release order: programs poll that byte
/// (`ib_write_lat`, MPI).
///
/// # Safety
/// The application permits writing `[to, to + src.len())`; the range need not be mapped.
#[inline]
unsafe fn copy_out(src: &[u8], to: u64) -> Result<(), AccessFault> {
    let at_once = src.len() == 8 && to.is_multiple_of(8);
    let (head, last) = if at_once { (&[][..], src) } else { src.split_at(src.len().saturating_sub(1)) };
    // SAFETY: upheld by the caller; `src` is frame memory, so the ranges cannot overlap.
    let copied = unsafe {
        guarded::write(head, to).and_then(|()| {
            fence(Ordering::Release);
            guarded::write(last, to + head.len() as u64)
        })
    };
    copied.map_err(|guarded::Unmapped| AccessFault::Unmapped)
}

/// Alignment of [`DmaMemory`] in bytes: the page size of most systems. Nothing depends on it.
const PAGE: usize = 4096;

/// Heap memory that is only copied from and to, never borrowed: the device and its peers change it at any
/// time.
#[derive(Debug)]
pub(crate) struct DmaMemory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the pointer is owned and every access through it is a raw copy; there is no thread-bound state.
unsafe impl Send for DmaMemory {}
// SAFETY: see `Send`; concurrent copies may mix bytes, as on any registered memory.
unsafe impl Sync for DmaMemory {}

impl DmaMemory {
    /// Allocates page-aligned, zeroed memory; `None` if there is none.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        Self::zeroed_at(len, PAGE)
    }

    /// As [`zeroed`](Self::zeroed), with the address a multiple of `align`, a power of two, and of a page.
    pub(crate) fn zeroed_at(len: usize, align: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), align.max(PAGE)).ok()?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        Some(Self { base, layout })
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    fn at(&self, offset: usize, len: usize) -> u64 {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len()),
            "{len} bytes at {offset} are outside the buffer"
        );
        self.addr() + offset as u64
    }

    pub(crate) fn write(&self, offset: usize, src: &[u8]) {
        // SAFETY: `at` checked that the range lies in this allocation.
        let copied = unsafe { copy_out(src, self.at(offset, src.len())) };
        debug_assert_eq!(copied, Ok(()));
    }

    pub(crate) fn read(&self, offset: usize, dst: &mut [u8]) {
        // SAFETY: `at` checked that the range lies in this allocation.
        let copied = unsafe { copy_in(self.at(offset, dst.len()), dst) };
        debug_assert_eq!(copied, Ok(()));
    }

    pub(crate) fn load(&self, offset: usize) -> u8 {
        // SAFETY: `at` checked that the byte lies in this allocation; a byte is always aligned.
        let cell = unsafe { AtomicU8::from_ptr(self.at(offset, 1) as *mut u8) };
        cell.load(Ordering::Acquire)
    }
}

impl Drop for DmaMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with the same layout.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Range;

    const PD: PdId = PdId(1);

    #[test]
    fn atomics_return_the_original_value() {
        let mut word = [5u64];
        let mut table = KeyTable::default();
        let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
        let range = Range { base: word.as_mut_ptr() as u64, len: 8, iova: 0 };
        let key = Rkey(table.register(PD, range, access).expect("registers"));
        let qp = Qpn::new(1);
        assert_eq!(table.atomic_remote(PD, qp, key, 0, AtomicOp::FetchAdd { add: 3 }), Ok(5));
        let swap = AtomicOp::CompareSwap { compare: 8, swap: 1 };
        assert_eq!(table.atomic_remote(PD, qp, key, 0, swap), Ok(8));
        assert_eq!(table.atomic_remote(PD, qp, key, 0, swap), Ok(1));
        assert_eq!(word, [1]);
    }
}
