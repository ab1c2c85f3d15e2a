//! What a refused call leaves behind besides its errno: the last refusal of the thread, and a line on
//! standard error if `ROXIE_LOG` asks for it.
//!
//! A line names the called function, the errno and the reason:
//!
//! ```text
//! roxie: ibv_modify_qp: EINVAL: the queue pair 0x01f012 (RC) is in INIT; RTS is reached from RTR or SQD
//! ```

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Write as _;
use std::panic::Location;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use roxie::transport::{Cause, VerbsError, Wc, WcStatus};
use roxie::verbs::Cq;
use roxie::wire::Qpn;

use crate::ibv::strings::ibv_wc_status_str;
use crate::observer::observer;

/// The functions of this crate in the order of file and line: `(file, line, name)`. The name is empty for
/// those that the application cannot call.
const FUNCTIONS: &[(&str, u32, &str)] = include!(concat!(env!("OUT_DIR"), "/functions.rs"));

/// What `ROXIE_LOG` asks for.
#[derive(Clone, Copy, Default)]
struct Wanted {
    /// Each refused call.
    errors: bool,
    /// Each called function that is not implemented.
    calls: bool,
    /// The completions that the application polled.
    completions: bool,
}

static WANTED: LazyLock<Wanted> = LazyLock::new(|| {
    let value = std::env::var("ROXIE_LOG").unwrap_or_default();
    let wanted = |errors, calls| Wanted { errors, calls, completions: errors || observer().is_some() };
    match value.as_str() {
        "" | "0" => wanted(false, false),
        "errors" => wanted(true, false),
        "calls" | "1" => wanted(false, true),
        "all" => wanted(true, true),
        other => {
            roxie::notice(format_args!("ROXIE_LOG={other}: the values are errors, calls and all"));
            wanted(false, false)
        }
    }
});

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last::NONE) };
}

/// The last refusal of a thread. The strings keep their memory, so a call that is refused again and again
/// allocates nothing.
struct Last {
    refused: Option<(Function, VerbsError)>,
    /// The refusal as [`roxie_last_refusal`] returned it.
    kept: Option<CString>,
    line: String,
    /// The line that was printed last.
    printed: String,
}

impl Last {
    const NONE: Last = Last { refused: None, kept: None, line: String::new(), printed: String::new() };
}

/// The function that refused a call.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    /// That with this line of this crate.
    At(&'static Location<'static>),
    /// One that is not implemented.
    Named(&'static str),
}

impl Function {
    fn name(self) -> Option<&'static str> {
        match self {
            Self::At(place) => function_at(place),
            Self::Named(name) => Some(name),
        }
    }
}

/// Writes a refusal as one line: function, errno, reason.
fn write_line(line: &mut String, function: Function, refused: &VerbsError) {
    line.clear();
    if let Some(function) = function.name() {
        let _ = write!(line, "{function}: ");
    }
    let _ = write!(line, "{}: {refused}", refused.kind());
}

/// Keeps the refusal of a call of the application for the application and for `roxie check`.
#[cold]
pub(crate) fn note(refused: &VerbsError, function: Function) {
    // At the end of a thread there is nothing left to write to.
    let _ = LAST.try_with(|last| {
        // In a signal handler that interrupts this function.
        let Ok(mut last) = last.try_borrow_mut() else { return };
        let Last { refused: kept, line, printed, .. } = &mut *last;
        *kept = Some((function, *refused));
        if observer().is_none() && !WANTED.errors {
            return;
        }
        write_line(line, function, refused);
        if let Some(observer) = observer() {
            (observer.refused)(refused, function.name(), line);
        }
        // A program that repeats a call until it succeeds gets one line.
        if WANTED.errors && line != printed {
            printed.clone_from(line);
            roxie::say(line);
        }
    });
}

/// Notes that a call was answered, not refused.
#[cold]
pub(crate) fn forget() {
    let _ = LAST.try_with(|last| last.borrow_mut().refused = None);
}

/// Prints why completions that the application polled from `cq` failed: one line for equal ones in a row if
/// `ROXIE_LOG` asks for it, else once for a peer that did not answer, since the status does not tell which.
#[inline]
pub(crate) fn note_completions(cq: &Cq, polled: &[Wc]) {
    if !polled.is_empty()
        && (WANTED.completions
            || !IS_SAID.load(Ordering::Relaxed) && polled.iter().any(|wc| wc.status == WcStatus::RetryExcErr))
    {
        note_each(cq, polled);
    }
}

/// A peer that did not answer was named. Not a `Once`, in which a forked child could wait for a thread that
/// it does not have.
static IS_SAID: AtomicBool = AtomicBool::new(false);

