//! The result of an analysis: findings, connections, and the verdict.

use super::Totals;
use super::direction::Direction;
use super::finding::{Finding, Kind};
use super::handshake::Handshakes;

/// The result of an analysis.
#[derive(Debug)]
pub struct Verdict {
    /// The findings, in the order of their first packets.
    pub findings: Vec<Finding>,
    /// Number of findings beyond the limit, which are not listed.
    pub unlisted: u64,
    /// The directions of all connections.
    pub directions: Vec<Direction>,
    /// Counters of the capture.
    pub totals: Totals,
    /// Connection setups.
    pub connections: Handshakes,
}

impl Verdict {
    /// The finding to examine first; `None` without findings.
    ///
    /// If a finding ended a connection, it is the first one of that connection. Else it is the incompleteness
    /// of the capture, then the first finding that is an error, then a sign of congestion or slowness.
    #[must_use]
    pub fn first(&self) -> Option<&Finding> {
        let is_error = |finding: &&Finding| !matches!(finding.kind, Kind::Congestion | Kind::Slow);
        let fatal = self.findings.iter().find(|finding| finding.kind.is_fatal());
        let same = |fatal: &Finding| {
            self.findings.iter().filter(is_error).find(|finding| finding.subject == fatal.subject)
        };
        fatal
            .and_then(|fatal| same(fatal).or(Some(fatal)))
            .or_else(|| self.findings.iter().find(|finding| finding.kind == Kind::CaptureLoss))
            .or_else(|| self.findings.iter().find(is_error))
            .or(self.findings.first())
    }

    /// The verdict as text: the first finding, and the number of others.
    #[must_use]
    pub fn text(&self) -> String {
        if self.totals.roce == 0 {
            return "There is no RoCEv2 traffic in this capture.".to_owned();
        }
        let Some(first) = self.first() else {
            return "No problem was found in this capture.".to_owned();
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
