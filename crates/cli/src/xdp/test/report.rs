//! The results, as text and as JSON.

use serde_json::{Value, json};

use crate::terminal::{Terminal, Tone};

/// Result of one test.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Packets sent.
    pub(super) sent: u64,
    /// Packets that arrived.
    pub(super) out: u64,
    /// Packets counted as dropped.
    pub(super) drops: Vec<(String, u64)>,
    /// From the first packet sent to the last that arrived.
    pub(super) seconds: f64,
    pub(super) verdict: Verdict,
}

/// Whether the test passed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// Every packet is accounted for.
    Exact,
    /// Every packet is accounted for, and some were lost: more were sent than the receiver takes.
    Lossy,
    /// What is wrong.
    Wrong(String),
    /// The test did not run; the reason.
    Skipped(String),
}

impl Row {
    /// The result of a test that did not run.
    pub(super) fn skipped(name: &'static str, why: impl Into<String>) -> Row {
        let verdict = Verdict::Skipped(why.into());
        Row { name, sent: 0, out: 0, drops: Vec::new(), seconds: 0.0, verdict }
    }

    /// Fails the test for another reason, unless it has failed already.
    pub(super) fn require(mut self, holds: bool, what: impl Into<String>) -> Row {
        if !holds && matches!(self.verdict, Verdict::Exact | Verdict::Lossy) {
            self.verdict = Verdict::Wrong(what.into());
        }
        self
    }

    /// How many tests failed, and how many lost packets that are all accounted for.
    pub(super) fn bad(rows: &[Row]) -> (usize, usize) {
        let failed = rows.iter().filter(|row| matches!(row.verdict, Verdict::Wrong(_))).count();
        (failed, rows.iter().filter(|row| row.verdict == Verdict::Lossy).count())
    }

    /// Millions of packets per second that arrived.
    fn mpps(&self) -> f64 {
        if self.seconds > 0.0 { self.out as f64 / self.seconds / 1e6 } else { 0.0 }
    }

    /// Where most of the lost packets were lost: `73.1 % lost at UDP socket`.
    fn loss(&self) -> String {
        let all: u64 = self.drops.iter().map(|drop| drop.1).sum();
        let place = self.drops.iter().max_by_key(|drop| drop.1).map_or("?", |drop| &drop.0);
        format!("{} lost at {place}", percent(all, self.sent))
    }

    /// One line.
    pub(super) fn show(&self, terminal: Terminal) {
        let (tone, word, why) = match &self.verdict {
            Verdict::Exact => (Tone::Good, "ok", String::new()),
            Verdict::Lossy => (Tone::Warn, "LOSSY", String::new()),
            Verdict::Wrong(why) => (Tone::Bad, "FAILED", format!(": {why}")),
            Verdict::Skipped(why) => {
                let word = terminal.paint(Tone::Faint, "skipped");
                return terminal.line(&format!("{:<28} {word}: {why}", self.name));
            }
        };
        let dropped: u64 = self.drops.iter().map(|drop| drop.1).sum();
        let word = terminal.paint(tone, word);
        terminal.line(&format!(
            "{:<28} {:>9} {:>9} {dropped:>9} {:>8.3}  {word}{why}",
            self.name,
            self.sent,
            self.out,
            self.mpps()
        ));
        for (name, count) in &self.drops {
            let share = percent(*count, self.sent);
            terminal.line(&format!("{:<28} {count:>29} {name}, {share}", ""));
        }
    }

    /// Heading of the lines.
    pub(super) fn heading(terminal: Terminal) {
        let text = format!("{:<28} {:>9} {:>9} {:>9} {:>8}", "TEST", "SENT", "OUT", "DROPPED", "MPPS");
        terminal.heading(&text);
    }

    pub(super) fn json(&self) -> Value {
        let (result, why) = match &self.verdict {
            Verdict::Exact => ("ok", None),
            Verdict::Lossy => ("lossy", Some(self.loss())),
            Verdict::Wrong(why) => ("failed", Some(why.clone())),
            Verdict::Skipped(why) => ("skipped", Some(why.clone())),
        };
        let drops: serde_json::Map<_, _> =
            self.drops.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
        json!({
            "test": self.name,
            "result": result,
            "why": why,
            "sent": self.sent,
            "out": self.out,
            "dropped": drops,
            "seconds": self.seconds,
            "mpps": self.mpps(),
        })
    }
}

/// A share in percent, never rounded to 0 or to 100.
fn percent(part: u64, all: u64) -> String {
    let share = part as f64 / all.max(1) as f64 * 100.0;
    match share {
        share if share < 0.1 => "less than 0.1 %".to_owned(),
        share if share > 99.9 && part < all => "more than 99.9 %".to_owned(),
        share => format!("{share:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_lost_packets_is_not_ok() {
        let drops = vec![("rx_dropped".to_owned(), 2), ("UDP socket".to_owned(), 729)];
        let row =
            Row { sent: 1000, out: 269, drops, verdict: Verdict::Lossy, ..Row::skipped("XDP_PASS", "") };
        assert_eq!(row.loss(), "73.1 % lost at UDP socket");
        let json = row.json();
        assert_eq!((&json["result"], &json["why"]), (&json!("lossy"), &json!("73.1 % lost at UDP socket")));
        assert_eq!(
            (percent(1, 1_000_000), percent(999_999, 1_000_000)),
            ("less than 0.1 %".to_owned(), "more than 99.9 %".to_owned())
        );
        let failed = Row { verdict: Verdict::Wrong("2 packets vanished".to_owned()), ..Row::skipped("", "") };
        assert_eq!(Row::bad(&[row, failed, Row::skipped("", "")]), (1, 1));
    }
}
