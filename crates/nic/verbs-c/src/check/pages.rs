//! `roxie check --pages`: protects the memory of posted work requests, and names the instruction that uses it
//! before the completion.
//!
//! The pages of a send may be read, and those of a receive or of the result of a READ may not be used at all,
//! until the application polls the completion. The device bypasses the protection
//! ([`guarded::pages`]). An instruction of the application that faults is noted with its call stack; its page
//! is open then, until the next post that uses it. What was noted is reported later, outside of the signal
//! handler ([`report_uses`]); that of a receive when its message is there, which may be shorter.
//!
//! Invariant: under the lock of [`TABLE`] no signal interrupts the thread, and it uses no memory of the heap,
//! of which a page may be protected: its own fault would wait for this lock, and so would that of a thread
//! for which the allocator waits. The table itself is static.

use std::any::Any;
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use roxie::transport::Sge;
use sys::guarded::pages::{Fault, Protector, Rights, hear_requests, protect as set_rights, set_protector};
use sys::{guarded, lock_until, page_size, without_signals};

use super::memory;
use super::options::{OPTIONS, lock};
use super::report::{FindingKind, report};
use super::stack::{self, Captured, Site};

mod targets;

pub(super) use targets::end_flights;

/// Parts of memory that are protected at a time; further ones are not. Each takes two mappings of the process
/// at most, of which Linux allows 65,530 (`vm.max_map_count`).
const ENTRIES_MAX: usize = 4096;
/// Uses that wait to be reported; further ones are not reported. Each post and poll reports them.
const USES_MAX: usize = 32;

/// What the operation of an event's private data is called: it is no work request.
const PRIVATE_DATA: &str = "private data";

/// The work request that uses memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    /// The number of the queue pair; `None` for a shared receive queue.
    pub(super) queue: Option<u32>,
    pub(super) wr_id: u64,
    pub(super) operation: &'static str,
    pub(super) bytes: u64,
    pub(super) posted: Site,
    /// A receive, of which the message may be shorter.
    pub(super) is_receive: bool,
    /// A request of the peer, and not a work request of this process.
    pub(super) is_of_peer: bool,
}

/// How far the request of a peer is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Flight {
    /// It is a work request of this process.
    None = 0,
    /// The device executes it.
    Begun,
    /// It is executed, and its memory was read before.
    Ended,
}

/// Protected memory. All bytes of [`Entry::NONE`] are zero, so that the table takes no bytes of the file
/// (`tests/symbols.rs`).
#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u32,
    /// Bytes of the elements before this one.
    before: usize,
    /// First address and end of the memory, and of its protected pages.
    buffer: (usize, usize),
    pages: (usize, usize),
    rights: Rights,
    user: Maybe<User>,
    /// A use of this memory was noted.
    is_told: bool,
    /// A fault has opened one of the pages.
    has_open: bool,
    flight: Flight,
    /// When its flight began or ended.
    since_ns: u64,
    /// Address and instruction of its first use.
    used: (usize, usize),
}

/// A use of protected memory.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// The number of the entry.
    number: u32,
    user: Maybe<User>,
    offset: usize,
    rights: Rights,
    is_write: Maybe<bool>,
    thread: i32,
    stack: Captured,
    /// It may be that of a program that polls the memory.
    is_open: bool,
    /// It is.
    is_poll: bool,
}

#[derive(Debug)]
struct Table {
    entries: Few<Entry, ENTRIES_MAX>,
    uses: Few<Use, USES_MAX>,
    /// The number of the last entry.
    last: u32,
}

static TABLE: Mutex<Table> = Mutex::new(Table::new());
/// Uses of the memory of receives that have not completed.
static WAITING: Mutex<Vec<Use>> = Mutex::new(Vec::new());
/// There is something to report.
static HAS_USES: AtomicBool = AtomicBool::new(false);
/// The process that protects memory: not a child that it forks.
static PROCESS: AtomicU32 = AtomicU32::new(0);

