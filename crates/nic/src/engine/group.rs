//! Several engines of one device: queue pairs spread over CPUs.
//!
//! Each is a member of the domain in its own right, with a slot, sockets, a lock, a thread and a table of
//! keys: nothing that a packet needs is shared. A queue pair lives where its completion queue is served, so
//! that a thread that polls drives what it waits for, and threads with completion queues of their own do
//! not meet. The first engine manages connections; the others hand it what arrives on QP1.
//!
//! Invariant: the tables of keys are equal whenever nobody holds `keys`. Of a change by a call the others
//! know before it returns; of one by a work request (a bind, an invalidation), after the batch that carried
//! it out.
//!
//! Lock order: `keys`, then an engine's. No two engines' locks are held at once, except while the process
//! forks.

use std::iter;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::engine::inbox::Mad;
use crate::engine::{Core, Engine};
use crate::keys::KeyTable;
use crate::port::BadVariable;
use crate::stats::Row;

/// How many engines a device has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Engines(usize);

/// Where an engine is among those of its device.
#[derive(Default)]
pub(crate) struct Place {
    index: usize,
    /// Nobody, for the first engine itself.
    first: Weak<Engine>,
    /// All but the first, which alone has them.
    others: OnceLock<Vec<Arc<Engine>>>,
    /// Held while the tables of keys are made equal.
    pub(crate) keys: Mutex<()>,
    turn: AtomicUsize,
    /// Polls of others that found nothing, while they looked for an engine that nobody polls; the first
    /// engine's.
    glances: AtomicUsize,
    /// How often this engine was polled when that was looked at last.
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
    /// What `ROXIE_ENGINES` may say.
    pub const WORDS: &[&str] = &["a number from 1 to 32"];

    /// From `ROXIE_ENGINES`; one if it is unset or empty.
    ///
    /// # Errors
    /// If it is something else.
    pub fn from_env() -> Result<Self, BadVariable> {
        Self::from_word(&std::env::var_os("ROXIE_ENGINES").unwrap_or_default().to_string_lossy())
    }

    /// From a word as the variable has it.
    ///
    /// # Errors
    /// If it is something else.
    pub fn from_word(word: &str) -> Result<Self, BadVariable> {
        match word.parse() {
            _ if word.is_empty() => Ok(Self::default()),
            Ok(count) if (1..=Self::MAX).contains(&count) => Ok(Self(count)),
            _ => Err(BadVariable::new("ROXIE_ENGINES", word, Self::WORDS)),
        }
    }

    /// The number.
    #[must_use]
    pub fn count(self) -> usize {
        self.0
    }
}

impl Place {
    /// That of engine `index`, which is not the first.
    pub(crate) fn beside(first: &Arc<Engine>, index: usize) -> Self {
        Self { index, first: Arc::downgrade(first), ..Self::default() }
    }
}

impl Engine {
    /// The device's further engines, of which there are some; called once, for the first, before anybody
    /// uses it.
    pub(crate) fn lead(&self, others: Vec<Arc<Self>>) {
        let first_time = self.place.others.set(others);
        debug_assert!(first_time.is_ok());
        let slots: Vec<u8> = self.all().map(|engine| engine.registry.slot()).collect();
        for engine in self.all() {
            engine.registry.set_sibling_slots(slots.clone());
            let tables = &mut engine.lock().tables;
            tables.mrs.record_changes();
            // They may have changed while the others were made, and the first engine told nobody.
            tables.gids = self.gids.get();
        }
    }

    /// All engines of the device of which this is the first, in the order of their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Self> {
        iter::once(self).chain(self.others().iter().map(Arc::as_ref))
    }

    fn others(&self) -> &[Arc<Self>] {
        debug_assert_eq!(self.place.index, 0, "asked of another engine than the first");
        self.place.others.get().map_or(&[], Vec::as_slice)
    }

    /// Its number in its device.
    pub(crate) fn index(&self) -> usize {
        self.place.index
    }

    /// The engine of this number, of the device of which this is the first.
    pub(crate) fn at(self: &Arc<Self>, index: usize) -> &Arc<Self> {
        index.checked_sub(1).and_then(|index| self.others().get(index)).unwrap_or(self)
    }

    /// Somebody has polled the engines in `polled`, a bit for each: now and then he polls one of the
    /// others, if nobody else does.
    #[inline]
    pub(crate) fn glance_beside(self: &Arc<Self>, polled: u32) {
        if !self.others().is_empty() {
            self.poll_neglected(polled);
        }
    }

    fn poll_neglected(self: &Arc<Self>, polled: u32) {
        let glance = self.place.glances.fetch_add(1, Ordering::Relaxed);
        let index = glance / self.tuning.sibling_polls % (1 + self.others().len());
        if !glance.is_multiple_of(self.tuning.sibling_polls) || polled >> index & 1 != 0 {
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

    /// Whose turn it is to get what has no place yet.
    pub(crate) fn next_in_turn(&self) -> usize {
        let engines = 1 + self.others().len();
        if engines == 1 { 0 } else { self.place.turn.fetch_add(1, Ordering::Relaxed) % engines }
    }

    /// What the first engine of the device makes of `work`; `None` if it is gone.
    pub(crate) fn leading<R>(&self, work: impl FnOnce(&Self) -> R) -> Option<R> {
        match self.place.index {
            0 => Some(work(self)),
            _ => self.place.first.upgrade().map(|first| work(&first)),
        }
    }

    /// A management datagram arrived here. What another process forwards goes to all our engines, and the
    /// first has it.
    pub(crate) fn take_mad(&self, mad: Mad) {
        if self.place.index == 0 || !mad.packet.is_forwarded() {
            self.leading(|first| first.deliver_mad(mad));
        }
    }

    /// Reads or changes the keys of the device; for its first engine.
    pub(crate) fn with_keys<R>(&self, work: impl FnOnce(&mut KeyTable) -> R) -> R {
        if self.others().is_empty() {
            return work(&mut self.lock().tables.mrs);
        }
        let _equal_again = self.place.keys.lock().unwrap_or_else(PoisonError::into_inner);
        // A completion may have been seen before what it stands for was told.
        self.all().for_each(|engine| self.copy_keys_of(engine));
        let done = work(&mut self.lock().tables.mrs);
        self.all().for_each(|engine| self.copy_keys_of(engine));
        done
    }

    /// Releases the lock, then [spreads](Self::spread_keys) what has changed under it.
    pub(crate) fn unlock_and_spread(&self, core: MutexGuard<'_, Core>) {
        let changed = core.tables.mrs.has_changed();
        drop(core);
        if changed {
            self.spread_keys();
        }
    }

    /// Tells the other engines which keys work requests have changed here.
    #[cold]
    pub(crate) fn spread_keys(&self) {
        self.leading(|first| {
            let _equal_again = first.place.keys.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Name and value of every counter, over all engines of the device of which this is the first.
    pub(crate) fn sum_of_rows(&self) -> Vec<Row> {
        let mut sum = self.rows(&self.lock());
        for (name, value) in self.others().iter().flat_map(|engine| engine.rows(&engine.lock())) {
            match sum.iter_mut().find(|row| row.0 == name) {
                Some(row) => row.1 += value,
                None => sum.push((name, value)),
            }
        }
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
