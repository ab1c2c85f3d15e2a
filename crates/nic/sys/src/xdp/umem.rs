//! Packet memory: a mapping registered with the kernel, split into chunks that tokens own.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use super::returns::Returns;
use crate::Mmap;

/// Geometry of packet memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UmemConfig {
    /// Bytes of a chunk: 2048 to the size of a page; a power of two unless `unaligned`.
    pub chunk_len: u32,
    /// Bytes that the kernel leaves free before each received packet, besides the 256 of XDP.
    pub headroom: u32,
    /// Chunks may begin anywhere (XDP_UMEM_UNALIGNED_CHUNK_FLAG).
    pub unaligned: bool,
}

impl Default for UmemConfig {
    /// Aligned chunks of 4096 bytes.
    fn default() -> UmemConfig {
        UmemConfig { chunk_len: 4096, headroom: 0, unaligned: false }
    }
}

/// Packet memory. See the module documentation of [`xdp`](super).
#[derive(Debug)]
pub struct Umem {
    pub(super) memory: Arc<Mmap>,
    pub(super) config: UmemConfig,
    /// Bytes that are split into chunks.
    pub(super) len: u64,
    regions: Vec<Arc<Region>>,
    /// Number of sockets that use it.
    sockets: AtomicUsize,
}

/// The use of a memory by one socket. Dropped after the socket was closed.
#[derive(Debug)]
pub(super) struct User(pub(super) Arc<Umem>);

/// Part of the memory, handed out in units of one or more adjacent chunks.
#[derive(Debug)]
pub struct Region {
    memory: Arc<Mmap>,
    /// Offset of the first unit in the memory.
    start: u64,
    /// Bytes of a unit.
    unit_len: u32,
    /// For each unit, the number of its descriptors that the kernel holds; 0 if it belongs to a token.
    lent: Box<[AtomicU8]>,
    returns: Returns,
}

/// Token of one unit; its bytes belong to the holder alone. Dropping it, in any thread, makes the unit
/// available to [`Region::collect`].
#[derive(Debug)]
pub struct Chunk {
    region: Arc<Region>,
    unit: u32,
}

/// The meaning of a descriptor that came back from the kernel.
#[derive(Debug)]
pub(super) enum Returned {
    /// A unit, and the offset of the address in it.
    Whole(Chunk, u32),
    /// One of several descriptors of a unit; the kernel still holds others.
    Part,
    /// The kernel does not hold that unit. Each one is a bug, here or in the kernel.
    Stray,
}

/// The upper 16 bits of an unaligned address are an offset to be added.
const OFFSET_SHIFT: u32 = 48;

