//! Memory regions: keys, bounds, rights, and the only copies between frames and application memory.
//!
//! Invariant: application memory is never a Rust reference, because peers and application threads write it while
//! we look. Every access is one range check followed by a raw copy or a CPU atomic. The table lives under the
//! engine's lock, so once [`MrTable::deregister`] returns no access through that key can be under way.

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use transport::{Access, AccessFault, AtomicOp, Memory, PdId, VerbsError};
use wire::{Lkey, Qpn, Rkey};

use crate::sys;

/// Bits of a key that select the table slot: `max_mr` = 2^17.
const SLOT_BITS: u32 = 17;
/// Most regions one process may register.
pub(crate) const MR_MAX: usize = 1 << SLOT_BITS;

/// What a key stands for.
#[derive(Clone, Copy, Debug)]
struct Region {
    key: u32,
    pd: PdId,
    /// Address that peers and work requests use for the first byte.
    iova: u64,
    len: u64,
    /// Where that byte really is.
    base: u64,
    access: Access,
}

/// All memory regions of one engine, indexed by key.
///
/// ```text
///  31        25 24              8 7      0
/// +------------+-----------------+--------+
/// | random (7) |    slot (17)    | random |
/// +------------+-----------------+--------+
/// ```
/// Fifteen random bits make a guessed or stale R_Key miss.
#[derive(Debug, Default)]
pub(crate) struct MrTable {
    regions: Vec<Option<Region>>,
    free: Vec<u32>,
}

impl MrTable {
    /// Adds a region and returns its key (L_Key and R_Key are equal, as in rxe).
    ///
    /// # Errors
    /// `Invalid` for remote write or atomic access without local write, or a range that wraps; `NoMem` when the
    /// table is full.
    pub(crate) fn register(
        &mut self,
        pd: PdId,
        base: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<u32, VerbsError> {
        let remote_change = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(remote_change) && !access.contains(Access::LOCAL_WRITE) {
            return Err(VerbsError::Invalid);
        }
        if base.checked_add(len).is_none() || iova.checked_add(len).is_none() {
            return Err(VerbsError::Invalid);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.regions.len() < MR_MAX => {
                self.regions.push(None);
                (self.regions.len() - 1) as u32
            }
            None => return Err(VerbsError::NoMem),
        };
        let random = sys::random_u64() as u32;
        let key = (random & 0xfe00_00ff) | (slot << 8);
        self.regions[slot as usize] = Some(Region { key, pd, iova, len, base, access });
        Ok(key)
    }

    /// Forgets a key; afterwards no access through it can happen.
    pub(crate) fn deregister(&mut self, key: u32) {
        let slot = slot_of(key);
        if self.regions.get(slot).is_some_and(|r| r.is_some_and(|r| r.key == key)) {
            self.regions[slot] = None;
            self.free.push(slot as u32);
        }
    }

    /// The address of `[va, va + len)` if key, domain, rights and bounds allow the access.
    #[inline]
    fn resolve(&self, pd: PdId, key: u32, va: u64, len: u64, need: Access) -> Result<u64, AccessFault> {
        let region = match self.regions.get(slot_of(key)) {
            Some(Some(region)) if region.key == key => region,
            _ => return Err(AccessFault::BadKey),
        };
        if region.pd != pd {
            return Err(AccessFault::WrongPd);
        }
        if !region.access.contains(need) {
            return Err(AccessFault::Permission);
        }
        let offset = va.wrapping_sub(region.iova);
        if va < region.iova || offset > region.len || len > region.len - offset {
            return Err(AccessFault::OutOfBounds);
        }
        Ok(region.base + offset)
    }
}

fn slot_of(key: u32) -> usize {
    ((key >> 8) as usize) & (MR_MAX - 1)
}

impl Memory for MrTable {
    fn read_inline(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        // SAFETY: the application posts inline data from memory it can read; `post_send` is the only caller and
        // runs in the posting thread before it returns (ibv_post_send(3), IBV_SEND_INLINE).
        unsafe { copy_in(addr, dst) };
        Ok(())
    }

