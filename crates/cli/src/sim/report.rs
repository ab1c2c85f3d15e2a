//! The sum of the results of `roxie sim`, as text and as JSON.

use std::time::Duration;

use ::sim::{Cause, Failed, Outcome, Tally};
use serde_json::{Map, Value, json};
use transport::QpCounters;

use crate::terminal::{Terminal, Tone};

/// Results of runs without a violation.
#[derive(Default)]
pub(super) struct Sum {
    fabrics: u64,
    nodes: u64,
    tally: Tally,
    counters: QpCounters,
    bytes: u64,
    virtual_ns: u64,
}

impl Sum {
    pub(super) fn add(&mut self, run: &Outcome) {
        self.fabrics += 1;
        self.nodes += run.nodes as u64;
        self.tally.absorb(&run.tally);
        self.counters.absorb(&run.counters);
        self.bytes += run.bytes;
        self.virtual_ns += run.elapsed_ns;
    }

    pub(super) fn absorb(&mut self, other: &Self) {
        self.fabrics += other.fabrics;
        self.nodes += other.nodes;
        self.tally.absorb(&other.tally);
        self.counters.absorb(&other.counters);
        self.bytes += other.bytes;
        self.virtual_ns += other.virtual_ns;
    }

    /// Whether at least one run has finished.
    pub(super) fn has_any(&self) -> bool {
        self.fabrics > 0
    }

    /// Payload bytes of complete messages per virtual second, by fabric.
    fn goodput(&self) -> f64 {
        self.bytes as f64 / (self.virtual_ns as f64 / 1e9).max(1e-9)
    }

    fn losses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Cause::ALL.iter().map(|cause| (cause.name(), self.tally.lost[*cause as usize]))
    }
}

/// A run without violation in one line.
pub(super) fn verdict(run: &Outcome) -> String {
    let (Tally { sent, delivered, .. }, lost) = (&run.tally, run.tally.lost_in_all());
    let ms = run.elapsed_ns as f64 / 1e6;
    format!(
        "No violation: {} nodes, {ms:.3} ms, frames: {sent} sent, {delivered} delivered, {lost} lost",
        run.nodes
    )
}

/// Prints the table.
pub(super) fn show(terminal: Terminal, sum: &Sum, took: Duration, ok: bool) {
    let seconds = took.as_secs_f64();
    let line = |name: &str, value: String, note: String| {
        let note = terminal.paint(Tone::Faint, &note);
        terminal.line(format!("  {name:<18}{value:>16}  {note}").trim_end());
    };
    let count = |name: &str, value: u64| line(name, value.to_string(), String::new());
    let heading = if ok { "No violation" } else { "Before the violation" };
    terminal.line(&terminal.paint(Tone::Strong, heading));
    line("fabrics", sum.fabrics.to_string(), format!("{} nodes", sum.nodes));
    let rate = sum.tally.sent as f64 / seconds.max(0.001) / 1000.0;
    line("frames sent", sum.tally.sent.to_string(), format!("{rate:.0} k a second, for {seconds:.1} s"));
    count("delivered", sum.tally.delivered);
    line("lost", sum.tally.lost_in_all().to_string(), String::new());
    for (name, lost) in sum.losses().filter(|(_, lost)| *lost > 0) {
        count(&format!("  {name}"), lost);
    }
    count("duplicated", sum.tally.duplicated);
    count("reordered", sum.tally.reordered);
    count("link stalls", sum.tally.delayed);
    count("marked", sum.tally.marked);
    count("retransmitted", sum.counters.retransmitted_pkts);
    count("timeouts", sum.counters.local_ack_timeout_err);
    count("RNR NAKs", sum.counters.rcvd_rnr_err);
    line(
        "given up",
        sum.counters.retry_exceeded_err.to_string(),
        "queue pairs with a peer that vanished".to_owned(),
    );
    line("virtual time", format!("{:.3} s", sum.virtual_ns as f64 / 1e9), String::new());
    line("goodput", format!("{:.3} MB/s", sum.goodput() / 1e6), "of a fabric in virtual time".to_owned());
}

/// The same as a JSON object.
pub(super) fn json(sum: &Sum, took: Duration, failed: Option<&Failed>, interrupted: bool) -> String {
    let lost: Map<String, Value> = sum.losses().map(|(name, lost)| (name.to_owned(), json!(lost))).collect();
    let counters: Map<String, Value> =
        sum.counters.rows().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let violation = failed.map(|failed| {
        json!({
            "rule": failed.violation.rule.name(),
            "what": failed.violation.what,
            "at_ns": failed.violation.at_ns,
            "seed": failed.seed,
            "nodes": failed.nodes,
            "faults": failed.faults.to_string(),
            "replay": failed.to_string(),
        })
    });
    let report = json!({
        "ok": failed.is_none(),
        "interrupted": interrupted,
        "violation": violation,
        "fabrics": sum.fabrics,
        "nodes": sum.nodes,
        "frames": {
            "sent": sum.tally.sent,
            "duplicated": sum.tally.duplicated,
            "delivered": sum.tally.delivered,
            "reordered": sum.tally.reordered,
            "delayed": sum.tally.delayed,
            "marked": sum.tally.marked,
            "lost": lost,
        },
        "counters": counters,
        "bytes": sum.bytes,
        "virtual_ns": sum.virtual_ns,
        "goodput_bytes_per_s": sum.goodput().round(),
        "seconds": took.as_secs_f64(),
    });
    format!("{report:#}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::sim::{Rule, Violation};

    #[test]
    fn a_violation_comes_with_the_line_that_replays_it() {
        let violation = Violation { rule: Rule::Bytes, at_ns: 1_500_000, what: "byte 7".to_owned() };
        let faults = Default::default();
        let failed = Failed { seed: 0x5eed, nodes: 3, faults, violation };
        let report: Value =
            serde_json::from_str(&json(&Sum::default(), Duration::ZERO, Some(&failed), false)).unwrap();
        assert_eq!(report["ok"], false);
        assert_eq!(report["violation"]["rule"], "bytes");
        assert_eq!(report["violation"]["replay"], "roxie sim --seed 0x5eed --nodes 3 --faults none");
        let failure = super::super::violation(&failed);
        assert_eq!(failure.code, 1);
        assert!(failure.to_string().starts_with("bytes violated at 1.500000 ms: byte 7"), "{failure}");
    }
}
