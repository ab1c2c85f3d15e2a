//! Several engines of one device: queue pairs spread over CPUs.
//!
//! Each engine has its own slot in the process registry, sockets, lock, progress thread and table of keys:
//! the data path shares nothing. A queue pair belongs to the engine that serves its completion queue. A
//! polling thread therefore runs the engine that its completions come from, and threads with separate
//! completion queues do not contend. The first engine manages connections; the others pass it the packets of
//! QP1.
//!
//! Invariant: the tables of keys are equal whenever no thread holds `keys`. A call that changes a key updates
//! all engines before it returns. A work request that changes a key (a bind, an invalidation) updates the
//! other engines after the batch that executed it.
//!
//! Lock order: `keys`, then the lock of one engine. A thread holds the locks of two engines only while the
//! process forks.

use std::iter;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::engine::inbox::Mad;
use crate::engine::{Core, Engine};
use crate::keys::KeyTable;
use crate::port::BadVariable;
use crate::raw::Raw;
use crate::stats::Row;

/// How many engines a device has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Engines(usize);

/// The position of an engine in its device.
#[derive(Default)]
pub(crate) struct Place {
    index: usize,
    /// The first engine; empty in the first engine itself.
    first: Weak<Engine>,
    /// The other engines; set in the first engine only.
    others: OnceLock<Vec<Arc<Engine>>>,
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

impl Default for Engines {
    fn default() -> Self {
        Self(1)
    }
}

impl Engines {
    /// Most engines of a device: a completion queue has a bit for each.
    pub const MAX: usize = u32::BITS as usize;
    /// Values of `ROXIE_ENGINES`, for messages.
    pub const WORDS: &[&str] = &["a number from 1 to 32"];

    /// Returns the number in `ROXIE_ENGINES`; one if it is unset or empty.
    ///
    /// # Errors
    /// If the value is not a number from 1 to 32.
    pub fn from_env() -> Result<Self, BadVariable> {
        Self::from_word(&std::env::var_os("ROXIE_ENGINES").unwrap_or_default().to_string_lossy())
    }

    /// Parses a value of `ROXIE_ENGINES`.
    ///
    /// # Errors
    /// If the value is not a number from 1 to 32.
    pub fn from_word(word: &str) -> Result<Self, BadVariable> {
        match word.parse() {
            _ if word.is_empty() => Ok(Self::default()),
            Ok(count) if (1..=Self::MAX).contains(&count) => Ok(Self(count)),
            _ => Err(BadVariable::new("ROXIE_ENGINES", word, Self::WORDS)),
        }
    }

    /// Returns the number of engines.
    #[must_use]
    pub fn count(self) -> usize {
        self.0
    }
}

impl Place {
    /// Returns the position of engine `index`, which is not the first.
    pub(crate) fn beside(first: &Arc<Engine>, index: usize) -> Self {
        Self { index, first: Arc::downgrade(first), ..Self::default() }
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
    /// Makes this engine the first one of a device with the engines `others`, at least one. Called once,
    /// before an application uses the device.
    pub(crate) fn set_siblings(&self, others: Vec<Arc<Self>>) {
        let first_time = self.place.others.set(others);
        debug_assert!(first_time.is_ok());
        self.place.has_more.store(true, Ordering::Relaxed);
        let slots: Vec<u16> = self.all().map(|engine| engine.registry.slot()).collect();
        for engine in self.all() {
            engine.registry.set_sibling_slots(slots.clone());
            let tables = &mut engine.lock().tables;
            tables.mrs.record_changes();
            // The addresses may have changed while the other engines were created.
            tables.gids = self.gids.get();
        }
    }

    /// Returns all engines of the device, in the order of their numbers. Called on the first engine.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Self> {
        iter::once(self).chain(self.others().iter().map(Arc::as_ref))
    }

    fn others(&self) -> &[Arc<Self>] {
        debug_assert_eq!(self.place.index, 0, "called on an engine that is not the first");
        self.place.others.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the number of this engine in its device.
    pub(crate) fn index(&self) -> usize {
        self.place.index
    }

    /// Returns the engine with number `index` of the device. Called on the first engine.
    pub(crate) fn at(self: &Arc<Self>, index: usize) -> &Arc<Self> {
        index.checked_sub(1).and_then(|index| self.others().get(index)).unwrap_or(self)
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
        if self.place.raw().is_some_and(|raw| raw.poll(self)) || self.others().is_empty() {
            return;
        }
        let check = self.place.sibling_checks.fetch_add(1, Ordering::Relaxed);
        let index = check / self.tuning.sibling_polls % (1 + self.others().len());
        if !check.is_multiple_of(self.tuning.sibling_polls) || polled >> index & 1 != 0 {
            return;
        }
        let engine = self.at(index);
        let (polls, seen) = (&engine.inline_polls, &engine.place.polls_seen);
        let now = polls.load(Ordering::Relaxed);
        if seen.swap(now, Ordering::Relaxed) == now {
            for _ in 0..self.tuning.sibling_batches {
                if !engine.poll_inline() {
                    break;
                }
            }
            seen.store(polls.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns the number of the engine for the next new object, round-robin.
    pub(crate) fn next_in_turn(&self) -> usize {
        let engines = 1 + self.others().len();
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
        if self.others().is_empty() {
            return work(&mut self.lock().tables.mrs);
        }
        let _keys_lock = self.place.keys.lock().unwrap_or_else(PoisonError::into_inner);
        // The application may have seen the completion of a work request before its change was copied.
        self.all().for_each(|engine| self.copy_keys_of(engine));
        let done = work(&mut self.lock().tables.mrs);
        self.all().for_each(|engine| self.copy_keys_of(engine));
        done
    }

    /// Makes the progress thread raise moderated CQ events in time. Releases the lock, then
    /// [copies](Self::spread_keys) changed keys to the other engines.
    pub(crate) fn unlock_and_spread(&self, mut core: MutexGuard<'_, Core>) {
        self.wake_before(self.moderator.next());
        let changed = core.tables.mrs.has_changed();
        let borrowed = &mut core.tables.srqs.borrowed;
        if borrowed.has_output() {
            self.xrc_peers.put(borrowed.take_output());
        }
        drop(core);
        if changed {
            self.spread_keys();
        }
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
        let mut sum = self.rows(&self.lock());
        for (name, value) in self.others().iter().flat_map(|engine| engine.rows(&engine.lock())) {
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
        let count = |word| Engines::from_word(word).map(Engines::count);
        assert_eq!([count(""), count("1"), count("32")], [Ok(1), Ok(1), Ok(32)]);
        for wrong in ["0", "33", "-1", "two", "1 "] {
            let error = count(wrong).unwrap_err().to_string();
            assert_eq!(error, format!("ROXIE_ENGINES={wrong} is not a number from 1 to 32"));
        }
    }
}
