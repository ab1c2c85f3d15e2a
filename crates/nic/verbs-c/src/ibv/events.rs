//! The registry of objects that have events.
//!
//! An event names its object by a number, not by an address: another thread may destroy the object after this
//! library took the event off a queue. The registry decides that race. It hands out an event only if the
//! object is registered, and counts it. A destroy call first unregisters the object, then waits until the
//! application has acknowledged every event that was handed out.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use sys::lock_until;

use crate::handle::Member;
use crate::object::Object;
use crate::observer::{BLOCKS_AFTER, Public, observer};

/// Which counter of an object an event belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Queue {
    Completion = 0,
    Async = 1,
}

/// The number of a registered object, unique in the process. The engine gets it as a cookie.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct ObjectId(pub(crate) u64);

struct Entry {
    object: usize,
    delivered: [u32; 2],
    /// See [`ObjectId::surplus`].
    surplus_max: u32,
}

static OBJECTS: LazyLock<Mutex<HashMap<ObjectId, Entry>>> = LazyLock::new(Mutex::default);
/// The number of threads that wait for acknowledgements; signalled when there are some.
static ACKNOWLEDGED: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

fn objects() -> MutexGuard<'static, HashMap<ObjectId, Entry>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the registry until the value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new((lock_until(&ACKNOWLEDGED.0, until_ns), lock_until(&OBJECTS, until_ns)))
}

impl ObjectId {
    /// Returns an unused number. Events about it are dropped until an object is registered under it.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers the object at `object`, a public part.
    pub(crate) fn register<P>(self, object: *mut P) {
        objects().insert(self, Entry { object: object as usize, delivered: [0; 2], surplus_max: 0 });
    }

    /// Returns the object if it is registered, and counts one event as handed out.
    ///
    /// # Safety
    /// An object of this type was registered under the number. The call that destroys it waits for the
    /// acknowledgement of this event, which comes after `'a` ends.
    pub(crate) unsafe fn deliver<'a, P: Public, T>(self, queue: Queue) -> Option<&'a Object<P, T>> {
        let mut objects = objects();
        let entry = objects.get_mut(&self)?;
        let delivered = &mut entry.delivered[queue as usize];
        *delivered = delivered.wrapping_add(1);
        // SAFETY: registered, hence live, and of this type.
        unsafe { Object::from_ptr(entry.object as *mut P) }
    }

    /// Returns the address of the object's public part if it is registered.
    pub(crate) fn find<P>(self) -> Option<*mut P> {
        objects().get(&self).map(|entry| entry.object as *mut P)
    }

    /// Returns how many more completion events of the object are `acknowledged` than were handed out, if that
    /// is more than ever before.
    pub(crate) fn surplus(self, acknowledged: u32) -> Option<u32> {
        let mut objects = objects();
        let entry = objects.get_mut(&self)?;
        let surplus = acknowledged.wrapping_sub(entry.delivered[Queue::Completion as usize]);
        let grows = surplus.cast_signed() > entry.surplus_max.cast_signed();
        grows.then(|| {
            entry.surplus_max = surplus;
            surplus
        })
    }

    /// Stops handing out events about the object; returns how many were handed out, per [`Queue`].
    pub(crate) fn unregister(self) -> [u32; 2] {
        objects().remove(&self).map_or([0; 2], |entry| entry.delivered)
    }
}

/// Adds to a public counter of acknowledged events; returns its new value.
pub(crate) fn acknowledge(counter: &Member<u32>, n: u32) -> u32 {
    let waiting = ACKNOWLEDGED.0.lock().unwrap_or_else(PoisonError::into_inner);
    let acknowledged = counter.atomic().fetch_add(n, Ordering::Relaxed).wrapping_add(n);
    // A program acknowledges each of its events, and a signal costs a system call.
    if *waiting > 0 {
        ACKNOWLEDGED.1.notify_all();
    }
    acknowledged
}

/// Waits until a public counter reaches the number of events handed out.
pub(crate) fn wait_acknowledged(counter: &Member<u32>, delivered: u32) {
    let waits = |_: &mut usize| counter.get() != delivered;
    let mut waiting = ACKNOWLEDGED.0.lock().unwrap_or_else(PoisonError::into_inner);
    *waiting += 1;
    if let Some(observer) = observer() {
        let waited = ACKNOWLEDGED.1.wait_timeout_while(waiting, BLOCKS_AFTER, waits);
        let (still_locked, end) = waited.unwrap_or_else(PoisonError::into_inner);
        waiting = still_locked;
        if end.timed_out() {
            (observer.blocks)(delivered.wrapping_sub(counter.get()));
        }
    }
    let waited = ACKNOWLEDGED.1.wait_while(waiting, waits);
    *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
}

/// The objects with events that the application got, by address: how many completion events and asynchronous
/// events were handed out.
pub(crate) fn handed_out() -> HashMap<usize, [u32; 2]> {
    let objects = objects();
    let some = objects.values().filter(|entry| entry.delivered != [0; 2]);
    some.map(|entry| (entry.object, entry.delivered)).collect()
}
