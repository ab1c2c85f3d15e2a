//! The main thread of a test binary.

use std::{fs, process, thread};

/// Waits until the main thread sleeps. libtest starts the thread of a test, and then allocates the entry of
/// that test; on a busy machine the test runs already.
///
/// # Panics
/// Without procfs.
pub fn wait_until_main_thread_sleeps() {
    let path = format!("/proc/self/task/{}/stat", process::id());
    // The state follows the name, which is in parentheses.
    let sleeps = |stat: &str| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" S"));
    while !sleeps(&fs::read_to_string(&path).expect("procfs is mounted")) {
        thread::yield_now();
    }
}
