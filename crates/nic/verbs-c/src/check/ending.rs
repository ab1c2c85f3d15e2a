//! The beginning and the end of a checked process: what is left when it exits.

use std::ffi::{c_int, c_void};
use std::mem;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use roxie::transport::WcStatus;
use sys::now_ns;

use crate::abi::objects::{ibv_mr, ibv_qp_ex};
use crate::ibv::events::handed_out;
use crate::observer::Kind;

use super::objects::{Left, alive, for_each_cq};
use super::options::lock;
use super::report::{Failed, FindingKind, has_reported, process_started, report, report_of_failed};
use super::stack::{Site, here, stack};
use super::suspicion::{About, SUSPECTED, Suspicion};
use super::{looks, pages, waits, watch};

/// Shortest wait for an event that is reported when a signal ends the process: a second, in which an event
/// thread runs on a busy machine.
const ENDED_NS: u64 = 1_000_000_000;

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
    pages::end_flights(None, true);
    looks::judge_completion(true);
    looks::judge_datagram(|_, _| true);
    watch::look_at_queues();
    let is_creation = |suspicion: &mut Suspicion| matches!(suspicion.about, About::Creation(_));
    for Suspicion { kind, text, sites, .. } in lock(&SUSPECTED).extract_if(.., is_creation) {
        report(kind, &text, &sites);
    }
    if status == 0 {
        for (kind, text, created) in left() {
            report(kind, &text, &[("created", created)]);
        }
    } else {
        let how = if has_reported() { Failed::Beside(status) } else { Failed::Exit(status) };
        // After other findings, waits are their consequence.
        if matches!(how, Failed::Exit(_)) {
            give_up(how);
        }
        for (kind, text, created) in left() {
            report_of_failed(kind, &text, &[("created", created)], how);
        }
    }
}

extern "C" fn at_exit_without_status() {
    if OPENED.load(Ordering::Relaxed) == process::id() {
        watch::look_at_queues();
    }
}

/// A signal ends the process.
pub(crate) fn interrupted(signal: c_int) {
    if OPENED.load(Ordering::Relaxed) != process::id() {
        return;
    }
    pages::end_flights(None, true);
    watch::look_at_queues();
    waits::missed_events(now_ns().saturating_sub(ENDED_NS));
    if !has_reported() {
        give_up(Failed::Signal(signal));
    }
}

/// Reports what threads wait for, or what explains it. After SIGALRM a thread has waited too long; the other
/// signals also end servers that have no mistake.
fn give_up(how: Failed) {
    waits::suspect();
    let mut suspected = mem::take(&mut *lock(&SUSPECTED));
    let ended = waits::ended();
    suspected.retain(|suspicion| suspicion.wait().is_none_or(|wait| !ended(wait)));
    let is_about = |is_it: &dyn Fn(About) -> bool| suspected.iter().any(|known| is_it(known.about));
    let is_refused = is_about(&|about| matches!(about, About::Creation(_)));
    let is_lost = |of: usize| is_about(&|about| matches!(about, About::Loss(cq) if cq == of));
    let lacks =
        |of: usize| is_about(&|about| matches!(about, About::Wait { cq, is_idle: true, .. } if cq == of));
    let (is_alarm, is_exit) = (matches!(how, Failed::Signal(libc::SIGALRM)), matches!(how, Failed::Exit(_)));
    let own = stack(here()).thread;
    let is_own = |(what, site): &(&str, Site)| *what == "waits" && stack(*site).thread == own;
    for Suspicion { kind, text, sites, about } in &suspected {
        let is_certain = match *about {
            About::Wait { .. } if is_refused => continue,
            About::Wait { cq, is_idle: true, .. } if is_lost(cq) => continue,
            // Another thread than the one that exits may have nothing to do.
            About::Wait { is_idle: true, .. } if is_exit && !sites.iter().any(is_own) => continue,
            About::Wait { is_idle: true, .. } => is_alarm,
            // No thread waits for what was lost.
            About::Loss(cq) => is_alarm || lacks(cq),
            _ => true,
        };
        match is_certain && (is_alarm || is_exit) {
            true => report(*kind, text, sites),
            false => report_of_failed(*kind, text, sites, how),
        }
    }
}

/// What the application did not end: kinds, texts and where the objects were created.
fn left() -> Vec<(FindingKind, String, Site)> {
    [leaks(), unacknowledged(), unpolled()].concat()
}

/// Objects that the application did not destroy.
fn leaks() -> Vec<(FindingKind, String, Site)> {
    let leak = |left: Left| {
        let (name, ends_by) = (left.kind.name(), left.kind.ends_by());
        let text = match left.addresses.len() {
            1 => format!("one {name}{} is alive at exit; {ends_by} was not called", left.first),
            count => {
                format!("{count} objects ({name}) of this origin are alive at exit; {ends_by} was not called")
            }
        };
        (left.kind.leak(), text, left.created)
    };
    alive(describe).into_iter().map(leak).collect()
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

/// Completions of successful work requests that the application did not poll.
fn unpolled() -> Vec<(FindingKind, String, Site)> {
    let mut found = Vec::new();
    for_each_cq(|object, created| {
        let (mut sent, mut received) = (0, 0);
        while object.tail.cq.waiting() > 0
            && let Some(wc) = object.tail.cq.poll_one()
        {
            let count = if wc.is_receive() { &mut received } else { &mut sent };
            *count += u32::from(wc.status == WcStatus::Success);
        }
        if sent + received > 0 {
            let text = format!(
                "the process ended with {received} received messages and {sent} completed sends in a \
                 completion queue that no thread polled"
            );
            found.push((FindingKind::UnpolledCompletions, text, created));
        }
    });
    found
}

/// Completion events that the application took and did not acknowledge.
fn unacknowledged() -> Vec<(FindingKind, String, Site)> {
    let delivered = handed_out();
    let mut found = Vec::new();
    for_each_cq(|object, created| {
        let cq = object.public();
        // SAFETY: the public part of an object that is alive during this call.
        let acknowledged = unsafe { (*cq).base.comp_events_completed };
        let [events, _] = delivered.get(&cq.addr()).copied().unwrap_or([acknowledged; 2]);
        let left = events.wrapping_sub(acknowledged).cast_signed();
        if left > 0 {
            let text = format!(
                "{left} event(s) of a completion queue were taken by ibv_get_cq_event and not acknowledged \
                 (ibv_ack_cq_events); ibv_destroy_cq would wait for that"
            );
            found.push((FindingKind::UnacknowledgedCqEvents, text, created));
        }
    });
    found
}
