//! A program that finds no device says just that, or nothing. The reason is said here, once.

use std::io;
use std::sync::Once;

use roxie::{notice, verbs};

/// Says why the device, or its engine, cannot be had: one line in the life of a process.
pub(crate) fn explain(error: &io::Error) {
    static SAID: Once = Once::new();
    SAID.call_once(|| match verbs::remedy(error) {
        Some(remedy) => notice(format_args!("the device cannot be used: {error} ({remedy})")),
        None => notice(format_args!("the device cannot be used: {error} ('roxie doctor' may know more)")),
    });
}