static PROTECTOR: Protector = Protector { fault, covers, open, begins: targets::begins };

fn with_table<R>(f: impl FnOnce(&mut Table) -> R) -> R {
    without_signals(|| f(&mut lock(&TABLE)))
}

/// The device was opened.
pub(super) fn start() {
    PROCESS.store(process::id(), Ordering::Relaxed);
    if OPTIONS.pages.sends {
        prepare();
    }
    if OPTIONS.pages.targets {
        hear_requests();
    }
}

fn prepare() {
    stack::prepare();
    set_protector(&PROTECTOR);
    // The application may have installed handlers of its own.
    guarded::watch();
}

/// Forbids each use of a page of this library, of which the application might still use the first bytes.
pub(super) fn forbid(first: usize, bytes: usize, acknowledged: Site) -> Option<Protection> {
    prepare();
    let (operation, rights, length) = (PRIVATE_DATA, Rights::Nothing, bytes as u64);
    let posted = acknowledged;
    let user = User { operation, bytes: length, ..User::own(None, 0, posted) };
    let (buffer, pages) = ((first, first + bytes), (first, first + page_size()));
    let entry = Entry { buffer, pages, rights, user: Maybe::Some(user), ..Entry::NONE };
    Some(Protection([with_table(|table| table.add(entry))?].into()))
}

/// The protection of the memory of a work request; ends on drop.
#[derive(Debug)]
pub(super) struct Protection(Box<[u32]>);

impl Protection {
    /// Ends it; returns whether a use of the memory was noted.
    pub(super) fn end(mut self) -> bool {
        self.release()
    }

    /// Ends it because the receive is complete: reports the uses, of those that [`report_uses`] has kept, of
    /// memory that the message of so many bytes has filled.
    pub(super) fn received(self, bytes: u64) {
        let is_own = |noted: &Use| self.0.contains(&noted.number);
        let uses: Vec<Use> = lock(&WAITING).iter().copied().filter(is_own).collect();
        uses.iter().filter(|noted| (noted.offset as u64) < bytes).for_each(Use::report);
    }

    fn release(&mut self) -> bool {
        let numbers = std::mem::take(&mut self.0);
        lock(&WAITING).retain(|noted| !numbers.contains(&noted.number));
        numbers.iter().fold(false, |told, number| with_table(|table| table.remove(*number)) | told)
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        self.release();
    }
}

/// Protects the memory of a work request, if that is wanted and possible.
pub(super) fn protect(list: &[Sge], rights: Rights, user: User) -> Option<Protection> {
    let wanted = OPTIONS.pages;
    let is_wanted = if rights == Rights::Read { wanted.sends } else { wanted.receives };
    if !is_wanted || PROCESS.load(Ordering::Relaxed) != process::id() || !memory::are_plain(list) {
        return None;
    }
    guarded::watch();
    let page = page_size();
    let mut bytes = 0;
    let part = |sge: &Sge| {
        let before = bytes;
        bytes += sge.length as usize;
        let buffer = (sge.addr as usize, sge.addr as usize + sge.length as usize);
        // UCX posts receives that reach 16 bytes into the next element of its pool, and uses these.
        let pages = match wanted.shared && rights == Rights::Read {
            true => (buffer.0 / page * page, buffer.1.next_multiple_of(page)),
            false => (buffer.0.next_multiple_of(page), buffer.1 / page * page),
        };
        (pages.0 < pages.1 && !stack::is_own_stack(pages.0..pages.1)).then_some((before, buffer, pages))
    };
    let parts = list.iter().filter(|sge| sge.length > 0).filter_map(part);
    let numbers: Box<[u32]> = parts
        .filter_map(|(before, buffer, pages)| {
            let entry = Entry { before, buffer, pages, rights, user: Maybe::Some(user), ..Entry::NONE };
            with_table(|table| table.add(entry))
        })
        .collect();
    (!numbers.is_empty()).then_some(Protection(numbers))
}

