//! The key table: memory regions, fast-registered regions, memory windows, and the accesses that each key
//! grants (IBA 10.6).
//!
//! The table is under the engine's lock, so no access through a key is in progress when the key is removed.
//! Each engine of a device has a table, and the tables are kept equal (`engine/group.rs`). Entries are cells,
//! because queue pairs bind and invalidate while the engine serves them. Invariant: a bound window lies
//! inside a valid region of its protection domain, and the region counts it in `windows`.

use std::cell::{Cell, RefCell};

use crate::chaos::late_writes::LateWrites;
use crate::key_places::KeyPlaces;
use crate::status::ObjectStatus;
use transport::{Access, AccessFault, FastReg, MwBind, PdId, VerbsError, refuse};
use wire::Qpn;

/// Largest number of regions of one process: rxe's.
pub(crate) const MR_MAX: u32 = (1 << 19) - 1;
/// Largest number of windows.
pub(crate) const MW_MAX: u32 = 1 << 15;
const KEYS_MAX: usize = (MR_MAX + MW_MAX) as usize;
/// The bits of a key that the application chooses when it binds or registers.
const VARIANT: u32 = 0xff;

/// Remote access rights that change memory.
const REMOTE_CHANGE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// How a key was created.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// With `ibv_reg_mr`.
    Region,
    /// With `ibv_alloc_null_mr`.
    Null,
    /// For REG_MR work requests.
    Fast,
    Window(MwType),
}

/// `ibv_mw_type`. Type 2 is type 2B: a window belongs to the queue pair that bound it, and to the protection
/// domain of both.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MwType {
    /// Bound by a verb; any queue pair of its protection domain may access it.
    Type1,
    /// Bound by a work request; only that queue pair may access it.
    Type2,
}

/// The accesses that a key grants now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Grant {
    /// None: not registered, or not bound.
    None,
    /// Local work requests, which read zeros and write nothing: a null region.
    Null,
    /// Local work requests and the peers of all queue pairs: a region.
    All,
    /// The peers of all queue pairs, but no local work request: a type 1 window.
    Remote,
    /// The peer of one queue pair: a type 2 window.
    RemoteOf(Qpn),
}

/// The object of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    key: u32,
    pd: PdId,
    /// Address that peers and work requests use for the first byte.
    iova: u64,
    len: u64,
    /// Address of that byte in this process.
    base: u64,
    access: Access,
    grants: Grant,
    kind: Kind,
    /// Windows bound to a region.
    windows: u32,
    /// Slot of the region a window is bound to.
    region: u32,
}

impl Entry {
    fn is_bound_window(&self) -> bool {
        matches!(self.kind, Kind::Window(_)) && self.grants != Grant::None
    }
}

/// A range of this process, and the address that peers and work requests use for its first byte.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) iova: u64,
}

/// All keys of one engine. All 32 bits of a key are random, until the application chooses the low byte of a
/// window or a fast-registered region.
#[derive(Debug, Default)]
pub(crate) struct KeyTable {
    entries: Vec<Cell<Option<Entry>>>,
    places: KeyPlaces,
    free: Vec<u32>,
    /// Number of bound type 2 windows.
    bound_to_qps: Cell<u32>,
    /// Slots that have changed since the device's other engines got a copy; `None` if there are no other
    /// engines.
    changed: Option<RefCell<Vec<u32>>>,
    /// Bytes that are placed late; present under `--chaos`.
    pub(crate) late: Option<Box<LateWrites>>,
}

#[cold]
fn no_region(key: u32) -> VerbsError {
    refuse!(EINVAL, "memory region", "lkey"; key; "no region of this kind has the key {key:#010x}")
}

fn check_rights(access: Access) -> Result<(), VerbsError> {
    if !access.intersects(REMOTE_CHANGE) || access.contains(Access::LOCAL_WRITE) {
        return Ok(());
    }
    let access = access.bits();
    Err(refuse!(EINVAL, "memory region", "access"; access;
        "IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE, too (access \
         {access:#x})"))
}

fn check_range(range: Range) -> Result<(), VerbsError> {
    let fits = range.base.checked_add(range.len).and(range.iova.checked_add(range.len)).is_some();
    if fits {
        return Ok(());
    }
    let Range { base, len, iova } = range;
    Err(refuse!(EINVAL, "memory region", "length"; len, base, iova;
        "{len} bytes at {base:#x}, addressed from {iova:#x}, go past the last address"))
}

