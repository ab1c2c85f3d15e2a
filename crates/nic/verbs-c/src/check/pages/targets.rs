//! `roxie check --pages=targets`: the memory of requests of peers, while the device executes them.
//!
//! Until the last packet of a request is executed, nothing can have told the application that the request is
//! done. A use of its memory before that is a mistake, unless the program polls the memory. A program that
//! polls reads the same address again after the request was executed, so its page stays protected until then.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use sys::guarded::pages::Rights;
use sys::{now_ns, page_size};

use super::super::options::OPTIONS;
use super::super::report::{FindingKind, report as report_finding};
use super::super::{memory, stack};
use super::{Entry, Flight, HAS_USES, Maybe, PROCESS, Table, Use, User, with_table};

/// The device pauses so long after it has protected the memory of a request: as if the network were slower.
/// Half: a thread that another one wakes after its post comes too late to be seen. Double: programs are
/// slower.
const PAUSE_NS: u64 = 200_000;
/// Time between two pauses, at least.
const BETWEEN_NS: u64 = 1_000_000;
/// A request that is not executed in this time has failed. A program that polls looks again in this time.
const PATIENCE_NS: u64 = 3_000_000_000;
/// A loop of a program that polls is so long (bytes), or the test in front of it is so far away.
const LOOP_BYTES: usize = 128;

/// A request of a peer begins to use memory.
pub(super) fn begins(first: usize, length: usize, writes: bool, queue: u32) {
    if PROCESS.load(Ordering::Relaxed) != process::id() {
        return;
    }
    let Some(registered) = memory::registered(first as u64, length as u64) else { return };
    let (page, end) = (page_size(), first + length);
    let pages = match OPTIONS.pages.shared {
        true => (first / page * page, end.next_multiple_of(page)),
        false => (first.next_multiple_of(page), end / page * page),
    };
    if pages.0 >= pages.1 || stack::is_own_stack(pages.0..pages.1) {
        return;
    }
    let (operation, rights) = if writes { ("WRITE", Rights::Nothing) } else { ("READ", Rights::Read) };
    let own = User::own(Some(queue), 0, registered);
    let user = Maybe::Some(User { operation, bytes: length as u64, is_of_peer: true, ..own });
    let (buffer, flight, since_ns) = ((first, end), Flight::Begun, now_ns());
    let entry = Entry { buffer, pages, rights, user, flight, since_ns, ..Entry::NONE };
    if with_table(|table| table.add(entry)).is_some() {
        pause();
    }
}

/// Gives other threads the time to use the memory. The thread holds the lock of the engine, so it does not
/// sleep.
fn pause() {
    static LAST_NS: AtomicU64 = AtomicU64::new(0);
    let begin_ns = now_ns();
    if begin_ns.saturating_sub(LAST_NS.load(Ordering::Relaxed)) < BETWEEN_NS {
        return;
    }
    while now_ns() - begin_ns < PAUSE_NS {
        std::thread::yield_now();
    }
    LAST_NS.store(now_ns(), Ordering::Relaxed);
}

/// Ends the flights of which nothing more is learned: those of a queue pair that ends, or old ones; at
/// the end of the process all of them.
pub(in super::super) fn end_flights(of: Option<u32>, is_end: bool) {
    if OPTIONS.pages.targets {
        let before_ns = if is_end { u64::MAX } else { now_ns().saturating_sub(PATIENCE_NS) };
        with_table(|table| table.end_flights(of, before_ns));
    }
}

