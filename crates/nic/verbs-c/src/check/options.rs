//! What `roxie check` asks for.

use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The variables that `roxie check` sets.
#[derive(Debug)]
pub(super) struct Options {
    /// Where the findings go.
    pub(super) dir: PathBuf,
    /// Seconds without progress after which the watchdog reports; 0 for never.
    pub(super) hang_s: u64,
    /// Also report what works but is risky.
    pub(super) strict: bool,
    /// Record the memory of work requests.
    pub(super) races: bool,
    /// Protect the memory of work requests.
    pub(super) pages: Pages,
}

/// What `--pages` asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pages {
    /// The memory of sends.
    pub(super) sends: bool,
    /// The memory of receives and of the results of READs and atomics.
    pub(super) receives: bool,
    /// The memory that requests of peers use.
    pub(super) targets: bool,
    /// Also pages that sends and targets share with other data.
    pub(super) shared: bool,
}

/// Seconds without progress after which the watchdog reports, if `ROXIE_CHECK_OPTIONS` does not say: the
/// default of `--hang`. Half: a busy machine stops threads for a second, and they would count as hanging.
/// Double: an alarm after 5 s ends a program before the watchdog has explained it.
const HANG_S: u64 = 2;

pub(super) static OPTIONS: LazyLock<Options> = LazyLock::new(|| {
    let dir = std::env::var_os("ROXIE_CHECK").unwrap_or_default().into();
    let words = std::env::var("ROXIE_CHECK_OPTIONS").unwrap_or_default();
    let mut options = Options { dir, hang_s: HANG_S, strict: false, races: false, pages: Pages::default() };
    for word in words.split(',') {
        match word.split_once('=') {
            Some(("hang", seconds)) => options.hang_s = seconds.parse().unwrap_or(HANG_S),
            _ => {
                options.strict |= word == "strict";
                options.races |= word == "races";
                options.pages.sends |= word.starts_with("pages");
                options.pages.receives |= word == "pages-receives";
                options.pages.targets |= word == "pages-targets";
                options.pages.shared |= word == "pages-shared";
            }
        }
    }
    options
});

/// Locks a mutex of this module; a panic of another thread left nothing half-done that matters here.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
