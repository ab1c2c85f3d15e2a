//! The objects of a device beside queue pairs, for `rdma resource`: protection domains and completion queues,
//! which are in no table of an engine, memory regions, shared receive queues, contexts, and identifiers of
//! connections.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use transport::PdId;

use super::Engine;
use crate::cq::CompletionQueue;
use crate::status::{ObjectKind, ObjectPage, ObjectStatus};

/// Protection domains and completion queues, and the numbers of these and of shared receive queues; used in
/// the first engine of a device. An object needs no lock to leave the list, so a forked child can drop it.
#[derive(Debug)]
pub(crate) struct ObjectList {
    next: AtomicU32,
    pds: Mutex<Listed<PdId>>,
    cqs: Mutex<Listed<CompletionQueue>>,
}

/// Objects by number with the number of their context; some may have been destroyed.
#[derive(Debug)]
struct Listed<T> {
    objects: BTreeMap<u32, (Weak<T>, u32)>,
    /// Number of entries at which those of destroyed objects are removed.
    clean_at: usize,
}

impl Default for ObjectList {
    fn default() -> Self {
        Self { next: AtomicU32::new(1), pds: Mutex::default(), cqs: Mutex::default() }
    }
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), clean_at: 64 }
    }
}

impl<T> Listed<T> {
    fn add(&mut self, id: u32, ctx: u32, object: &Arc<T>) {
        if self.objects.len() >= self.clean_at {
            self.objects.retain(|_, (object, _)| object.strong_count() > 0);
            self.clean_at = 2 * self.objects.len().max(32);
        }
        self.objects.insert(id, (Arc::downgrade(object), ctx));
    }

    /// Those that exist, from a number on: the number, the number of the context, and the object.
    fn from(&self, from: u32) -> impl Iterator<Item = (u32, u32, Arc<T>)> {
        let objects = self.objects.range(from..);
        objects.filter_map(|(id, (object, ctx))| Some((*id, *ctx, object.upgrade()?)))
    }
}

fn lock<T>(listed: &Mutex<Listed<T>>) -> MutexGuard<'_, Listed<T>> {
    listed.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ObjectList {
    /// Returns a number that no object has had.
    pub(crate) fn next(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the number of a protection domain of this context, which is listed as long as the number exists.
    pub(crate) fn add_pd(&self, ctx: u32) -> Arc<PdId> {
        let pd = Arc::new(PdId(self.next()));
        lock(&self.pds).add(pd.0, ctx, &pd);
        pd
    }

    /// Lists a completion queue of this context.
    pub(crate) fn add_cq(&self, ctx: u32, queue: &Arc<CompletionQueue>) {
        lock(&self.cqs).add(self.next(), ctx, queue);
    }
}

impl Engine {
    /// Returns one page of the objects of this kind, from a number on. The first engine of a device lists the
    /// objects of all.
    pub(super) fn object_page(&self, kind: ObjectKind, from: u32) -> ObjectPage {
        if self.index() != 0 {
            return ObjectPage::default();
        }
        let page_max = kind.page_max();
        let mut objects = match kind {
            ObjectKind::Pd => self.pds(from, page_max + 1),
            ObjectKind::Cq => self.cqs(from, page_max + 1),
            ObjectKind::Mr => self.lock().tables.mrs.regions(from).take(page_max + 1).collect(),
            ObjectKind::CmId => self.services.cm.identifiers(from),
            ObjectKind::Ctx => {
                let numbers = self.services.gids.contexts().into_iter().filter(|id| *id >= from);
                numbers.map(|id| ObjectStatus::Ctx { id }).collect()
            }
            ObjectKind::Srq => self.srqs(from, page_max + 1),
        };
        let next = objects.get(page_max).map(ObjectStatus::id);
        objects.truncate(page_max);
        ObjectPage { objects, next }
    }

    /// The users of a domain are its queue pairs, shared receive queues and regions.
    fn pds(&self, from: u32, most: usize) -> Vec<ObjectStatus> {
        let listed: Vec<_> = lock(&self.objects.pds).from(from).take(most).collect();
        let mut users = BTreeMap::<u32, u64>::new();
        self.lock().tables.count_users(true, |pd| *users.entry(pd.0).or_default() += 1);
        for engine in self.others() {
            engine.lock().tables.count_users(false, |pd| *users.entry(pd.0).or_default() += 1);
        }
        let users = |id| users.get(&id).copied().unwrap_or(0);
        listed.into_iter().map(|(id, ctx, _)| ObjectStatus::Pd { id, ctx, users: users(id) }).collect()
    }

    /// The users of a queue are the send and receive queues that complete there.
    fn cqs(&self, from: u32, most: usize) -> Vec<ObjectStatus> {
        let queues: Vec<_> = lock(&self.objects.cqs).from(from).take(most).collect();
        let status = |(id, ctx, queue): (u32, u32, Arc<CompletionQueue>)| {
            // This list has one reference, and the object of the application one.
            let users = Arc::strong_count(&queue).saturating_sub(2) as u64;
            ObjectStatus::Cq { id, ctx, entries: queue.capacity(), users }
        };
        queues.into_iter().map(status).collect()
    }

    /// The shared receive queues of all engines in the order of their numbers, at least the first `most`.
    fn srqs(&self, from: u32, most: usize) -> Vec<ObjectStatus> {
        // Before the engines: a completion queue is not destroyed while a shared receive queue has it.
        let queues: Vec<_> = lock(&self.objects.cqs).from(0).collect();
        let numbers: HashMap<_, _> = queues.iter().map(|(id, _, queue)| (Arc::as_ptr(queue), *id)).collect();
        let number = |queue: &Arc<CompletionQueue>| numbers.get(&Arc::as_ptr(queue)).copied();
        let mut all = self.lock().tables.srq_status(from, most, number);
        for engine in self.others() {
            all.extend(engine.lock().tables.srq_status(from, most, number));
        }
        all.sort_by_key(ObjectStatus::id);
        all
    }
}

#[cfg(test)]
mod tests {
    use transport::RecvQueue;

    use super::*;
    use crate::engine::tables::Tables;
    use crate::gid::GidTable;
    use crate::srqs::SrqEntry;

    #[test]
    fn a_page_of_shared_receive_queues_has_no_more_entries_than_asked_for_in_the_order_of_their_numbers() {
        let mut tables = Tables::new(1, &Arc::new(GidTable::without_addresses()));
        // A destroyed queue leaves its place to one with a higher number.
        for id in (1..=100).rev() {
            let queue = RecvQueue::new(1, 1, PdId(0)).unwrap();
            tables.srqs.entries.push(Some(SrqEntry { id, queue, cookie: 0, xrc: None }));
        }
        let ids: Vec<u32> = tables.srq_status(10, 5, |_| None).iter().map(ObjectStatus::id).collect();
        assert_eq!(ids, [10, 11, 12, 13, 14]);
    }

    #[test]
    fn destroyed_objects_leave_the_list() {
        let list = ObjectList::default();
        let kept = list.add_pd(1);
        for _ in 0..1000 {
            drop(list.add_pd(1));
        }
        let last = list.add_pd(1);
        let page = |from| -> Vec<u32> { lock(&list.pds).from(from).map(|(id, ..)| id).collect() };
        assert_eq!((page(0), page(kept.0 + 1)), (vec![kept.0, last.0], vec![last.0]));
        assert!(lock(&list.pds).objects.len() < 100, "entries of destroyed objects stay");
    }
}
