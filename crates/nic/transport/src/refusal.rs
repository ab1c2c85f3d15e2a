//! Why a call of the application was refused: one sentence for people beside the errno.
//!
//! An errno cannot say which of ten attributes was wrong. The code that refuses a call leaves the sentence
//! with the calling thread; the layer that returns the errno to the application [takes](take_reason) it.
//!
//! ```
//! use roxie_transport::refusal::take_reason;
//! use roxie_transport::{RecvQueue, RecvWr};
//!
//! let mut queue = RecvQueue::new(1, 1, roxie_transport::PdId(0))?;
//! let receive = RecvWr { wr_id: 1, sg_list: &[] };
//! queue.post(&receive)?;
//! assert!(queue.post(&receive).is_err());
//! let reason = take_reason().expect("the call was refused");
//! assert!(reason.starts_with("the queue has room for 1 receive"), "{reason}");
//! # Ok::<(), roxie_transport::VerbsError>(())
//! ```

use core::cell::RefCell;
use core::fmt::{self, Write};

/// Longest reason in bytes; the rest is cut off.
const REASON_MAX: usize = 400;

thread_local! {
    static REASON: RefCell<Reason> = const { RefCell::new(Reason { bytes: [0; REASON_MAX], len: 0 }) };
}

/// A reason in place: a refused call allocates nothing. Empty without a reason.
struct Reason {
    bytes: [u8; REASON_MAX],
    len: usize,
}

impl Reason {
    fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Write for Reason {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = text.floor_char_boundary(REASON_MAX - self.len);
        self.bytes[self.len..][..end].copy_from_slice(&text.as_bytes()[..end]);
        self.len += end;
        if end == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Leaves the reason of a refusal with this thread; returns `error`, of a type of the caller. The caller
/// returns the error to the application: code that recovers from an error leaves no reason.
#[cold]
pub fn refuse<E>(error: E, reason: fmt::Arguments<'_>) -> E {
    // At the end of a thread there is nothing left to write to.
    let _ = REASON.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        kept.len = 0;
        let _cut = kept.write_fmt(reason);
    });
    error
}

/// Appends the reason of this thread's last refusal to `line`, and forgets it; `false` if there was none
/// since the last call.
pub fn append_reason(line: &mut String) -> bool {
    let appended = REASON.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        line.push_str(kept.text());
        core::mem::take(&mut kept.len) > 0
    });
    appended.unwrap_or(false)
}

/// Returns the reason of this thread's last refusal since the last call of this function, or `None`.
#[must_use]
pub fn take_reason() -> Option<String> {
    let mut reason = String::new();
    append_reason(&mut reason).then_some(reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::VerbsError;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "this crate starts no thread; its owner has several")]
    fn a_reason_is_taken_once_and_stays_with_its_thread() {
        assert_eq!(refuse(VerbsError::Busy, format_args!("{} windows", 2)), VerbsError::Busy);
        assert_eq!(std::thread::spawn(take_reason).join().expect("no panic"), None);
        assert_eq!(take_reason().as_deref(), Some("2 windows"));
        assert_eq!(take_reason(), None);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let _refused = refuse(VerbsError::Busy, format_args!("a{}", "\u{e4}".repeat(REASON_MAX)));
        let reason = take_reason().expect("a reason");
        assert_eq!((reason.len(), reason.chars().last()), (REASON_MAX - 1, Some('\u{e4}')));
    }

    #[test]
    fn the_last_reason_counts() {
        let _first = refuse(VerbsError::Busy, format_args!("first"));
        let _second = refuse(VerbsError::NoMem, format_args!("second"));
        assert_eq!(take_reason().as_deref(), Some("second"));
    }
}
