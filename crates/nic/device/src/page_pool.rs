//! A pool of empty chunks, and the accounting that none is lost.
//!
//! A pool belongs to the thread that polls its queue and needs no lock: the chunk put back last is taken
//! first, because its bytes are still in the cache. Chunks that another thread dropped come back through
//! the region's list. Invariant: every unit of the region is in the pool, with the kernel, in that list,
//! or held as a token outside; [`PagePool::audit`] counts them.

use std::sync::Arc;

use sys::xdp::{Chunk, Region};

/// Empty chunks of one region.
#[derive(Debug)]
pub struct PagePool {
    region: Arc<Region>,
    /// A stack; never grows beyond the region's units, for which it has room.
    cache: Vec<Chunk>,
    counters: PoolCounters,
}

/// Counters of one pool since it was created.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PoolCounters {
    /// Chunks taken.
    pub takes: u64,
    /// Attempts to take one from the empty pool.
    pub empty: u64,
    /// Chunks that came back through the list of dropped ones.
    pub returned: u64,
}

/// The places of a region's units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Audit {
    /// All units.
    pub units: u32,
    /// In the pool.
    pub pooled: u32,
    /// With the kernel.
    pub lent: u32,
}

impl Audit {
    /// Units held as tokens outside the pool.
    #[must_use]
    pub fn in_hand(&self) -> u32 {
        self.units - self.pooled - self.lent
    }
}

impl PagePool {
    /// Creates a pool of `chunks`, which are units of `region`.
    #[must_use]
    pub fn new(region: &Arc<Region>, chunks: Vec<Chunk>) -> PagePool {
        let mut cache = chunks;
        cache.reserve_exact((region.units() as usize).saturating_sub(cache.len()));
        PagePool { region: Arc::clone(region), cache, counters: PoolCounters::default() }
    }

    /// Takes an empty chunk.
    #[inline]
    pub fn take(&mut self) -> Option<Chunk> {
        if self.cache.is_empty() && self.collect() == 0 {
            self.counters.empty += 1;
            return None;
        }
        self.counters.takes += 1;
        self.cache.pop()
    }

    /// Puts a chunk back.
    #[inline]
    pub fn put(&mut self, chunk: Chunk) {
        debug_assert!(chunk.is_part_of(&self.region), "a chunk goes back to its own pool");
        self.cache.push(chunk);
    }

    /// Number of chunks in the pool.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether the pool is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Fetches the chunks that other threads dropped; returns how many.
    pub fn collect(&mut self) -> usize {
        let cache = &mut self.cache;
        let count = self.region.collect(|chunk| cache.push(chunk));
        self.counters.returned += count as u64;
        count
    }

    /// Counts the units by their present place.
    #[must_use]
    pub fn audit(&mut self) -> Audit {
        self.collect();
        Audit { units: self.region.units(), pooled: self.cache.len() as u32, lent: self.region.lent() }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::xdp::{Umem, UmemConfig};

    fn pool(units: u32) -> (Umem, PagePool) {
        let (umem, mut tokens) = Umem::new(UmemConfig::default(), &[(units, 1)]).unwrap();
        let pool = PagePool::new(&umem.regions()[0], tokens.pop().unwrap());
        (umem, pool)
    }

    #[test]
    fn the_chunk_put_back_last_is_taken_first() {
        let (_umem, mut pool) = pool(4);
        let (mut a, b) = (pool.take().unwrap(), pool.take().unwrap());
        a.bytes_mut()[0] = 42;
        pool.put(b);
        pool.put(a);
        assert_eq!(pool.take().unwrap().bytes()[0], 42);
    }

    #[test]
    fn every_unit_is_counted_at_any_time() {
        let (_umem, mut pool) = pool(4);
        let held: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        let audit = pool.audit();
        assert_eq!((audit.units, audit.pooled, audit.lent, audit.in_hand()), (4, 1, 0, 3));
        // Dropped in another thread, not put back: fetched when the pool is empty.
        std::thread::spawn(move || drop(held)).join().unwrap();
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(all.len(), 4);
        assert_eq!(pool.counters(), PoolCounters { takes: 7, empty: 1, returned: 3 });
        assert_eq!(pool.audit().in_hand(), 4);
    }

    #[test]
    fn no_chunk_is_lost_while_threads_drop_and_the_owner_takes() {
        let (_umem, mut pool) = pool(64);
        let (hand, other) = std::sync::mpsc::sync_channel(64);
        let dropper = std::thread::spawn(move || {
            for (i, mut chunk) in other.into_iter().enumerate() {
                let chunk: &mut Chunk = &mut chunk;
                chunk.bytes_mut().fill(i as u8);
            }
        });
        let mut taken = 0;
        while taken < 10_000 {
            if let Some(chunk) = pool.take() {
                let first = chunk.bytes()[0];
                assert!(chunk.bytes().iter().all(|b| *b == first), "two owners of one chunk");
                hand.send(chunk).unwrap();
                taken += 1;
            } else {
                std::thread::yield_now();
            }
        }
        drop(hand);
        dropper.join().unwrap();
        let audit = pool.audit();
        assert_eq!((audit.pooled, audit.in_hand()), (64, 0));
    }
}
