//! The main thread of a test binary, and whether a thread sleeps.

use std::path::Path;
use std::{fs, process, thread};

/// Whether a thread sleeps, by its directory in procfs.
///
/// # Panics
/// Without procfs.
#[must_use]
pub fn sleeps(task: &Path) -> bool {
    let stat = fs::read_to_string(task.join("stat")).expect("procfs is mounted");
    // The state follows the name, which is in parentheses.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" S"))
}

/// Waits until the main thread sleeps. libtest starts the thread of a test, and then allocates the entry of
/// that test; on a busy machine the test runs already.
///
/// # Panics
/// Without procfs.
pub fn wait_until_main_thread_sleeps() {
    let task = format!("/proc/self/task/{}", process::id());
    while !sleeps(Path::new(&task)) {
        thread::yield_now();
    }
}
