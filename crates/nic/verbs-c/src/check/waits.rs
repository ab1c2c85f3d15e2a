//! Threads that wait for completions, by events or by polling, and what they wait for.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};

use sys::now_ns;

use crate::ibv::cq::CqObject;
use crate::ibv::events::handed_out;

use super::objects::{created, for_each_cq};
use super::options::lock;
use super::report::{FindingKind, report};
use super::stack::{Site, here};
use super::suspicion::{self, About, Suspicion};
use super::work::{self, Queue};

/// A poller without a result for so long waits. Half: a thread that waits for a slow peer counts. Double:
/// programs that give up after half a second are not explained.
const WAITS_NS: u64 = 250_000_000;

/// A process looks for waiting threads at this many destroyed queue pairs at most: each look passes over all
/// its objects.
const LOOKS_MAX: u32 = 256;

/// A thread in ibv_get_cq_event.
pub(super) struct Waiting {
    number: u64,
    /// The channel, by its address.
    channel: usize,
    site: Site,
    since_ns: u64,
}

#[derive(Default)]
pub(super) struct Threads {
    waiting: Vec<Waiting>,
    next: u64,
}

pub(super) static THREADS: LazyLock<Mutex<Threads>> = LazyLock::new(Mutex::default);

/// A wait that ends when this is dropped.
pub(super) struct Wait(u64);

impl Drop for Wait {
    fn drop(&mut self) {
        lock(&THREADS).waiting.retain(|waiting| waiting.number != self.0);
    }
}

/// This thread waits for an event of a completion channel.
#[cold]
pub(super) fn waits(channel: usize) -> Wait {
    let site = here();
    let mut threads = lock(&THREADS);
    threads.next += 1;
    let number = threads.next;
    threads.waiting.push(Waiting { number, channel, site, since_ns: now_ns() });
    Wait(number)
}

