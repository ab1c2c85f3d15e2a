//! `roxie sim` without `--devices`: the transport in simulated fabrics.

use ::sim::{Cause, Failed, FaultList, Options, Outcome, Tally};
use serde_json::{Map, Value, json};
use transport::QpCounters;

use super::args::SimArgs;
use super::{Simulation, Table};
use crate::failure::Failure;

/// Fabrics with the same options.
pub(super) struct Fabrics {
    nodes: Option<usize>,
    faults: Option<FaultList>,
}

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

impl Fabrics {
    pub(super) fn new(args: &SimArgs) -> Self {
        Self { nodes: args.nodes, faults: args.faults.clone() }
    }

    /// The options of the fabric with this seed.
    pub(super) fn options_of(&self, seed: u64) -> Options {
        Options { seed, nodes: self.nodes, faults: self.faults.clone() }
    }
}

impl Sum {
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

/// The message after a run with a violation.
pub(super) fn violation(failed: &Failed) -> Failure {
    let text = failed.violation.to_string();
    let (what, endpoints) = text.split_once('\n').unwrap_or((&text, ""));
    Failure::new(what).lines(endpoints.lines().map(str::to_owned)).hint(failed.to_string())
}

impl Simulation for Fabrics {
    type Sum = Sum;
    type Failed = Box<Failed>;

    const UNITS: [&str; 2] = ["fabrics", "frames"];

    fn run(&self, seed: u64, sum: &mut Sum) -> Result<u64, Box<Failed>> {
        let run = ::sim::run(&self.options_of(seed), None)?;
        let sent = run.tally.sent;
        let Outcome { nodes, tally, counters, bytes, elapsed_ns: virtual_ns, .. } = run;
        Self::absorb(sum, &Sum { fabrics: 1, nodes: nodes as u64, tally, counters, bytes, virtual_ns });
        Ok(sent)
    }

    fn absorb(sum: &mut Sum, other: &Sum) {
        sum.fabrics += other.fabrics;
        sum.nodes += other.nodes;
        sum.tally.absorb(&other.tally);
        sum.counters.absorb(&other.counters);
        sum.bytes += other.bytes;
        sum.virtual_ns += other.virtual_ns;
    }

    fn has_any(sum: &Sum) -> bool {
        sum.fabrics > 0
    }

    fn options(&self) -> String {
        let nodes = self.nodes.map(|nodes| format!(" --nodes {nodes}")).unwrap_or_default();
        let faults = self.faults.as_ref().map(|faults| format!(" --faults {faults}")).unwrap_or_default();
        nodes + &faults
    }

    fn show(table: &Table, sum: &Sum, seconds: f64) {
        let Tally { sent, delivered, duplicated, forged, reordered, delayed, marked, .. } = sum.tally;
        table.line("fabrics", sum.fabrics, &format!("{} nodes", sum.nodes));
        let rate = sent as f64 / seconds.max(0.001) / 1000.0;
        table.line("frames sent", sent, &format!("{rate:.0} k a second, for {seconds:.1} s"));
        table.line("delivered", delivered, "");
        table.line("lost", sum.tally.lost_in_all(), "");
        for (name, lost) in sum.losses().filter(|(_, lost)| *lost > 0) {
            table.line(&format!("  {name}"), lost, "");
        }
        table.line("duplicated", duplicated, "");
        table.line("forged", forged, "not counted as sent");
        table.line("reordered", reordered, "");
        table.line("link stalls", delayed, "");
        table.line("marked", marked, "");
        table.line("retransmitted", sum.counters.retransmitted_pkts, "");
        table.line("timeouts", sum.counters.local_ack_timeout_err, "");
        table.line("RNR NAKs", sum.counters.rcvd_rnr_err, "");
        let given_up = sum.counters.retry_exceeded_err;
        table.line("given up", given_up, "queue pairs with a peer that vanished");
        table.line("virtual time", format!("{:.3} s", sum.virtual_ns as f64 / 1e9), "");
        let goodput = format!("{:.3} MB/s", sum.goodput() / 1e6);
        table.line("goodput", goodput, "of a fabric in virtual time");
    }

    fn json(report: &mut Map<String, Value>, sum: &Sum) {
        let lost: Map<String, Value> =
            sum.losses().map(|(name, lost)| (name.to_owned(), json!(lost))).collect();
        let counters: Map<String, Value> =
            sum.counters.rows().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        let results = json!({
            "fabrics": sum.fabrics,
            "nodes": sum.nodes,
            "frames": {
                "sent": sum.tally.sent,
                "duplicated": sum.tally.duplicated,
                "forged": sum.tally.forged,
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
        });
        report.extend(results.as_object().cloned().unwrap_or_default());
    }

    fn violation_json(&self, failed: &Box<Failed>) -> Value {
        json!({
            "rule": failed.violation.rule.name(),
            "what": failed.violation.what,
            "at_ns": failed.violation.at_ns,
            "seed": failed.seed,
            "nodes": failed.nodes,
            "faults": failed.faults.to_string(),
            "replay": failed.to_string(),
        })
    }

    fn violation(&self, failed: &Box<Failed>) -> Failure {
        violation(failed)
    }

    fn seed(failed: &Box<Failed>) -> u64 {
        failed.seed
    }
}

#[cfg(test)]
mod tests {
    use super::super::json_report;
    use super::*;
    use ::sim::{Rule, Violation};
    use std::time::Duration;

    #[test]
    fn a_violation_comes_with_the_line_that_replays_it() {
        let violation = Violation { rule: Rule::Bytes, at_ns: 1_500_000, what: "byte 7".to_owned() };
        let faults = Default::default();
        let failed = Box::new(Failed { seed: 0x5eed, nodes: 3, faults, violation });
        let fabrics = Fabrics::new(&SimArgs::default());
        let report = json_report(&fabrics, &Sum::default(), Duration::ZERO, Some(&failed), false);
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["ok"], false);
        assert_eq!(report["violation"]["rule"], "bytes");
        assert_eq!(report["violation"]["replay"], "roxie sim --seed 0x5eed --nodes 3 --faults none");
        let failure = fabrics.violation(&failed);
        assert_eq!(failure.code, 1);
        assert!(failure.to_string().starts_with("bytes violated at 1.500000 ms: byte 7"), "{failure}");
    }
}
