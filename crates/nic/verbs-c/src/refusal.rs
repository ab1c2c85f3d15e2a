//! Explains why there is no device. Programs that find no device print no reason, or nothing.

use std::io;
use std::sync::Once;

use roxie::registry::JoinError;
use roxie::{notice, verbs};

/// Prints why the device cannot be opened, or why its engine does not start; once per process.
pub(crate) fn explain(error: &io::Error) {
    static PRINTED: Once = Once::new();
    PRINTED.call_once(|| {
        // With the limits, and what the devices need.
        let full = io::Error::from(JoinError::TooFewDescriptors);
        let error = if error.raw_os_error() == Some(libc::EMFILE) { &full } else { error };
        match verbs::remedy(error) {
            Some(remedy) => notice(format_args!("the device cannot be used: {error} ({remedy})")),
            None => notice(format_args!("the device cannot be used: {error} ('roxie doctor' may know more)")),
        }
    });
}