/// The application polled a completion queue, and got so many.
#[inline]
pub(super) fn polled(object: &CqObject, count: c_int) {
    let polling = &object.tail.observed;
    let since_ns = polling.in_vain_ns.load(Ordering::Relaxed);
    match since_ns {
        0 if count == 0 => polling.in_vain_ns.store(now_ns(), Ordering::Relaxed),
        0 => {}
        _ if count != 0 => {
            polling.in_vain_ns.store(0, Ordering::Relaxed);
            polling.poller.store(0, Ordering::Relaxed);
        }
        _ if polling.poller.load(Ordering::Relaxed) == 0 && now_ns() - since_ns > WAITS_NS / 2 => {
            polling.poller.store(here().number() + 1, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// The application armed a completion queue.
pub(super) fn armed(object: &CqObject) {
    object.tail.observed.armed_by.store(here().number() + 1, Ordering::Relaxed);
    object.tail.observed.armed_ns.store(now_ns(), Ordering::Relaxed);
}

/// A completion queue of a thread that waits.
struct Seen {
    cq: usize,
    channel: usize,
    created: Site,
    /// Completions that were not polled.
    completions: usize,
    /// The thread, since when, and whether it waits for an event.
    waits: Option<(Site, u64)>,
    is_for_event: bool,
    is_armed: bool,
    armed_by: Option<Site>,
    armed_ns: u64,
    /// Completions that are not solicited may wait for one that is.
    is_solicited: bool,
}

/// The completion queues, with the threads that have waited there since before `old_ns`.
fn look(old_ns: u64) -> Vec<Seen> {
    let waiting: Vec<(usize, Site, u64)> = {
        let threads = lock(&THREADS);
        let long = threads.waiting.iter().filter(|waiting| waiting.since_ns < old_ns);
        long.map(|waiting| (waiting.channel, waiting.site, waiting.since_ns)).collect()
    };
    let mut seen = Vec::new();
    for_each_cq(|object, created| {
        // SAFETY: the public part of an object that is alive during this call.
        let channel = unsafe { (*object.public()).base.channel }.addr();
        let (cq, observed) = (&object.tail.cq, &object.tail.observed);
        let by_event = waiting.iter().find(|(of, ..)| channel != 0 && *of == channel);
        let since_ns = observed.in_vain_ns.load(Ordering::Relaxed);
        let poller = Site::of(observed.poller.load(Ordering::Relaxed)).filter(|_| since_ns < old_ns);
        let by_event = by_event.map(|(_, site, since_ns)| (*site, *since_ns));
        seen.push(Seen {
            cq: object.public().addr(),
            channel,
            created,
            completions: cq.waiting(),
            waits: by_event.or(poller.map(|site| (site, since_ns))),
            is_for_event: by_event.is_some(),
            is_armed: cq.is_armed(),
            armed_by: Site::of(observed.armed_by.load(Ordering::Relaxed)),
            armed_ns: observed.armed_ns.load(Ordering::Relaxed),
            is_solicited: cq.is_armed_for_solicited(),
        });
    });
    seen
}

/// Reports threads that have waited since before `old_ns` for an event that cannot come: the completion queue
/// was armed before its completions came, or not at all.
pub(super) fn missed_events(old_ns: u64) {
    // The watchdog comes here four times a second.
    if lock(&THREADS).waiting.iter().all(|waiting| waiting.since_ns >= old_ns) {
        return;
    }
    let (seen, delivered) = (look(old_ns), handed_out());
    for cq in seen.iter().filter(|cq| cq.completions > 0 && cq.is_for_event && !cq.is_solicited) {
        let Some((site, _)) = cq.waits else { continue };
        let mut others = seen.iter().filter(|other| other.channel == cq.channel && other.cq != cq.cq);
        // A queue that is never armed may be polled now and then.
        if cq.armed_by.is_none() && others.clone().any(|other| other.is_armed) {
            continue;
        }
        let event = match cq.is_armed {
            true => "it was armed after they came: only another completion raises an event",
            false => "it is not armed: no event will come",
        };
        let was_told = !cq.is_armed && delivered.get(&cq.cq).is_some_and(|[events, _]| *events > 0);
        let other = others.find(|other| was_told && other.armed_ns > cq.armed_ns);
        let instead = if other.is_some() { ". After its last event another queue was armed" } else { "" };
        let text = format!(
            "the thread waits for a completion event, but {} completions are in the completion queue and \
             {event}{instead}; arm the queue that ibv_get_cq_event names, and poll it once more before you \
             wait",
            cq.completions
        );
        let mut sites: Vec<_> =
            other.and_then(|other| Some(("other queue armed", other.armed_by?))).into_iter().collect();
        sites.extend([("waits", site), ("created", cq.created)]);
        report(FindingKind::MissedCompletionEvent, &text, &sites);
    }
}

/// What a queue pair could complete.
struct Work {
    number: u32,
    cqs: [usize; 2],
    /// Where the last send was posted, if none of the posted ones is signaled.
    unsignaled: Option<(usize, Site)>,
    /// Whether a send was signaled: the program may signal one of many.
    has_signaled: bool,
    sends: usize,
    receives: usize,
    srq: Option<usize>,
    peer: Option<u32>,
}

impl Work {
    fn of(queue: &Queue, peer: Option<u32>) -> Self {
        let is_unsignaled = queue.sends.iter().all(|send| !send.is_signaled);
        let unsignaled = queue.sends.back().filter(|_| is_unsignaled);
        Self {
            number: queue.number,
            cqs: queue.cqs(),
            unsignaled: unsignaled.map(|send| (queue.sends.len(), send.posted)),
            has_signaled: queue.has_signaled,
            sends: queue.sends.len(),
            receives: queue.receives.len(),
            srq: queue.srq,
            peer,
        }
    }
}

/// What each thread waits for that waits now, for a program that gives up.
fn pictures() -> Vec<Suspicion> {
    let seen = look(now_ns().saturating_sub(WAITS_NS));
    if seen.iter().all(|cq| cq.waits.is_none()) {
        return Vec::new();
    }
    let mut all = Vec::new();
    work::for_each(|object, queue| {
        let peer = work::status(object).and_then(|status| status.dest_qpn);
        all.push(Work::of(queue, peer.map(|number| number.value())));
    });
    for work in &mut all {
        work.receives += work.srq.map_or(0, |srq| lock(&work::of_srq(srq)).receives.len());
    }
    // A channel has several queues; of those the thread waits for one that has work.
    let is_used = |cq: &&Seen| {
        let has_work =
            |work: &Work| work.cqs[0] == cq.cq && work.sends > 0 || work.cqs[1] == cq.cq && work.receives > 0;
        all.iter().any(has_work)
    };
    let is_instead = |cq: &Seen| seen.iter().filter(is_used).any(|used| used.waits == cq.waits);
    let waits = seen.iter().filter(|cq| is_used(cq) || !is_instead(cq));
    waits.filter_map(|cq| picture(cq, &seen, &all)).collect()
}

/// Keeps what threads wait for, in case that the program fails.
pub(super) fn suspect() {
    static LOOKS: AtomicU32 = AtomicU32::new(0);
    if LOOKS.fetch_add(1, Ordering::Relaxed) >= LOOKS_MAX {
        return;
    }
    pictures().into_iter().for_each(suspicion::suspect);
}

/// Which waits of threads for completion queues that are alive have ended by now. A wait is the address of
/// the completion queue, and since when.
pub(super) fn ended() -> impl Fn((usize, u64)) -> bool {
    let seen = look(u64::MAX);
    move |(cq, since_ns)| {
        let is_over = |seen: &Seen| seen.cq == cq && seen.waits.is_none_or(|(_, since)| since != since_ns);
        seen.iter().any(is_over)
    }
}

/// The shared receive queues without receives of which the limit was reached, and not set again: no event
/// tells the application that receives are missing. Where they were created.
pub(super) fn spent_limits() -> Vec<(&'static str, Site)> {
    let delivered = handed_out();
    let mut spent = Vec::new();
    work::for_each_empty_srq(|address, object| {
        let was_reached = delivered.get(&address).is_some_and(|[_, events]| *events > 0);
        if was_reached && object.tail.srq.query().is_ok_and(|attr| attr.srq_limit == 0) {
            spent.extend(created(address).map(|site| ("created (shared receive queue)", site)));
        }
    });
    spent
}

/// What findings say of them.
pub(super) const LIMIT_SPENT: &str = concat!(
    "a shared receive queue is empty, its limit event was taken, and the limit was not set again ",
    "(ibv_modify_srq): no further event tells that receives are missing"
);

fn picture(cq: &Seen, seen: &[Seen], all: &[Work]) -> Option<Suspicion> {
    let (waits, since_ns) = cq.waits.filter(|_| cq.completions == 0)?;
    let sending = || all.iter().filter(|work| work.cqs[0] == cq.cq);
    let receiving = || all.iter().filter(|work| work.cqs[1] == cq.cq && work.receives > 0);
    let mut sites = vec![("waits", waits)];
    let mut is_idle = false;
    let unsignaled = || sending().find_map(|work| Some((work, work.unsignaled?)));
    let what = if let Some((work, (count, posted))) = unsignaled().filter(|_| receiving().next().is_none()) {
        sites.insert(0, ("posted", posted));
        is_idle = work.has_signaled;
        format!(
            "the {count} posted send(s) of queue pair {:#08x} are unsignaled, so none will complete there; \
             set IBV_SEND_SIGNALED, or sq_sig_all for the queue pair",
            work.number
        )
    } else if let Some(other) = seen.iter().find(|other| other.completions > 0 && other.waits.is_none()) {
        sites.push(("created", other.created));
        let owner = all.iter().find(|work| work.cqs.contains(&other.cq));
        let owner =
            owner.map_or_else(String::new, |work| format!(", that of queue pair {:#08x}", work.number));
        format!("{} completion(s) are in another queue{owner}, which no thread polls", other.completions)
    } else if let Some(work) = sending().find(|work| work.sends > 0 && work.unsignaled.is_none()) {
        format!("{} posted send(s) of queue pair {:#08x} are not complete", work.sends, work.number)
    } else if let Some(work) = receiving().next() {
        let peer = all.iter().find(|peer| work.peer == Some(peer.number) && peer.peer == Some(work.number));
        let is_of = |peer: &Work, other: &Seen| other.cq == peer.cqs[1] && other.cq != cq.cq;
        let has_waiter = |peer: &Work| seen.iter().any(|other| is_of(peer, other) && other.waits.is_some());
        let both = peer.is_some_and(has_waiter);
        // The thread that ends the process does not wait for an event.
        is_idle = !both || cq.is_for_event;
        let does = peer.map_or_else(String::new, |peer| {
            let also =
                if both { ", and a thread waits for it, too: both ends wait for each other" } else { "" };
            format!("; its peer {:#08x} in this process has {} sends in work{also}", peer.number, peer.sends)
        });
        let sent = unsignaled().map_or_else(String::new, |(_, (count, posted))| {
            sites.push(("posted", posted));
            format!("; {count} posted send(s) are unsignaled and do not complete there")
        });
        let Work { number, receives, .. } = work;
        format!("queue pair {number:#08x} has {receives} receives posted, and no message comes{does}{sent}")
    } else if let Some(created) = spent_limits().first() {
        sites.push(*created);
        LIMIT_SPENT.to_owned()
    } else {
        sites.push(("created", cq.created));
        is_idle = true;
        "no work request is posted that could complete there".to_owned()
    };
    let waited = now_ns().saturating_sub(since_ns) / 1_000_000;
    let text = format!("a thread waits for a completion for {waited} ms: {what}");
    let about = About::Wait { cq: cq.cq, since_ns, is_idle };
    Some(Suspicion { kind: FindingKind::Hang, text, sites, about })
}
