//! The outcome as text and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::half::{Half, verb};
use super::verdict::Verdict;
use crate::capture::clock;
use crate::terminal::{Terminal, Tone};

/// Connections shown; the busiest ones.
const SHOWN_MAX: usize = 50;

/// For people.
pub(super) fn text(verdict: &Verdict, terminal: Terminal) -> String {
    let mut out = String::new();
    let totals = &verdict.totals;
    let lasted = totals.last.ns.saturating_sub(totals.first.ns);
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{} packets in {}, {} of them RoCEv2 ({} bytes)",
        totals.packets,
        clock::span(lasted),
        totals.roce,
        totals.roce_bytes
    );
    for (count, what) in [
        (totals.cut, "packets were cut by the capture: their ICRC is not checked"),
        (totals.seen_twice, "packets were seen at two places of the capture and counted once"),
        (totals.not_followed, "packets of further connections were not followed"),
    ] {
        if count > 0 {
            let _ = writeln!(out, "{count} {what}");
        }
    }
    handshakes(&mut out, verdict, terminal);
    connections(&mut out, verdict, terminal);
    if !verdict.findings.is_empty() {
        let _ = writeln!(out, "\n{}", terminal.paint(Tone::Strong, "Findings"));
    }
    for finding in &verdict.findings {
        let tone = if finding.kind.is_fatal() { Tone::Bad } else { Tone::Warn };
        let times = if finding.count > 1 { format!(" ({} times)", finding.count) } else { String::new() };
        let kind = terminal.paint(tone, finding.kind.name());
        let _ = writeln!(
            out,
            "{:>6} {kind} {}{times}\n       {}",
            finding.at.number, finding.whose, finding.text
        );
    }
    if verdict.unlisted > 0 {
        let _ = writeln!(out, "       and {} more", verdict.unlisted);
    }
    let tone = if verdict.findings.is_empty() { Tone::Good } else { Tone::Strong };
    let _ = writeln!(out, "\n{} {}", terminal.paint(tone, "Verdict:"), verdict.text());
    out
}

fn handshakes(out: &mut String, verdict: &Verdict, terminal: Terminal) {
    let list = verdict.connections.list();
    if list.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", terminal.paint(Tone::Strong, "Connection manager"));
    for handshake in list.iter().take(SHOWN_MAX) {
        let outcome = match (handshake.refused, handshake.ready, handshake.answered) {
            (Some(reason), ..) => format!("refused: {reason}"),
            (None, Some(ready), _) => {
                format!("connected in {}", clock::span(ready.ns.saturating_sub(handshake.asked.ns)))
            }
            (None, None, Some(_)) => "answered, not ready".to_owned(),
            (None, None, None) => "not answered".to_owned(),
        };
        let end =
            handshake.ended.map_or(String::new(), |at| format!(", disconnected at packet {}", at.number));
        let _ = writeln!(
            out,
            "{:>6} {} QP {} > {} {}: {outcome}{end}",
            handshake.asked.number,
            handshake.active,
            handshake.active_qp,
            handshake.passive,
            handshake.service
        );
    }
}

fn connections(out: &mut String, verdict: &Verdict, terminal: Terminal) {
    let mut order: Vec<&Half> = verdict.halves.iter().collect();
    order.sort_by_key(|half| std::cmp::Reverse(half.counts.packets));
    if order.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", terminal.paint(Tone::Strong, "Directions, busiest first"));
    for half in order.iter().take(SHOWN_MAX) {
        direction(out, half, verdict);
    }
    if order.len() > SHOWN_MAX {
        let _ = writeln!(out, "  and {} more", order.len() - SHOWN_MAX);
    }
}

