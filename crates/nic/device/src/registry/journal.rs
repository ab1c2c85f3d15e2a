//! The disconnect journal of a domain: the notices that the peers of each member get if the member dies.
//!
//! The journal is a memory file, in the first page of the socket set, with a region of equal length for
//! the first slot of every engine. The table of owners precedes the regions. A member writes its own
//! region while it holds the slot's name. When it has died, the process that gets the name first takes
//! over its rows. The next owner of the slot finds them in its own region. A survivor that noticed the
//! broken connection copies them into its region and clears the original. A row stays until its notice
//! has been sent, so it is not lost if that process dies, too. The slot names are the only locks. The
//! journal lives as long as the socket set, which lives as long as one member.
//!
//! The table of owners has 4096 `u16`: 0 for a free slot, or 1 + the first slot of the engine that has
//! it. Rows of 64 bytes, little-endian, follow; the first unused row ends a region:
//!
//! ```text
//! 0   u32 state: 0 never used, 1 valid, 2 free
//! 4   u32 communication id          8   u32 peer's communication id
//! 12  u32 peer's QPN                16  address   32  peer's address   48  zeros
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use transport::cm::{CmId, DisconnectNotice, JournalChange};
use wire::{Gid, Qpn};

use super::SLOTS;
use sys;

/// Rows of one region. The peers of further connections notice a death by their timeouts.
const ROWS_MAX: u32 = 16_384;
const ROW_LEN: usize = 64;
/// Rows read or cleared at once: 4 KiB, which divides a region.
const READ_ROWS: usize = 64;
const REGION_LEN: u64 = ROWS_MAX as u64 * ROW_LEN as u64;
/// Length of the table of owners.
const OWNERS_LEN: usize = 2 * (SLOTS as usize + 1);

const VALID: u32 = 1;
const FREE: u32 = 2;

/// The memory file with the regions of all slots.
#[derive(Debug)]
pub(super) struct JournalFile(File);

impl JournalFile {
    /// Creates a journal without rows.
    pub(super) fn new() -> io::Result<JournalFile> {
        sys::memory_file(c"roxie-disconnect-journal").map(JournalFile)
    }

    /// Returns the rows of a slot in order, `None` for a free row. The caller holds the slot's name. Returns
    /// nothing if the region cannot be read, or could not be cleared afterwards.
    fn rows(&self, slot: u16) -> Vec<Option<DisconnectNotice>> {
        let mut rows = Vec::new();
        if !may_write(slot) {
            return rows;
        }
        let mut buffer = [0; READ_ROWS * ROW_LEN];
        while rows.len() < ROWS_MAX as usize {
            let Ok(len) = self.0.read_at(&mut buffer, row_at(slot, rows.len() as u32)) else {
                return Vec::new();
            };
            for row in buffer[..len].as_chunks().0 {
                let Some(row) = parse(row) else { return rows };
                rows.push(row);
            }
            if len < buffer.len() {
                break;
            }
        }
        rows
    }

    /// Moves the notices of the last owner of `slot` to `successor`, and returns them. The caller holds the
    /// names of both slots, and removes each notice from `successor` when it has been sent.
    pub(super) fn transfer(&self, slot: u16, successor: &mut Journal) -> Vec<DisconnectNotice> {
        let rows = self.rows(slot);
        let notices: Vec<DisconnectNotice> = rows.iter().flatten().copied().collect();
        for notice in &notices {
            // A notice that cannot be recorded can still be sent.
            let _unwritten = successor.change(self, JournalChange::Add(*notice));
        }
        // A zero row ends the region, so the first rows are cleared last.
        for row in (0..rows.len()).step_by(READ_ROWS).rev() {
            if self.write(&[0; READ_ROWS * ROW_LEN], row_at(slot, row as u32)).is_err() {
                break;
            }
        }
        notices
    }

    /// True if `slot` has rows, valid or free.
    pub(super) fn has_rows(&self, slot: u16) -> bool {
        let mut state = [0; 4];
        self.0.read_exact_at(&mut state, row_at(slot, 0)).is_ok() && state != [0; 4]
    }

