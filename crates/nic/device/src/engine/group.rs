//! Several engines of one device: queue pairs spread over CPUs.
//!
//! Each engine has its own slot in the process registry, sockets, lock, progress thread and table of keys:
//! the data path shares nothing. A queue pair belongs to the engine that serves its completion queue. A
//! polling thread therefore runs the engine that its completions come from, and threads with separate
//! completion queues do not contend. A device has a fixed number of engines, or starts them as threads come
//! ([`Owners`]); an engine that has started stays. The first engine manages connections; the others pass it
//! the packets of QP1.
//!
//! Invariant: the tables of keys are equal whenever no thread holds `keys`. A call that changes a key updates
//! all engines before it returns. A work request that changes a key (a bind, an invalidation) updates the
//! other engines after the batch that executed it.
//!
//! Lock order: `keys`, then the lock of one engine. A thread holds the locks of two engines only while the
//! process forks.

use std::fmt;
use std::iter;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use sys::{Cancellation, read_once};

use crate::engine::outbox::Mad;
use crate::engine::owners::{Owner, Owners, Placement};
use crate::engine::{Core, Engine};
use crate::keys::KeyTable;
use crate::locked::Locked;
use crate::raw::Raw;
use crate::status::Row;
use crate::variable::BadVariable;

/// Descriptors of an engine with shared memory and the plug-in (its tests count them), and its socket for
/// routes.
const DESCRIPTORS_EACH: u64 = 18;
/// Engines that start by themselves take at most one in this many descriptors of the process (soft limit).
const DESCRIPTORS_SHARE: u64 = 8;

/// How many engines a device has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Engines(Option<usize>);

/// The position of an engine in its device.
#[derive(Default)]
pub(crate) struct Place {
    index: usize,
    /// The first engine; empty in the first engine itself.
    first: Weak<Engine>,
    /// The other engines, without gaps; set in the first engine only.
    others: [OnceLock<Arc<Engine>>; Engines::MAX - 1],
    /// Most engines of the device, if it starts them as threads come; 0 if their number is fixed.
    most: AtomicUsize,
    owners: Mutex<Owners>,
    /// Raw packet queue pairs, once there was one; set in the first engine only.
    raw: OnceLock<Arc<Raw>>,
    /// There is more to poll than the engines of a completion queue: other engines, or raw packet queue
    /// pairs.
    has_more: AtomicBool,
    /// Held while the tables of keys are made equal.
    pub(crate) keys: Mutex<()>,
    /// Round-robin counter for [`next_in_turn`](Engine::next_in_turn).
    turn: AtomicUsize,
    /// Empty polls so far, by which the first engine chooses when to poll a neglected engine.
    sibling_checks: AtomicUsize,
    /// The inline polls of this engine at the last check for neglected engines.
    polls_seen: AtomicU64,
}

impl Engines {
    /// Most engines of a device: a completion queue has a bit for each.
    pub const MAX: usize = u32::BITS as usize;
    /// Values of `ROXIE_ENGINES`, for messages.
    pub const WORDS: &[&str] = &["auto, or a number from 1 to 32"];
    /// The word for a device that starts engines as threads come.
    const AUTO: &str = "auto";

    /// Returns the number in `ROXIE_ENGINES`; `auto` if it is unset or empty.
    ///
    /// # Errors
    /// If the value is not `auto` or a number from 1 to 32.
    pub fn from_env() -> Result<Self, BadVariable> {
        Self::from_word(&std::env::var_os("ROXIE_ENGINES").unwrap_or_default().to_string_lossy())
    }

    /// Parses a value of `ROXIE_ENGINES`.
    ///
    /// # Errors
    /// If the value is not `auto` or a number from 1 to 32.
    pub fn from_word(word: &str) -> Result<Self, BadVariable> {
        match word.parse() {
            _ if word.is_empty() || word == Self::AUTO => Ok(Self(None)),
            Ok(count) if (1..=Self::MAX).contains(&count) => Ok(Self(Some(count))),
            _ => Err(BadVariable::new("ROXIE_ENGINES", word, Self::WORDS)),
        }
    }

    /// Returns the number of engines with which a device starts.
    #[must_use]
    pub fn at_start(self) -> usize {
        self.0.unwrap_or(1)
    }

    /// Returns the most engines that a device has. With `auto` that is one for each CPU of the process, as
    /// far as they take an eighth of its descriptors. The first call in a process decides: a thread that is
    /// bound to a CPU counts only this one, and would refuse the completion vectors that others know.
    #[must_use]
    pub fn most(self) -> usize {
        static AUTO_MOST: AtomicU64 = AtomicU64::new(0);
        let read = || {
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            let descriptors = sys::descriptor_limit() / DESCRIPTORS_SHARE / DESCRIPTORS_EACH;
            cpus.min(descriptors as usize).clamp(1, Self::MAX) as u64
        };
        self.0.unwrap_or_else(|| read_once(&AUTO_MOST, read) as usize)
    }