impl Umem {
    /// Allocates memory for regions of `(units, chunks per unit)`; nothing is registered yet. Returns all
    /// tokens, region by region.
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` for an impossible geometry.
    pub fn new(config: UmemConfig, regions: &[(u32, u32)]) -> io::Result<(Umem, Vec<Vec<Chunk>>)> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let chunk_len = u64::from(config.chunk_len);
        if chunk_len == 0 || !config.unaligned && !chunk_len.is_power_of_two() {
            return Err(invalid());
        }
        let chunks: u64 = regions.iter().map(|(units, span)| u64::from(*units) * u64::from(*span)).sum();
        let len = chunks * chunk_len;
        if len == 0 || len >> OFFSET_SHIFT != 0 {
            return Err(invalid());
        }
        let memory = Arc::new(Mmap::anonymous(len as usize)?);
        let mut umem = Umem {
            memory,
            config,
            len,
            regions: Vec::with_capacity(regions.len()),
            sockets: AtomicUsize::new(0),
        };
        let (mut start, mut tokens) = (0, Vec::with_capacity(regions.len()));
        for (units, span) in regions {
            let unit_len = span * config.chunk_len;
            let region = Arc::new(Region {
                memory: Arc::clone(&umem.memory),
                start,
                unit_len,
                lent: (0..*units).map(|_| AtomicU8::new(0)).collect(),
                returns: Returns::new(*units),
            });
            start += u64::from(unit_len) * u64::from(*units);
            tokens.push((0..*units).map(|unit| Chunk { region: Arc::clone(&region), unit }).collect());
            umem.regions.push(region);
        }
        Ok((umem, tokens))
    }

    /// The regions, in the order of [`Umem::new`].
    #[must_use]
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// Accepts one descriptor that names `address` back from the kernel.
    pub(super) fn take_back(&self, address: u64) -> Returned {
        let address = if self.config.unaligned {
            (address & ((1 << OFFSET_SHIFT) - 1)) + (address >> OFFSET_SHIFT)
        } else {
            address
        };
        let Some(region) = self.regions.iter().find(|region| region.contains(address)) else {
            return Returned::Stray;
        };
        let within = address - region.start;
        let unit_len = u64::from(region.unit_len);
        region.take_back((within / unit_len) as u32, (within % unit_len) as u32)
    }

    /// Takes back every unit that the kernel holds, after all sockets were closed; returns the tokens by
    /// region. `None` if a socket still uses the memory.
    ///
    /// Sockets are counted in this process only: through one that a forked child still has open, the
    /// kernel may still write to chunks that are taken back.
    #[must_use]
    pub fn reclaim(&self) -> Option<Vec<Vec<Chunk>>> {
        if self.sockets.load(Ordering::Acquire) > 0 {
            return None;
        }
        let of = |region: &Arc<Region>| {
            let lent = region.lent.iter().zip(0..).filter(|(lent, _)| {
                let descriptors = lent.load(Ordering::Relaxed);
                lent.store(descriptors.min(1), Ordering::Relaxed);
                descriptors > 0
            });
            lent.filter_map(|(_, unit)| match region.take_back(unit, 0) {
                Returned::Whole(chunk, _) => Some(chunk),
                Returned::Part | Returned::Stray => None,
            })
            .collect()
        };
        Some(self.regions.iter().map(of).collect())
    }
}

impl User {
    pub(super) fn new(umem: &Arc<Umem>) -> User {
        umem.sockets.fetch_add(1, Ordering::Relaxed);
        User(Arc::clone(umem))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.sockets.fetch_sub(1, Ordering::Release);
    }
}

impl Region {
    /// Number of units.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.lent.len() as u32
    }

    /// Number of units that the kernel holds.
    #[must_use]
    pub fn lent(&self) -> u32 {
        self.lent.iter().filter(|lent| lent.load(Ordering::Relaxed) > 0).count() as u32
    }

    /// Hands over the tokens of units that were dropped since the last call; returns how many.
    pub fn collect(self: &Arc<Region>, mut f: impl FnMut(Chunk)) -> usize {
        self.returns.take_all(|unit| f(Chunk { region: Arc::clone(self), unit }))
    }

    fn contains(&self, address: u64) -> bool {
        address >= self.start && address - self.start < u64::from(self.unit_len) * self.lent.len() as u64
    }

    /// Accepts one descriptor of `unit` back.
    fn take_back(self: &Arc<Region>, unit: u32, offset: u32) -> Returned {
        let Some(lent) = self.lent.get(unit as usize) else { return Returned::Stray };
        // One thread per ring, and the kernel returns a descriptor in one ring: no other thread writes
        // meanwhile.
        let descriptors = lent.load(Ordering::Relaxed);
        if descriptors == 0 {
            return Returned::Stray;
        }
        lent.store(descriptors - 1, Ordering::Relaxed);
        if descriptors > 1 {
            return Returned::Part;
        }
        // SAFETY: `Chunk::lend` kept one reference when this unit was lent; it is used up here.
        let region = unsafe { Arc::from_raw(Arc::as_ptr(self)) };
        Returned::Whole(Chunk { region, unit }, offset)
    }
}

impl Chunk {
    /// The unit's bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let Region { memory, unit_len, .. } = &*self.region;
        // SAFETY: the unit lies within the mapping; its bytes belong to the only token, which `self` is:
        // `Umem::new` made one per unit, `lend` consumes it, and only then do `take_back` and `collect`
        // make another.
        unsafe {
            std::slice::from_raw_parts(
                memory.start().add(self.offset() as usize).as_ptr(),
                *unit_len as usize,
            )
        }
    }

    /// The unit's bytes, for writing.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Region { memory, unit_len, .. } = &*self.region;
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(
                memory.start().add(self.offset() as usize).as_ptr(),
                *unit_len as usize,
            )
        }
    }

    /// Offset of the first byte in the memory: the address that the kernel uses.
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        self.region.start + u64::from(self.unit) * u64::from(self.region.unit_len)
    }

    /// Number of the unit in its region, from 0.
    #[must_use]
    #[inline]
    pub fn index(&self) -> u32 {
        self.unit
    }

    /// Whether it is a unit of this region.
    #[must_use]
    pub fn is_part_of(&self, region: &Arc<Region>) -> bool {
        Arc::ptr_eq(&self.region, region)
    }

    /// Whether it is part of this memory.
    #[inline]
    pub(super) fn is_of(&self, memory: &Arc<Mmap>) -> bool {
        Arc::ptr_eq(&self.region.memory, memory)
    }

    /// Lends the unit to the kernel in `descriptors` descriptors, at least one.
    #[inline]
    pub(super) fn lend(self, descriptors: u8) {
        // The token's reference to the region is kept for `take_back`.
        let chunk = ManuallyDrop::new(self);
        chunk.region.lent[chunk.unit as usize].store(descriptors, Ordering::Relaxed);
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.region.returns.push(self.unit);
    }
}
