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
        if !holds && self.verdict == Verdict::Exact {
            self.verdict = Verdict::Wrong(what.into());
        }
        self
    }

    /// Millions of packets per second that arrived.
    fn mpps(&self) -> f64 {
        if self.seconds > 0.0 { self.out as f64 / self.seconds / 1e6 } else { 0.0 }
    }

    /// One line.
    pub(super) fn show(&self, terminal: Terminal) {
        let (tone, word, why) = match &self.verdict {
            Verdict::Exact => (Tone::Good, "ok", String::new()),
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
            terminal.line(&format!("{:<28} {:>29} {name}", "", count));
        }
    }

    /// Heading of the lines.
    pub(super) fn heading(terminal: Terminal) {
        let text = format!("{:<28} {:>9} {:>9} {:>9} {:>8}", "TEST", "SENT", "OUT", "DROPPED", "MPPS");
        terminal.line(&terminal.paint(Tone::Strong, &text));
    }

    pub(super) fn json(&self) -> Value {
        let (result, why) = match &self.verdict {
            Verdict::Exact => ("ok", None),
            Verdict::Wrong(why) => ("failed", Some(why)),
            Verdict::Skipped(why) => ("skipped", Some(why)),
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
