//! `roxie run --capture`: each engine of the command copies its packets from the first one on.
//!
//! An engine that starts connects to the socket that [`VARIABLE`] names and passes the memory of a tap (crate
//! `roxie-hook`, `tap.rs`) to the process that writes the file (crate `roxie-capture`, `live/command.rs`).
//! The copies are complete: an engine that finds the memory full waits for the reader. The connection also
//! tells the reader which peer a queue pair gets (before its first packet), that a work request failed, what
//! the engine knows of queue pairs and packets (at the end of each, and of the process), and, when it is
//! closed, that the engine has ended.

use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use sys::Dir;
use transport::{AsyncEventKind, QpEvent, WcStatus};

use crate::notice::notice;
use crate::registry::identity::{Peer, Relation};
use crate::stages::{BadHook, Hooks, Stages};
use crate::status::QpStatus;
use crate::status::Row;

/// The variable with the path of the socket.
pub const VARIABLE: &str = "ROXIE_CAPTURE";
/// The variable with the bytes to copy of each packet; all without it.
pub const SNAP_VARIABLE: &str = "ROXIE_CAPTURE_SNAP";
/// Sent when the first work request has failed.
pub const FAILED: &[u8] = b"failed";

/// Begins a message about a queue pair that gets its peer. Words `name=value` follow.
pub const PEER: &str = "peer";
/// Begins a message about a queue pair, and one with the counters of the engine.
pub const QUEUE_PAIR: &str = "queue-pair";
/// See [`QUEUE_PAIR`].
pub const COUNTERS: &str = "counters";
/// Longest message in bytes.
pub const MESSAGE_MAX: usize = 8192;

/// The engine's end of the connection.
#[derive(Debug)]
pub(crate) struct Recording {
    connection: OwnedFd,
    has_failed: bool,
    /// Messages about queue pairs that the reader was too slow for.
    untold: u64,
}

impl Recording {
    /// Starts the tap if the variable names a socket; `device`: name and interface of the device. Without its
    /// reader the program runs uncaptured, which a notice says.
    pub(crate) fn from_env(hooks: &mut Hooks, device: (&str, &str), slot: u16) -> Option<Recording> {
        let socket = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        let snap_len = std::env::var(SNAP_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        let begun = Self::begin(hooks, Path::new(&socket), device, slot, snap_len);
        begun
            .inspect_err(|why| notice(format_args!("the packets of this process are not captured: {why}")))
            .ok()
    }

    fn begin(
        hooks: &mut Hooks,
        socket: &Path,
        (device, netdev): (&str, &str),
        slot: u16,
        snap_len: u32,
    ) -> Result<Recording, String> {
        let connection = sys::connect_seqpacket_file(socket).map_err(|error| error.to_string())?;
        // The variable may be of another user, as after su(1), and that user would read the packets.
        let listener = Peer::of(&connection).map_err(|error| error.to_string())?;
        let is_private = || socket.parent().is_some_and(|dir| Dir::own(dir).is_ok());
        if !matches!(listener.relation, Relation::Same | Relation::Root) && !is_private() {
            return Err(format!("user {} listens on {}", listener.credentials.uid, socket.display()));
        }
        let mut name = std::fs::read("/proc/self/comm").unwrap_or_default().trim_ascii_end().to_vec();
        name.extend_from_slice(format!(" {device} on {netdev}").as_bytes());
        let reader = hooks.with(|stages| stages.record(snap_len)).map_err(BadHook::text)?;
        let reader = reader.map_err(|error| error.to_string())?;
        let sent = sys::send_record(connection.as_fd(), &slot.to_le_bytes(), &name, &[reader.as_fd()]);
        if let Err(error) = sent {
            let _ended = hooks.with(Stages::forget_taps);
            return Err(error.to_string());
        }
        Ok(Recording { connection, has_failed: false, untold: 0 })
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

    /// Tells the reader which peer a queue pair has.
    pub(crate) fn tell_peer(&mut self, status: &QpStatus) {
        if let Some(text) = peer(status) {
            self.untold += u64::from(!self.tell(&text));
        }
    }

    /// Tells the reader what a queue pair is and has done.
    pub(crate) fn tell_queue_pair(&mut self, status: &QpStatus) {
        self.untold += u64::from(!self.tell(&queue_pair(status)));
    }

    /// Tells the reader the counters of the engine: the last message.
    pub(crate) fn tell_counters(&mut self, rows: &[Row]) {
        let untold = ("queue_pairs_not_described", self.untold);
        self.tell(&counters(rows.iter().copied().chain([untold])));
    }

    /// Returns whether the reader has room for a message; cuts a long one behind a word.
    fn tell(&self, text: &str) -> bool {
        let end = match text.get(..MESSAGE_MAX) {
            Some(start) => start.rfind(' ').unwrap_or(0),
            None => text.len(),
        };
        sys::send_record(self.connection.as_fd(), &text.as_bytes()[..end], &[], &[]).is_ok()
    }
}

/// What a capture says when a queue pair gets its peer; `None` for one without a peer.
#[must_use]
pub fn peer(status: &QpStatus) -> Option<String> {
    let mut text = format!("{PEER} number={:#08x}", status.qpn.value());
    add_peer(&mut text, status).then_some(text)
}

/// What a capture says of a queue pair at its end: attributes, and the counters that are not zero.
#[must_use]
pub fn queue_pair(status: &QpStatus) -> String {
    let QpStatus { qpn, service, state, .. } = status;
    let mut text = format!("{QUEUE_PAIR} number={:#08x} service={service} state={state}", qpn.value());
    let numbers = [
        ("path_mtu", status.path_mtu),
        ("sq_psn", status.sq_psn.value()),
        ("rq_psn", status.rq_psn.value()),
        ("timeout", status.timeout.into()),
        ("retry_cnt", status.retry_cnt.into()),
        ("rnr_retry", status.rnr_retry.into()),
        ("max_rd_atomic", status.max_rd_atomic.into()),
        ("max_dest_rd_atomic", status.max_dest_rd_atomic.into()),
        ("in_flight", status.in_flight),
        ("pending", status.pending),
    ];
    if add_peer(&mut text, status) {
        // Writing to a string cannot fail.
        numbers.iter().for_each(|(name, value)| _ = write!(text, " {name}={value}"));
    }
    add_counters(&mut text, status.counters.rows());
    text
}

/// What a capture says of an engine at its end: the counters that are not zero.
#[must_use]
pub fn counters<'a>(rows: impl Iterator<Item = (&'a str, u64)>) -> String {
    let mut text = COUNTERS.to_owned();
    add_counters(&mut text, rows);
    text
}

/// Appends the addresses and the peer of a queue pair; returns false if it has none.
fn add_peer(text: &mut String, status: &QpStatus) -> bool {
    let (Some(local), Some(remote), Some(peer)) = (status.local, status.remote, status.dest_qpn) else {
        return false;
    };
    // Writing to a string cannot fail.
    let _ = write!(text, " local={local} remote={remote} peer={:#08x}", peer.value());
    true
}

fn add_counters<'a>(text: &mut String, rows: impl Iterator<Item = (&'a str, u64)>) {
    for (name, value) in rows.filter(|row| row.1 > 0) {
        // Writing to a string cannot fail.
        let _ = write!(text, " {name}={value}");
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