    pub(crate) fn is_auto(self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Display for Engines {
    /// Writes the value of `ROXIE_ENGINES`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str(Self::AUTO),
            Some(count) => count.fmt(f),
        }
    }
}

impl Place {
    /// Returns the position of engine `index`, which is not the first.
    pub(crate) fn beside(first: &Arc<Engine>, index: usize) -> Self {
        Self { index, first: Arc::downgrade(first), ..Self::default() }
    }

    /// Whether the device starts engines as threads come. Of the first engine.
    pub(crate) fn is_auto(&self) -> bool {
        self.most.load(Ordering::Relaxed) > 0
    }

    /// Makes the device start engines as threads come, up to this number.
    pub(crate) fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    pub(crate) fn raw(&self) -> Option<&Arc<Raw>> {
        self.raw.get()
    }

    /// Sets the raw packet queue pairs, unless another thread did; returns those that are set.
    pub(crate) fn set_raw(&self, new: Arc<Raw>) -> &Arc<Raw> {
        let raw = self.raw.get_or_init(|| new);
        self.has_more.store(true, Ordering::Relaxed);
        raw
    }
}

impl Engine {
    /// Adds an engine to the device, which may be in use. Called on the first engine, by one thread at a
    /// time.
    pub(crate) fn add_sibling(&self, engine: Arc<Self>) {
        let keys_lock = self.place.keys.lock().unwrap_or_else(PoisonError::into_inner);
        // Changes that work requests have made are in the table of one engine.
        self.all().for_each(|engine| self.copy_keys_of(engine));
        let mut first = self.lock();
        if self.count() == 1 {
            first.tables.mrs.record_changes();
        }
        let keys = first.tables.mrs.copy();
        drop(first);
        let mut core = engine.lock();
        let free = self.place.others.iter().find(|other| other.get().is_none());
        let is_added = free.is_some_and(|free| free.set(Arc::clone(&engine)).is_ok());
        debug_assert!(is_added, "more than {} engines", Engines::MAX);
        core.tables.mrs = keys;
        // Taken after the engine is among the others: `follow_netdev` replaces the table of addresses, then
        // updates the engines that it finds. Before, the engine could keep the old table.
        core.tables.set_gids(&self.services.gids.get());
        drop(core);
        drop(keys_lock);
        self.place.has_more.store(true, Ordering::Relaxed);
        let slots: Vec<u16> = self.all().map(|engine| engine.services.registry.slot()).collect();
        self.all().for_each(|engine| engine.services.registry.set_sibling_slots(slots.clone()));
    }

    /// Returns the number of engines. Called on the first engine.
    pub(crate) fn count(&self) -> usize {
        1 + self.others().count()
    }

    /// The number of engines, if the device has started some of them as threads came. Called on the first
    /// engine.
    pub(crate) fn started_for_threads(&self) -> Option<usize> {
        let engines = self.count();
        (engines > 1 && self.place.is_auto()).then_some(engines)
    }

    /// Decides which engine a new object of `owner` belongs to. Called on the first engine.
    pub(crate) fn place_of(self: &Arc<Self>, owner: Owner) -> Placement {
        let (count, most) = (self.count(), self.place.most.load(Ordering::Relaxed));
        if most == 0 {
            return Placement::On(match owner {
                Owner::Vector(number) => number as usize,
                Owner::Thread(_) => self.next_in_turn(),
            });
        }
        // A hook or a reader of packets sees the engines that were there when it came.
        let most = if self.lock().hooks.are_used() { count } else { most };
        self.owners().place(owner, count, most, |index| self.at(index).lock().tables.objects())
    }

