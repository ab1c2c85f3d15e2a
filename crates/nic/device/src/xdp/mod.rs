//! XDP programs in the kernel: attaching one to an interface, and the one that steers RoCE packets to
//! this process.

mod attach;
mod error;
mod hints;
mod install;
mod joined;
mod steer;

pub use attach::{Attached, Mode, Presence, attach, attach_loaded};
pub use error::AttachError;
pub use hints::hint_kfuncs;
pub use install::{Installed, RemoveError, install, remove};
pub use steer::Steering;

#[cfg(test)]
mod tests;
