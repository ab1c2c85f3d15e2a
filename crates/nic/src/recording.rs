//! `roxie run --capture`: each engine of the command copies its packets from the first one on.
//!
//! An engine that starts connects to the socket that [`VARIABLE`] names and passes the memory of a tap
//! (`hook/tap.rs`) to the process that writes the file (crate `roxie-capture`, `live/command.rs`). The copies
//! are complete: an engine that finds the memory full waits for the reader. The connection also tells the
//! reader that a work request failed, and, when it is closed, that the engine has ended.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use transport::{AsyncEventKind, QpEvent, WcStatus};

use crate::hook::{Hooks, TapFilter};
use crate::notice::notice;

/// The variable with the path of the socket.
pub const VARIABLE: &str = "ROXIE_CAPTURE";
/// The variable with the bytes to copy of each packet; all without it.
pub const SNAP_VARIABLE: &str = "ROXIE_CAPTURE_SNAP";
/// Sent when the first work request has failed.
pub const FAILED: &[u8] = b"failed";

/// The engine's end of the connection.
#[derive(Debug)]
pub(crate) struct Recording {
    connection: OwnedFd,
    has_failed: bool,
}

impl Recording {
    /// Starts the tap if the variable names a socket. Without its reader the program runs uncaptured, which a
    /// notice says.
    pub(crate) fn from_env(hooks: &mut Hooks, slot: u16) -> Option<Recording> {
        let socket = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        let snap_len = std::env::var(SNAP_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        let filter = TapFilter { snap_len, ..TapFilter::default() };
        let begun = Self::begin(hooks, Path::new(&socket), slot, filter);
        begun
            .inspect_err(|why| notice(format_args!("the packets of this process are not captured: {why}")))
            .ok()
    }

    fn begin(hooks: &mut Hooks, socket: &Path, slot: u16, filter: TapFilter) -> Result<Recording, String> {
        let (copies, reader) = filter.memory().map_err(|error| error.to_string())?;
        let connection = sys::connect_seqpacket_file(socket).map_err(|error| error.to_string())?;
        let name = std::fs::read("/proc/self/comm").unwrap_or_default();
        sys::send_record(connection.as_fd(), &slot.to_le_bytes(), name.trim_ascii_end(), &[reader.as_fd()])
            .map_err(|error| error.to_string())?;
        hooks.record(filter, copies).map_err(|error| error.to_string())?;
        Ok(Recording { connection, has_failed: false })
    }

    /// Tells the reader of the first failure.
    #[cold]
    pub(crate) fn look(&mut self, event: &QpEvent) {
        if !self.has_failed && is_failure(event) {
            self.has_failed = true;
            // The reader may have ended before its command.
            let _gone = sys::send_record(self.connection.as_fd(), FAILED, &[], &[]);
        }
    }
}

/// Whether a work request or a queue pair has failed. Work requests are also flushed when the program itself
/// ends a connection.
fn is_failure(event: &QpEvent) -> bool {
    match event {
        QpEvent::SendWc(wc) | QpEvent::RecvWc { wc, .. } => {
            !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr)
        }
        QpEvent::Async(kind) => {
            matches!(kind, AsyncEventKind::QpFatal | AsyncEventKind::QpReqErr | AsyncEventKind::QpAccessErr)
        }
        QpEvent::XrcLimitReached(_) => false,
    }
}
