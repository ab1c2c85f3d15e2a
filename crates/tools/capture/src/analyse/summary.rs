//! The result of an analysis as text and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::device;
use super::direction::{Direction, verb};
use super::quality::Origin;
use super::verdict::Verdict;
use crate::clock;
use crate::paint::{Colours, Tone};

/// Most connections shown.
const SHOWN_MAX: usize = 50;
/// Most further packets that a finding names.
const NAMED_MAX: usize = 8;

impl Verdict {
    /// The complete result as text for a terminal. `origin` is for the
    /// next command.
    #[must_use]
    pub fn summary(&self, colours: Colours, origin: Origin<'_>) -> String {
        text(self, colours, origin)
    }

    /// The complete result as a JSON object. `origin` is as in [`Verdict::summary`].
    #[must_use]
    pub fn json(&self, origin: Origin<'_>) -> Value {
        json(self, origin)
    }
}

fn text(verdict: &Verdict, colours: Colours, origin: Origin<'_>) -> String {
    let mut out = String::new();
    let totals = &verdict.totals;
    let lasted = totals.last.ns.saturating_sub(totals.first.ns);
    // A write to a string cannot fail.
    let _ = writeln!(
        out,
        "{} packets in {}, {} of them RoCEv2 ({} bytes)",
        totals.packets,
        clock::span(lasted),
        totals.roce,
        totals.roce_bytes
    );
    for (count, what) in [
        (totals.cut, "packets were not captured completely: their ICRC is not checked"),
        (totals.headers_cut, "packets were cut inside their headers"),
        (totals.seen_twice, "packets are copies from a second capture point and not counted again"),
        (totals.judged, "packets were not passed by a hook, and are not analysed: comments name the verdict"),
        (
            totals.fragments,
            "fragments of IP datagrams were not decoded: others of their datagrams are missing",
        ),
        (
            totals.backwards.0,
            "packets have an earlier time than the packet before: latencies are not reliable",
        ),
        (totals.untimed, "packets have no time"),
        (totals.foreign, "packets have opcodes of manufacturers and were not decoded"),
        (totals.not_followed, "packets of further connections were not followed"),
    ] {
        if count > 0 {
            let _ = writeln!(out, "{count} {what}");
        }
    }
    if let Some(kinds) = totals.undecoded.text() {
        let _ = writeln!(out, "{kinds}");
    }
    handshakes(&mut out, verdict, colours);
    connections(&mut out, verdict, colours);
    device::text(&mut out, &verdict.device, colours);
    if !verdict.findings.is_empty() {
        let _ = writeln!(out, "\n{}", colours.paint(Tone::Strong, "Findings"));
    }
    for finding in &verdict.findings {
        let tone = if finding.kind.is_fatal() { Tone::Bad } else { Tone::Warn };
        let times = also(finding);
        let kind = colours.paint(tone, finding.kind.name());
        let _ = writeln!(
            out,
            "{:>6} {kind} {}{times}\n       {}",
            finding.at.number, finding.subject, finding.text
        );
    }
    if verdict.unlisted > 0 {
        let _ = writeln!(out, "       and {} more", verdict.unlisted);
    }
    let tone = if verdict.findings.is_empty() { Tone::Good } else { Tone::Strong };
    let heading = format!("Verdict (confidence {}):", verdict.confidence().name());
    let _ = writeln!(out, "\n{} {}", colours.paint(tone, &heading), verdict.text());
    let _ = writeln!(out, "{} {}", colours.paint(Tone::Strong, "Next:"), verdict.next(origin));
    out
}

fn handshakes(out: &mut String, verdict: &Verdict, colours: Colours) {
    let list = verdict.connections.list();
    if list.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", colours.paint(Tone::Strong, "Connection manager"));
    for handshake in list.iter().take(SHOWN_MAX) {
        let outcome = match (handshake.refused, handshake.ready, handshake.answered) {
            (Some(reason), ..) => format!("rejected: {reason}"),
            (None, Some(ready), _) => {
                format!("connected in {}", clock::span(ready.ns.saturating_sub(handshake.requested.ns)))
            }
            (None, None, Some(_)) => "answered, no ReadyToUse".to_owned(),
            (None, None, None) => "no answer".to_owned(),
        };
        let end =
            handshake.ended.map_or(String::new(), |at| format!(", disconnected at packet {}", at.number));
        let _ = writeln!(
            out,
            "{:>6} {} QP {} > {} {}: {outcome}{end}",
            handshake.requested.number,
            handshake.active,
            handshake.active_qp,
            handshake.passive,
            handshake.service
        );
    }
}

