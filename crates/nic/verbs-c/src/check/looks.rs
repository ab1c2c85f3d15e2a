//! What the application looks at: whether it reads the status of a completion that has failed, and the
//! payload of a datagram. Debug registers of the CPU count its accesses; where there are none, nothing is
//! known.
//!
//! An access is noted, not judged: a program that copies a completion, or a datagram with its GRH area, reads
//! all of it, and has no finding. After the application writes there, reads do not count. The memory of a
//! completion is often on the stack of a function that has returned.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use roxie::transport::{Sge, Wc};
use roxie::wire::Lkey;
use sys::{Counted, UseLog, Watchpoint, thread_id};

use super::memory::{self, Unmapped};
use super::options::lock;
use super::report::{FindingKind, report};
use super::stack::{Site, here};

/// Bytes of the GRH area in front of a received datagram.
pub(super) const GRH_BYTES: u64 = 40;

/// Completions and datagrams of a process that are watched, at most: each costs some ten microseconds.
const LOOKS_MAX: u32 = 16;
/// Threads of a process that is watched, at most: each needs a descriptor for each watched place.
const THREADS_MAX: usize = 64;

/// A failed completion that the application has polled.
pub(super) struct Completion {
    thread: i32,
    text: String,
    polled: Site,
    /// Uses of its status, and of its opcode and length, which are not valid; writes of status and opcode.
    logs: [UseLog; 4],
    /// No debug register is left for writes of the length.
    length: (Sge, Result<u64, Unmapped>),
}

