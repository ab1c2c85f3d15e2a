//! Completed messages as text.

use std::fmt::Write;

use super::Analysis;
use super::finding::packets;
use crate::clock;

impl Analysis {
    /// Appends a line to `out` for each message completed since the last call: packet, time, direction, verb,
    /// size, latency.
    ///
    /// The analysis must be one [with messages](Analysis::with_messages).
    pub fn write_messages(&mut self, out: &mut String) {
        for (direction, message, done) in self.take_messages() {
            let direction = &self.directions()[direction];
            let retransmitted = match message.resent {
                0 => String::new(),
                packets => format!(", {packets} packets retransmitted"),
            };
            let packets = packets(message.first, message.last);
            let answered = match done.number {
                number if number == message.last.number => String::new(),
                number => {
                    let took = clock::span(message.latency_ns(done.ns));
                    format!(", answered after {took} in packet {number}")
                }
            };
            // A write to a string cannot fail.
            let _ = writeln!(
                out,
                "{:>6} {} {} {} (PSN {} to {}), {packets}{answered}{retransmitted}",
                message.first.number,
                clock::time_of_day(message.first.ns),
                direction.name(),
                message.words(),
                message.first_psn,
                message.last_psn
            );
        }
    }
}
