//! The pages of memory that an application registers: whether they are mapped with the rights of the region,
//! and populating them ahead of the transfers.

use std::ffi::c_void;
use std::{fs, io, ptr, str};

use libc::size_t;
use roxie::transport::{VerbsError, refuse};

/// Registration populates the pages of regions up to this size (bytes). Transfers populate the pages of
/// larger regions, which may be sparse and exceed the machine's memory. At half, more first transfers wait
/// for pages; at double, a few sparse regions occupy gigabytes.
const POPULATED_MAX: usize = 64 << 20;

/// Returns `EFAULT` for memory that is not mapped, or not writable although it must be, so that the
/// registration fails and not a later transfer.
pub(super) fn check(addr: *mut c_void, length: size_t, write: bool) -> Result<(), VerbsError> {
    if length <= POPULATED_MAX {
        return populate(addr, length, write);
    }
    let start = addr as usize;
    let end = start.checked_add(length).ok_or_else(|| past_the_end(start, length))?;
    // Without /proc a transfer finds out.
    let Ok(maps) = fs::read("/proc/self/maps") else { return Ok(()) };
    if covers(&maps, start, end, write) { Ok(()) } else { Err(not_mapped(start, length)) }
}

#[cold]
fn past_the_end(addr: usize, length: size_t) -> VerbsError {
    refuse!(EINVAL, "memory region", "length"; length, addr;
        "{length} bytes at {addr:#x} go past the last address")
}

#[cold]
fn not_mapped(addr: usize, length: size_t) -> VerbsError {
    refuse!(EFAULT, "memory region", "addr"; addr, length;
        "the {length} bytes at {addr:#x} are not all mapped with the rights of the region";
        "IBV_ACCESS_LOCAL_WRITE needs memory that the process may write")
}

/// Returns whether the mappings of the text (proc(5)) cover `start..end` without a hole and with the rights.
fn covers(maps: &[u8], start: usize, end: usize, write: bool) -> bool {
    let mut at = start;
    for line in maps.split(|byte| *byte == b'\n') {
        let Some((from, to, rights)) = mapping(line) else { continue };
        if to <= at {
            continue;
        }
        if from > at || rights.first() != Some(&b'r') || (write && rights.get(1) != Some(&b'w')) {
            return false;
        }
        at = to;
        if at >= end {
            return true;
        }
    }
    false
}

/// Parses `7f0000000000-7f0000004000 rw-p ...`.
fn mapping(line: &[u8]) -> Option<(usize, usize, &[u8])> {
    let mut words = line.split(|byte| *byte == b' ');
    let (from, to) = str::from_utf8(words.next()?).ok()?.split_once('-')?;
    let hex = |digits| usize::from_str_radix(digits, 16).ok();
    Some((hex(from)?, hex(to)?, words.next()?))
}

/// Populates the pages, as pinning would. Returns `EFAULT` as [`check`] does, and if the memory is not there.
pub(super) fn populate(addr: *mut c_void, length: size_t, write: bool) -> Result<(), VerbsError> {
    // SAFETY: asks for a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let before = addr as usize % page;
    let asked = length;
    let length = length.checked_add(before).ok_or_else(|| past_the_end(addr.addr(), asked))?;
    if length == before {
        return Ok(());
    }
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: an empty range; the kernel only checks whether it knows the advice (since 5.14).
    if unsafe { libc::madvise(ptr::null_mut(), 0, advice) } != 0 {
        return Ok(());
    }
    loop {
        // SAFETY: populating changes no memory content, and an unmapped range is an error, not a fault.
        if unsafe { libc::madvise(addr.wrapping_byte_sub(before), length, advice) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            _ => return Err(not_mapped(addr.addr(), asked)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_must_cover_the_range_with_its_rights() {
        let maps = b"1000-3000 rw-p 00000000 00:00 0\n3000-4000 r--p 0 00:00 0 /a file\n6000-7000 ---p 0\n";
        let good = [(0x1000, 0x3000, true), (0x1fff, 0x2000, true), (0x1000, 0x4000, false)];
        assert!(good.iter().all(|&(start, end, write)| covers(maps, start, end, write)));
        let bad = [
            (0x0fff, 0x2000, false),
            (0x1000, 0x3001, true),
            (0x3fff, 0x4001, false),
            (0x6000, 0x6001, false),
        ];
        assert!(bad.iter().all(|&(start, end, write)| !covers(maps, start, end, write)));
    }
}
