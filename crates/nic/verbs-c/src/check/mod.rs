//! `roxie check`: watches how the application uses verbs and rdma_cm, and records what is wrong.
//!
//! `roxie check` sets `ROXIE_CHECK` to a directory. Each process of the command appends its findings to a
//! file of its own there ([`report`]), with addresses instead of names; `roxie check` adds names and lines.
//! Without the variable nothing here runs: control calls test one static, and the calls of the data path
//! (`ibv_post_send`, `ibv_poll_cq`) are other functions, which the context names ([`ops`]).
//!
//! The modules: [`stack`] captures call stacks; [`objects`] knows every object that was given to the
//! application, also after its end; [`work`] follows work requests from post to completion; [`calls`] judges
//! refused calls and [`failures`] failed completions; [`races`] records the memory of work requests for the
//! detector in `roxie check`; [`pages`] protects their memory; [`ending`] looks at what is left when the
//! process ends; [`watch`] notices that nothing moves.
//!
//! Invariant: a finding is a mistake of the application. What a correct program may do is none, so every rule
//! here is silent when in doubt.

mod calls;
mod ending;
mod failures;
mod memory;
mod objects;
pub(crate) mod ops;
mod pages;
mod posted;
mod races;
mod report;
mod stack;
mod watch;
mod work;

use std::any::Any;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

pub(crate) use calls::{BLOCKS_AFTER, acknowledged, blocks, refused};
pub(crate) use ending::{interrupted, start_watching};
pub(crate) use objects::{Purpose, born, destroyed, is_usable, keep_memory, mixed, own, owned, quietly};
pub(crate) use watch::waits;
pub(crate) use work::{completed, is_counted, moved, queue_pair_begins};

static ON: AtomicBool = AtomicBool::new(false);

/// Whether this process is checked.
#[inline(always)]
pub(crate) fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// What `roxie check` asks for.
#[derive(Debug)]
struct Options {
    /// Where the findings go.
    dir: PathBuf,
    /// Seconds without progress after which the watchdog reports; 0 for never.
    hang_s: u64,
    /// Also report what works but is risky.
    strict: bool,
    /// Record the memory of work requests.
    races: bool,
    /// Protect the memory of work requests.
    pages: pages::Wanted,
}

/// Seconds without progress after which the watchdog reports, if `ROXIE_CHECK_OPTIONS` does not say: the
/// default of `--hang`. Eight transmissions with timeout 18, 1.07 s each, take less time; an application with
/// a longer timeout needs more.
const HANG_S: u64 = 10;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| {
    let dir = std::env::var_os("ROXIE_CHECK").unwrap_or_default().into();
    let words = std::env::var("ROXIE_CHECK_OPTIONS").unwrap_or_default();
    let mut options =
        Options { dir, hang_s: HANG_S, strict: false, races: false, pages: pages::Wanted::default() };
    for word in words.split(',') {
        match word.split_once('=') {
            Some(("hang", seconds)) => options.hang_s = seconds.parse().unwrap_or(HANG_S),
            _ => {
                options.strict |= word == "strict";
                options.races |= word == "races";
                options.pages.sends |= word.starts_with("pages");
                options.pages.receives |= word == "pages-receives";
                options.pages.shared |= word == "pages-shared";
            }
        }
    }
    options
});

/// Runs when the library is loaded, before any other function of it: all objects are known from then on.
extern "C" fn at_load() {
    if std::env::var_os("ROXIE_CHECK").is_some_and(|dir| !dir.is_empty()) {
        ON.store(true, Ordering::Relaxed);
        ending::register();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Locks a mutex of this module; a panic of another thread left nothing half-done that matters here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds the locks of this module until the returned value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    if !on() {
        return Box::new(());
    }
    Box::new((
        pages::keep_locked(until_ns),
        work::keep_locked(until_ns),
        races::keep_locked(until_ns),
        memory::keep_locked(until_ns),
        watch::keep_locked(until_ns),
        objects::keep_locked(until_ns),
        report::keep_locked(until_ns),
        stack::keep_locked(until_ns),
    ))
}
