//! The sockets of the process, by number.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_int;
use std::io;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roxie_rsocket::{Socket as Rsocket, Stream};
use sys::{lock_until, now_ns};

use super::option::Options;
use crate::exiting::HOLD_MS;
use roxie::transport::{VerbsError, refuse};

/// Longest time that the exiting process waits for a lock that another thread holds. It is longer than the
/// time for which the signal handler stops the thread that it interrupted.
const LOCK_MAX_NS: u64 = 50_000_000;
const _: () = assert!(LOCK_MAX_NS > HOLD_MS as u64 * 1_000_000);
/// Longest time that the exiting process waits for sent data to arrive.
const DRAIN_MAX: Duration = Duration::from_millis(100);

/// A socket and the options that the application set.
pub(crate) struct Socket {
    pub(crate) rsocket: Rsocket,
    /// AF_INET or AF_INET6.
    pub(crate) family: c_int,
    pub(crate) options: Mutex<Options>,
}

static SOCKETS: LazyLock<Mutex<HashMap<c_int, Arc<Socket>>>> = LazyLock::new(Mutex::default);

impl Socket {
    /// Returns the stream, or `EOPNOTSUPP` for a datagram socket.
    pub(crate) fn stream(&self) -> io::Result<&Stream> {
        self.rsocket.stream()
    }

    pub(crate) fn options(&self) -> MutexGuard<'_, Options> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sockets() -> MutexGuard<'static, HashMap<c_int, Arc<Socket>>> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a socket and returns its number.
pub(crate) fn insert(rsocket: Rsocket, family: c_int, options: Options) -> c_int {
    let number = rsocket.fd();
    sockets().insert(number, Arc::new(Socket { rsocket, family, options: Mutex::new(options) }));
    number
}

/// Returns the socket with a number; `EBADF` if there is none. A forked child cannot use its parent's
/// sockets.
pub(crate) fn find(number: c_int) -> Result<Arc<Socket>, VerbsError> {
    let found = sockets().get(&number).cloned();
    found.filter(|socket| !socket.rsocket.is_inherited()).ok_or_else(|| no_fd(number))
}

/// The refusal of a number that no socket of this process has.
#[cold]
pub(super) fn no_fd(number: c_int) -> VerbsError {
    refuse!(EBADF, "rsocket", "fd"; number as i32; "no rsocket of this process has the number {number}")
}

/// Removes a socket.
pub(crate) fn remove(number: c_int) -> Result<Arc<Socket>, VerbsError> {
    let mut sockets = sockets();
    let socket = sockets.remove(&number).ok_or_else(|| no_fd(number))?;
    if socket.rsocket.is_inherited() {
        // The engine and its state belong to the parent, so the child must not run the destructor.
        std::mem::forget(Arc::clone(&socket));
    }
    Ok(socket)
}

/// Closes all sockets because the process ends: waits a short time for sent data to arrive, and disconnects
/// the peers.
pub(crate) fn close_all() {
    let lock_until_ns = now_ns() + LOCK_MAX_NS;
    let Some(sockets) = lock_until(&SOCKETS, lock_until_ns) else { return };
    for socket in sockets.values().filter(|socket| !socket.rsocket.is_inherited()) {
        socket.rsocket.abandon(lock_until_ns, DRAIN_MAX);
    }
}

/// Locks the table until the returned value is dropped, or gives up at `until_ns`.
pub(crate) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    Box::new(lock_until(&SOCKETS, until_ns))
}