    fn check_local(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault> {
        self.resolve(pd, lkey.0, addr, len, access).map(|_| ())
    }

    #[inline]
    fn read_local(&self, pd: PdId, lkey: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        let at = self.resolve(pd, lkey.0, addr, dst.len() as u64, Access::empty())?;
        // SAFETY: `resolve` placed the range inside a live registration (see `Pd::reg_mr`).
        unsafe { copy_in(at, dst) };
        Ok(())
    }

    #[inline]
    fn write_local(&self, pd: PdId, lkey: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessFault> {
        let at = self.resolve(pd, lkey.0, addr, src.len() as u64, Access::LOCAL_WRITE)?;
        // SAFETY: as in `read_local`, and the region is registered writable.
        unsafe { copy_out(src, at) };
        Ok(())
    }

    fn check_remote(
        &self,
        pd: PdId,
        _qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault> {
        self.resolve(pd, rkey.0, va, len, access).map(|_| ())
    }

    #[inline]
    fn read_remote(
        &self,
        pd: PdId,
        _qpn: Qpn,
        rkey: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessFault> {
        let at = self.resolve(pd, rkey.0, va, dst.len() as u64, Access::REMOTE_READ)?;
        // SAFETY: as in `read_local`.
        unsafe { copy_in(at, dst) };
        Ok(())
    }

    #[inline]
    fn write_remote(&self, pd: PdId, _qpn: Qpn, rkey: Rkey, va: u64, src: &[u8]) -> Result<(), AccessFault> {
        let at = self.resolve(pd, rkey.0, va, src.len() as u64, Access::REMOTE_WRITE)?;
        // SAFETY: as in `write_local`.
        unsafe { copy_out(src, at) };
        Ok(())
    }

    fn atomic_remote(
        &self,
        pd: PdId,
        _qpn: Qpn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessFault> {
        let at = self.resolve(pd, rkey.0, va, 8, Access::REMOTE_ATOMIC)?;
        if !at.is_multiple_of(8) {
            return Err(AccessFault::Misaligned);
        }
        // SAFETY: `at` is 8-byte aligned and inside a live registration with write access; concurrent accesses by
        // the application are outside Rust's view of this memory.
        let cell = unsafe { AtomicU64::from_ptr(at as *mut u64) };
        Ok(match op {
            AtomicOp::CompareSwap { compare, swap } => {
                match cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(original) | Err(original) => original,
                }
            }
            AtomicOp::FetchAdd { add } => cell.fetch_add(add, Ordering::SeqCst),
        })
    }

    fn invalidate(&self, _pd: PdId, _qpn: Qpn, _rkey: Rkey) -> Result<(), AccessFault> {
        // Only type-2 windows and fast-registered regions can be invalidated; this device has neither yet.
        Err(AccessFault::BadKey)
    }
}

/// Copies application memory into `dst`.
///
/// # Safety
/// `[from, from + dst.len())` must be readable memory of this process.
#[inline]
unsafe fn copy_in(from: u64, dst: &mut [u8]) {
    // SAFETY: upheld by the caller; `dst` is ours alone, so the ranges cannot overlap.
    unsafe { ptr::copy_nonoverlapping(from as *const u8, dst.as_mut_ptr(), dst.len()) };
}

/// Copies `src` into application memory, the last byte last and with release order: programs poll it
/// (`ib_write_lat`, MPI).
///
/// # Safety
/// `[to, to + src.len())` must be writable memory of this process.
#[inline]
unsafe fn copy_out(src: &[u8], to: u64) {
    let Some((last, head)) = src.split_last() else { return };
    if src.len() == 8 && to.is_multiple_of(8) {
        let mut word = [0; 8];
        word.copy_from_slice(src);
        // SAFETY: upheld by the caller; aligned.
        let cell = unsafe { AtomicU64::from_ptr(to as *mut u64) };
        cell.store(u64::from_ne_bytes(word), Ordering::Release);
        return;
    }
    // SAFETY: upheld by the caller; `src` is frame memory, so the ranges cannot overlap.
    unsafe { ptr::copy_nonoverlapping(head.as_ptr(), to as *mut u8, head.len()) };
    fence(Ordering::Release);
    // SAFETY: the last byte of the same range.
    unsafe { ptr::write_volatile((to + head.len() as u64) as *mut u8, *last) };
}

/// Heap memory that is only copied from and to, never borrowed: the device and its peers change it.
#[derive(Debug)]
pub(crate) struct DmaMemory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the pointer is owned and every access through it is a raw copy; there is no thread-bound state.
unsafe impl Send for DmaMemory {}
// SAFETY: as above; concurrent copies may tear bytes, which is what registered memory does.
unsafe impl Sync for DmaMemory {}

impl DmaMemory {
    /// `None` if the memory cannot be had. Page aligned, as programs that care about copies want it.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), 4096).ok()?;
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
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()), "outside the buffer");
        self.addr() + offset as u64
    }

    pub(crate) fn write(&self, offset: usize, src: &[u8]) {
        // SAFETY: `at` checked the range, which we own.
        unsafe { copy_out(src, self.at(offset, src.len())) };
    }

    pub(crate) fn read(&self, offset: usize, dst: &mut [u8]) {
        // SAFETY: `at` checked the range, which we own.
        unsafe { copy_in(self.at(offset, dst.len()), dst) };
    }

    pub(crate) fn load(&self, offset: usize) -> u8 {
        // SAFETY: `at` checked the range, which we own; a byte is always aligned.
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

    const PD: PdId = PdId(1);

    fn table(buf: &mut [u8], access: Access) -> (MrTable, u32) {
        let mut table = MrTable::default();
        let base = buf.as_mut_ptr() as u64;
        let key = table.register(PD, base, buf.len() as u64, 0x1000, access).expect("registers");
        (table, key)
    }

    #[test]
    fn bounds_rights_domain_and_key_are_each_checked() {
        let mut buf = [0u8; 64];
        let rw = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (mut table, key) = table(&mut buf, rw);
        let qp = Qpn::new(5);
        let write = |t: &MrTable, pd, k, va, len: usize| t.write_remote(pd, qp, Rkey(k), va, &vec![7; len]);
        assert_eq!(write(&table, PD, key, 0x1000, 64), Ok(()));
        assert_eq!(write(&table, PD, key, 0x1001, 64), Err(AccessFault::OutOfBounds));
        assert_eq!(write(&table, PD, key, 0xfff, 1), Err(AccessFault::OutOfBounds));
        assert_eq!(write(&table, PD, key, u64::MAX, 2), Err(AccessFault::OutOfBounds));
        assert_eq!(write(&table, PdId(2), key, 0x1000, 1), Err(AccessFault::WrongPd));
        assert_eq!(write(&table, PD, key ^ 1, 0x1000, 1), Err(AccessFault::BadKey));
        let mut out = [0; 1];
        assert_eq!(table.read_remote(PD, qp, Rkey(key), 0x1000, &mut out), Err(AccessFault::Permission));
        table.deregister(key);
        assert_eq!(write(&table, PD, key, 0x1000, 1), Err(AccessFault::BadKey));
        assert_eq!(buf, [7; 64]);
    }

    #[test]
    fn remote_write_without_local_write_is_refused() {
        let mut table = MrTable::default();
        let err = table.register(PD, 0x1000, 8, 0, Access::REMOTE_WRITE);
        assert_eq!(err, Err(VerbsError::Invalid));
        assert_eq!(table.register(PD, u64::MAX, 8, 0, Access::empty()), Err(VerbsError::Invalid));
    }

    #[test]
    fn atomics_return_the_original_value() {
        let mut word = [5u64];
        let mut table = MrTable::default();
        let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
        let base = word.as_mut_ptr() as u64;
        let key = Rkey(table.register(PD, base, 8, 0, access).expect("registers"));
        let qp = Qpn::new(1);
        assert_eq!(table.atomic_remote(PD, qp, key, 0, AtomicOp::FetchAdd { add: 3 }), Ok(5));
        let swap = AtomicOp::CompareSwap { compare: 8, swap: 1 };
        assert_eq!(table.atomic_remote(PD, qp, key, 0, swap), Ok(8));
        assert_eq!(table.atomic_remote(PD, qp, key, 0, swap), Ok(1));
        assert_eq!(word, [1]);
    }
}
