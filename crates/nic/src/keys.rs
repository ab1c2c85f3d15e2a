//! The table of keys: memory regions, fast-registered regions, memory windows, and who may reach what through them.
//!
//! It lives under the engine's lock, so once a key is taken back no access through it can be under way. Each engine of a
//! device has one, and they are kept equal (`engines.rs`). Entries are cells, because queue pairs bind and invalidate while
//! they are being served. Invariant: a bound window lies inside a valid region of its protection domain, which counts it in
//! `windows`. Read IBA 10.6.

use std::cell::{Cell, RefCell};

use transport::{Access, AccessFault, FastReg, MwBind, PdId, VerbsError};
use wire::Qpn;

/// Bits of a key that select the table slot: `max_mr` = 2^17.
const SLOT_BITS: u32 = 17;
/// Most regions and windows one process may have.
pub(crate) const MR_MAX: usize = 1 << SLOT_BITS;
/// The bits of a key that its owner chooses when it binds or registers.
const VARIANT: u32 = 0xff;

/// Rights of a peer that change memory.
const REMOTE_CHANGE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// What a key was made as.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// By `ibv_reg_mr`.
    Region,
    /// By `ibv_alloc_null_mr`.
    Null,
    /// For REG_MR.
    Fast,
    Window(MwType),
}

/// `ibv_mw_type`. Type 2 is 2B: a window belongs to the queue pair that bound it and to the protection domain of both.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MwType {
    /// Bound by a verb, reached through any queue pair of its protection domain.
    Type1,
    /// Bound by a work request, reached through that queue pair only.
    Type2,
}

/// Through what a key may be used now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reach {
    /// Nothing: not registered, or not bound.
    Nobody,
    /// Work requests, which find nothing there: a null region.
    Nothing,
    /// Work requests and any queue pair: a region.
    Everybody,
    /// Any queue pair, but no work request: a type 1 window.
    Peers,
    /// One queue pair: a type 2 window.
    PeerOf(Qpn),
}

/// What a key stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    key: u32,
    pd: PdId,
    /// Address that peers and work requests use for the first byte.
    iova: u64,
    len: u64,
    /// Where that byte really is.
    base: u64,
    access: Access,
    reach: Reach,
    kind: Kind,
    /// Windows bound to a region.
    windows: u32,
    /// Slot of the region a window is bound to.
    region: u32,
}

impl Entry {
    fn is_bound_window(&self) -> bool {
        matches!(self.kind, Kind::Window(_)) && self.reach != Reach::Nobody
    }
}

/// A range of this process and the address peers and work requests use for its first byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) iova: u64,
}

/// All keys of one engine.
///
/// ```text
///  31        25 24              8 7      0
/// +------------+-----------------+--------+
/// | random (7) |    slot (17)    | random |
/// +------------+-----------------+--------+
/// ```
/// Fifteen random bits make a guessed or stale R_Key miss.
#[derive(Debug, Default)]
pub(crate) struct KeyTable {
    entries: Vec<Cell<Option<Entry>>>,
    free: Vec<u32>,
    /// Type 2 windows that are bound.
    bound_to_qps: Cell<u32>,
    /// Slots that have changed since the device's other engines were told; `None` if there are none.
    changed: Option<RefCell<Vec<u32>>>,
}

fn slot_of(key: u32) -> usize {
    ((key >> 8) as usize) & (MR_MAX - 1)
}

fn check_rights(access: Access) -> Result<(), VerbsError> {
    let ok = !access.intersects(REMOTE_CHANGE) || access.contains(Access::LOCAL_WRITE);
    if ok { Ok(()) } else { Err(VerbsError::Invalid) }
}

fn check_range(range: Range) -> Result<(), VerbsError> {
    let fits = range.base.checked_add(range.len).and(range.iova.checked_add(range.len)).is_some();
    if fits { Ok(()) } else { Err(VerbsError::Invalid) }
}

impl KeyTable {
    /// Adds a region and returns its key (L_Key and R_Key are equal, as in rxe).
    ///
    /// # Errors
    /// `Invalid` for remote write or atomic access without local write, or a range that wraps; `NoMem` when the
    /// table is full.
    pub(crate) fn register(&mut self, pd: PdId, range: Range, access: Access) -> Result<u32, VerbsError> {
        check_rights(access)?;
        check_range(range)?;
        self.insert(pd, Kind::Region, Reach::Everybody, range, access)
    }

    /// Adds a region without memory, for work requests only.
    ///
    /// # Errors
    /// `NoMem` when the table is full.
    pub(crate) fn register_null(&mut self, pd: PdId) -> Result<u32, VerbsError> {
        let nothing = Range { base: 0, len: 0, iova: 0 };
        self.insert(pd, Kind::Null, Reach::Nothing, nothing, Access::empty())
    }

