//! Lines of `bpf_printk`, kept for a reader (`roxie hook log`).
//!
//! Lines are kept only while there is a reader, so that a program that prints for every packet costs nothing
//! more than the formatting that its return value needs.

use std::collections::VecDeque;

use super::HookPoint;

/// A line that a program printed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogLine {
    /// When it was printed (CLOCK_MONOTONIC, nanoseconds).
    pub time_ns: u64,
    /// The hook point.
    pub point: HookPoint,
    /// The program.
    pub program: String,
    /// The text.
    pub text: String,
}

/// The lines of one program that were not read yet.
#[derive(Debug, Default)]
pub(super) struct Log {
    lines: VecDeque<(u64, String)>,
    bytes: usize,
    /// Lines that did not fit since the last read.
    lost: u64,
    /// Time of the last read; `None` without a reader.
    read_ns: Option<u64>,
}

/// Most bytes of waiting lines, counting [`LINE_COST`] more for each.
const BYTES_MAX: usize = 1 << 20;
/// Bytes that a line takes besides its text.
pub(super) const LINE_COST: usize = 64;
/// A reader that has not read for this time counts as gone.
const READER_NS: u64 = 2_000_000_000;

impl Log {
    /// Whether there is a reader. Forgets the lines of a reader that has stopped.
    pub(super) fn has_reader(&mut self, now_ns: u64) -> bool {
        match self.read_ns {
            None => false,
            Some(read_ns) if now_ns.saturating_sub(read_ns) < READER_NS => true,
            Some(_) => {
                *self = Log::default();
                false
            }
        }
    }

    /// Whether [`push`](Self::push) may keep a line. The clock need not be read otherwise.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.read_ns.is_some()
    }

    /// Keeps a line for the reader, if there is one.
    pub(super) fn push(&mut self, now_ns: u64, line: &str) {
        if !self.has_reader(now_ns) {
            return;
        }
        if self.bytes + line.len() + LINE_COST > BYTES_MAX {
            self.lost += 1;
            return;
        }
        self.bytes += line.len() + LINE_COST;
        self.lines.push_back((now_ns, line.to_owned()));
    }

    /// Opens the log for two seconds. Returns the oldest lines, of at most `room` bytes with their costs, and
    /// the number of lines that were lost.
    pub(super) fn read(&mut self, now_ns: u64, room: &mut usize) -> (Vec<(u64, String)>, u64) {
        self.has_reader(now_ns);
        self.read_ns = Some(now_ns);
        let mut lines = Vec::new();
        while let Some((_, text)) = self.lines.front() {
            let cost = text.len() + LINE_COST;
            if cost > *room {
                break;
            }
            *room -= cost;
            self.bytes -= cost;
            lines.extend(self.lines.pop_front());
        }
        (lines, std::mem::take(&mut self.lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_only_for_a_reader_and_only_so_many() {
        let mut log = Log::default();
        log.push(1, "no reader");
        let mut room = usize::MAX;
        assert_eq!(log.read(2, &mut room), (Vec::new(), 0));
        (0..100_000).for_each(|_| log.push(3, "a line"));
        let kept = BYTES_MAX / (6 + LINE_COST);
        assert_eq!((log.lines.len(), log.lost), (kept, 100_000 - kept as u64));
        let mut room = 2 * (6 + LINE_COST) + 1;
        let (lines, lost) = log.read(4, &mut room);
        assert_eq!((lines.len(), lost, room), (2, 100_000 - kept as u64, 1));
        log.push(4 + READER_NS, "the reader has stopped");
        assert_eq!((log.lines.len(), log.bytes, log.is_open()), (0, 0, false));
    }
}