    /// The first slot of the engine that has each slot, or had it when it was killed; `None` for free slots.
    pub(super) fn owners(&self) -> Vec<Option<u16>> {
        // On the heap: threads of applications may have stacks of 64 KiB.
        let mut table = vec![0; OWNERS_LEN];
        // Without the table all slots count as free.
        let _unread = self.0.read_at(&mut table, 0);
        let owner = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes).checked_sub(1).filter(|slot| *slot < SLOTS);
        table.as_chunks().0.iter().take(usize::from(SLOTS)).map(owner).collect()
    }

    /// The entry of one slot in the table of owners.
    pub(super) fn owner(&self, slot: u16) -> Option<u16> {
        let mut owner = [0; 2];
        self.0.read_exact_at(&mut owner, 2 * u64::from(slot)).ok()?;
        u16::from_le_bytes(owner).checked_sub(1).filter(|owner| *owner < SLOTS)
    }

    /// Enters an owner; the caller holds the name of the slot.
    pub(super) fn set_owner(&self, slot: u16, owner: Option<u16>) {
        let owner = owner.map_or(0, |owner| owner + 1);
        // Without memory for it, other processes cannot hand packets over to this one.
        let _unknown = self.write(&owner.to_le_bytes(), 2 * u64::from(slot));
    }

    /// Writes, also if the limit of file sizes (ulimit -f) was lowered since the start of the device.
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let _signals = (sys::file_size_limit() != u64::MAX).then(sys::WriteSignals::block);
        self.0.write_all_at(bytes, at)
    }

    pub(super) fn file(&self) -> &File {
        &self.0
    }
}

impl From<OwnedFd> for JournalFile {
    fn from(fd: OwnedFd) -> JournalFile {
        JournalFile(File::from(fd))
    }
}

/// This member's region of the journal.
#[derive(Debug)]
pub(super) struct Journal {
    slot: u16,
    rows: HashMap<CmId, u32>,
    free_rows: Vec<u32>,
    used: u32,
}

impl Journal {
    /// Opens the region of a slot, and returns the notices of its last owner. The caller holds the slot's
    /// name.
    pub(super) fn open(file: &JournalFile, slot: u16) -> (Journal, Vec<DisconnectNotice>) {
        let rows = file.rows(slot);
        let used = if may_write(slot) { rows.len() as u32 } else { ROWS_MAX };
        let mut journal = Journal { slot, rows: HashMap::new(), free_rows: Vec::new(), used };
        for (row, index) in rows.iter().zip(0..) {
            match row {
                Some(notice) => _ = journal.rows.insert(notice.id, index),
                None => journal.free_rows.push(index),
            }
        }
        (journal, rows.into_iter().flatten().collect())
    }

    /// Writes a change to the region.
    pub(super) fn change(&mut self, file: &JournalFile, change: JournalChange) -> io::Result<()> {
        let (index, row) = match change {
            JournalChange::Add(notice) => {
                let known = self.rows.get(&notice.id).copied();
                let index = match known.or_else(|| self.free_rows.pop()) {
                    Some(index) => index,
                    None if self.used < ROWS_MAX => {
                        self.used += 1;
                        self.used - 1
                    }
                    None => return Ok(()),
                };
                self.rows.insert(notice.id, index);
                (index, emit(&notice))
            }
            JournalChange::Remove(id) => {
                let Some(index) = self.rows.remove(&id) else { return Ok(()) };
                self.free_rows.push(index);
                let mut row = [0; ROW_LEN];
                row[..4].copy_from_slice(&FREE.to_le_bytes());
                (index, row)
            }
        };
        file.write(&row, row_at(self.slot, index))
    }
}

/// Fuzz target: another process had the slot before this member, and left these bytes in its region.
#[cfg(feature = "fuzz")]
pub fn check(bytes: &[u8]) {
    let file = JournalFile::new().expect("a memory file");
    let len = bytes.len().min(REGION_LEN as usize);
    file.0.write_all_at(&bytes[..len], row_at(3, 0)).expect("a write to memory");
    let (mut journal, notices) = Journal::open(&file, 3);
    let (mut successor, none) = Journal::open(&file, 4);
    assert!(none.is_empty() && notices.len() <= len.div_ceil(ROW_LEN));
    for notice in &notices {
        journal.change(&file, JournalChange::Add(*notice)).expect("a write to memory");
    }
    let moved = file.transfer(3, &mut successor);
    assert!(
        moved.len() >= notices.iter().map(|notice| notice.id).collect::<std::collections::HashSet<_>>().len()
    );
    assert!(!file.has_rows(3) || notices.is_empty());
    let kept: std::collections::HashSet<_> = moved.iter().map(|notice| notice.id).collect();
    assert_eq!(Journal::open(&file, 4).1.len(), kept.len());
}

/// True if the region lies below the limit of file sizes (ulimit -f).
fn may_write(slot: u16) -> bool {
    row_at(slot + 1, 0) <= sys::file_size_limit()
}

