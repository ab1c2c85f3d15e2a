//! Fuzzes the files that two threads of a command under `roxie trace` write.
//!
//! Byte 0 of the input selects what it is: the two halves of the rest are the files, or it is two headers of
//! `FRONT` bytes, with the number of the first thread's events before them, and the events. A header is a
//! page with mostly zeros, and its length is that of the file, which a fuzzer would rarely hit.
//!
//! Checked: no panic; a thread has at most the events that were requested; the trace and its summary can be
//! written.

use std::iter::repeat_n;

use roxie_cli::fuzz::recording;

/// Bytes of a file in front of its events, those that are used, and those of an event (`sys::trace`).
const HEADER: usize = 4096;
const FRONT: usize = 160;
const EVENT: usize = 64;
/// Events that each thread keeps.
const EVENTS: usize = 64;
/// Where the header has the number of events.
const CAPACITY: std::ops::Range<usize> = 8..16;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    if which % 4 == 0 {
        return recording(rest);
    }
    let Some((events, rest)) = rest.split_first() else { return };
    let (fronts, rest) = rest.split_at(rest.len().min(2 * FRONT));
    let (front, other_front) = fronts.split_at(fronts.len().min(FRONT));
    let (one, other) = rest.split_at(rest.len().min(usize::from(*events) % (EVENTS + 1) * EVENT));
    recording(&[file(front, one), file(other_front, other)].concat());
}

/// A file of the length that its header says.
fn file(front: &[u8], events: &[u8]) -> Vec<u8> {
    let mut file = front.to_vec();
    file.resize(HEADER, 0);
    file[CAPACITY].copy_from_slice(&(EVENTS as u64).to_ne_bytes());
    let events = &events[..events.len().min(EVENTS * EVENT)];
    file.extend_from_slice(events);
    file.extend(repeat_n(0, EVENTS * EVENT - events.len()));
    file
}
