//! What a capture lacks, so that its verdict is inconclusive, and how to make a better one.

use std::fmt;

use super::direction::Key;
use super::finding::{At, earliest};
use super::{Analysis, Kind, Totals};
use crate::shell::quote;

/// What the directions of a capture lack, as found at its end.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// Requests that wait for their answer when the capture ends.
    pub(super) open_requests: u64,
    requests: u64,
    responses: u64,
    first: At,
    /// A direction with missing packets.
    key: Option<Key>,
    /// Directions without the opposite one: the first one, whether it has the requests, and their number.
    one_sided: Option<(String, bool, u64)>,
}

impl Gaps {
    pub(super) fn add_uncaptured(&mut self, requests: u64, responses: u64, first: At, key: Option<Key>) {
        self.requests += requests;
        self.responses += responses;
        self.first = earliest([self.first, first]);
        self.key = self.key.or(key);
    }

    pub(super) fn add_one_sided(&mut self, name: String, has_requests: bool) {
        match &mut self.one_sided {
            Some((_, _, count)) => *count += 1,
            None => self.one_sided = Some((name, has_requests, 1)),
        }
    }
}

/// A way to take a better capture.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Retake {
    /// Copy fewer bytes, or use more CPU time.
    Faster,
    /// Copy all headers.
    Headers,
    /// Record all packets.
    Everything,
    /// Capture both directions.
    BothDirections,
    /// Write the file to its end.
    WholeFile,
    /// Capture behind the segmentation of bursts.
    Segmented,
    /// Say what the packets are that were not decoded.
    Decode,
}

impl Retake {
    /// The command, and what it changes.
    #[must_use]
    pub fn command(self, origin: Origin<'_>) -> String {
        let point = match origin {
            Origin::File(_) => "-i IF",
            Origin::Live(point) => point,
        };
        let (options, remark) = match self {
            Self::Faster => (" -s headers --cpu 100", "or --sample 10"),
            Self::Headers => (" -s headers", "tcpdump: -s 128"),
            Self::Everything => ("", "without --sample and conditions"),
            Self::BothDirections => ("", "on one of the two hosts; or -p PID"),
            Self::WholeFile => (" -s headers", "to the end of the file"),
            Self::Segmented => {
                ("", "at the receiver; or switch segmentation off: ethtool -K IF tx-udp-segmentation off")
            }
            Self::Decode => ("", "where packets are not encrypted or encapsulated"),
        };
        format!("roxie capture record {point}{options} -o new.pcapng   # {remark}")
    }
}

/// Where the packets come from.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// A file of this name.
    File(&'a str),
    /// A live capture with these options: `-i eth0`.
    Live(&'a str),
}

impl fmt::Display for Origin<'_> {
    /// As a word of a shell command.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live(point) => f.write_str(point),
            Self::File(name) => f.write_str(&quote(name)),
        }
    }
}

impl Analysis {
    /// Checks that the times of an interface go forward.
    pub(super) fn check_clock(&mut self, at: At, interface: usize) {
        if self.clocks.len() <= interface {
            self.clocks.resize(interface + 1, 0);
        }
        self.totals.untimed += u64::from(at.ns == 0);
        let before = std::mem::replace(&mut self.clocks[interface], at.ns);
        if at.ns < before {
            let (count, first) = &mut self.totals.backwards;
            *count += 1;
            *first = earliest([*first, at]);
        }
    }

