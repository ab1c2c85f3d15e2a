//! Why there is no AF_XDP port here, in words for people.

use std::fmt;
use std::io;

use crate::xdp::AttachError;

/// Why an AF_XDP port could not be opened.
#[derive(Debug)]
pub enum XskError {
    /// No Ethernet frames pass through it: `lo`, tunnels.
    NotEthernet,
    /// The program is not on the interface.
    Attach(AttachError),
    /// Somebody else has an AF_XDP socket on this queue.
    QueueBusy(u32),
    /// Packets of this MTU do not fit into a chunk, and the kernel or the driver cannot split them.
    MtuTooLarge(u32),
    /// A step of making the sockets failed.
    Socket {
        /// Which.
        step: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for XskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            XskError::NotEthernet => f.write_str("not an Ethernet interface"),
            XskError::Attach(error) => error.fmt(f),
            XskError::QueueBusy(queue) => write!(f, "another AF_XDP socket has queue {queue}"),
            XskError::MtuTooLarge(mtu) => {
                write!(
                    f,
                    "packets of MTU {mtu} do not fit into a chunk, and multi-buffer (Linux 6.6) is missing"
                )
            }
            XskError::Socket { step, error } => {
                write!(f, "AF_XDP {step}: {error}")?;
                match error.raw_os_error() {
                    Some(libc::EPERM) => f.write_str(" (needs CAP_NET_RAW, or root)"),
                    Some(libc::ENOBUFS) => f.write_str(" (raise RLIMIT_MEMLOCK, or add CAP_IPC_LOCK)"),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for XskError {}

impl From<AttachError> for XskError {
    fn from(error: AttachError) -> XskError {
        XskError::Attach(error)
    }
}