/// A datagram that the application has polled.
pub(super) struct Datagram {
    list: Box<[Sge]>,
    queue: u32,
    sites: [(&'static str, Site); 2],
    /// Uses and writes of the first bytes of the GRH area, and uses of those of the payload.
    header: [Watchpoint; 2],
    payload: Watchpoint,
}

#[derive(Default)]
pub(super) struct Looks {
    completion: Option<Completion>,
    datagram: Option<Datagram>,
}

pub(super) static LOOKS: Mutex<Looks> = Mutex::new(Looks { completion: None, datagram: None });
/// How many are watched now, and have been.
static OPEN: AtomicU32 = AtomicU32::new(0);
static STARTED: AtomicU32 = AtomicU32::new(0);

fn may_start() -> bool {
    STARTED.fetch_add(1, Ordering::Relaxed) < LOOKS_MAX
}

/// The application gets a failed completion, in its memory.
#[cold]
pub(super) fn failed(wc: &Wc) {
    let text = format!("the work request with wr_id {:#x} on queue pair {:#08x} failed", wc.wr_id, wc.qp_num);
    let mut looks = lock(&LOOKS);
    if looks.completion.is_some() || !may_start() {
        return;
    }
    let (thread, polled) = (thread_id(), here());
    let [status, opcode, byte_len] =
        [(&raw const wc.status).addr(), (&raw const wc.opcode).addr(), (&raw const wc.byte_len).addr()];
    let length = Sge { addr: byte_len as u64, length: 4, lkey: Lkey(0) };
    let length = (length, memory::checksum(&[length]));
    let log = |counted, at: usize, bytes| UseLog::new(counted, at as u64, bytes);
    let all = [status, opcode, byte_len].map(|at| log(Counted::All, at, 4));
    if let ([Ok(status), Ok(opcode), Ok(bytes)], Ok(writes)) = (all, log(Counted::Writes, status, 8)) {
        let logs = [status, opcode, bytes, writes];
        looks.completion = Some(Completion { thread, text, polled, logs, length });
        OPEN.fetch_add(1, Ordering::Relaxed);
    }
}

/// The thread polls or posts next, or the process ends.
#[inline]
pub(super) fn judge_completion(is_end: bool) {
    if OPEN.load(Ordering::Relaxed) > 0 {
        judge(is_end);
    }
}

#[cold]
fn judge(is_end: bool) {
    let mut looks = lock(&LOOKS);
    let is_own = |looked: &mut Completion| is_end || looked.thread == thread_id();
    let Some(looked) = looks.completion.take_if(is_own) else { return };
    drop(looks);
    OPEN.fetch_sub(1, Ordering::Relaxed);
    // The memory may be on the stack of this function.
    looked.logs.iter().for_each(UseLog::stop);
    let Completion { text, polled, logs: [status, opcode, length, writes], .. } = looked;
    let end = writes.uses().next();
    let is_read = |log: &UseLog| {
        log.uses().any(|used| end.is_none_or(|end| used.at_ns < end.at_ns && used.after != end.after))
    };
    let has_length = || memory::checksum(&[looked.length.0]) == looked.length.1;
    if !is_read(&status) && (is_read(&opcode) || is_read(&length) && has_length()) {
        let text = format!(
            "{text}, and the program has read the opcode or the length of the completion, but not its \
             status: of a failed completion only wr_id, status, qp_num and vendor_err are valid. Look at the \
             status first"
        );
        report(FindingKind::StatusIgnored, &text, &[("polled", polled)]);
    }
}

/// The application gets a datagram of so many bytes, with the GRH area, in this memory.
#[cold]
pub(super) fn datagram(list: &[Sge], bytes: u64, queue: u32, posted: Site) {
    let mut looks = lock(&LOOKS);
    let (Some(header), Some(payload)) = (address(list, 0), address(list, GRH_BYTES)) else { return };
    let length = if payload.is_multiple_of(8) && bytes >= GRH_BYTES + 8 { 8 } else { 4 };
    let is_aligned = header.is_multiple_of(4) && payload.is_multiple_of(4) && bytes >= GRH_BYTES + 4;
    if looks.datagram.is_some() || !is_aligned || !may_start() {
        return;
    }
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let threads: Vec<i32> = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
    if threads.len() > THREADS_MAX {
        return;
    }
    let watch = |counted, at, length| Watchpoint::new(counted, at, length, &threads);
    // The count of writes starts first, so that a write by the device never counts as a read only.
    let (writes, payload) = (watch(Counted::Writes, header, 4), watch(Counted::All, payload, length));
    if let ((Ok(writes), Ok(payload)), Ok(all)) = ((writes, payload), watch(Counted::All, header, 4)) {
        let (list, sites) = (list.into(), [("polled", here()), ("posted", posted)]);
        looks.datagram = Some(Datagram { list, queue, sites, header: [all, writes], payload });
        OPEN.fetch_add(1, Ordering::Relaxed);
    }
}

/// The application is done with datagrams in this memory, or with all.
#[inline]
pub(super) fn judge_datagram(is_done: impl Fn(u32, &[Sge]) -> bool) {
    if OPEN.load(Ordering::Relaxed) > 0 {
        judge_datagram_now(&is_done);
    }
}

#[cold]
fn judge_datagram_now(is_done: &dyn Fn(u32, &[Sge]) -> bool) {
    let mut looks = lock(&LOOKS);
    let Some(done) = looks.datagram.take_if(|looked| is_done(looked.queue, &looked.list)) else { return };
    drop(looks);
    OPEN.fetch_sub(1, Ordering::Relaxed);
    let [all, writes] = done.header.map(|header| header.count());
    if all.is_some_and(|all| all > 0) && writes == Some(0) && done.payload.count() == Some(0) {
        let text = format!(
            "the program has read the first bytes of a datagram that queue pair {:#08x} has received, where \
             the GRH area is, and not those of its payload: it begins {GRH_BYTES} bytes behind them",
            done.queue
        );
        report(FindingKind::GrhReadAsData, &text, &done.sites);
    }
}

/// This library has read the GRH area for the application.
#[cold]
pub(super) fn header_used(at: usize) {
    let is_it = |looked: &mut Datagram| address(&looked.list, 0) == Some(at as u64);
    if lock(&LOOKS).datagram.take_if(is_it).is_some() {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The address of a byte of a list, with the three bytes behind it.
fn address(list: &[Sge], mut at: u64) -> Option<u64> {
    let piece = list.iter().find(|sge| {
        let is_in = at + 4 <= u64::from(sge.length);
        at = if is_in { at } else { at.saturating_sub(sge.length.into()) };
        is_in
    });
    Some(piece?.addr + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_of_a_list_has_an_address() {
        let list = [(1000, 40), (2000, 8)].map(|(addr, length)| Sge { addr, length, lkey: Lkey(1) });
        assert_eq!(
            [0, 36, 40, 44].map(|at| address(&list, at)),
            [Some(1000), Some(1036), Some(2000), Some(2004)]
        );
        assert_eq!(address(&list, 48), None);
    }
}
