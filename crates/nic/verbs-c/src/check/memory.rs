//! Checksums of the application's memory, and whether AddressSanitizer knows it to be freed.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex};

use roxie::transport::{Access, PdId, Sge};
use sys::guarded::{self, pages::is_plain};

use crate::abi::objects::ibv_mr;
use crate::ibv::pd_mr::MrObject;

use super::numbers::NumberMap;
use super::options::{OPTIONS, lock};
use super::report;
use super::stack::{self, Site, here};

#[derive(Clone, Copy)]
pub(super) struct Region {
    pub(super) rkey: u32,
    pub(super) first: u64,
    pub(super) length: u64,
    /// Its memory may be protected: ordinary memory when it was registered.
    pub(super) is_plain: bool,
    pub(super) pd: PdId,
    /// The first address for peers.
    pub(super) iova: u64,
    pub(super) access: Access,
    /// The call stacks of its registration and deregistration.
    pub(super) registered: Site,
    pub(super) deregistered: Option<Site>,
}

impl Region {
    /// Whether so many bytes from an address for peers on are in the region.
    pub(super) fn holds(&self, at: u64, bytes: u32) -> bool {
        at.checked_sub(self.iova).is_some_and(|offset| offset.saturating_add(bytes.into()) <= self.length)
    }

    /// Whether so many bytes from an address of this process on are in the region.
    fn has(&self, at: u64, bytes: u64) -> bool {
        at.checked_sub(self.first).is_some_and(|offset| offset.saturating_add(bytes) <= self.length)
    }
}

#[derive(Default)]
pub(super) struct Regions {
    /// By lkey.
    live: NumberMap<u32, Region>,
    /// The last deregistered ones, newest first.
    ended: VecDeque<Region>,
}

/// Deregistered regions that are remembered, some 80 bytes each.
const ENDED_MAX: usize = 4096;

pub(super) static REGIONS: LazyLock<Mutex<Regions>> = LazyLock::new(Mutex::default);

impl Regions {
    /// The live regions, then the deregistered ones, newest first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Region> {
        self.live.values().chain(&self.ended)
    }
}

/// A memory region was registered or changed.
pub(super) fn region_begins(address: usize) {
    let region = address as *mut ibv_mr;
    // SAFETY: a new object, which no other thread has yet, or an argument of ibv_rereg_mr(3).
    let (Some(object), registered) = (unsafe { MrObject::from_ptr(region) }, here()) else { return };
    // SAFETY: as above.
    let ibv_mr { lkey, rkey, addr, length, .. } = unsafe { region.read() };
    if object.tail.is_import() && addr.is_null() {
        // The object of the registration tells of the region, unless ibv_rereg_mr gives this one an address.
        return;
    }
    let (first, length) = (addr.addr() as u64, length as u64);
    let (pd, iova, access) = object.tail.remote().unwrap_or_default();
    let end = first.checked_add(length).filter(|_| OPTIONS.pages.sends && length > 0);
    // A thread that faults on its own stack cannot be told.
    let is_plain = end
        .map(|end| first as usize..end as usize)
        .is_some_and(|range| is_plain(range.start, range.end) && !stack::is_own_stack(range));
    let region = Region { rkey, first, length, is_plain, pd, iova, access, registered, deregistered: None };
    let changed = lock(&REGIONS).live.insert(lkey, region);
    if OPTIONS.races {
        changed.into_iter().for_each(|before| report::region_end(before.rkey));
        report::region(rkey, first, length);
    }
}

/// A memory region was deregistered. Returns its first address and length.
pub(super) fn region_ends(lkey: u32, site: Site) -> Option<(usize, usize)> {
    let mut regions = lock(&REGIONS);
    let region = regions.live.remove(&lkey)?;
    regions.ended.push_front(Region { deregistered: Some(site), ..region });
    regions.ended.truncate(ENDED_MAX);
    drop(regions);
    if OPTIONS.races {
        report::region_end(region.rkey);
    }
    Some((region.first as usize, region.length as usize))
}

/// Whether the addresses in a list are those of memory: not offsets, nor addresses that the application has
/// chosen for a region (`ibv_reg_mr_iova`).
pub(super) fn are_addresses(list: &[Sge]) -> bool {
    are_all(list, |_| true)
}

/// Whether the addresses in a list are those of memory that may be protected.
pub(super) fn are_plain(list: &[Sge]) -> bool {
    are_all(list, |region| region.is_plain)
}

fn are_all(list: &[Sge], is_good: impl Fn(&Region) -> bool) -> bool {
    let regions = lock(&REGIONS);
    list.iter().filter(|sge| sge.length > 0).all(|sge| {
        let region = regions.live.get(&sge.lkey.0);
        region.is_some_and(|region| region.has(sge.addr, sge.length.into()) && is_good(region))
    })
}