fn connections(out: &mut String, verdict: &Verdict, colours: Colours) {
    let mut order: Vec<&Direction> = verdict.directions.iter().collect();
    order.sort_by_key(|direction| std::cmp::Reverse(direction.counts.packets));
    if order.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", colours.paint(Tone::Strong, "Directions, busiest first"));
    for direction in order.iter().take(SHOWN_MAX) {
        direction_text(out, direction, verdict);
    }
    if order.len() > SHOWN_MAX {
        let _ = writeln!(out, "  and {} more", order.len() - SHOWN_MAX);
    }
}

fn direction_text(out: &mut String, direction: &Direction, verdict: &Verdict) {
    let counts = &direction.counts;
    let peer = match direction.peer {
        Some(peer) => format!(", from QP {}", verdict.directions[peer].key.qp),
        None => String::new(),
    };
    let _ = writeln!(
        out,
        "  {} {}{peer}: {} packets, {} bytes{}",
        direction.service_name(),
        direction.name(),
        counts.packets,
        counts.bytes,
        rate(direction)
    );
    let verbs = direction.verbs();
    if let (false, Some((low, high))) = (verbs.is_empty(), counts.sizes) {
        let sizes = if low == high { format!("{low}") } else { format!("{low} to {high}") };
        let _ = writeln!(out, "      {} (messages of {sizes} bytes)", verbs.join(", "));
    }
    if let (Some(median), Some(high)) = (counts.latency.percentile(50), counts.latency.percentile(99)) {
        let coalesced = match counts.acks {
            0 => String::new(),
            acks => {
                format!("; {:.1} messages per ACK", counts.acked_messages as f64 / acks as f64)
            }
        };
        let _ = writeln!(
            out,
            "      latency {} (median), {} (99th percentile), {} (maximum){coalesced}",
            clock::span(median),
            clock::span(high),
            clock::span(counts.latency.max())
        );
    }
    let problems = [
        (counts.resent, "retransmitted"),
        (counts.duplicates, "duplicated"),
        (counts.late, "out of order"),
        (counts.uncaptured, "not captured"),
        (counts.damaged, "with a wrong ICRC"),
        (counts.naks, "NAKs"),
        (counts.rnr_naks, "RNR NAKs"),
        (counts.ce, "congestion marks (CE)"),
        (counts.cnps, "congestion notifications to the sender"),
    ];
    let problems: Vec<String> = problems
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| match count {
            1 => format!("1 {}", what.replace("NAKs", "NAK")),
            _ => format!("{count} {what}"),
        })
        .collect();
    if !problems.is_empty() {
        let _ = writeln!(out, "      {}", problems.join(", "));
    }
}

/// `(3 times, also in packets 17 and 45)`; empty for a finding that occurred once.
fn also(finding: &super::Finding) -> String {
    if finding.count < 2 {
        return String::new();
    }
    let named: Vec<String> = finding.also.iter().take(NAMED_MAX).map(|(at, _)| at.to_string()).collect();
    let more = if finding.also.len() > NAMED_MAX { ", ..." } else { "" };
    let list = named.join(", ");
    match named.len() {
        0 => format!(" ({} times)", finding.count),
        1 => format!(" ({} times, also in packet {list})", finding.count),
        _ => format!(" ({} times, also in packets {list}{more})", finding.count),
    }
}

/// Payload bytes per second; empty for less than a millisecond.
fn rate(direction: &Direction) -> String {
    let ns = direction.last.ns.saturating_sub(direction.first.ns);
    if ns < 1_000_000 || direction.counts.bytes == 0 {
        return String::new();
    }
    let rate = direction.counts.bytes as f64 * 1e9 / ns as f64;
    let (value, unit) = match rate {
        r if r >= 1e9 => (r / 1e9, "GB/s"),
        r if r >= 1e6 => (r / 1e6, "MB/s"),
        r => (r / 1e3, "kB/s"),
    };
    format!(", {value:.2} {unit}")
}

