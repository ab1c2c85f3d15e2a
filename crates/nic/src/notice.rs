//! What the user of a program must know and nothing else would tell: one line on standard error.

use std::fmt::Display;
use std::io::Write;

/// Says it, unless `ROXIE_QUIET` is in the environment and not `0`.
pub fn notice(line: impl Display) {
    if std::env::var_os("ROXIE_QUIET").is_none_or(|value| value == "0") {
        // Nobody is left to tell if this fails, and the program goes on.
        let _ = writeln!(std::io::stderr(), "roxie: {line}");
    }
}
