//! Explains why there is no device. Programs that find no device print no reason, or nothing.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use roxie::notice;
use roxie::registry::JoinError;
use roxie::verbs::{self, Device};

/// Prints why there is no device; once per process.
pub(crate) fn explain(error: &io::Error) {
    explain_of(None, error);
}

/// Prints why the device, or any, cannot be opened, or why its engine does not start; once per process.
pub(crate) fn explain_of(device: Option<&Device>, error: &io::Error) {
    // Not a `Once`, in which a forked child could wait for a thread that it does not have.
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if IS_SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    // With the limits, and what the devices need.
    let full = io::Error::from(JoinError::TooFewDescriptors);
    let error = if error.raw_os_error() == Some(libc::EMFILE) { &full } else { error };
    let named = device.map(|device| format!("{} on {}: ", device.name(), device.gids().netdev));
    let named = named.unwrap_or_default();
    let remedy = verbs::remedy(error).unwrap_or_else(|| "'roxie doctor' may know more".to_owned());
    notice(format_args!("the device cannot be used: {named}{error} ({remedy})"));
}