fn row_at(slot: u16, row: u32) -> u64 {
    debug_assert!(slot <= SLOTS);
    OWNERS_LEN as u64 + u64::from(slot) * REGION_LEN + u64::from(row) * ROW_LEN as u64
}

fn emit(notice: &DisconnectNotice) -> [u8; ROW_LEN] {
    let DisconnectNotice { id, src, dst, remote_id, remote_qpn } = *notice;
    let mut row = [0; ROW_LEN];
    row[..4].copy_from_slice(&VALID.to_le_bytes());
    row[4..8].copy_from_slice(&id.0.to_le_bytes());
    row[8..12].copy_from_slice(&remote_id.to_le_bytes());
    row[12..16].copy_from_slice(&remote_qpn.value().to_le_bytes());
    row[16..32].copy_from_slice(&src.0);
    row[32..48].copy_from_slice(&dst.0);
    row
}

/// Returns `None` for a row that was never used, `Some(None)` for a free row.
fn parse(row: &[u8; ROW_LEN]) -> Option<Option<DisconnectNotice>> {
    let word = |at: usize| row[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
    let gid = |at: usize| Gid(row[at..].first_chunk().copied().unwrap_or_default());
    match word(0) {
        0 => None,
        VALID => Some(Some(DisconnectNotice {
            id: CmId(word(4)),
            src: gid(16),
            dst: gid(32),
            remote_id: word(8),
            remote_qpn: Qpn::new(word(12)),
        })),
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn notice(n: u32) -> DisconnectNotice {
        let dst = Ipv4Addr::from(0x0a00_0000 + n).into();
        let src = Ipv4Addr::LOCALHOST.into();
        DisconnectNotice { id: CmId(n), src, dst, remote_id: n + 1, remote_qpn: Qpn::new(n + 2) }
    }

    #[test]
    fn notices_that_were_added_and_not_removed_are_left() {
        let file = JournalFile::new().unwrap();
        let (mut journal, mut neighbour) = (Journal::open(&file, 4094).0, Journal::open(&file, 0).0);
        neighbour.change(&file, JournalChange::Add(notice(9999))).unwrap();
        for n in 0..200 {
            journal.change(&file, JournalChange::Add(notice(n))).unwrap();
        }
        for n in (0..200).filter(|n| n % 3 == 0) {
            journal.change(&file, JournalChange::Remove(CmId(n))).unwrap();
        }
        journal.change(&file, JournalChange::Add(notice(500))).unwrap();
        assert_eq!(journal.used, 200, "a free row is used again");
        assert!(file.has_rows(4094) && !file.has_rows(7));
        let want: Vec<_> = (0..200).filter(|n| n % 3 != 0).chain([500]).map(notice).collect();
        let sorted = |mut left: Vec<DisconnectNotice>| {
            left.sort_unstable_by_key(|notice| notice.id);
            left
        };
        assert_eq!(sorted(file.transfer(4094, &mut neighbour)), want);
        assert!(file.transfer(4094, &mut neighbour).is_empty() && !file.has_rows(4094));
        assert_eq!(sorted(Journal::open(&file, 0).1), [&want[..], &[notice(9999)]].concat());
    }

    /// The process that took the notice over may die before the notice is sent.
    #[test]
    fn a_notice_that_was_taken_over_stays_until_it_is_removed() {
        let file = JournalFile::new().unwrap();
        Journal::open(&file, 7).0.change(&file, JournalChange::Add(notice(1))).unwrap();
        let mut survivor = Journal::open(&file, 8).0;
        file.transfer(7, &mut survivor);
        for _ in 0..2 {
            let (mut next, left) = Journal::open(&file, 8);
            assert_eq!(left, [notice(1)]);
            next.change(&file, JournalChange::Add(notice(2))).unwrap();
            next.change(&file, JournalChange::Remove(CmId(2))).unwrap();
        }
        Journal::open(&file, 8).0.change(&file, JournalChange::Remove(CmId(1))).unwrap();
        let (journal, left) = Journal::open(&file, 8);
        assert_eq!((left, journal.used, journal.free_rows.len()), (vec![], 2, 2));
    }

    #[test]
    fn a_full_region_ignores_further_notices_and_does_not_touch_the_next_region() {
        let file = JournalFile::new().unwrap();
        let mut journal = Journal::open(&file, 3).0;
        for n in 0..=ROWS_MAX {
            journal.change(&file, JournalChange::Add(notice(n))).unwrap();
        }
        journal.change(&file, JournalChange::Remove(CmId(ROWS_MAX))).unwrap();
        assert!(!file.has_rows(4));
        assert_eq!(Journal::open(&file, 3).1.len(), ROWS_MAX as usize);
    }
}
