//! The guest's address space: 32 bits, in 256 segments of 16 MiB.
//!
//! | segment | what |
//! |---|---|
//! | 0 | nothing, so that null pointers fault |
//! | 1 | `struct xdp_md` |
//! | 2 | stack: frames of 512 bytes, the first at the bottom |
//! | 3 | buffer of the packet |
//! | 4 | maps as arguments of helpers: the offset is the index |
//! | 5 | functions as arguments of helpers: the offset is the first operation |
//! | 6 | keys that `bpf_for_each_map_elem` shows to its callback |
//! | from 16 | values of maps and rings, as many segments as each needs |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::map::{Map, MapDef, MapKind};

pub(super) const SEGMENT_BITS: u32 = 24;
pub(super) const CTX: u64 = 1;
pub(super) const STACK: u64 = 2;
pub(super) const PACKET: u64 = 3;
pub(super) const HANDLES: u64 = 4;
pub(super) const FUNCTIONS: u64 = 5;
pub(super) const KEYS: u64 = 6;
const FIRST_MAP: usize = 16;

pub(super) const fn base(segment: u64) -> u64 {
    segment << SEGMENT_BITS
}

pub(super) const fn offset(address: u64) -> usize {
    (address & ((1 << SEGMENT_BITS) - 1)) as usize
}

/// Location of the values of maps.
#[derive(Debug)]
pub(super) struct Space {
    /// Index of each segment's window, plus one.
    segments: [u8; 256],
    windows: Vec<Window>,
    /// Address of the first value of each map; 0 if the map has no values.
    bases: Vec<u64>,
}

#[derive(Debug)]
struct Window {
    base: u64,
    /// Length that the guest sees, in bytes.
    len: u64,
    words: Arc<[AtomicU64]>,
    /// Mask for word indices: a ring is visible twice.
    mask: usize,
    writable: bool,
}

impl Space {
    /// Returns `None` if the maps need more segments than there are.
    pub(super) fn new(maps: &[Arc<Map>]) -> Option<Space> {
        let mut space = Space { segments: [0; 256], windows: Vec::new(), bases: Vec::new() };
        let mut next = FIRST_MAP;
        for map in maps {
            let (words, len, mask) = match (map.values(), map.ring()) {
                (Some(values), _) => (values.words(), values.words().len() as u64 * 8, usize::MAX),
                (None, Some(ring)) => (ring.words(), ring.bytes() * 2, ring.words().len() - 1),
                (None, None) => {
                    space.bases.push(0);
                    continue;
                }
            };
            let base = base(next as u64);
            let count = len.div_ceil(1 << SEGMENT_BITS) as usize;
            let segments = space.segments.get_mut(next..next + count)?;
            space.windows.push(Window {
                base,
                len,
                words: Arc::clone(words),
                mask,
                writable: map.def().flags & MapDef::RDONLY_PROG == 0,
            });
            segments.fill(u8::try_from(space.windows.len()).ok()?);
            space.bases.push(base);
            next += count;
        }
        Some(space)
    }

    /// Returns the address of the first value of the map with this index.
    pub(super) fn base_of(&self, map: usize) -> Option<u64> {
        self.bases.get(map).copied().filter(|&base| base != 0)
    }

    /// Loads up to 8 bytes, little-endian.
    #[inline]
    pub(super) fn load(&self, address: u64, len: usize) -> Option<u64> {
        let (window, at) = self.window(address, len)?;
        let shift = at % 8 * 8;
        let low = window.word(at).load(Ordering::Acquire) >> shift;
        let bits = if at % 8 + len <= 8 {
            low
        } else {
            low | window.word(at + 8).load(Ordering::Acquire) << (64 - shift)
        };
        Some(bits & mask_of(len))
    }

