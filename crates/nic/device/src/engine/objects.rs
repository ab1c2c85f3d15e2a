//! The objects of a device beside queue pairs, for `rdma resource`: protection domains and completion queues,
//! which are in no table of an engine, memory regions, and identifiers of connections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use transport::PdId;

use super::Engine;
use crate::cq::CompletionQueue;
use crate::status::{OBJECTS_MAX, ObjectKind, ObjectPage, ObjectStatus};

/// Protection domains and completion queues; used in the first engine of a device. An object needs no lock to
/// leave the list, so a forked child can drop it.
#[derive(Debug)]
pub(crate) struct ObjectList {
    next: AtomicU32,
    pds: Mutex<Listed<PdId>>,
    cqs: Mutex<Listed<CompletionQueue>>,
}

/// Objects by number, some of which may have been destroyed.
#[derive(Debug)]
struct Listed<T> {
    objects: BTreeMap<u32, Weak<T>>,
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
    fn add(&mut self, id: u32, object: &Arc<T>) {
        if self.objects.len() >= self.clean_at {
            self.objects.retain(|_, object| object.strong_count() > 0);
            self.clean_at = 2 * self.objects.len().max(32);
        }
        self.objects.insert(id, Arc::downgrade(object));
    }

    /// Those that exist, from a number on, up to one more than a page.
    fn page(&self, from: u32) -> Vec<(u32, Arc<T>)> {
        let objects = self.objects.range(from..).filter_map(|(id, object)| Some((*id, object.upgrade()?)));
        objects.take(OBJECTS_MAX + 1).collect()
    }
}

fn lock<T>(listed: &Mutex<Listed<T>>) -> MutexGuard<'_, Listed<T>> {
    listed.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ObjectList {
    /// Makes the number of a protection domain, which is listed as long as the number exists.
    pub(crate) fn add_pd(&self) -> Arc<PdId> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let pd = Arc::new(PdId(id));
        lock(&self.pds).add(id, &pd);
        pd
    }

    /// Lists a completion queue.
    pub(crate) fn add_cq(&self, queue: &Arc<CompletionQueue>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.cqs).add(id, queue);
    }
}

impl Engine {
    /// Returns one page of the objects of this kind, from a number on. The first engine of a device lists the
    /// objects of all.
    pub(super) fn object_page(&self, kind: ObjectKind, from: u32) -> ObjectPage {
        if self.index() != 0 {
            return ObjectPage::default();
        }
        let mut objects = match kind {
            ObjectKind::Pd => self.pds(from),
            ObjectKind::Cq => self.cqs(from),
            ObjectKind::Mr => self.lock().tables.mrs.regions(from).take(OBJECTS_MAX + 1).collect(),
            ObjectKind::CmId => self.services.cm.identifiers(from),
        };
        let next = objects.get(OBJECTS_MAX).map(ObjectStatus::id);
        objects.truncate(OBJECTS_MAX);
        ObjectPage { objects, next }
    }

    /// The users of a domain are its queue pairs and regions.
    fn pds(&self, from: u32) -> Vec<ObjectStatus> {
        let listed = lock(&self.objects.pds).page(from);
        let mut users = BTreeMap::<u32, u64>::new();
        self.lock().tables.count_users(true, |pd| *users.entry(pd.0).or_default() += 1);
        for engine in self.others() {
            engine.lock().tables.count_users(false, |pd| *users.entry(pd.0).or_default() += 1);
        }
        let users = |id| users.get(&id).copied().unwrap_or(0);
        listed.into_iter().map(|(id, _)| ObjectStatus::Pd { id, users: users(id) }).collect()
    }

    /// The users of a queue are the send and receive queues that complete there.
    fn cqs(&self, from: u32) -> Vec<ObjectStatus> {
        let queues = lock(&self.objects.cqs).page(from);
        let status = |(id, queue): (u32, Arc<CompletionQueue>)| {
            // This list has one reference, and the object of the application one.
            let users = Arc::strong_count(&queue).saturating_sub(2) as u64;
            ObjectStatus::Cq { id, entries: queue.capacity(), users }
        };
        queues.into_iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destroyed_objects_leave_the_list() {
        let list = ObjectList::default();
        let kept = list.add_pd();
        for _ in 0..1000 {
            drop(list.add_pd());
        }
        let last = list.add_pd();
        let page = |from| -> Vec<u32> { lock(&list.pds).page(from).into_iter().map(|(id, _)| id).collect() };
        assert_eq!((page(0), page(kept.0 + 1)), (vec![kept.0, last.0], vec![last.0]));
        assert!(lock(&list.pds).objects.len() < 100, "entries of destroyed objects stay");
    }
}
