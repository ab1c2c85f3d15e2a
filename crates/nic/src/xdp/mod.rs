//! XDP programs in the kernel: putting one on an interface, and the one that steers RoCE packets to this process.

mod attach;
mod error;
mod steer;

pub use attach::{Attached, Mode, attach};
pub use error::AttachError;
pub use steer::Steering;

#[cfg(all(test, not(loom)))]
mod tests;