impl Table {
    /// The device has written or read this memory. A request whose last byte is in it has ended.
    pub(super) fn executed(&mut self, first: usize, end: usize, writes: bool) {
        for at in (0..self.entries.len).rev() {
            let entry = self.entries.values[at];
            let is_last = first < entry.buffer.1 && entry.buffer.1 <= end;
            if entry.flight != Flight::Begun || !is_last || (entry.rights == Rights::Nothing) != writes {
                continue;
            }
            if self.uses.iter().any(|noted| noted.number == entry.number && noted.is_open) {
                let page = entry.used.0 / page_size() * page_size();
                let changed = &mut self.entries.values[at];
                (changed.flight, changed.since_ns) = (Flight::Ended, now_ns());
                changed.pages = (page, page + page_size());
            } else {
                self.entries.remove(at);
            }
            self.settle(entry.pages);
        }
    }

    /// The application uses memory, by the instruction of which it was: tells programs that poll from others.
    /// Runs in a signal handler.
    pub(super) fn poll_or_use(&mut self, (address, pc): (usize, usize)) {
        for at in (0..self.entries.len).rev() {
            let entry = self.entries.values[at];
            if entry.flight != Flight::Ended || address < entry.pages.0 || entry.pages.1 <= address {
                continue;
            }
            self.entries.remove(at);
            self.settle(entry.pages);
            let is_again = entry.used.0 == address && entry.used.1.abs_diff(pc) < LOOP_BYTES;
            // Other data of the page tell nothing: it stays open.
            let is_inside = entry.buffer.0 <= address && address < entry.buffer.1;
            self.decide(entry.number, is_inside.then_some(is_again));
        }
    }

    /// It is known whether a use polls the memory; `None`: it will not be known.
    pub(super) fn decide(&mut self, number: u32, is_poll: Option<bool>) {
        let is_it = |noted: &&mut Use| noted.number == number && noted.is_open;
        for noted in self.uses.iter_mut().filter(is_it) {
            noted.is_open = false;
            noted.is_poll = is_poll == Some(true);
            if is_poll.is_none() {
                noted.user = Maybe::None;
            }
            HAS_USES.store(true, Ordering::Relaxed);
        }
    }

    fn end_flights(&mut self, of: Option<u32>, before_ns: u64) {
        for at in (0..self.entries.len).rev() {
            let entry = self.entries.values[at];
            let queue = entry.user.get().and_then(|user| user.queue);
            let is_it = entry.since_ns < before_ns && (of.is_none() || of == queue);
            if entry.flight == Flight::None || !is_it {
                continue;
            }
            self.entries.remove(at);
            self.settle(entry.pages);
            // It was never read again.
            self.decide(entry.number, (entry.flight == Flight::Ended).then_some(false));
        }
    }
}

/// Reports a use of the memory of a peer's request.
pub(super) fn report(noted: &Use, user: &User) {
    let (Use { offset, is_poll, .. }, User { operation, bytes, .. }) = (noted, user);
    let number = user.queue.unwrap_or_default();
    let site = stack::at_fault(&noted.stack, noted.thread);
    if *is_poll {
        if OPTIONS.strict {
            let text = format!(
                "the program polls memory at offset {offset} of the {bytes} bytes that a WRITE of the peer \
                 of queue pair {number:#08x} fills. A NIC need not place the bytes in order, and need not \
                 show them before a completion: use a WRITE with immediate data, or a SEND behind it"
            );
            let sites = [("polled", site), ("registered", user.posted)];
            report_finding(FindingKind::MemoryPolled, &text, &sites);
        }
        return;
    }
    let (verb, ends) = match noted.is_write.get() {
        Some(true) => ("written", "either content may stay"),
        Some(false) => ("read", "the data may be old or incomplete"),
        None => ("used", "the data may be old or incomplete"),
    };
    let ends = if *operation == "READ" { "the peer may get either content" } else { ends };
    let text = format!(
        "the {bytes} bytes that a {operation} of the peer of queue pair {number:#08x} uses are {verb} at \
         offset {offset} while the device executes it: {ends}, and no completion has told the application. \
         Wait for a receive that the peer sends to after it (SEND, WRITE with immediate data)"
    );
    report_finding(FindingKind::TargetUsedEarly, &text, &[(verb, site), ("registered", user.posted)]);
}