fn direction(out: &mut String, half: &Half, verdict: &Verdict) {
    let counts = &half.counts;
    let peer = match half.peer {
        Some(peer) => format!(", from QP {}", verdict.halves[peer].key.qp),
        None => String::new(),
    };
    let _ = writeln!(
        out,
        "  {} {}{peer}: {} packets, {} bytes{}",
        half.service_name(),
        half.name(),
        counts.packets,
        counts.bytes,
        rate(half)
    );
    let verbs = half.verbs();
    if let (false, Some((low, high))) = (verbs.is_empty(), counts.sizes) {
        let sizes = if low == high { format!("{low}") } else { format!("{low} to {high}") };
        let _ = writeln!(out, "      {} (messages of {sizes} bytes)", verbs.join(", "));
    }
    if let (Some(half_of), Some(most)) = (counts.latency.percentile(50), counts.latency.percentile(99)) {
        let coalesced = match counts.acks {
            0 => String::new(),
            acks => {
                format!("; {:.1} messages an acknowledgement", counts.acked_messages as f64 / acks as f64)
            }
        };
        let _ = writeln!(
            out,
            "      answered after {} (median), {} (99 of 100), {} (longest){coalesced}",
            clock::span(half_of),
            clock::span(most),
            clock::span(counts.latency.max())
        );
    }
    let troubles = [
        (counts.resent, "sent again"),
        (counts.duplicates, "doubled"),
        (counts.late, "overtaken"),
        (counts.naks, "NAKs"),
        (counts.rnr_naks, "RNR NAKs"),
        (counts.ce, "marked by routers"),
        (counts.cnps, "congestion notifications to the sender"),
    ];
    let troubles: Vec<String> = troubles
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !troubles.is_empty() {
        let _ = writeln!(out, "      {}", troubles.join(", "));
    }
}

/// Payload bytes in a second, where there is enough time to tell.
fn rate(half: &Half) -> String {
    let ns = half.last.ns.saturating_sub(half.first.ns);
    if ns < 1_000_000 || half.counts.bytes == 0 {
        return String::new();
    }
    let rate = half.counts.bytes as f64 * 1e9 / ns as f64;
    let (value, unit) = match rate {
        r if r >= 1e9 => (r / 1e9, "GB/s"),
        r if r >= 1e6 => (r / 1e6, "MB/s"),
        r => (r / 1e3, "kB/s"),
    };
    format!(", {value:.2} {unit}")
}

/// For programs.
pub(super) fn json(verdict: &Verdict) -> Value {
    let totals = &verdict.totals;
    let halves: Vec<Value> = verdict.halves.iter().map(|half| direction_json(half, verdict)).collect();
    let findings: Vec<Value> = verdict.findings.iter().map(finding_json).collect();
    let handshakes: Vec<Value> = verdict
        .connections
        .list()
        .iter()
        .map(|h| {
            json!({
                "packet": h.asked.number,
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
        "connections": handshakes,
        "directions": halves,
        "findings": findings,
        "findings_left_out": verdict.unlisted,
        "first": verdict.first().map(finding_json),
        "verdict": verdict.text(),
    })
}

fn finding_json(finding: &super::Finding) -> Value {
    json!({
        "kind": finding.kind.name(),
        "packet": finding.at.number,
        "time_ns": finding.at.ns,
        "shown_by_packet": finding.shown_by,
        "where": finding.whose,
        "count": finding.count,
        "text": finding.text,
    })
}

fn direction_json(half: &Half, verdict: &Verdict) -> Value {
    let counts = &half.counts;
    let messages: serde_json::Map<String, Value> = counts
        .messages
        .iter()
        .map(|(operation, count)| (verb(*operation).to_owned(), json!(count)))
        .collect();
    json!({
        "service": half.service_name(),
        "src": half.key.src.to_string(),
        "dst": half.key.dst.to_string(),
        "dest_qp": half.key.qp.value(),
        "src_qp": half.peer.map(|peer| verdict.halves[peer].key.qp.value()),
        "packets": counts.packets,
        "bytes": counts.bytes,
        "duration_ns": half.last.ns.saturating_sub(half.first.ns),
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
        "naks": counts.naks,
        "rnr_naks": counts.rnr_naks,
        "ce": counts.ce,
        "cnps": counts.cnps,
    })
}