    /// Records that the new objects of `owner` belong on an engine that has just started. Called on the first
    /// engine.
    pub(crate) fn assign(&self, owner: Owner, engine: usize) {
        self.owners().assign(owner, engine, 0);
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.place.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all engines of the device, in the order of their numbers. Called on the first engine.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Self> {
        iter::once(self).chain(self.others().map(Arc::as_ref))
    }

    pub(super) fn others(&self) -> impl Iterator<Item = &Arc<Self>> {
        debug_assert_eq!(self.place.index, 0, "called on an engine that is not the first");
        self.place.others.iter().map_while(OnceLock::get)
    }

    /// Returns the number of this engine in its device.
    pub(crate) fn index(&self) -> usize {
        self.place.index
    }

    /// Returns the engine with number `index` of the device. Called on the first engine.
    pub(crate) fn at(self: &Arc<Self>, index: usize) -> &Arc<Self> {
        index.checked_sub(1).and_then(|index| self.place.others.get(index)?.get()).unwrap_or(self)
    }

    /// Polls the raw packet queue pairs, and now and then one of the other engines, if no thread polls it
    /// inline. The calling thread has polled the engines in `polled`, a bit for each.
    #[inline]
    pub(crate) fn poll_sibling(self: &Arc<Self>, polled: u32) {
        if self.place.has_more.load(Ordering::Relaxed) {
            self.poll_neglected(polled);
        }
    }

    fn poll_neglected(self: &Arc<Self>, polled: u32) {
        if self.place.raw().is_some_and(|raw| raw.poll(self)) {
            return;
        }
        let check = self.place.sibling_checks.fetch_add(1, Ordering::Relaxed);
        if !check.is_multiple_of(self.tuning.sibling_polls) {
            return;
        }
        let index = check / self.tuning.sibling_polls % self.count();
        if polled >> index & 1 != 0 {
            return;
        }
        let engine = self.at(index);
        let (polls, seen) = (&engine.polling, &engine.place.polls_seen);
        let now = polls.polls();
        if seen.swap(now, Ordering::Relaxed) == now {
            for _ in 0..self.tuning.sibling_batches {
                if !engine.poll_inline() {
                    break;
                }
            }
            seen.store(polls.polls(), Ordering::Relaxed);
        }
    }

    /// Returns the number of the engine for the next new object, round-robin.
    fn next_in_turn(&self) -> usize {
        let engines = self.count();
        if engines == 1 { 0 } else { self.place.turn.fetch_add(1, Ordering::Relaxed) % engines }
    }

    /// Runs `work` on the first engine of the device; `None` if that engine was destroyed.
    pub(crate) fn with_first<R>(&self, work: impl FnOnce(&Self) -> R) -> Option<R> {
        match self.place.index {
            0 => Some(work(self)),
            _ => self.place.first.upgrade().map(|first| work(&first)),
        }
    }

    /// Passes a management datagram that arrived here to the first engine. A datagram that another process
    /// forwarded is dropped by the other engines, because the first one receives it too.
    pub(crate) fn take_mad(&self, mad: Mad) {
        if self.place.index == 0 || !mad.packet.is_forwarded() {
            self.with_first(|first| first.deliver_mad(mad));
        }
    }

    /// Reads or changes the keys of the device. Called on the first engine.
    pub(crate) fn with_keys<R>(&self, work: impl FnOnce(&mut KeyTable) -> R) -> R {
        let _keys_lock = self.place.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if self.count() == 1 {
            return work(&mut self.lock().tables.mrs);
        }
        // The application may have seen the completion of a work request before its change was copied.
        self.all().for_each(|engine| self.copy_keys_of(engine));
        let done = work(&mut self.lock().tables.mrs);
        self.all().for_each(|engine| self.copy_keys_of(engine));
        done
    }

    /// Makes the progress thread raise moderated CQ events in time. Releases the lock, then
    /// [copies](Self::spread_keys) changed keys to the other engines. The result is that of
    /// [`Locked::unlock`].
    pub(crate) fn unlock_and_spread(&self, core: Locked<'_, Core>) -> Option<Cancellation> {
        let changed = core.tables.mrs.has_changed();
        let cancellation = core.unlock();
        if changed {
            self.spread_keys();
        }
        cancellation
    }

    /// Copies the keys that work requests have changed here to the other engines.
    #[cold]
    pub(crate) fn spread_keys(&self) {
        self.with_first(|first| {
            let _keys_lock = first.place.keys.lock().unwrap_or_else(PoisonError::into_inner);
            first.copy_keys_of(self);
        });
    }

    fn copy_keys_of(&self, source: &Self) {
        let changed = source.lock().tables.mrs.take_changed();
        if changed.is_empty() {
            return;
        }
        for engine in self.all().filter(|engine| !ptr::eq(*engine, source)) {
            engine.lock().tables.mrs.apply_changes(&changed);
        }
    }

    /// Returns the name and the value of every counter, summed over all engines. Called on the first engine.
    pub(crate) fn sum_of_rows(&self) -> Vec<Row> {
        let mut sum = self.rows();
        for (name, value) in self.others().flat_map(|engine| engine.rows()) {
            match sum.iter_mut().find(|row| row.0 == name) {
                Some(row) => row.1 += value,
                None => sum.push((name, value)),
            }
        }
        sum.extend(self.place.raw().map(|raw| raw.rows()).unwrap_or_default());
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_engines_is_checked() {
        let counts = |word| Engines::from_word(word).map(|engines| (engines.at_start(), engines.most()));
        assert_eq!([counts("1"), counts("32")], [Ok((1, 1)), Ok((32, 32))]);
        assert_eq!(counts(""), counts("auto"));
        assert!(counts("auto").is_ok_and(|(at_start, most)| at_start == 1 && most <= Engines::MAX));
        for wrong in ["0", "33", "-1", "two", "1 "] {
            let error = counts(wrong).unwrap_err().to_string();
            assert_eq!(error, format!("ROXIE_ENGINES={wrong} is not auto, or a number from 1 to 32"));
        }
    }
}