/// Ends the protection of memory that the application may free or use now.
pub(super) fn release_memory(first: usize, length: usize) {
    if OPTIONS.pages.sends {
        with_table(|table| table.remove_range(first, first.saturating_add(length)));
    }
}

/// Ends all protection, before a fork: the child has memory of its own. Holds the locks of this module until
/// the returned value is dropped, or gives up at `until_ns`.
pub(super) fn keep_locked(until_ns: u64) -> Box<dyn Any> {
    let waiting = lock_until(&WAITING, until_ns);
    let mut table = without_signals(|| lock_until(&TABLE, until_ns));
    if let Some(table) = &mut table {
        // While the lock is held nothing is protected, so no fault waits for it.
        without_signals(|| table.remove_range(0, usize::MAX));
    }
    Box::new((table, waiting))
}

/// Reports the uses that were noted, and keeps those of receives. `is_ready` says whether a queue pair can
/// still complete its work requests with success.
#[cold]
pub(super) fn report_uses(is_ready: impl Fn(u32) -> bool) {
    if !HAS_USES.swap(false, Ordering::Relaxed) {
        return;
    }
    while let Some(noted) = with_table(Table::take_use) {
        if noted.user.get().is_some_and(|user| user.is_receive) {
            lock(&WAITING).push(noted);
            continue;
        }
        // The memory of a failed queue pair is free, which the application may know by other means.
        let queue = noted.user.get().and_then(|user| user.queue);
        if PROCESS.load(Ordering::Relaxed) == process::id() && queue.is_none_or(&is_ready) {
            noted.report();
        }
    }
}

/// An `Option` with a `None` of zeros. That of `Option` may be any value that `T` does not have.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Maybe<T> {
    None,
    Some(T),
}

impl<T: Copy> Maybe<T> {
    fn get(self) -> Option<T> {
        match self {
            Maybe::None => None,
            Maybe::Some(value) => Some(value),
        }
    }
}

impl<T> From<Option<T>> for Maybe<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Maybe::None, Maybe::Some)
    }
}

/// Up to `MAX` values.
#[derive(Debug)]
struct Few<T, const MAX: usize> {
    values: [T; MAX],
    len: usize,
}

impl<T: Copy, const MAX: usize> Few<T, MAX> {
    /// Adds a value if there is room; returns whether there was.
    fn push(&mut self, value: T) -> bool {
        let Some(place) = self.values.get_mut(self.len) else { return false };
        *place = value;
        self.len += 1;
        true
    }

    fn pop(&mut self) -> Option<T> {
        let last = *self.iter().last()?;
        self.len -= 1;
        Some(last)
    }

    /// Removes a value; the last one takes its place.
    fn remove(&mut self, at: usize) -> T {
        let value = self.values[at];
        self.len -= 1;
        self.values[at] = self.values[self.len];
        value
    }

    fn iter(&self) -> std::slice::Iter<'_, T> {
        self.values[..self.len].iter()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values[..self.len].iter_mut()
    }
}

impl User {
    /// A work request of this process that is no receive.
    pub(super) const fn own(queue: Option<u32>, wr_id: u64, posted: Site) -> Self {
        let (operation, bytes, is_receive, is_of_peer) = ("", 0, false, false);
        Self { queue, wr_id, operation, bytes, posted, is_receive, is_of_peer }
    }
}

impl Use {
    const NONE: Self = Self {
        number: 0,
        user: Maybe::None,
        offset: 0,
        rights: Rights::All,
        is_write: Maybe::None,
        thread: 0,
        stack: Captured::NONE,
        is_open: false,
        is_poll: false,
    };

