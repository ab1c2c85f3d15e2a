//! C objects: the structure that applications see, followed by the Rust handle behind it.
//!
//! Invariant: applications read and write the public part at any time, so no Rust reference covers it. This
//! library reaches it by raw pointers and by [`Member`](crate::handle::Member)s only. Applications do not see
//! the tail, which may be shared between threads.

use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use sys::lock_until;

use crate::observer::{Kind, Public, observer};

/// A C structure `P` with a private tail `T` in one allocation. C holds `*mut P`, which is also the address
/// of this.
#[repr(C)]
pub(crate) struct Object<P: Public, T> {
    public: UnsafeCell<P>,
    pub(crate) tail: T,
}

// SAFETY: this library accesses the public part atomically, or with the synchronisation that the manual pages
// demand of C callers, which may call from any thread; the type of the tail is `Sync` itself.
unsafe impl<P: Public, T: Sync> Sync for Object<P, T> {}

// SAFETY: as above; an object is freed by any thread.
unsafe impl<P: Public, T: Send> Send for Object<P, T> {}

impl<P: Public, T> Object<P, T> {
    /// Allocates an object and gives it to C.
    pub(crate) fn export(public: P, tail: T) -> *mut P {
        Self::boxed(public, tail).give()
    }

    /// Allocates an object that C does not know yet.
    pub(crate) fn boxed(public: P, tail: T) -> Box<Self> {
        let object = Box::new(Self { public: UnsafeCell::new(public), tail });
        if let Some(observer) = observer() {
            (observer.born)(P::KIND, object.address());
        }
        object
    }

    /// Allocates an object that several lists and other objects share.
    pub(crate) fn shared(public: P, tail: T) -> Arc<Self> {
        let object = Arc::new(Self { public: UnsafeCell::new(public), tail });
        if let Some(observer) = observer() {
            (observer.born)(P::KIND, object.address());
        }
        object
    }

    /// Returns the public part of an object that C does not know yet.
    pub(crate) fn public_mut(&mut self) -> &mut P {
        self.public.get_mut()
    }

    /// Gives the object to C.
    pub(crate) fn give(self: Box<Self>) -> *mut P {
        Box::into_raw(self).cast()
    }

    /// Returns the object behind a pointer from C; `None` for NULL.
    ///
    /// # Safety
    /// `ptr` is NULL, or [`Self::export`] returned it and the object is not freed for the time of `'a`.
    #[inline(always)]
    pub(crate) unsafe fn from_ptr<'a>(ptr: *mut P) -> Option<&'a Self> {
        // SAFETY: a live object or NULL; `public` is the first member, so the address is that of the object.
        unsafe { ptr.cast::<Self>().as_ref() }
    }

    /// Returns its address, by which `roxie check` knows it.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns the pointer that C holds.
    #[inline(always)]
    pub(crate) fn public(&self) -> *mut P {
        // `public` is the first member; the pointer may be used for the whole object.
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

impl<P: Public, T> Drop for Object<P, T> {
    fn drop(&mut self) {
        if let Some(observer) = observer() {
            (observer.destroyed)(P::KIND, self.address());
        }
    }
}

/// The live connection identifiers.
pub(crate) static IDS: Living = Living::new();
/// The live buffers.
pub(crate) static BUFFERS: Living = Living::new();

/// Returns whether a pointer from the application leads to a live object.
///
/// Most kinds trust the application. A pointer is looked up if applications use objects of its kind after
/// destroying them and expect an error.
#[inline(always)]
pub(crate) fn is_live<P: Public>(object: *mut P) -> bool {
    match P::KIND {
        Kind::CmId => IDS.contains(object),
        Kind::Buffer => BUFFERS.contains(object),
        _ => true,
    }
}

/// The live objects of one kind, for kinds that look their objects up.
pub(crate) struct Living(LazyLock<Mutex<HashSet<usize>>>);

impl Living {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    fn set(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the set until the returned value is dropped, or gives up at `until_ns`.
    pub(crate) fn keep_locked(&'static self, until_ns: u64) -> Box<dyn Any> {
        Box::new(lock_until(&self.0, until_ns))
    }

    /// Adds an object and returns its pointer.
    pub(crate) fn insert<P>(&self, ptr: *mut P) -> *mut P {
        self.set().insert(ptr.addr());
        ptr
    }

    /// Removes an object; returns false if it was not in the set.
    pub(crate) fn remove<P>(&self, ptr: *mut P) -> bool {
        self.set().remove(&ptr.addr())
    }

    /// Calls `f` with each object while no thread can destroy one; calls nothing if a thread holds the lock.
    pub(crate) fn for_each<P>(&self, f: impl FnMut(*mut P)) {
        if let Ok(set) = self.0.try_lock() {
            set.iter().map(|address| *address as *mut P).for_each(f);
        }
    }

    /// As [`for_each`](Self::for_each), and waits for the lock.
    pub(crate) fn for_each_locked<P>(&self, f: impl FnMut(*mut P)) {
        self.set().iter().map(|address| *address as *mut P).for_each(f);
    }

    /// Returns the result of `f`, which runs while no thread can destroy the object; `None` if it is not
    /// alive.
    pub(crate) fn with<P, R>(&self, ptr: *mut P, f: impl FnOnce() -> R) -> Option<R> {
        let set = self.set();
        set.contains(&ptr.addr()).then(f)
    }

    pub(crate) fn contains<P>(&self, ptr: *mut P) -> bool {
        self.set().contains(&ptr.addr())
    }
}