fn json(verdict: &Verdict, origin: Origin<'_>) -> Value {
    let totals = &verdict.totals;
    let directions: Vec<Value> =
        verdict.directions.iter().map(|direction| direction_json(direction, verdict)).collect();
    let findings: Vec<Value> = verdict.findings.iter().map(finding_json).collect();
    let handshakes: Vec<Value> = verdict
        .connections
        .list()
        .iter()
        .map(|h| {
            json!({
                "packet": h.requested.number,
                "active": h.active.to_string(),
                "passive": h.passive.to_string(),
                "active_qp": h.active_qp.value(),
                "passive_qp": h.passive_qp.map(|qp| qp.value()),
                "service": h.service,
                "connected": h.ready.is_some(),
                "refused": h.refused.map(|reason| reason.to_string()),
                "disconnected_packet": h.ended.map(|at| at.number),
            })
        })
        .collect();
    json!({
        "packets": totals.packets,
        "roce_packets": totals.roce,
        "roce_bytes": totals.roce_bytes,
        "duration_ns": totals.last.ns.saturating_sub(totals.first.ns),
        "capture_drops": totals.capture_drops,
        "cut_packets": totals.cut,
        "headers_cut_packets": totals.headers_cut,
        "copies": totals.seen_twice,
        "fragments": totals.fragments,
        "undecoded": totals.undecoded.kinds().iter().map(|(kind, count, at)| json!({
            "kind": kind.to_string(),
            "packets": count,
            "first_packet": at.number,
        })).collect::<Vec<_>>(),
        "undecoded_packets": totals.undecoded.count(),
        "not_passed_by_hooks": totals.judged,
        "times_back": totals.backwards.0,
        "untimed": totals.untimed,
        "manufacturer_opcodes": totals.foreign,
        "open_requests": totals.open_requests,
        "connections": handshakes,
        "directions": directions,
        "findings": findings,
        "findings_left_out": verdict.unlisted,
        "first": verdict.first().map(finding_json),
        "verdict": verdict.text(),
        "confidence": verdict.confidence().name(),
        "inconclusive": verdict.is_inconclusive(),
        "next": verdict.next(origin),
        "device": device::json(&verdict.device),
    })
}

fn finding_json(finding: &super::Finding) -> Value {
    json!({
        "kind": finding.kind.name(),
        "packet": finding.at.number,
        "time_ns": finding.at.ns,
        "shown_by_packet": finding.shown_by,
        "where": finding.subject,
        "count": finding.count,
        "also": finding.also.iter().map(|(packet, _)| *packet).collect::<Vec<_>>(),
        "confidence": finding.confidence.name(),
        "text": finding.text,
    })
}

fn direction_json(direction: &Direction, verdict: &Verdict) -> Value {
    let counts = &direction.counts;
    let messages: serde_json::Map<String, Value> = counts
        .messages
        .iter()
        .map(|(operation, count)| (verb(*operation).to_owned(), json!(count)))
        .collect();
    json!({
        "service": direction.service_name(),
        "src": direction.key.src.to_string(),
        "dst": direction.key.dst.to_string(),
        "dest_qp": direction.key.qp.value(),
        "vni": direction.key.vni,
        "src_qp": direction.peer.map(|peer| verdict.directions[peer].key.qp.value()),
        "packets": counts.packets,
        "bytes": counts.bytes,
        "duration_ns": direction.last.ns.saturating_sub(direction.first.ns),
        "messages": messages,
        "message_bytes": counts.message_bytes,
        "latency_ns": {
            "p50": counts.latency.percentile(50),
            "p99": counts.latency.percentile(99),
            "max": counts.latency.max(),
        },
        "acks": counts.acks,
        "resent": counts.resent,
        "episodes": counts.episodes,
        "duplicates": counts.duplicates,
        "late": counts.late,
        "gaps": counts.gaps,
        "uncaptured": counts.uncaptured,
        "damaged": counts.damaged,
        "naks": counts.naks,
        "rnr_naks": counts.rnr_naks,
        "ce": counts.ce,
        "cnps": counts.cnps,
    })
}
