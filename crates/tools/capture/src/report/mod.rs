//! Plots of an analysed capture: an HTML page without scripts or external files, or the plots alone as SVG.
//!
//! [`Traces`] collects the values to plot while the capture is analysed; [`Report`] draws them.

mod drawing;
mod page;
pub mod plot;
mod series;

use wire::Psn;
use wire::capture::Seen;

use crate::analyse::{Analysis, At, Origin, Verdict};
use crate::decode::Decoded;
pub use page::page;
use series::{Points, Series};

/// Directions with plots; further ones are in the table only.
const PLOTTED_MAX: usize = 256;

/// Values to plot of one direction.
#[derive(Default)]
struct Trace {
    throughput: Series,
    /// Requests, by the distance of their packet sequence number from the first.
    psn: Points,
    /// Requests with a number that is not higher than all before: retransmitted, duplicated or out of order.
    repeated: Points,
    acks: Points,
    first: Option<Psn>,
    highest: i64,
}

/// Values to plot of a capture.
#[derive(Default)]
pub struct Traces {
    directions: Vec<Trace>,
    latency: Points,
}

/// An analysed capture to be drawn.
pub struct Report<'a> {
    /// Title, usually the name of the file.
    pub name: &'a str,
    /// Where the packets come from, for the command to run next.
    pub origin: Origin<'a>,
    /// Result of the analysis.
    pub verdict: &'a Verdict,
    /// Values collected during the analysis.
    pub traces: &'a Traces,
    /// Damaged places of the file, from [`Source::notes`](crate::source::Source::notes).
    pub notes: &'a [String],
}

/// Marks a plot of an incomplete capture.
const INCOMPLETE: &str = "INCOMPLETE CAPTURE: ";

impl Report<'_> {
    /// The verdict and the command to run next, as lines of text.
    fn verdict_lines(&self) -> [String; 2] {
        let verdict = self.verdict;
        let confidence = verdict.confidence().name();
        [
            format!("Verdict (confidence {confidence}): {}", verdict.text()),
            format!("Next: {}", verdict.next(self.origin)),
        ]
    }

    /// An HTML page: verdict, plots, tables of findings and directions.
    #[must_use]
    pub fn html(&self) -> String {
        page::html(self)
    }

    /// The plots as an SVG drawing.
    #[must_use]
    pub fn svg(&self) -> String {
        drawing::svg(self)
    }
}

impl Traces {
    /// Adds a packet and the messages that it completed. To be called after `analysis` was fed with the
    /// packet; `analysis` must be one [with messages](Analysis::with_messages).
    pub fn add(&mut self, analysis: &mut Analysis, packet: &Decoded<'_>) {
        let at = At { number: packet.record.number, ns: packet.record.time_ns };
        if let (Ok(seen), Some(direction)) = (&packet.seen, analysis.current()) {
            self.packet(analysis, direction, at, seen);
        }
        for (_, message, done) in analysis.take_messages() {
            if done.number != message.last.number {
                self.latency.add(done.ns, message.latency_ns(done.ns) as f64);
            }
        }
    }

    fn packet(&mut self, analysis: &Analysis, direction: usize, at: At, seen: &Seen<'_>) {
        if direction >= PLOTTED_MAX {
            return;
        }
        while self.directions.len() <= direction {
            self.directions.push(Trace::default());
        }
        let Ok(packet) = &seen.packet else { return };
        self.directions[direction].throughput.add(at.ns, seen.payload_len() as u64);
        if packet.row().is_request() {
            self.directions[direction].request(packet.bth.psn, at);
        } else if let Some(peer) = analysis.directions()[direction].peer
            && let Some(trace) = self.directions.get_mut(peer)
            && let Some(first) = trace.first
        {
            let distance = trace.distance(packet.bth.psn, first);
            trace.acks.add(at.ns, distance as f64);
        }
    }
}

impl Trace {
    fn request(&mut self, psn: Psn, at: At) {
        let is_first = self.first.is_none();
        let first = *self.first.get_or_insert(psn);
        let distance = self.distance(psn, first);
        if is_first || distance > self.highest {
            self.highest = distance;
            self.psn.add(at.ns, distance as f64);
        } else {
            self.repeated.add(at.ns, distance as f64);
        }
    }

    /// Distance of `psn` from the first number; wraps of the 24-bit number are counted.
    fn distance(&self, psn: Psn, first: Psn) -> i64 {
        let highest = Psn::new((i64::from(first.value()) + self.highest) as u32);
        self.highest + i64::from(psn.distance_from(highest))
    }
}

/// The directions with the most bytes, at most `max`.
fn busiest(verdict: &Verdict, max: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..verdict.directions.len().min(PLOTTED_MAX)).collect();
    order.sort_by_key(|index| std::cmp::Reverse(verdict.directions[*index].counts.bytes));
    order.truncate(max);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_grows_when_the_sequence_number_wraps() {
        let mut trace = Trace::default();
        for (n, psn) in (0u64..).zip([0xff_fffe, 0xff_ffff, 0, 1, 0, 5]) {
            trace.request(Psn::new(psn), At { number: n + 1, ns: n });
        }
        assert_eq!(trace.highest, 7);
        assert_eq!(trace.repeated.list(), [(4, 2.0)]);
    }
}
