//! Why a call of the application was refused: one sentence for people beside the errno.
//!
//! An errno cannot say which of ten attributes was wrong. The code that refuses a call leaves the sentence
//! with the calling thread; the layer that returns the errno to the application [takes](take_reason) it.
//!
//! ```
//! use transport::refusal::take_reason;
//! use transport::{RecvQueue, RecvWr};
//!
//! let mut queue = RecvQueue::new(1, 1, transport::PdId(0))?;
//! let receive = RecvWr { wr_id: 1, sg_list: &[] };
//! queue.post(&receive)?;
//! assert!(queue.post(&receive).is_err());
//! let reason = take_reason().expect("the call was refused");
//! assert!(reason.starts_with("the queue has room for 1 receive"), "{reason}");
//! # Ok::<(), transport::VerbsError>(())
//! ```

use core::cell::RefCell;
use core::fmt::{self, Write};

use crate::error::VerbsError;

thread_local! {
    /// Empty without a reason. The buffer stays, so that a refused call allocates only once per thread.
    static REASON: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Leaves the reason of a refusal with this thread; returns `error`. The caller returns the error to the
/// application: code that recovers from an error leaves no reason.
#[cold]
pub fn refuse(error: VerbsError, reason: fmt::Arguments<'_>) -> VerbsError {
    // At the end of a thread there is nothing left to write to.
    let _ = REASON.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        kept.clear();
        let _ = kept.write_fmt(reason);
    });
    error
}

/// Returns the reason of this thread's last refusal since the last call of this function, or `None`.
#[must_use]
pub fn take_reason() -> Option<String> {
    let taken = REASON.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        let reason = (!kept.is_empty()).then(|| kept.clone());
        kept.clear();
        reason
    });
    taken.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "this crate starts no thread; its owner has several")]
    fn a_reason_is_taken_once_and_stays_with_its_thread() {
        assert_eq!(refuse(VerbsError::Busy, format_args!("{} windows", 2)), VerbsError::Busy);
        assert_eq!(std::thread::spawn(take_reason).join().expect("no panic"), None);
        assert_eq!(take_reason().as_deref(), Some("2 windows"));
        assert_eq!(take_reason(), None);
    }

    #[test]
    fn the_last_reason_counts() {
        let _first = refuse(VerbsError::Busy, format_args!("first"));
        let _second = refuse(VerbsError::NoMem, format_args!("second"));
        assert_eq!(take_reason().as_deref(), Some("second"));
    }
}
