//! The owners of a device's engines, when the device may start engines as threads come.
//!
//! An owner is the thread that creates the first queue pair of a completion queue, or the vector of that
//! completion queue, or the thread that creates a shared receive queue. Threads are not followed: a thread
//! that only polls the queue pairs of another thread is no owner. The entry of a thread that has ended is
//! removed when its engine has no objects any more.

use std::collections::VecDeque;
use std::thread::{self, ThreadId};

/// Most entries; the oldest is removed. More threads than this share the engines anyway.
const OWNERS_MAX: usize = 256;

/// The owner of an engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Owner {
    /// The thread that creates queue pairs.
    Thread(ThreadId),
    /// The completion vector, if it is not 0.
    Vector(u32),
}

impl Owner {
    /// The calling thread.
    pub(crate) fn this_thread() -> Self {
        Self::Thread(thread::current().id())
    }
}

/// Where a new object belongs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Placement {
    /// On this engine.
    On(usize),
    /// On an engine that has to be started.
    OnNew,
}

/// The queue pairs and shared receive queues of an engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Objects {
    /// How many there are now.
    pub(crate) now: usize,
    /// How many were created so far.
    pub(crate) created: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: Owner,
    engine: usize,
    /// How many objects the engine had created before. While this is true, the owner creates its first one.
    created: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Owners(VecDeque<Entry>);

impl Owners {
    /// Decides where a new object of `owner` belongs. The device has `engines` engines and may have `most`.
    /// `objects` are those of an engine.
    pub(crate) fn place(
        &mut self,
        owner: Owner,
        engines: usize,
        most: usize,
        objects: impl Fn(usize) -> Objects,
    ) -> Placement {
        if let Some(entry) = self.0.iter().find(|entry| entry.owner == owner) {
            return Placement::On(entry.engine);
        }
        let objects: Vec<Objects> = (0..engines).map(objects).collect();
        self.0.retain(|entry| {
            let Objects { now, created } = objects[entry.engine];
            now > 0 || created == entry.created
        });
        let owners_of = |engine: usize| self.0.iter().filter(|entry| entry.engine == engine).count();
        // Objects without an owner belong to some thread, too.
        let load = |engine: usize| owners_of(engine).max(objects[engine].now.min(1));
        let least = (0..engines).min_by_key(|engine| load(*engine)).unwrap_or_default();
        if load(least) > 0 && engines < most {
            return Placement::OnNew;
        }
        self.assign(owner, least, objects[least].created);
        Placement::On(least)
    }

    /// Records that new objects of `owner` belong on this engine, which has `created` so many before.
    pub(crate) fn assign(&mut self, owner: Owner, engine: usize, created: u64) {
        if self.0.len() == OWNERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Entry { owner, engine, created });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places an owner as a device does, which starts the engine. The object comes later.
    fn place(owners: &mut Owners, owner: u32, engines: &mut Vec<Objects>, most: usize) -> usize {
        let owner = Owner::Vector(owner);
        match owners.place(owner, engines.len(), most, |engine| engines[engine]) {
            Placement::On(engine) => engine,
            Placement::OnNew => {
                owners.assign(owner, engines.len(), 0);
                engines.push(Objects::default());
                engines.len() - 1
            }
        }
    }

    fn create(owners: &mut Owners, owner: u32, engines: &mut Vec<Objects>, most: usize) -> usize {
        let engine = place(owners, owner, engines, most);
        let Objects { now, created } = engines[engine];
        engines[engine] = Objects { now: now + 1, created: created + 1 };
        engine
    }

    #[test]
    fn each_owner_has_an_engine_until_there_are_most() {
        let (mut owners, mut engines) = (Owners::default(), vec![Objects::default()]);
        let placed = [7, 7, 8, 7, 9, 8, 5, 4, 6, 7].map(|owner| create(&mut owners, owner, &mut engines, 3));
        assert_eq!(placed, [0, 0, 1, 0, 2, 1, 0, 1, 2, 0]);
        assert_eq!(engines.iter().map(|objects| objects.now).collect::<Vec<_>>(), [5, 3, 2]);
    }

    #[test]
    fn owners_that_come_at_the_same_time_have_different_engines() {
        let (mut owners, mut engines) = (Owners::default(), vec![Objects::default()]);
        let placed = [1, 2, 3, 1, 2].map(|owner| place(&mut owners, owner, &mut engines, 3));
        assert_eq!(placed, [0, 1, 2, 0, 1], "none has created its object yet");
    }

    #[test]
    fn an_engine_without_objects_is_used_before_another_starts() {
        let (mut owners, mut engines) = (Owners::default(), vec![Objects::default()]);
        for owner in 1..100 {
            let engine = create(&mut owners, owner, &mut engines, 4);
            assert_eq!(engine, 0, "the one before has destroyed its objects");
            engines[0].now = 0;
        }
        assert_eq!(create(&mut owners, 100, &mut engines, 4), 0);
        assert_eq!(create(&mut owners, 101, &mut engines, 4), 1);
        engines[0].now = 0;
        assert_eq!(create(&mut owners, 102, &mut engines, 4), 0);
    }

    #[test]
    fn objects_without_an_owner_keep_an_engine() {
        let (mut owners, mut engines) = (Owners::default(), vec![Objects { now: 1, created: 1 }]);
        assert_eq!(create(&mut owners, 1, &mut engines, 2), 1);
    }

    #[test]
    fn the_owners_are_bounded() {
        let (mut owners, mut engines) = (Owners::default(), vec![Objects::default()]);
        for owner in 0..10_000 {
            create(&mut owners, owner, &mut engines, 2);
        }
        assert_eq!((owners.0.len(), engines.len()), (OWNERS_MAX, 2));
    }
}
