//! The result of an analysis: findings, connections, and the verdict.

use wire::Service;

use super::Totals;
use super::device::EngineNotes;
use super::direction::Direction;
use super::finding::{Confidence, Finding, Kind};
use super::handshake::Handshakes;
use super::quality::{Origin, Retake};

/// Packets shown before and after those of the first finding.
const AROUND: u64 = 1;

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
    /// How to take a better capture, if this one is incomplete.
    pub retake: Option<Retake>,
    /// What the engines of captured processes knew at their end.
    pub device: Vec<EngineNotes>,
}

impl Verdict {
    /// The finding to examine first; `None` without findings.
    ///
    /// If a finding ended a connection, it is the first one of that connection. Else it is the incompleteness
    /// of the capture, then the first finding that is an error, then a sign of congestion or slowness.
    #[must_use]
    pub fn first(&self) -> Option<&Finding> {
        let is_error = |finding: &&Finding| !finding.kind.is_sign();
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

    /// The verdict as one line: the first finding, and the number of others.
    #[must_use]
    pub fn text(&self) -> String {
        let Some(first) = self.first() else {
            if self.totals.roce == 0 {
                return "There is no RoCEv2 traffic in this capture.".to_owned();
            }
            return match self.lacks_proof() {
                lacks if lacks.is_empty() => "No problem was found in this capture.".to_owned(),
                lacks => format!("No problem was found, but {}.", lacks.join("; ")),
            };
        };
        let others = match self.findings.len() - 1 {
            0 => String::new(),
            1 => " There is one more finding.".to_owned(),
            n => format!(" There are {n} more findings."),
        };
        let (text, times) = (&first.text, first.times());
        if first.kind == Kind::CaptureLoss {
            return format!("{text}{others}");
        }
        let doubt = if self.retake.is_some() { " The capture is incomplete, see below." } else { "" };
        format!("First, at packet {}: {text}{times}{others}{doubt}", first.at.number)
    }

    /// What a capture lacks that would prove the health of all connections.
    fn lacks_proof(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        match self.totals.open_requests {
            0 => {}
            1 => lacks.push("the answer to a request is not in the capture".to_owned()),
            n => lacks.push(format!("the answers to {n} requests are not in the capture")),
        }
        lacks.extend(self.totals.undecoded.text());
        match self.totals.backwards {
            (0, _) => {}
            (1, at) => lacks.push(format!("the time of packet {} goes back", at.number)),
            (n, at) => lacks.push(format!("the times of {n} packets go back, first in packet {}", at.number)),
        }
        for (count, what) in [
            (self.totals.untimed, "no time"),
            (self.totals.foreign, "an opcode of a manufacturer"),
            (self.totals.not_followed, "a connection beyond those that are followed"),
        ] {
            match count {
                0 => {}
                1 => lacks.push(format!("a packet has {what}")),
                n => lacks.push(format!("{n} packets have {what}")),
            }
        }
        let is_reliable = |direction: &&Direction| !matches!(direction.service, Service::Uc | Service::Ud);
        let alone = |direction: &&Direction| direction.peer.is_none() && direction.has_requests();
        if self.totals.open_requests == 0
            && let Some(direction) = self.directions.iter().filter(is_reliable).find(alone)
        {
            lacks.push(format!("no answers to the requests {} are in the capture", direction.name()));
        }
        lacks
    }

    /// How far the packets of the capture prove the verdict.
    #[must_use]
    pub fn confidence(&self) -> Confidence {
        match self.first() {
            Some(first) if first.kind == Kind::CaptureLoss => Confidence::Low,
            Some(first) => first.confidence,
            None if self.totals.roce > 0 && self.lacks_proof().is_empty() => Confidence::High,
            None => Confidence::Medium,
        }
    }

    /// Whether the capture is too incomplete for a verdict.
    #[must_use]
    pub fn is_inconclusive(&self) -> bool {
        self.retake.is_some()
    }

    /// The command to run next.
    #[must_use]
    pub fn next(&self, origin: Origin<'_>) -> String {
        let first = self.first();
        if let (Some(Kind::CaptureLoss), Some(retake)) = (first.map(|first| first.kind), self.retake) {
            return match (retake, self.totals.undecoded.option()) {
                (Retake::Decode, Some(option)) => format!("roxie capture analyse {origin} {option}"),
                _ => retake.command(origin),
            };
        }
        if let Origin::Live(point) = origin {
            return format!("roxie capture record {point} -o new.pcapng   # then analyse new.pcapng");
        }
        let Some(first) = first else {
            return if self.totals.roce == 0 {
                format!("roxie capture read {origin} --all   # what else is in it")
            } else {
                format!("roxie capture report {origin} -o report.html   # throughput and latency over time")
            };
        };
        let (low, high) = match first.shown_by {
            0 => (first.at.number, first.at.number),
            by => (first.at.number.min(by), first.at.number.max(by)),
        };
        let (low, high) = (low.saturating_sub(AROUND).max(1), high + AROUND);
        let high = high.min(self.totals.last.number.max(low));
        format!("roxie capture read {origin} --packet {low}..{high} -t delta")
    }
}
