//! The beginning and the end of a checked process: what is left when it exits.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use roxie::transport::WcStatus;

use crate::abi::objects::{ibv_mr, ibv_qp_ex};
use crate::ibv::events::handed_out;
use crate::observer::Kind;

use super::objects::{alive, for_each_cq};
use super::report::{FindingKind, process_started, report};
use super::{pages, watch, work};

/// The process that has opened the device last: a forked child counts as another one.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// Registers the function that runs at the exit. This is done while the library is loaded: then the function
/// runs after all exit handlers and destructors of the application, which may still destroy objects.
///
/// The C library musl has no on_exit(3), and without the exit status nothing is known about leaks: there a
/// process that gives up would be told of each object.
pub(super) fn register() {
    type OnExit = unsafe extern "C" fn(extern "C" fn(c_int, *mut c_void), *mut c_void) -> c_int;
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"on_exit".as_ptr()) };
    // SAFETY: the type is that of on_exit(3), and a null pointer is `None`.
    let on_exit: Option<OnExit> = unsafe { mem::transmute(found) };
    // SAFETY: the functions are never unloaded (-z nodelete).
    unsafe {
        match on_exit {
            Some(on_exit) => on_exit(at_exit, ptr::null_mut()),
            None => libc::atexit(at_exit_without_status),
        };
    }
}

/// The device was opened: announces this process and starts the watchdog.
#[cold]
pub(super) fn start_watching() {
    if OPENED.swap(process::id(), Ordering::Relaxed) != process::id() {
        process_started();
        pages::start();
        watch::start();
    }
}

extern "C" fn at_exit(status: c_int, _argument: *mut c_void) {
    if OPENED.load(Ordering::Relaxed) != process::id() {
        return;
    }
    look_at_queues();
    // A program that gives up leaves everything to the kernel.
    if status == 0 {
        leaks();
        unacknowledged();
        unpolled();
    }
}

extern "C" fn at_exit_without_status() {
    interrupted();
}

/// A signal ends the process.
pub(crate) fn interrupted() {
    if OPENED.load(Ordering::Relaxed) == process::id() {
        look_at_queues();
    }
}

/// Reports completion queues that lost completions, and queue pairs that dropped datagrams.
pub(super) fn look_at_queues() {
    pages::report_uses();
    work::look_at_q_keys();
    let mut found = Vec::new();
    for_each_cq(|object, created| {
        if object.tail.cq.has_overflowed() {
            found.push((object.tail.cq.capacity(), created));
        }
    });
    for (capacity, created) in found {
        let text = format!(
            "a completion queue of {capacity} entries overflowed: completions are lost, and the queue pair \
             is in the error state; it needs an entry for each work request that can complete before a poll"
        );
        report(FindingKind::CqOverflow, &text, &[("created", created)]);
    }
}

/// Reports objects that the application did not destroy.
fn leaks() {
    for left in alive(describe) {
        let (kind, first) = (left.kind, &left.first);
        let text = match left.addresses.len() {
            1 => format!("one {}{first} is alive at exit; {} was not called", kind.name(), kind.ends_by()),
            count => format!(
                "{count} objects ({}) of this origin are alive at exit; {} was not called",
                kind.name(),
                kind.ends_by()
            ),
        };
        report(kind.leak(), &text, &[("created", left.created)]);
    }
}

/// What identifies an object for people. The object is alive during the call.
fn describe(kind: Kind, address: usize) -> String {
    // SAFETY: the public part of a live object of this kind.
    unsafe {
        match kind {
            Kind::QueuePair => format!(" {:#08x}", (*(address as *const ibv_qp_ex)).qp_base.qp_num),
            Kind::Region => {
                let region = &*(address as *const ibv_mr);
                format!(" of {} bytes at {:p}", region.length, region.addr)
            }
            _ => String::new(),
        }
    }
}

/// Reports completions of successful work requests that the application did not poll.
fn unpolled() {
    let mut found = Vec::new();
    for_each_cq(|object, created| {
        let (mut sent, mut received) = (0, 0);
        while object.tail.cq.waiting() > 0
            && let Some(wc) = object.tail.cq.poll_one()
        {
            let count = if wc.is_receive() { &mut received } else { &mut sent };
            *count += u32::from(wc.status == WcStatus::Success);
        }
        found.push((sent, received, created));
    });
    for (sent, received, created) in found.into_iter().filter(|(sent, received, _)| sent + received > 0) {
        let text = format!(
            "the process ended with {received} received messages and {sent} completed sends in a completion \
             queue that no thread polled"
        );
        report(FindingKind::UnpolledCompletions, &text, &[("created", created)]);
    }
}

/// Reports completion events that the application took and did not acknowledge.
fn unacknowledged() {
    let delivered: HashMap<usize, [u32; 2]> = handed_out().into_iter().collect();
    let mut found = Vec::new();
    for_each_cq(|object, created| {
        let cq = object.public();
        // SAFETY: the public part of an object that is alive during this call.
        let acknowledged = unsafe { (*cq).base.comp_events_completed };
        let [events, _] = delivered.get(&cq.addr()).copied().unwrap_or([acknowledged; 2]);
        found.push((events.wrapping_sub(acknowledged), created));
    });
    for (left, created) in found.into_iter().filter(|(left, _)| left.cast_signed() > 0) {
        let text = format!(
            "{left} event(s) of a completion queue were taken by ibv_get_cq_event and not acknowledged \
             (ibv_ack_cq_events); ibv_destroy_cq would wait for that"
        );
        report(FindingKind::UnacknowledgedCqEvents, &text, &[("created", created)]);
    }
}