    fn report(&self) {
        let Self { user: Maybe::Some(user), offset, rights, is_write, .. } = self else { return };
        if user.is_of_peer {
            return targets::report(self, user);
        }
        let queue = match user.queue {
            Some(number) => format!("queue pair {number:#08x}"),
            None => "a shared receive queue".to_owned(),
        };
        let User { wr_id, operation, bytes, .. } = user;
        let memory =
            format!("the memory of the {operation} with wr_id {wr_id:#x} ({bytes} bytes) on {queue}");
        let verb = match is_write.get() {
            Some(true) => "written",
            Some(false) => "read",
            None => "used",
        };
        let site = stack::at_fault(&self.stack, self.thread);
        if *operation == PRIVATE_DATA {
            let text = format!(
                "the {bytes} bytes of private data of an event are {verb} at offset {offset} after \
                 rdma_ack_cm_event has freed them: copy them before"
            );
            let sites = [(verb, site), ("acknowledged", user.posted)];
            return report(FindingKind::UseAfterDestroy, &text, &sites);
        }
        let (kind, verb, why) = match rights {
            Rights::Read => (FindingKind::SendBufferChanged, "written", "the peer may get either content"),
            _ => (FindingKind::BufferUsedEarly, verb, "the device may write it at any time until then"),
        };
        let text = format!("{memory} is {verb} at offset {offset} before the completion was polled: {why}");
        report(kind, &text, &[(verb, site), ("posted", user.posted)]);
    }
}

impl Table {
    const fn new() -> Self {
        let entries = Few { values: [Entry::NONE; ENTRIES_MAX], len: 0 };
        Self { entries, uses: Few { values: [Use::NONE; USES_MAX], len: 0 }, last: 0 }
    }

    /// Adds an entry and returns its number; `None` if the memory cannot be protected.
    fn add(&mut self, mut entry: Entry) -> Option<u32> {
        let is_done = self.entries.iter().any(|other| other.has(&entry) && !other.has_open);
        self.last = self.last.wrapping_add(1);
        entry.number = self.last;
        if !self.entries.push(entry) {
            return None;
        }
        if !is_done && !self.apply(entry.pages) {
            self.entries.pop();
            self.apply(entry.pages);
            return None;
        }
        for other in self.entries.iter_mut() {
            other.has_open &= other.pages.0 < entry.pages.0 || other.pages.1 > entry.pages.1;
        }
        Some(entry.number)
    }

    /// Removes an entry; returns whether a use was noted.
    fn remove(&mut self, number: u32) -> bool {
        let Some(at) = self.entries.iter().position(|entry| entry.number == number) else { return false };
        let entry = self.entries.remove(at);
        if !self.entries.iter().any(|other| other.has(&entry)) {
            self.settle(entry.pages);
        }
        entry.is_told
    }

    fn remove_range(&mut self, first: usize, end: usize) {
        for at in (0..self.entries.len).rev() {
            let pages = self.entries.values[at].pages;
            if pages.0 < end && first < pages.1 {
                let number = self.entries.values[at].number;
                self.entries.remove(at);
                self.settle(pages);
                self.decide(number, None);
            }
        }
    }

    /// Gives the pages of a removed entry the rights that the others ask for. If the kernel refuses (a part
    /// of a huge page, too many mappings), all of them are open: a use is missed, and no correct program
    /// faults for ever.
    fn settle(&mut self, pages: (usize, usize)) {
        if !self.apply(pages) {
            self.open(pages.0, pages.1);
            change(pages.0, pages.1, Rights::All);
        }
    }

    /// Gives pages the rights that the entries ask for; returns whether the kernel did all of it.
    fn apply(&self, (first, end): (usize, usize)) -> bool {
        let is_in = |entry: &Entry| entry.pages.0 < end && first < entry.pages.1;
        let rights = |page: usize| {
            let has = |entry: &&Entry| entry.pages.0 <= page && page < entry.pages.1;
            self.entries.iter().filter(has).map(|entry| entry.rights).max().unwrap_or(Rights::All)
        };
        // The rights change only where an entry begins or ends.
        let mut from = first;
        while from < end {
            let edges = self.entries.iter().filter(|entry| is_in(entry));
            let next = edges.flat_map(|entry| [entry.pages.0, entry.pages.1]).filter(|edge| *edge > from);
            let to = next.min().unwrap_or(end).min(end);
            if !change(from, to, rights(from)) {
                return false;
            }
            from = to;
        }
        true
    }