#[cold]
fn note_each(cq: &Cq, polled: &[Wc]) {
    let mut failed = polled.iter().filter(|wc| wc.status == WcStatus::RetryExcErr);
    if let Some(observer) = observer() {
        (observer.completed)(polled);
    } else if !IS_SAID.load(Ordering::Relaxed)
        && let Some(why) = failed.find_map(|wc| cq.unanswered(Qpn::new(wc.qp_num)))
        && !IS_SAID.swap(true, Ordering::Relaxed)
    {
        roxie::notice(why);
    }
    if WANTED.errors {
        polled.iter().filter(|wc| wc.status != WcStatus::Success).for_each(note_completion);
    }
}

#[cold]
fn note_completion(wc: &Wc) {
    // SAFETY: the function returns a string of this library for every number.
    let status = unsafe { CStr::from_ptr(ibv_wc_status_str(wc.status as c_int)) }.to_string_lossy();
    let Wc { qp_num, wr_id, vendor_err, .. } = *wc;
    let why = Cause::from_vendor_err(vendor_err).map_or("The cause is not known.", Cause::meaning);
    let text = format!("queue pair {qp_num:#08x}: {status} ({vendor_err:#x}): {why}");
    let _ = LAST.try_with(|last| {
        let printed = &mut last.borrow_mut().printed;
        if text != *printed {
            roxie::say(format_args!("completion of wr_id {wr_id:#x}, {text}"));
            *printed = text;
        }
    });
}

/// Prints the name of a called function that is not implemented, if `ROXIE_LOG` asks for it.
pub(crate) fn note_unsupported(name: &str) {
    if WANTED.calls {
        roxie::say(format_args!("{name} is not implemented"));
    }
}

/// The function of the application interface that has this line of this crate.
fn function_at(at: &Location<'_>) -> Option<&'static str> {
    let mut found = "";
    for (file, line, name) in FUNCTIONS {
        if at.file().ends_with(file) && *line <= at.line() {
            found = name;
        }
    }
    (!found.is_empty()).then_some(found)
}

/// Why the last verbs or rdma_cm call of this thread failed, for people: `ibv_modify_qp: EINVAL: the queue
/// pair ...`. NULL before the first refusal, and after `EAGAIN` of an empty queue. Valid until the thread's
/// next call of this function.
pub(crate) extern "C" fn roxie_last_refusal() -> *const c_char {
    let kept = LAST.try_with(|last| {
        let Last { refused, line, kept, .. } = &mut *last.borrow_mut();
        *kept = refused.and_then(|(function, refused)| {
            write_line(line, function, &refused);
            CString::new(line.as_bytes()).ok()
        });
        kept.as_ref().map_or(ptr::null(), |line| line.as_ptr())
    });
    kept.unwrap_or(ptr::null())
}

#[cfg(test)]
mod tests {
    use std::io;

    use roxie::transport::refuse;

    use super::*;
    use crate::errno::{code, failed, status};

    fn last() -> Option<String> {
        // SAFETY: NULL or a string that stays until this thread calls the function again.
        let line = unsafe { roxie_last_refusal().as_ref().map(|first| CStr::from_ptr(first)) };
        line.map(|line| line.to_string_lossy().into_owned())
    }

    #[test]
    fn the_last_refusal_names_errno_and_reason_and_stays_with_its_thread() {
        assert_eq!(last(), None);
        let room = 4;
        let refused = refuse!(ENOMEM, "receive queue", "max_wr"; room; "the queue has room for {room}");
        assert_eq!(status(Err(refused)), libc::ENOMEM);
        assert_eq!(last().as_deref(), Some("ENOMEM: the queue has room for 4"));
        assert_eq!(std::thread::spawn(last).join().expect("no panic"), None);
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        code(failed!(error, "channel", "fd"; "no channel"));
        assert_eq!(last().as_deref(), Some("EMFILE: no channel: Too many open files (os error 24)"));
        code(failed!(io::Error::from(io::ErrorKind::WouldBlock), "channel", "events"; "no events"));
        assert_eq!(last(), None, "an empty queue is no refusal");
    }

    #[test]
    fn lines_of_this_crate_are_in_the_functions_that_applications_call() {
        let file = "src/ibv/qp.rs";
        let names: Vec<_> = FUNCTIONS.iter().filter(|row| row.0 == file).collect();
        let (_, line, _) = names.iter().find(|row| row.2 == "ibv_modify_qp").expect("in the table");
        assert!(names.iter().any(|row| row.2.is_empty()), "functions that applications cannot call");
        assert!(names.is_sorted_by_key(|row| row.1));
        assert!(*line > 1);
    }
}
