//! Calls that wait, and the threads that must not make one: a thread that holds the engine's lock delays
//! every other thread of the program.
//!
//! Debug builds check it: [`pause`] and the waits of poll(2) call [`may_wait`], which panics while a
//! [`NoWaiting`] of the thread lives. Release builds check nothing.

use std::marker::PhantomData;
use std::time::Duration;

#[cfg(debug_assertions)]
thread_local! {
    static FORBIDDEN: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// While it lives, the calling thread must not wait.
#[derive(Debug)]
pub struct NoWaiting(PhantomData<*const ()>);

impl NoWaiting {
    /// The calling thread must not wait from now on.
    #[inline]
    #[must_use]
    pub fn begin() -> NoWaiting {
        count(1);
        NoWaiting(PhantomData)
    }
}

impl Drop for NoWaiting {
    #[inline]
    fn drop(&mut self) {
        count(-1);
    }
}

#[inline]
fn count(by: i32) {
    #[cfg(debug_assertions)]
    FORBIDDEN.with(|forbidden| forbidden.set(forbidden.get().wrapping_add_signed(by)));
    #[cfg(not(debug_assertions))]
    let _unchecked = by;
}

/// A call that may wait follows.
///
/// # Panics
/// In debug builds, while a [`NoWaiting`] of this thread lives.
#[inline]
#[track_caller]
pub fn may_wait() {
    #[cfg(debug_assertions)]
    FORBIDDEN.with(|forbidden| assert_eq!(forbidden.get(), 0, "a thread waits that holds the engine's lock"));
}

/// Sleeps for a time.
#[track_caller]
#[allow(clippy::disallowed_methods, reason = "the one place that sleeps; it checks that it may")]
pub fn pause(time: Duration) {
    may_wait();
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "a thread waits"))]
    fn a_wait_is_noticed_in_a_debug_build() {
        let outer = NoWaiting::begin();
        drop(NoWaiting::begin());
        let _outer = outer;
        pause(Duration::ZERO);
    }

    #[test]
    fn another_thread_may_wait_and_this_one_afterwards() {
        let forbidden = NoWaiting::begin();
        std::thread::spawn(|| pause(Duration::ZERO)).join().expect("no panic");
        drop(forbidden);
        pause(Duration::ZERO);
    }
}