/// Where memory was registered, if it is in a region of which the memory may be protected.
pub(super) fn registered(first: u64, length: u64) -> Option<Site> {
    let holds = |region: &&Region| region.is_plain && region.has(first, length);
    lock(&REGIONS).live.values().find(holds).map(|region| region.registered)
}

/// The first lkey of a list that names no region of this process.
pub(super) fn unknown_key(list: &[Sge]) -> Option<u32> {
    let regions = lock(&REGIONS);
    list.iter().map(|sge| sge.lkey.0).find(|lkey| !regions.live.contains_key(lkey))
}

/// `__asan_region_is_poisoned` (sanitizer/asan_interface.h): the first byte in the region that the program
/// may not use, or null.
type IsPoisoned = unsafe extern "C" fn(first: *mut c_void, length: usize) -> *mut c_void;

/// Present in programs that were compiled with `-fsanitize=address`.
static IS_POISONED: LazyLock<Option<IsPoisoned>> = LazyLock::new(|| {
    // SAFETY: searches the symbols of the process.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__asan_region_is_poisoned".as_ptr()) };
    // SAFETY: a function with this name has this type, by the interface of AddressSanitizer.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, IsPoisoned>(found) })
});

/// Whether AddressSanitizer knows that the memory of a work request is freed, or partly outside of an
/// allocation.
pub(super) fn is_poisoned(list: &[Sge]) -> bool {
    let Some(is_poisoned) = *IS_POISONED else { return false };
    are_addresses(list)
        && list.iter().any(|sge| {
            let first = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
            // SAFETY: the function reads its own notes about the memory, not the memory.
            !unsafe { is_poisoned(first, sge.length as usize) }.is_null()
        })
}

/// Bytes at the beginning and at the end of each element that a checksum covers: 16 KiB cost some
/// microseconds twice per work request. A change in the middle of a longer element is not noticed.
pub(super) const EDGE_BYTES: usize = 8192;

/// Memory that is not mapped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Unmapped;

/// Returns the checksum of the memory of a work request.
pub(super) fn checksum(list: &[Sge]) -> Result<u64, Unmapped> {
    let mut sum = 0;
    for sge in list {
        let length = sge.length as usize;
        if length <= 2 * EDGE_BYTES {
            sum = add(sum, sge.addr, length)?;
        } else {
            sum = add(sum, sge.addr, EDGE_BYTES)?;
            sum = add(sum, sge.addr + (length - EDGE_BYTES) as u64, EDGE_BYTES)?;
        }
    }
    Ok(sum)
}

fn add(sum: u64, first: u64, length: usize) -> Result<u64, Unmapped> {
    // Zeros for a long piece would take as long as the rest.
    if length <= 64 { add_by::<64>(sum, first, length) } else { add_by::<1024>(sum, first, length) }
}

/// Reads at most `PIECE` bytes at once.
fn add_by<const PIECE: usize>(mut sum: u64, first: u64, length: usize) -> Result<u64, Unmapped> {
    let mut piece = [0; PIECE];
    for at in (0..length).step_by(PIECE) {
        let part = &mut piece[..PIECE.min(length - at)];
        // SAFETY: the application registered the memory, so the device may read it at any time; a fault is an
        // error.
        unsafe { guarded::read(first + at as u64, part) }.map_err(|_| Unmapped)?;
        sum = mix(sum, part);
    }
    Ok(sum)
}

/// Mixes bytes into a checksum: four lanes, because a multiplication takes longer than a load.
fn mix(sum: u64, bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [sum ^ 1, sum ^ 2, sum ^ 3, sum ^ 4];
    let (chunks, rest) = bytes.as_chunks::<32>();
    for chunk in chunks {
        let (words, _) = chunk.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(ODD).rotate_left(29);
        }
    }
    for byte in rest {
        lanes[0] = (lanes[0] ^ u64::from(*byte)).wrapping_mul(ODD).rotate_left(29);
    }
    lanes.into_iter().fold(0, |all: u64, lane| (all ^ lane).wrapping_mul(ODD).rotate_left(31))
}

#[cfg(test)]
mod tests {
    use roxie::wire::Lkey;

    use super::*;

    #[test]
    fn a_changed_byte_near_an_edge_changes_the_checksum() {
        let mut memory = vec![7_u8; 40_000];
        let list = [Sge { addr: memory.as_ptr() as u64, length: 40_000, lkey: Lkey(1) }];
        let sum = checksum(&list);
        for at in [0, 33, EDGE_BYTES - 1, 40_000 - EDGE_BYTES, 39_999] {
            memory[at] ^= 1;
            assert_ne!(checksum(&list), sum, "{at}");
            memory[at] ^= 1;
        }
        assert_eq!(checksum(&list), sum);
        memory[20_000] ^= 1;
        assert_eq!(checksum(&list), sum, "the middle is not covered");
    }
}