    /// Opens the pages of a range and marks their entries.
    fn open(&mut self, first: usize, end: usize) {
        let page = page_size();
        let (first, end) = (first / page * page, end.next_multiple_of(page));
        for entry in self.entries.iter_mut() {
            let (from, to) = (entry.pages.0.max(first), entry.pages.1.min(end));
            if from < to {
                entry.has_open = true;
                // The kernel does not open a part of a huge page: the instruction would fault forever.
                let _is_open =
                    change(from, to, Rights::All) || change(entry.pages.0, entry.pages.1, Rights::All);
            }
        }
    }

    /// Takes the newest use of which all is known.
    fn take_use(&mut self) -> Option<Use> {
        let at = self.uses.iter().rposition(|noted| !noted.is_open)?;
        Some(self.uses.remove(at))
    }

    fn covers(&self, first: usize, end: usize) -> bool {
        self.entries.iter().any(|entry| entry.pages.0 < end && first < entry.pages.1)
    }
}

impl Entry {
    const NONE: Self = Self {
        number: 0,
        before: 0,
        buffer: (0, 0),
        pages: (0, 0),
        rights: Rights::All,
        user: Maybe::None,
        is_told: false,
        has_open: false,
        flight: Flight::None,
        since_ns: 0,
        used: (0, 0),
    };

    /// Whether it protects all pages of another one at least as much.
    fn has(&self, other: &Entry) -> bool {
        self.pages.0 <= other.pages.0 && other.pages.1 <= self.pages.1 && other.rights <= self.rights
    }
}

fn change(first: usize, end: usize, rights: Rights) -> bool {
    // SAFETY: pages of an entry: memory of a registered region that was readable and writable, and not on the
    // stack of the thread that posted.
    unsafe { set_rights(first, end, rights) }.is_ok()
}

/// Opens the page of a fault, and notes the use of a work request's memory. Runs in a signal handler.
fn fault(fault: &Fault) -> bool {
    let (address, used) = (fault.address, (fault.address, fault.pc));
    let found = with_table(|table| {
        if !table.covers(address, address + 1) {
            return None;
        }
        table.open(address, address + 1);
        table.poll_or_use(used);
        let mut found = None;
        let users =
            table.entries.iter_mut().filter(|entry| entry.buffer.0 <= address && address < entry.buffer.1);
        for entry in users {
            if !entry.is_told && found.is_none() {
                entry.used = used;
                found = Some(*entry);
            }
            entry.is_told = true;
        }
        Some(found)
    });
    let Some(found) = found else { return false };
    if let Some(Entry { number, before, buffer, rights, user, flight, .. }) = found {
        let stack = Captured::after_fault(fault.pc);
        let thread = sys::thread_id();
        let offset = before + address - buffer.0;
        let is_open = flight == Flight::Begun && fault.is_write != Some(true);
        let is_write = fault.is_write.into();
        let noted = Use { number, user, offset, rights, is_write, thread, stack, is_open, is_poll: false };
        with_table(|table| {
            // Another thread may have ended the request since: then it will not be known if this polls.
            if !is_open || table.entries.iter().any(|entry| entry.number == number) {
                // If the list is full, the reader has enough to do.
                table.uses.push(noted);
            }
        });
        HAS_USES.store(true, Ordering::Relaxed);
    }
    true
}

fn covers(first: usize, length: usize, writes: bool) -> bool {
    // The device does not use private data that it has given away.
    OPTIONS.pages.sends
        && with_table(|table| {
            let end = first.saturating_add(length);
            if OPTIONS.pages.targets {
                table.executed(first, end, writes);
            }
            table.covers(first, end)
        })
}

fn open(first: usize, length: usize) {
    with_table(|table| table.open(first, first.saturating_add(length)));
}

#[cfg(test)]
mod tests;
