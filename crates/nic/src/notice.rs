//! Notices: one line on standard error that the user of a program should see.

use std::fmt::Display;
use std::io::Write;

use sys::{Cancellation, WriteSignals};

/// Prints a notice, unless `ROXIE_QUIET` is in the environment and not `0`.
pub fn notice(line: impl Display) {
    if std::env::var_os("ROXIE_QUIET").is_none_or(|value| value == "0") {
        // The thread may hold locks of the device.
        let _cancellation = Cancellation::disable();
        let _signals = WriteSignals::block();
        // A failed write cannot be reported; the program continues.
        let _ = writeln!(std::io::stderr(), "roxie: {line}");
    }
}
