//! The end of the process. Programs exit without destroying their objects; what the kernel does then for its own is
//! done here: peers of open connections are told, acknowledgements leave.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::ibv::device::known_device;
use crate::rdma::id::disconnect_all;
use crate::rsocket::table;

/// Longest that exit is held up. Signal handlers call exit(3) while the thread they interrupted holds our locks; then
/// the farewell cannot be said.
const FAREWELL_MAX: Duration = Duration::from_millis(200);
/// The same, where somebody waits for what is printed.
const REPORT_MAX: Duration = Duration::from_secs(2);

/// Arranges for the farewell, once the device is open.
pub(crate) fn register() {
    // SAFETY: the handler takes nothing and the library is never unloaded (-z nodelete).
    unsafe { libc::atexit(at_exit) };
}

extern "C" fn at_exit() {
    take_leave();
}

/// Says the farewell, as far as that is possible in the time it has; the process ends next. Whoever comes second waits
/// for the first to end it.
pub(crate) fn take_leave() {
    static LEAVING: AtomicBool = AtomicBool::new(false);
    // A forked child that has not used the device itself has nothing to say to its parent's peers.
    if !known_device().is_some_and(|device| device.tail.device.is_running()) {
        return;
    }
    let time = if wants_report() { REPORT_MAX } else { FAREWELL_MAX };
    if LEAVING.swap(true, Ordering::Relaxed) {
        return thread::sleep(time);
    }
    let (done, finished) = mpsc::channel();
    let farewell = thread::Builder::new().name("roxie-exit".to_owned()).spawn(move || {
        say_farewell();
        // Fails if nobody waits any more, which is fine.
        done.send(()).ok()
    });
    if farewell.is_ok() {
        // Either way the process ends now.
        finished.recv_timeout(time).ok();
    }
}

fn wants_report() -> bool {
    std::env::var_os("ROXIE_STATS").is_some_and(|v| v != "0")
}

unsafe extern "C" {
    /// stdout(3).
    static stdout: *mut libc::FILE;
}

fn say_farewell() {
    let Some(device) = known_device() else { return };
    let device = &device.tail.device;
    table::close_all();
    disconnect_all();
    device.quiesce();
    if wants_report() {
        let port = device.port().map(|port| format!("roxie: port {port}\n"));
        let rows = device.counters().into_iter().filter(|row| row.1 != 0);
        let lines: String =
            port.into_iter().chain(rows.map(|(name, value)| format!("roxie: {name} {value}\n"))).collect();
        // What the program has printed and stdio still keeps comes first: the part that has left may end inside a line.
        // SAFETY: the C library's own stream, which lives as long as the process. Its lock may be held by a thread that
        // this one is to outlive; then the time for the farewell passes.
        unsafe { libc::fflush(stdout) };
        eprint!("{lines}");
    }
}