    /// Adds a region that REG_MR makes valid.
    ///
    /// # Errors
    /// `NoMem` when the table is full.
    pub(crate) fn alloc_fast(&mut self, pd: PdId) -> Result<u32, VerbsError> {
        self.insert(pd, Kind::Fast, Reach::Nobody, Range { base: 0, len: 0, iova: 0 }, Access::empty())
    }

    /// Adds a window that is not bound.
    ///
    /// # Errors
    /// `NoMem` when the table is full.
    pub(crate) fn alloc_window(&mut self, pd: PdId, ty: MwType) -> Result<u32, VerbsError> {
        let nothing = Range { base: 0, len: 0, iova: 0 };
        self.insert(pd, Kind::Window(ty), Reach::Nobody, nothing, Access::empty())
    }

    fn insert(
        &mut self,
        pd: PdId,
        kind: Kind,
        reach: Reach,
        range: Range,
        access: Access,
    ) -> Result<u32, VerbsError> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.entries.len() < MR_MAX => {
                self.entries.push(Cell::new(None));
                (self.entries.len() - 1) as u32
            }
            None => return Err(VerbsError::NoMem),
        };
        let random = sys::random_u64() as u32;
        let key = (random & 0xfe00_00ff) | (slot << 8);
        let Range { base, len, iova } = range;
        let entry = Entry { key, pd, iova, len, base, access, reach, kind, windows: 0, region: 0 };
        self.put(slot, Some(entry));
        Ok(key)
    }

    /// Forgets what `key` names, whatever its variant is now; windows bound to it are unbound first. Afterwards no access
    /// through any of these keys can happen.
    pub(crate) fn remove(&mut self, key: u32) {
        let Some(entry) = self.object(key) else { return };
        if entry.windows > 0 {
            let slot = slot_of(key) as u32;
            self.unbind_where(|window| window.region == slot);
        }
        self.unbind(entry);
        self.put(slot_of(key) as u32, None);
        self.free.push(slot_of(key) as u32);
    }

    /// Changes a region: its protection domain, its range, its rights (ibv_rereg_mr(3)). All or nothing.
    ///
    /// # Errors
    /// `Busy` while windows are bound to it; `Invalid` as for [`Self::register`].
    pub(crate) fn change(
        &self,
        key: u32,
        pd: Option<PdId>,
        range: Option<Range>,
        access: Option<Access>,
    ) -> Result<(), VerbsError> {
        let entry = self.object(key).filter(|e| e.kind == Kind::Region).ok_or(VerbsError::Invalid)?;
        if entry.windows > 0 {
            return Err(VerbsError::Busy);
        }
        let access = access.unwrap_or(entry.access);
        check_rights(access)?;
        let Entry { base, len, iova, .. } = entry;
        let range = range.unwrap_or(Range { base, len, iova });
        check_range(range)?;
        let Range { base, len, iova } = range;
        self.set(Entry { pd: pd.unwrap_or(entry.pd), base, len, iova, access, ..entry });
        Ok(())
    }

    /// Gives a fast-registered region the memory that the next REG_MR makes reachable.
    ///
    /// # Errors
    /// `Busy` while it is valid.
    pub(crate) fn map_fast(&self, key: u32, base: u64, len: u64) -> Result<(), VerbsError> {
        let entry = self.object(key).filter(|e| e.kind == Kind::Fast).ok_or(VerbsError::Invalid)?;
        if entry.reach != Reach::Nobody {
            return Err(VerbsError::Busy);
        }
        self.set(Entry { base, len, ..entry });
        Ok(())
    }

    /// Whether windows are bound to a region.
    pub(crate) fn has_windows(&self, key: u32) -> bool {
        self.object(key).is_some_and(|entry| entry.windows > 0)
    }

    /// A queue pair is gone: its type 2 windows are not bound any more.
    pub(crate) fn forget_qp(&self, qpn: Qpn) {
        if self.bound_to_qps.get() > 0 {
            self.unbind_where(|window| window.reach == Reach::PeerOf(qpn));
        }
    }

    /// BIND_MW (IBA 10.6.6.2.2).
    pub(crate) fn bind(&self, pd: PdId, qpn: Qpn, bind: &MwBind) -> Result<(), AccessFault> {
        let window = self.object(bind.r_key.0).ok_or(AccessFault::BadKey)?;
        let Kind::Window(ty) = window.kind else { return Err(AccessFault::BadKey) };
        if (window.key ^ bind.r_key.0) & !VARIANT != 0 {
            return Err(AccessFault::BadKey);
        }
        if window.pd != pd {
            return Err(AccessFault::WrongPd);
        }
        let permitted = Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | match ty {
                MwType::Type1 => Access::empty(),
                MwType::Type2 => Access::ZERO_BASED,
            };
        if !permitted.contains(bind.access) {
            return Err(AccessFault::Permission);
        }
        if ty == MwType::Type2 && (window.reach != Reach::Nobody || bind.len == 0) {
            return Err(AccessFault::Permission);
        }
        let bound = if bind.len == 0 {
            Entry { key: bind.r_key.0, reach: Reach::Nobody, ..window }
        } else {
            let region = self.valid(bind.mr.0).filter(|e| e.reach == Reach::Everybody);
            let region = region.ok_or(AccessFault::BadKey)?;
            if region.pd != pd {
                return Err(AccessFault::WrongPd);
            }
            let changes = bind.access.intersects(REMOTE_CHANGE);
            if !region.access.contains(Access::MW_BIND)
                || region.access.contains(Access::ZERO_BASED)
                || (changes && !region.access.contains(Access::LOCAL_WRITE))
            {
                return Err(AccessFault::Permission);
            }
            let base = within(&region, bind.addr, bind.len)?;
            let (iova, reach) = match ty {
                _ if bind.access.contains(Access::ZERO_BASED) => (0, Reach::PeerOf(qpn)),
                MwType::Type1 => (bind.addr, Reach::Peers),
                MwType::Type2 => (bind.addr, Reach::PeerOf(qpn)),
            };
            let (key, access, region) = (bind.r_key.0, bind.access, slot_of(bind.mr.0) as u32);
            Entry { key, iova, len: bind.len, base, access, reach, region, ..window }
        };
        self.unbind(window);
        self.set(bound);
        self.count(bound, 1);
        Ok(())
    }

    /// REG_MR (IBA 10.6.3.4).
    pub(crate) fn register_fast(&self, pd: PdId, reg: &FastReg) -> Result<(), AccessFault> {
        let entry = self.object(reg.key.0).filter(|e| e.kind == Kind::Fast).ok_or(AccessFault::BadKey)?;
        if (entry.key ^ reg.key.0) & !VARIANT != 0 || entry.reach != Reach::Nobody {
            return Err(AccessFault::BadKey);
        }
        if entry.pd != pd {
            return Err(AccessFault::WrongPd);
        }
        let range = Range { base: entry.base, len: entry.len, iova: reg.iova };
        check_rights(reg.access).and(check_range(range)).map_err(|_| AccessFault::Permission)?;
        let (key, iova, access) = (reg.key.0, reg.iova, reg.access);
        self.set(Entry { key, iova, access, reach: Reach::Everybody, ..entry });
        Ok(())
    }

    /// LOCAL_INV and SEND with Invalidate: type 2 windows of this queue pair and fast-registered regions (IBA 10.6.5).
    pub(crate) fn invalidate(&self, pd: PdId, qpn: Qpn, key: u32) -> Result<(), AccessFault> {
        let entry = self.valid(key).ok_or(AccessFault::BadKey)?;
        if entry.pd != pd {
            return Err(AccessFault::WrongPd);
        }
        match (entry.kind, entry.reach) {
            (Kind::Fast, Reach::Everybody) if entry.windows == 0 => {
                self.set(Entry { reach: Reach::Nobody, ..entry });
                Ok(())
            }
            (Kind::Window(MwType::Type2), Reach::PeerOf(owner)) if owner == qpn => {
                self.unbind(entry);
                Ok(())
            }
            _ => Err(AccessFault::Permission),
        }
    }

    /// The address of `[va, va + len)` if a work request may use it so.
    #[inline]
    pub(crate) fn local(
        &self,
        pd: PdId,
        key: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, AccessFault> {
        let entry = self.valid(key).filter(|e| e.reach == Reach::Everybody).ok_or(AccessFault::BadKey)?;
        granted(&entry, pd, va, len, need)
    }

    /// Whether a work request of this domain may use the key and finds nothing there, whatever the address.
    #[cold]
    pub(crate) fn is_null(&self, pd: PdId, key: u32) -> bool {
        self.valid(key).is_some_and(|entry| entry.pd == pd && entry.reach == Reach::Nothing)
    }

    /// The address of `[va, va + len)` if a peer of this queue pair may use it so.
    #[inline]
    pub(crate) fn remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        key: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, AccessFault> {
        let entry = self.valid(key).ok_or(AccessFault::BadKey)?;
        match entry.reach {
            Reach::Everybody | Reach::Peers => {}
            Reach::PeerOf(owner) if owner == qpn => {}
            Reach::PeerOf(_) => return Err(AccessFault::WrongPd),
            Reach::Nobody | Reach::Nothing => return Err(AccessFault::BadKey),
        }
        granted(&entry, pd, va, len, need)
    }

    /// Whether a peer of this queue pair may use all of what a key stands for in this way.
    pub(crate) fn remote_key(&self, pd: PdId, qpn: Qpn, key: u32, need: Access) -> Result<(), AccessFault> {
        let start = self.valid(key).ok_or(AccessFault::BadKey)?.iova;
        self.remote(pd, qpn, key, start, 0, need).map(drop)
    }

    /// What has exactly this key.
    #[inline]
    fn valid(&self, key: u32) -> Option<Entry> {
        self.entries.get(slot_of(key))?.get().filter(|entry| entry.key == key)
    }

    /// What is in the slot that a key names.
    fn object(&self, key: u32) -> Option<Entry> {
        self.entries.get(slot_of(key))?.get()
    }

    fn set(&self, entry: Entry) {
        self.put(slot_of(entry.key) as u32, Some(entry));
    }

    fn put(&self, slot: u32, entry: Option<Entry>) {
        self.entries[slot as usize].set(entry);
        if let Some(changed) = &self.changed {
            changed.borrow_mut().push(slot);
        }
    }

    /// From now on [`take_changed`](Self::take_changed) tells what has changed.
    pub(crate) fn record_changes(&mut self) {
        self.changed = Some(RefCell::default());
    }

    /// Whether [`take_changed`](Self::take_changed) has something.
    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        self.changed.as_ref().is_some_and(|changed| !changed.borrow().is_empty())
    }

    /// Slots that have changed, and what is there now.
    pub(crate) fn take_changed(&self) -> Vec<(u32, Option<Entry>)> {
        let slots = self.changed.as_ref().map(RefCell::take).unwrap_or_default();
        slots.into_iter().map(|slot| (slot, self.entries[slot as usize].get())).collect()
    }

    /// Makes this table what the one is that these changes come from. What both have changed and does not fit together, a
    /// window and its region, is undone here, and so told to the other in turn.
    pub(crate) fn adopt(&mut self, changed: &[(u32, Option<Entry>)]) {
        for &(slot, entry) in changed {
            let at = slot as usize;
            if self.entries.len() <= at {
                self.entries.resize(at + 1, Cell::new(None));
            }
            let before = self.entries[at].get();
            if let Some(before) = before {
                self.count(before, -1);
            }
            // Windows are counted as they come.
            let mut windows = before.map_or(0, |before| before.windows);
            if windows > 0 && entry.is_none_or(|entry| entry.reach != Reach::Everybody) {
                self.unbind_where(|window| window.region == slot);
                windows = 0;
            }
            self.entries[at].set(entry.map(|entry| Entry { windows, ..entry }));
            if let Some(entry) = entry {
                self.count(entry, 1);
            }
        }
        for window in changed.iter().filter_map(|(slot, _)| self.entries[*slot as usize].get()) {
            let region = self.entries.get(window.region as usize).and_then(Cell::get);
            if region.is_none_or(|region| region.reach != Reach::Everybody) {
                self.unbind(window);
            }
        }
    }

    /// A window is bound, or no longer; anything else is left alone.
    fn count(&self, window: Entry, change: i32) {
        if !window.is_bound_window() {
            return;
        }
        if matches!(window.reach, Reach::PeerOf(_)) {
            self.bound_to_qps.set(self.bound_to_qps.get().saturating_add_signed(change));
        }
        self.count_window(window.region, change);
    }

    /// Makes a window reach nothing; anything else is left alone.
    fn unbind(&self, window: Entry) {
        if window.is_bound_window() {
            self.count(window, -1);
            self.set(Entry { reach: Reach::Nobody, ..window });
        }
    }

    fn unbind_where(&self, which: impl Fn(&Entry) -> bool) {
        for window in self.entries.iter().filter_map(Cell::get) {
            if which(&window) {
                self.unbind(window);
            }
        }
    }

    fn count_window(&self, region: u32, change: i32) {
        if let Some(cell) = self.entries.get(region as usize)
            && let Some(entry) = cell.get()
        {
            cell.set(Some(Entry { windows: entry.windows.saturating_add_signed(change), ..entry }));
        }
    }
}

#[inline]
fn granted(entry: &Entry, pd: PdId, va: u64, len: u64, need: Access) -> Result<u64, AccessFault> {
    if entry.pd != pd {
        return Err(AccessFault::WrongPd);
    }
    if !entry.access.contains(need) {
        return Err(AccessFault::Permission);
    }
    within(entry, va, len)
}

/// Where `[va, va + len)` really is, if it is inside.
#[inline]
fn within(entry: &Entry, va: u64, len: u64) -> Result<u64, AccessFault> {
    let offset = va.wrapping_sub(entry.iova);
    if va < entry.iova || offset > entry.len || len > entry.len - offset {
        return Err(AccessFault::OutOfBounds);
    }
    Ok(entry.base + offset)
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
