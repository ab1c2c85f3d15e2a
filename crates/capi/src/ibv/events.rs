//! Which objects live, which events the program has been given about them, and asynchronous events
//! (ibv_get_async_event(3)).
//!
//! An event names its object by a number, not an address: between taking an event off a queue and looking at its
//! object, another thread may destroy the object. The registry decides the race: an event is handed out only if its
//! object is still registered, and is then counted; a destroy call first unregisters, then waits until every event
//! handed out is acknowledged.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use roxie::verbs::{AsyncElement, AsyncEvent};
use sys::lock_until;

use crate::abi::context::ibv_context;
use crate::abi::work::{Element, ibv_async_event};
use crate::errno::{minus1, of_io};

use super::cq::CqObject;
use super::device::ContextObject;
use super::qp::QpObject;
use super::srq::SrqObject;

/// Which counter of an object an event belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Queue {
    Completion = 0,
    Async = 1,
}

/// The name of a registered object, unique in the process; the cookie given to the engine.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct ObjectId(pub(crate) u64);

struct Entry {
    object: usize,
    delivered: [u32; 2],
}

static OBJECTS: LazyLock<Mutex<HashMap<ObjectId, Entry>>> = LazyLock::new(Mutex::default);
/// Signalled whenever something is acknowledged.
static ACKNOWLEDGED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

fn objects() -> MutexGuard<'static, HashMap<ObjectId, Entry>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the registry until the value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new((lock_until(&ACKNOWLEDGED.0, until_ns), lock_until(&OBJECTS, until_ns)))
}

impl ObjectId {
    /// A number nobody has yet; events about it are dropped until it is registered.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn register<T>(self, object: *mut T) {
        objects().insert(self, Entry { object: object as usize, delivered: [0; 2] });
    }

    /// The object, if it still lives; counts one event as handed out.
    pub(crate) fn deliver<T>(self, queue: Queue) -> Option<*mut T> {
        let mut objects = objects();
        let entry = objects.get_mut(&self)?;
        let delivered = &mut entry.delivered[queue as usize];
        *delivered = delivered.wrapping_add(1);
        Some(entry.object as *mut T)
    }

    /// The object, if it still lives.
    pub(crate) fn find<T>(self) -> Option<*mut T> {
        objects().get(&self).map(|entry| entry.object as *mut T)
    }

    /// From now on no event about it is handed out; returns how many were, per [`Queue`].
    pub(crate) fn unregister(self) -> [u32; 2] {
        objects().remove(&self).map_or([0; 2], |entry| entry.delivered)
    }
}

/// Adds to a public counter of acknowledged events.
///
/// # Safety
/// `counter` points into a live object.
pub(crate) unsafe fn acknowledge(counter: *mut u32, n: u32) {
    let _lock = ACKNOWLEDGED.0.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: upheld by the caller; programs do not write the member.
    unsafe { AtomicU32::from_ptr(counter) }.fetch_add(n, Ordering::Relaxed);
    ACKNOWLEDGED.1.notify_all();
}

/// Waits until a public counter reaches the number of events handed out.
///
/// # Safety
/// `counter` points into a live object.
pub(crate) unsafe fn wait_acknowledged(counter: *mut u32, delivered: u32) {
    // SAFETY: upheld by the caller; programs do not write the member.
    let counter = unsafe { AtomicU32::from_ptr(counter) };
    let lock = ACKNOWLEDGED.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(ACKNOWLEDGED.1.wait_while(lock, |()| counter.load(Ordering::Relaxed) != delivered));
}

/// The public counter that an event's acknowledgement adds to, if its type has one.
///
/// # Safety
/// `event` was filled by [`ibv_get_async_event`] and its object is not destroyed.
unsafe fn counter_of(event: &ibv_async_event) -> Option<*mut u32> {
    /// IBV_EVENT_* whose element is a CQ, QPs, SRQs.
    const CQ: c_int = 0;
    const QPS: [c_int; 8] = [1, 2, 3, 4, 5, 6, 7, 16];
    const SRQS: [c_int; 2] = [14, 15];
    // SAFETY: the type of the event says which member is set, and the object is alive until this acknowledgement.
    unsafe {
        match event.event_type {
            CQ => Some(&raw mut (*event.element.cq).async_events_completed),
            ty if QPS.contains(&ty) => Some(&raw mut (*event.element.qp).events_completed),
            ty if SRQS.contains(&ty) => Some(&raw mut (*event.element.srq).events_completed),
            _ => None,
        }
    }
}

/// The C form of an event, or `None` if its object is gone.
fn deliver(event: AsyncEvent) -> Option<ibv_async_event> {
    let element = match event.element {
        AsyncElement::Cq(id) => {
            let cq = ObjectId(id).deliver::<CqObject>(Queue::Async)?;
            Element { cq: cq.cast() }
        }
        AsyncElement::Qp(id) => {
            let qp = ObjectId(id).deliver::<QpObject>(Queue::Async)?;
            Element { qp: qp.cast() }
        }
        AsyncElement::Srq(id) => {
            let srq = ObjectId(id).deliver::<SrqObject>(Queue::Async)?;
            Element { srq: srq.cast() }
        }
        AsyncElement::Port(number) => {
            // The whole union, so that the bytes beyond the port number are not left over from the stack.
            let mut element = Element { cq: std::ptr::null_mut() };
            element.port_num = c_int::from(number);
            element
        }
    };
    Some(ibv_async_event { element, event_type: event.kind as c_int })
}

pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller passes a context of ours or NULL.
    let Some(context) = (unsafe { ContextObject::from_ptr(context) }) else { return minus1(libc::EINVAL) };
    if event.is_null() {
        return minus1(libc::EINVAL);
    }
    loop {
        match context.tail.context.get_async_event() {
            Ok(raw) => {
                if let Some(ready) = deliver(raw) {
                    // SAFETY: the caller passes room for one event.
                    unsafe { event.write(ready) };
                    return 0;
                }
            }
            Err(error) => return minus1(of_io(&error)),
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller passes an event that ibv_get_async_event filled, or NULL.
    let Some(event) = (unsafe { event.as_ref() }) else { return };
    // SAFETY: the object waits for this acknowledgement before it is freed.
    if let Some(counter) = unsafe { counter_of(event) } {
        // SAFETY: as above.
        unsafe { acknowledge(counter, 1) };
    }
}