impl KeyTable {
    /// Adds a region and returns its key (L_Key and R_Key are equal, as in rxe).
    ///
    /// # Errors
    /// `EINVAL` for remote write or atomic access without local write, or a range that wraps; `ENOMEM` when
    /// the table is full.
    pub(crate) fn register(&mut self, pd: PdId, range: Range, access: Access) -> Result<u32, VerbsError> {
        check_rights(access)?;
        check_range(range)?;
        self.insert(pd, Kind::Region, Grant::All, range, access)
    }

    /// The regions from a slot on; the number of a region is its slot.
    pub(crate) fn regions(&self, from: u32) -> impl Iterator<Item = ObjectStatus> {
        let entries = self.entries.iter().zip(0..).skip(from as usize);
        entries.filter_map(|(entry, id)| {
            let Entry { key, pd, len, kind, .. } = entry.get()?;
            let status = ObjectStatus::Mr { id, key, len, pd: pd.0 };
            (!matches!(kind, Kind::Window(_))).then_some(status)
        })
    }

    /// Adds a region without memory, for work requests only.
    ///
    /// # Errors
    /// `ENOMEM` when the table is full.
    pub(crate) fn register_null(&mut self, pd: PdId) -> Result<u32, VerbsError> {
        self.insert(pd, Kind::Null, Grant::Null, Range::default(), Access::empty())
    }

    /// Adds a region that REG_MR makes valid.
    ///
    /// # Errors
    /// `ENOMEM` when the table is full.
    pub(crate) fn alloc_fast(&mut self, pd: PdId) -> Result<u32, VerbsError> {
        self.insert(pd, Kind::Fast, Grant::None, Range::default(), Access::empty())
    }

    /// Adds an unbound window.
    ///
    /// # Errors
    /// `ENOMEM` when the table is full.
    pub(crate) fn alloc_window(&mut self, pd: PdId, ty: MwType) -> Result<u32, VerbsError> {
        self.insert(pd, Kind::Window(ty), Grant::None, Range::default(), Access::empty())
    }

