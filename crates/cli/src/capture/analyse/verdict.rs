//! The outcome of an analysis: findings, connections, and what went wrong first.

use super::Totals;
use super::finding::{Finding, Kind};
use super::half::Half;
use super::handshake::Handshakes;

/// What an analysis found.
#[derive(Debug)]
pub struct Verdict {
    /// In the order of the packets.
    pub findings: Vec<Finding>,
    /// Findings beyond the limit.
    pub unlisted: u64,
    /// The directions.
    pub halves: Vec<Half>,
    /// Numbers of the whole capture.
    pub totals: Totals,
    /// Connections that were asked for.
    pub connections: Handshakes,
}

impl Verdict {
    /// What to look at first: the first thing that ended something, or else the first of all. That the capture has not everything
    /// comes before what did not end anything. Signs of congestion and slowness come last: they explain, they are no fault.
    #[must_use]
    pub fn first(&self) -> Option<&Finding> {
        let grave = |finding: &&Finding| !matches!(finding.kind, Kind::Congestion | Kind::Slow);
        let fatal = self.findings.iter().find(|finding| finding.kind.is_fatal());
        let same = |fatal: &Finding| {
            // What came before on the same connection is where it began.
            self.findings.iter().filter(grave).find(|finding| finding.whose == fatal.whose)
        };
        fatal
            .and_then(|fatal| same(fatal).or(Some(fatal)))
            .or_else(|| self.findings.iter().find(|finding| finding.kind == Kind::CaptureLoss))
            .or_else(|| self.findings.iter().find(grave))
            .or(self.findings.first())
    }

    /// In plain language, a sentence or two.
    #[must_use]
    pub fn text(&self) -> String {
        if self.totals.roce == 0 {
            return "There is no RoCEv2 traffic in this capture.".to_owned();
        }
        let Some(first) = self.first() else {
            return "Nothing went wrong in this capture.".to_owned();
        };
        let times = if first.count > 1 { format!(" ({} times)", first.count) } else { String::new() };
        let others = match self.findings.len() - 1 {
            0 => String::new(),
            1 => " There is one more finding.".to_owned(),
            n => format!(" There are {n} more findings."),
        };
        format!("First, at packet {}: {}{times}{others}", first.at.number, first.text)
    }
}
