//! Lines on standard error that the user of a program should see.

use std::fmt::Display;
use std::io::Write;

use sys::{Cancellation, WriteSignals};

use crate::printable;

/// Prints a notice, unless `ROXIE_QUIET` is in the environment and not `0`.
pub fn notice(line: impl Display) {
    if std::env::var_os("ROXIE_QUIET").is_none_or(|value| value == "0") {
        say(line);
    }
}

/// Prints `roxie: ` and a line on standard error, in one write. Characters that control a terminal are shown
/// as numbers, line ends too: the line may contain names that others chose.
pub fn say(line: impl Display) {
    let line = format!("roxie: {}\n", printable(&line.to_string()));
    // The thread may hold locks of the device.
    let _cancellation = Cancellation::disable();
    let _signals = WriteSignals::block();
    // A failed write cannot be reported; the program continues.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