    fn insert(
        &mut self,
        pd: PdId,
        kind: Kind,
        grants: Grant,
        range: Range,
        access: Access,
    ) -> Result<u32, VerbsError> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.entries.len() < KEYS_MAX => {
                self.entries.push(Cell::new(None));
                (self.entries.len() - 1) as u32
            }
            None => {
                let most = KEYS_MAX;
                return Err(refuse!(ENOMEM, "device", "memory regions and windows"; most;
                    "the device has its largest number of regions and windows, {most}"));
            }
        };
        let key = self.places.draw_key();
        self.places.insert(key, slot);
        let Range { base, len, iova } = range;
        let entry = Entry { key, pd, iova, len, base, access, grants, kind, windows: 0, region: 0 };
        self.put(slot, Some(entry));
        Ok(key)
    }

    /// Removes the object of `key`, for every value of its variant bits; windows bound to it are unbound
    /// first. After this, no access through any of these keys can happen.
    pub(crate) fn remove(&mut self, key: u32) {
        let Some(entry) = self.object(key) else { return };
        let slot = self.places.slot(key) as u32;
        if entry.windows > 0 {
            self.unbind_where(|window| window.region == slot);
        }
        self.unbind(entry);
        self.put(slot, None);
        self.places.remove(key);
        self.free.push(slot);
    }

    /// Changes the protection domain, range and access rights of a region atomically, all or nothing
    /// (ibv_rereg_mr(3)).
    ///
    /// # Errors
    /// `EBUSY` while windows are bound to it; `EINVAL` as for [`Self::register`].
    pub(crate) fn change(
        &self,
        key: u32,
        pd: Option<PdId>,
        range: Option<Range>,
        access: Option<Access>,
    ) -> Result<(), VerbsError> {
        let entry = self.object(key).filter(|e| e.kind == Kind::Region).ok_or_else(|| no_region(key))?;
        if entry.windows > 0 {
            let windows = entry.windows;
            return Err(refuse!(EBUSY, "memory region", "windows"; windows, key;
                "{windows} memory windows are bound to the region {key:#010x}"));
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

    /// Sets the memory of a fast-registered region for the next REG_MR.
    ///
    /// # Errors
    /// `EBUSY` while it is valid.
    pub(crate) fn map_fast(&self, key: u32, base: u64, len: u64) -> Result<(), VerbsError> {
        let entry = self.object(key).filter(|e| e.kind == Kind::Fast).ok_or_else(|| no_region(key))?;
        if entry.grants != Grant::None {
            return Err(refuse!(EBUSY, "fast-registered region", "lkey"; key;
                "the region {key:#010x} is valid; invalidate it before it is mapped again"));
        }
        self.set(Entry { base, len, ..entry });
        Ok(())
    }

    /// True if windows are bound to a region.
    pub(crate) fn has_windows(&self, key: u32) -> bool {
        self.object(key).is_some_and(|entry| entry.windows > 0)
    }

    /// Unbinds the type 2 windows of a destroyed queue pair.
    pub(crate) fn unbind_qp(&self, qpn: Qpn) {
        if self.bound_to_qps.get() > 0 {
            self.unbind_where(|window| window.grants == Grant::RemoteOf(qpn));
        }
    }

    /// Binds a window: BIND_MW (IBA 10.6.6.2.2).
    pub(crate) fn bind(&self, pd: PdId, qpn: Qpn, bind: &MwBind) -> Result<(), AccessFault> {
        let window = self.object(bind.r_key.0).ok_or(AccessFault::BadKey)?;
        let Kind::Window(ty) = window.kind else { return Err(AccessFault::BadKey) };
        if (window.key ^ bind.r_key.0) & !VARIANT != 0 {
            return Err(AccessFault::BadKey);
        }
        if window.pd != pd {
            return Err(AccessFault::WrongPd);
        }
        // Windows have no local access; providers accept LOCAL_WRITE and ignore it.
        let permitted = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | match ty {
                MwType::Type1 => Access::empty(),
                MwType::Type2 => Access::ZERO_BASED,
            };
        if !permitted.contains(bind.access) {
            return Err(AccessFault::Permission);
        }
        if ty == MwType::Type2 && (window.grants != Grant::None || bind.len == 0) {
            return Err(AccessFault::Permission);
        }
        let bound = if bind.len == 0 {
            Entry { key: bind.r_key.0, grants: Grant::None, ..window }
        } else {
            let region = self.valid(bind.mr.0).filter(|e| e.grants == Grant::All);
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
            let (iova, grants) = match ty {
                _ if bind.access.contains(Access::ZERO_BASED) => (0, Grant::RemoteOf(qpn)),
                MwType::Type1 => (bind.addr, Grant::Remote),
                MwType::Type2 => (bind.addr, Grant::RemoteOf(qpn)),
            };
            let (key, access, region) = (bind.r_key.0, bind.access, self.places.slot(bind.mr.0) as u32);
            Entry { key, iova, len: bind.len, base, access, grants, region, ..window }
        };
        self.unbind(window);
        self.set(bound);
        self.count(bound, 1);
        Ok(())
    }

    /// Makes a fast-registered region valid: REG_MR (IBA 10.6.3.4).
    pub(crate) fn register_fast(&self, pd: PdId, reg: &FastReg) -> Result<(), AccessFault> {
        let entry = self.object(reg.key.0).filter(|e| e.kind == Kind::Fast).ok_or(AccessFault::BadKey)?;
        if (entry.key ^ reg.key.0) & !VARIANT != 0 || entry.grants != Grant::None {
            return Err(AccessFault::BadKey);
        }
        if entry.pd != pd {
            return Err(AccessFault::WrongPd);
        }
        let range = Range { base: entry.base, len: entry.len, iova: reg.iova };
        check_rights(reg.access).and(check_range(range)).map_err(|_| AccessFault::Permission)?;
        let (key, iova, access) = (reg.key.0, reg.iova, reg.access);
        self.set(Entry { key, iova, access, grants: Grant::All, ..entry });
        Ok(())
    }

    /// Invalidates a type 2 window of this queue pair or a fast-registered region: LOCAL_INV and SEND with
    /// Invalidate (IBA 10.6.5).
    pub(crate) fn invalidate(&self, pd: PdId, qpn: Qpn, key: u32) -> Result<(), AccessFault> {
        let entry = self.valid(key).ok_or(AccessFault::BadKey)?;
        if entry.pd != pd {
            return Err(AccessFault::WrongPd);
        }
        match (entry.kind, entry.grants) {
            (Kind::Fast, Grant::All) if entry.windows == 0 => {
                self.set(Entry { grants: Grant::None, ..entry });
                Ok(())
            }
            (Kind::Window(MwType::Type2), Grant::RemoteOf(owner)) if owner == qpn => {
                self.unbind(entry);
                Ok(())
            }
            _ => Err(AccessFault::Permission),
        }
    }

    /// Returns the address of `[va, va + len)` in this process if a local work request may access it.
    #[inline]
    pub(crate) fn local(
        &self,
        pd: PdId,
        key: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, AccessFault> {
        let entry = self.valid(key).filter(|e| e.grants == Grant::All).ok_or(AccessFault::BadKey)?;
        granted(&entry, pd, va, len, need)
    }

    /// True if the key is a null region that a work request of this domain may use at any address.
    #[cold]
    pub(crate) fn is_null(&self, pd: PdId, key: u32) -> bool {
        self.valid(key).is_some_and(|entry| entry.pd == pd && entry.grants == Grant::Null)
    }

    /// Returns the address of `[va, va + len)` in this process if a peer of this queue pair may access it.
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
        match entry.grants {
            Grant::All | Grant::Remote => {}
            Grant::RemoteOf(owner) if owner == qpn => {}
            Grant::RemoteOf(_) => return Err(AccessFault::WrongPd),
            Grant::None | Grant::Null => return Err(AccessFault::BadKey),
        }
        granted(&entry, pd, va, len, need)
    }

    /// Checks that a peer of this queue pair may access the whole object of a key.
    pub(crate) fn remote_key(&self, pd: PdId, qpn: Qpn, key: u32, need: Access) -> Result<(), AccessFault> {
        let start = self.valid(key).ok_or(AccessFault::BadKey)?.iova;
        self.remote(pd, qpn, key, start, 0, need).map(drop)
    }

    /// Returns the object with exactly this key.
    #[inline]
    fn valid(&self, key: u32) -> Option<Entry> {
        self.entries.get(self.places.slot(key))?.get().filter(|entry| entry.key == key)
    }

    /// Returns the object in the slot of a key, for any variant bits.
    fn object(&self, key: u32) -> Option<Entry> {
        self.entries.get(self.places.slot(key))?.get()
    }

    fn set(&self, entry: Entry) {
        self.put(self.places.slot(entry.key) as u32, Some(entry));
    }

    fn put(&self, slot: u32, entry: Option<Entry>) {
        // No access through a key happens after it has changed.
        self.place_all();
        self.entries[slot as usize].set(entry);
        if let Some(changed) = &self.changed {
            changed.borrow_mut().push(slot);
        }
    }

    /// From now on [`take_changed`](Self::take_changed) returns changed slots.
    pub(crate) fn record_changes(&mut self) {
        self.changed = Some(RefCell::default());
    }

    /// Returns a table with the same keys, which records changes.
    pub(crate) fn copy(&self) -> Self {
        Self {
            entries: self.entries.clone(),
            places: self.places.clone(),
            free: self.free.clone(),
            bound_to_qps: self.bound_to_qps.clone(),
            changed: Some(RefCell::default()),
            late: None,
        }
    }

    /// True if [`take_changed`](Self::take_changed) will return something.
    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        self.changed.as_ref().is_some_and(|changed| !changed.borrow().is_empty())
    }

    /// Returns the slots that have changed since the last call, with their current entries.
    pub(crate) fn take_changed(&self) -> Vec<(u32, Option<Entry>)> {
        let slots = self.changed.as_ref().map(RefCell::take).unwrap_or_default();
        slots.into_iter().map(|slot| (slot, self.entries[slot as usize].get())).collect()
    }

    /// Applies the changes of another table. If both tables have changed and a window no longer has a valid
    /// region, the window is unbound here, which is a change for the other table.
    pub(crate) fn apply_changes(&mut self, changed: &[(u32, Option<Entry>)]) {
        self.place_all();
        for &(slot, entry) in changed {
            let at = slot as usize;
            if self.entries.len() <= at {
                self.entries.resize(at + 1, Cell::new(None));
            }
            let before = self.entries[at].get();
            if let Some(before) = before {
                self.count(before, -1);
            }
            // Bound windows are counted here, not taken from the other table.
            let mut windows = before.map_or(0, |before| before.windows);
            if windows > 0 && entry.is_none_or(|entry| entry.grants != Grant::All) {
                self.unbind_where(|window| window.region == slot);
                windows = 0;
            }
            self.entries[at].set(entry.map(|entry| Entry { windows, ..entry }));
            if let Some(before) = before {
                self.places.remove(before.key);
            }
            if let Some(entry) = entry {
                self.places.insert(entry.key, slot);
                self.count(entry, 1);
            }
        }
        for window in changed.iter().filter_map(|(slot, _)| self.entries[*slot as usize].get()) {
            let region = self.entries.get(window.region as usize).and_then(Cell::get);
            if region.is_none_or(|region| region.grants != Grant::All) {
                self.unbind(window);
            }
        }
    }

    /// Counts a bound window, or uncounts it; ignores other entries.
    fn count(&self, window: Entry, change: i32) {
        if !window.is_bound_window() {
            return;
        }
        if matches!(window.grants, Grant::RemoteOf(_)) {
            self.bound_to_qps.set(self.bound_to_qps.get().saturating_add_signed(change));
        }
        self.count_window(window.region, change);
    }

    /// Unbinds a window; ignores other entries.
    fn unbind(&self, window: Entry) {
        if window.is_bound_window() {
            self.count(window, -1);
            self.set(Entry { grants: Grant::None, ..window });
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

/// Returns the address of `[va, va + len)` in this process, if the range lies inside the entry.
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
