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

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Owners(VecDeque<(Owner, usize)>);

impl Owners {
    /// Decides where a new object of `owner` belongs. The device has `engines` engines and may have `most`.
    /// `is_idle` says whether an engine has neither queue pairs nor shared receive queues.
    pub(crate) fn place(
        &mut self,
        owner: Owner,
        engines: usize,
        most: usize,
        is_idle: impl Fn(usize) -> bool,
    ) -> Placement {
        if let Some((_, engine)) = self.0.iter().find(|(known, _)| *known == owner) {
            return Placement::On(*engine);
        }
        let idle: Vec<bool> = (0..engines).map(is_idle).collect();
        self.0.retain(|(_, engine)| !idle[*engine]);
        let owners_of = |engine: usize| self.0.iter().filter(|(_, of)| *of == engine).count();
        // Objects without an owner belong to some thread, too.
        let load = |engine: usize| owners_of(engine).max(usize::from(!idle[engine]));
        let least = (0..engines).min_by_key(|engine| load(*engine)).unwrap_or_default();
        if load(least) > 0 && engines < most {
            return Placement::OnNew;
        }
        self.assign(owner, least);
        Placement::On(least)
    }

    /// Records that new objects of `owner` belong on this engine.
    pub(crate) fn assign(&mut self, owner: Owner, engine: usize) {
        if self.0.len() == OWNERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((owner, engine));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places an owner as a device does, which starts the engine.
    fn place(owners: &mut Owners, owner: u32, engines: &mut Vec<usize>, most: usize) -> usize {
        let owner = Owner::Vector(owner);
        match owners.place(owner, engines.len(), most, |engine| engines[engine] == 0) {
            Placement::On(engine) => {
                engines[engine] += 1;
                engine
            }
            Placement::OnNew => {
                owners.assign(owner, engines.len());
                engines.push(1);
                engines.len() - 1
            }
        }
    }

    #[test]
    fn each_owner_has_an_engine_until_there_are_most() {
        let (mut owners, mut objects) = (Owners::default(), vec![0]);
        let placed = [7, 7, 8, 7, 9, 8, 5, 4, 6, 7].map(|owner| place(&mut owners, owner, &mut objects, 3));
        assert_eq!(placed, [0, 0, 1, 0, 2, 1, 0, 1, 2, 0]);
        assert_eq!(objects, [5, 3, 2]);
    }

    #[test]
    fn an_engine_without_objects_is_used_before_another_starts() {
        let (mut owners, mut objects) = (Owners::default(), vec![0]);
        for owner in 1..100 {
            assert_eq!(
                place(&mut owners, owner, &mut objects, 4),
                0,
                "the one before has destroyed its objects"
            );
            objects[0] = 0;
        }
        assert_eq!(place(&mut owners, 100, &mut objects, 4), 0);
        assert_eq!(place(&mut owners, 101, &mut objects, 4), 1);
        objects[0] = 0;
        assert_eq!(place(&mut owners, 102, &mut objects, 4), 0);
    }

    #[test]
    fn objects_without_an_owner_keep_an_engine() {
        let (mut owners, mut objects) = (Owners::default(), vec![1]);
        assert_eq!(place(&mut owners, 1, &mut objects, 2), 1);
    }

    #[test]
    fn the_owners_are_bounded() {
        let (mut owners, mut objects) = (Owners::default(), vec![0]);
        for owner in 0..10_000 {
            place(&mut owners, owner, &mut objects, 2);
        }
        assert_eq!((owners.0.len(), objects.len()), (OWNERS_MAX, 2));
    }
}
