//! The beginning and the end of a checked process: what is left when it exits.

use std::ffi::{c_int, c_void};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use roxie::transport::{WcOpcode, WcStatus};

use crate::abi::objects::{ibv_cq_ex, ibv_mr, ibv_qp_ex};
use crate::ibv::cq::CqObject;
use crate::ibv::events::handed_out;

use super::objects::{self, alive, alive_of, created};
use super::report::{process_started, report};
use super::watch;

/// The process that has opened the device last: a forked child counts as another one.
static OPENED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    /// Registers a function that exit(3) calls with the exit status (glibc).
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Registers the function that runs at the exit. This is done while the library is loaded: then the function
/// runs after all exit handlers and destructors of the application, which may still destroy objects.
pub(super) fn register() {
    // SAFETY: the function is never unloaded (-z nodelete).
    unsafe { on_exit(at_exit, ptr::null_mut()) };
}

/// The device was opened: announces this process and starts the watchdog.
#[cold]
pub(crate) fn start_watching() {
    if OPENED.swap(process::id(), Ordering::Relaxed) != process::id() {
        process_started();
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

/// A signal ends the process.
pub(crate) fn interrupted() {
    if OPENED.load(Ordering::Relaxed) == process::id() {
        look_at_queues();
    }
}

/// Reports completion queues that lost completions.
pub(super) fn look_at_queues() {
    for cq in alive_of::<ibv_cq_ex>() {
        // SAFETY: alive a moment ago; the memory of destroyed objects is kept.
        let Some(object) = (unsafe { CqObject::from_ptr(cq) }) else { continue };
        if !object.tail.cq.has_overflowed() {
            continue;
        }
        let text = format!(
            "a completion queue of {} entries overflowed: completions are lost, and the queue pair is in the \
             error state; it needs an entry for each work request that can complete before a poll",
            object.tail.cq.capacity()
        );
        if let Some(created) = created(cq.addr()) {
            report("cq-overflow", &text, &[("created", created)]);
        }
    }
}

/// Reports objects that the application did not destroy.
fn leaks() {
    for (kind, site, addresses) in alive() {
        let first = addresses.first().map_or_else(String::new, |address| describe(kind.leak, *address));
        let text = match addresses.len() {
            1 => format!("one {}{first} is alive at exit; {} was not called", kind.name, kind.ends_by),
            count => format!(
                "{count} objects ({}) of this origin are alive at exit; {} was not called",
                kind.name, kind.ends_by
            ),
        };
        report(kind.leak, &text, &[("created", site)]);
    }
}

/// What identifies an object for people.
fn describe(leak: &str, address: usize) -> String {
    // SAFETY: the public part of a live object of this kind.
    unsafe {
        match leak {
            "leaked-qp" => format!(" {:#08x}", (*(address as *const ibv_qp_ex)).qp_base.qp_num),
            "leaked-mr" => {
                let region = &*(address as *const ibv_mr);
                format!(" of {} bytes at {:p}", region.length, region.addr)
            }
            _ => String::new(),
        }
    }
}

/// Reports completions of successful work requests that the application did not poll.
fn unpolled() {
    for cq in alive_of::<ibv_cq_ex>() {
        // SAFETY: alive a moment ago; the memory of destroyed objects is kept.
        let Some(object) = (unsafe { CqObject::from_ptr(cq) }) else { continue };
        let (mut sent, mut received) = (0, 0);
        while object.tail.cq.waiting() > 0
            && let Some(wc) = object.tail.cq.poll_one()
        {
            let is_receive = wc.opcode as u32 & WcOpcode::Recv as u32 != 0;
            let count = if is_receive { &mut received } else { &mut sent };
            *count += u32::from(wc.status == WcStatus::Success);
        }
        if sent + received > 0
            && let Some(created) = created(cq.addr())
        {
            let text = format!(
                "the process ended with {received} received messages and {sent} completed sends in a \
                 completion queue that no thread polled"
            );
            report("unpolled-completions", &text, &[("created", created)]);
        }
    }
}

/// Reports completion events that the application took and did not acknowledge.
fn unacknowledged() {
    let queues = alive_of::<ibv_cq_ex>();
    for (object, delivered) in handed_out() {
        let Some(cq) = queues.iter().find(|cq| cq.addr() == object) else { continue };
        // SAFETY: the public part of an object that was alive a moment ago.
        let acknowledged = unsafe { (**cq).base.comp_events_completed };
        let left = delivered[0].wrapping_sub(acknowledged);
        if left > 0
            && let Some(created) = objects::created(object)
        {
            let text = format!(
                "{left} event(s) of a completion queue were taken by ibv_get_cq_event and not acknowledged \
                 (ibv_ack_cq_events); ibv_destroy_cq would wait for that"
            );
            report("unacknowledged-cq-events", &text, &[("created", created)]);
        }
    }
}