    /// Stores the `len` low bytes of `value`.
    #[inline]
    pub(super) fn store(&self, address: u64, len: usize, value: u64) -> Option<()> {
        let (window, at) = self.window(address, len)?;
        if !window.writable {
            return None;
        }
        let (within, bits) = (at % 8, value & mask_of(len));
        if len == 8 && within == 0 {
            window.word(at).store(value, Ordering::Release);
            return Some(());
        }
        // The other bytes of the word may belong to a field that another thread writes.
        let replace = |word: &AtomicU64, mask: u64, bits: u64| {
            word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |old| Some(old & !mask | bits)).is_ok()
        };
        replace(window.word(at), mask_of(len) << (within * 8), bits << (within * 8));
        if within + len > 8 {
            let done = (8 - within) * 8;
            replace(window.word(at + 8), mask_of(len) >> done, bits >> done);
        }
        Some(())
    }

    /// Atomically replaces 4 or 8 aligned bytes and returns the old value.
    pub(super) fn exchange(&self, address: u64, len: usize, new: impl Fn(u64) -> u64) -> Option<u64> {
        let (window, at) = self.window(address, len)?;
        if !window.writable || !at.is_multiple_of(len) {
            return None;
        }
        let (shift, mask) = (at % 8 * 8, mask_of(len));
        let update = |old: u64| Some(old & !(mask << shift) | (new(old >> shift & mask) & mask) << shift);
        let old = window.word(at).fetch_update(Ordering::SeqCst, Ordering::SeqCst, update);
        let (Ok(old) | Err(old)) = old;
        Some(old >> shift & mask)
    }

    /// Returns the window that contains `len` bytes at the address, and their offset in it.
    #[inline]
    fn window(&self, address: u64, len: usize) -> Option<(&Window, usize)> {
        let segment = usize::try_from(address >> SEGMENT_BITS).ok()?;
        let number = *self.segments.get(segment)?;
        let window = self.windows.get(usize::from(number).wrapping_sub(1))?;
        let at = address - window.base;
        if at + len as u64 > window.len {
            return None;
        }
        Some((window, at as usize))
    }
}

/// A word of a map's values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place {
    window: usize,
    word: usize,
}

impl Space {
    /// Returns the word that contains the `len` bytes at an address, and their offset in it. Returns `None`
    /// if they span two words or are not in the values of a map.
    pub(super) fn place(&self, address: u64, len: usize) -> Option<(Place, usize)> {
        let segment = usize::try_from(address >> SEGMENT_BITS).ok()?;
        let window = usize::from(*self.segments.get(segment)?).checked_sub(1)?;
        let (found, at) = self.window(address, len)?;
        let whole = found.mask == usize::MAX && at % 8 + len <= 8;
        whole.then_some((Place { window, word: at / 8 }, at % 8))
    }

    /// Returns a word that [`place`](Self::place) found.
    #[inline]
    pub(super) fn at(&self, place: Place) -> &AtomicU64 {
        &self.windows[place.window].words[place.word]
    }
}

impl Window {
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[(at / 8) & self.mask]
    }
}

/// Location and stride of array values, for lookups that do not need the map itself.
#[derive(Debug)]
pub(super) struct Arrays(Box<[Array]>);

#[derive(Clone, Copy, Debug, Default)]
struct Array {
    base: u64,
    /// Number of entries; 0 for maps of other types.
    entries: u64,
    stride: u64,
    /// Distance between the values of two CPUs in bytes, and the last CPU with its own values.
    cpu_stride: u64,
    last_cpu: u32,
}

impl Arrays {
    pub(super) fn new(maps: &[Arc<Map>], space: &Space) -> Arrays {
        let array = |(index, map): (usize, &Arc<Map>)| {
            let plain = matches!(map.def().kind, MapKind::Array | MapKind::PercpuArray);
            let (Some(values), Some(base), true) = (map.values(), space.base_of(index), plain) else {
                return Array::default();
            };
            Array {
                base,
                entries: map.def().max_entries.into(),
                stride: values.offset(0, 1) as u64,
                cpu_stride: if values.copies() > 1 { values.offset(1, 0) as u64 } else { 0 },
                last_cpu: values.copies() - 1,
            }
        };
        Arrays(maps.iter().enumerate().map(array).collect())
    }

    /// Returns whether the map is an array in this table.
    pub(super) fn has(&self, handle: u64) -> bool {
        let index = usize::try_from(handle.wrapping_sub(base(HANDLES)));
        index.is_ok_and(|index| self.0.get(index).is_some_and(|array| array.entries > 0))
    }

    /// Returns the address of the value, or 0 if the index is out of range. Returns `None` if the map is no
    /// array or the key cannot be read.
    #[inline(always)]
    pub(super) fn lookup(&self, handle: u64, cpu: u32, key: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let index = usize::try_from(handle.wrapping_sub(base(HANDLES))).ok()?;
        let array = self.0.get(index).filter(|array| array.entries > 0)?;
        let key = key()?;
        if key >= array.entries {
            return Some(0);
        }
        Some(array.base + u64::from(cpu.min(array.last_cpu)) * array.cpu_stride + key * array.stride)
    }
}

/// Returns whether the address is not that of a map value.
pub(super) fn is_fixed(address: u64) -> bool {
    address >> SEGMENT_BITS < FIRST_MAP as u64
}

/// Returns `len` bytes of ones, 1..=8.
pub(super) fn mask_of(len: usize) -> u64 {
    u64::MAX >> (64 - len * 8)
}