    /// Adds the finding that the capture is incomplete, if it is. `drops` and `left_out` are as in
    /// [`Analysis::finish`].
    pub(super) fn conclude_quality(
        &mut self,
        drops: u64,
        left_out: Option<&str>,
        gaps: &Gaps,
    ) -> Option<Retake> {
        let mut reasons = Vec::new();
        let mut retake = None;
        if let Some(what) = left_out {
            reasons.push(format!("packets were left out on purpose ({what})"));
            retake = Some(Retake::Everything);
        }
        if drops > 0 {
            let all = self.totals.packets + drops;
            let percent = drops as f64 * 100.0 / all as f64;
            reasons.push(format!("{drops} of {all} packets ({percent:.1} %) were not captured in time"));
            retake = Some(Retake::Faster);
        }
        if self.totals.headers_cut > 0 {
            reasons.push(format!(
                "only the first {} bytes of packets were captured, and the headers of {} packets are longer: \
                 the capture does not tell ACKs from NAKs, or lengths and keys",
                self.totals.longest_cut, self.totals.headers_cut
            ));
            retake = Some(Retake::Headers);
        }
        if let Some(damage) = &self.damage {
            reasons.push(damage.clone());
            retake = retake.or(Some(Retake::WholeFile));
        }
        if self.totals.bursts > 0 {
            reasons.push(format!(
                "the capture shows bursts before their segmentation (UDP GSO of a sending host): packets \
                 carry more than the largest path MTU, 4096 bytes ({})",
                self.totals.bursts
            ));
            retake = Some(Retake::Segmented);
        }
        // Until here, any packet may be missing. Below it is known what is missing.
        let is_unreliable = !reasons.is_empty();
        if !is_unreliable && gaps.requests + gaps.responses > 0 {
            reasons.push(gaps.uncaptured());
            retake = Some(Retake::Faster);
        }
        if let Some((name, has_requests, count)) = &gaps.one_sided {
            let (has, lacks) = if *has_requests { ("requests", "answers") } else { ("answers", "requests") };
            let more = if *count > 1 { format!(" ({count} such connections)") } else { String::new() };
            reasons.push(format!(
                "only one direction was captured: {name} has {has}, and no {lacks} were seen in this \
                 capture{more}"
            ));
            retake = retake.or(Some(Retake::BothDirections));
        }
        if let Some(kinds) = self.totals.undecoded.text() {
            self.findings.doubt_unanswered(&kinds);
            if gaps.one_sided.is_some() {
                reasons.push(kinds);
            }
        }
        if self.totals.backwards.0 > 0 || self.totals.untimed > 0 {
            self.findings.doubt_times();
        }
        if reasons.is_empty() {
            let (reason, again) = self.all_undecoded()?;
            reasons.push(reason);
            retake = Some(again);
        }
        let bursts = self.totals.bursts > 0;
        let withdrawn = if is_unreliable { self.findings.withdraw_absences(bursts) } else { 0 };
        self.findings.doubt_absences();
        let unlisted = match withdrawn {
            0 => String::new(),
            1 => " One finding that depends on a missing packet is not listed.".to_owned(),
            n => format!(" {n} findings that depend on missing packets are not listed."),
        };
        let text = format!("Inconclusive: {}.{unlisted}", reasons.join("; "));
        self.report(Kind::CaptureLoss, self.totals.first, 0, "the capture".to_owned(), text);
        retake
    }

    /// Why nothing was decoded, if nothing was.
    fn all_undecoded(&self) -> Option<(String, Retake)> {
        let Totals { roce: 0, undecoded, fragments, .. } = &self.totals else { return None };
        if let Some(kinds) = undecoded.text() {
            return Some((kinds, Retake::Decode));
        }
        let reason = format!(
            "{fragments} fragments of IP datagrams were not decoded: others of their datagrams are missing"
        );
        (*fragments > 0).then_some((reason, Retake::Everything))
    }
}

impl Gaps {
    fn uncaptured(&self) -> String {
        let requests = match self.requests {
            0 => String::new(),
            1 => "1 request packet that was acknowledged".to_owned(),
            n => format!("{n} request packets that were acknowledged"),
        };
        let responses = match self.responses {
            0 => String::new(),
            1 => "1 response that was not requested again".to_owned(),
            n => format!("{n} responses that were not requested again"),
        };
        let both = if requests.is_empty() || responses.is_empty() { "" } else { " and " };
        let verb = if self.requests + self.responses == 1 { "was" } else { "were" };
        let place = match self.key {
            Some(key) => format!(" ({} > {} QP {})", key.src, key.dst, key.qp),
            None => String::new(),
        };
        format!(
            "{requests}{both}{responses} {verb} not seen in this capture, the first before packet \
             {}{place}: the capture lacks packets that both ends have",
            self.first.number
        )
    }
}
