//! C objects: the structure that programs see, followed by the Rust handle behind it.
//!
//! Invariant: programs read and write the public part whenever they like, so it is never covered by a Rust reference,
//! only reached through raw pointers. The tail is ours alone and may be shared between threads.

use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use sys::lock_until;

/// A C structure `P` with a private tail `T` in one allocation. C holds `*mut P`, which is also the address of this.
#[repr(C)]
pub(crate) struct Object<P, T> {
    public: UnsafeCell<P>,
    pub(crate) tail: T,
}

// SAFETY: the public part is only reached through raw pointers by functions that C callers may call from any thread,
// with the synchronisation that the manual pages demand; the tail is shareable by its own type.
unsafe impl<P, T: Sync> Sync for Object<P, T> {}

impl<P, T> Object<P, T> {
    /// Allocates an object and gives it to C.
    pub(crate) fn export(public: P, tail: T) -> *mut P {
        Box::into_raw(Box::new(Self { public: UnsafeCell::new(public), tail })).cast()
    }

    /// The object behind a pointer from C; `None` for NULL.
    ///
    /// # Safety
    /// `ptr` is NULL or came from [`Self::export`] and is not yet retired.
    #[inline]
    pub(crate) unsafe fn from_ptr<'a>(ptr: *mut P) -> Option<&'a Self> {
        // SAFETY: upheld by the caller; `public` is the first member, so the address is that of the object.
        unsafe { ptr.cast::<Self>().as_ref() }
    }

    /// The pointer that C holds.
    #[inline]
    pub(crate) fn public(&self) -> *mut P {
        self.public.get()
    }

    /// Takes the object back from C.
    ///
    /// # Safety
    /// `ptr` came from [`Self::export`], and nobody uses it any more.
    pub(crate) unsafe fn retire(ptr: *mut P) -> Box<Self> {
        // SAFETY: upheld by the caller.
        unsafe { Box::from_raw(ptr.cast()) }
    }
}

/// The live objects of one kind, for kinds that programs use after destroying them and expect an error.
pub(crate) struct Living(LazyLock<Mutex<HashSet<usize>>>);

impl Living {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    fn set(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the set until the value is dropped, or gives up at `until_ns`.
    pub(crate) fn keep_locked(&'static self, until_ns: u64) -> Box<dyn Any> {
        Box::new(lock_until(&self.0, until_ns))
    }

    /// From now on `ptr` lives.
    pub(crate) fn insert<P>(&self, ptr: *mut P) -> *mut P {
        self.set().insert(ptr.addr());
        ptr
    }

    /// It no longer does; false if it did not.
    pub(crate) fn remove<P>(&self, ptr: *mut P) -> bool {
        self.set().remove(&ptr.addr())
    }

    /// Does something with each of them while none can be destroyed; skipped if one is being destroyed now.
    pub(crate) fn for_each<P>(&self, f: impl FnMut(*mut P)) {
        if let Ok(set) = self.0.try_lock() {
            set.iter().map(|address| *address as *mut P).for_each(f);
        }
    }

    /// What `f` makes of it while it cannot be destroyed; `None` if it does not live.
    pub(crate) fn with<P, R>(&self, ptr: *mut P, f: impl FnOnce() -> R) -> Option<R> {
        let set = self.set();
        set.contains(&ptr.addr()).then(f)
    }

    pub(crate) fn contains<P>(&self, ptr: *mut P) -> bool {
        self.set().contains(&ptr.addr())
    }
}
