//! Another user of the host, which runs between any two system calls on names, for tests.

use std::cell::RefCell;

type Adversary = Box<dyn FnMut()>;

thread_local! {
    static ADVERSARY: RefCell<Option<Adversary>> = const { RefCell::new(None) };
}

/// Lets `adversary` run before each system call on a name that this thread makes during `f`.
pub fn between_calls<T>(adversary: impl FnMut() + 'static, f: impl FnOnce() -> T) -> T {
    ADVERSARY.with_borrow_mut(|slot| *slot = Some(Box::new(adversary)));
    let result = f();
    ADVERSARY.with_borrow_mut(|slot| *slot = None);
    result
}

/// Lets the adversary run.
pub(super) fn act() {
    // Its own calls on names are made without it.
    let taken = ADVERSARY.with_borrow_mut(Option::take);
    if let Some(mut adversary) = taken {
        adversary();
        ADVERSARY.with_borrow_mut(|slot| *slot = Some(adversary));
    }
}
