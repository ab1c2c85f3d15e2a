//! The end of the process. Programs exit without destroying their objects. As the kernel does for its
//! devices, this library then disconnects the peers and sends pending acknowledgements.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use sys::now_ns;

use crate::exiting;
use crate::ibv::device::known_devices;
use crate::rdma::id::disconnect_all;
use crate::rsocket::table;
use roxie::verbs::Device;

/// Longest delay of the exit. A signal handler may call exit(3) while the thread that it interrupted holds a
/// lock; then the peers are not told.
const SHUTDOWN_MAX: Duration = Duration::from_millis(200);
/// Longest wait for the list of devices: a signal handler may exit while the thread that it interrupted has
/// it.
const LOCK_MAX_NS: u64 = 50_000_000;
/// Longest delay of the exit with `ROXIE_STATS` set, when counters are printed.
const REPORT_MAX: Duration = Duration::from_secs(2);

/// Registers the exit handler. Called when the first device is listed.
pub(crate) fn register() {
    // SAFETY: the handler takes no arguments and the library is never unloaded (-z nodelete).
    unsafe { libc::atexit(at_exit) };
}

extern "C" fn at_exit() {
    shut_down();
}

/// Disconnects the peers within the longest delay; the caller ends the process next. A second thread that
/// calls this waits for the first to end the process.
pub(crate) fn shut_down() {
    // The peers of a forked child that has not used the device are those of its parent.
    if !known_devices(now_ns() + LOCK_MAX_NS).iter().any(|device| device.tail.device.is_running()) {
        return;
    }
    let time = if wants_report() { REPORT_MAX } else { SHUTDOWN_MAX };
    if !exiting::begin() {
        return sys::pause(time);
    }
    let (done, finished) = mpsc::channel();
    let shutdown = thread::Builder::new().name("roxie-exit".to_owned()).spawn(move || {
        disconnect_peers();
        // Fails if the exiting thread has stopped waiting.
        done.send(()).ok()
    });
    if shutdown.is_ok() {
        // The process ends now, whether this succeeds or times out.
        finished.recv_timeout(time).ok();
    }
}

fn wants_report() -> bool {
    std::env::var_os("ROXIE_STATS").is_some_and(|v| !v.is_empty() && v != "0")
}

unsafe extern "C" {
    /// stdout(3).
    static stdout: *mut libc::FILE;
}

fn disconnect_peers() {
    table::close_all();
    disconnect_all();
    let known = known_devices(now_ns() + LOCK_MAX_NS);
    let running = || known.iter().map(|object| &object.tail.device).filter(|device| device.is_running());
    running().for_each(Device::quiesce);
    running().filter_map(Device::chaos_report).for_each(roxie::notice);
    if !wants_report() {
        return;
    }
    let several = running().count() > 1;
    for device in running() {
        let port = device.port();
        let rows = device.counters().into_iter().filter(|row| row.1 != 0);
        // Flushes the application's output first: the part that stdio has written may end inside a line.
        // SAFETY: the C library's own stream, which lives as long as the process. If another thread holds its
        // lock, the exiting thread stops waiting for this one.
        unsafe { libc::fflush(stdout) };
        if several {
            roxie::say(format_args!("device {}", device.name()));
        }
        port.into_iter().for_each(|port| roxie::say(format_args!("port {port}")));
        rows.for_each(|(name, value)| roxie::say(format_args!("{name} {value}")));
    }
}
