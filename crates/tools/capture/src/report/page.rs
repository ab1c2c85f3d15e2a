//! The HTML page: the verdict, then plots, then tables.

use std::fmt::Write;

use super::plot::{CLASSES, Layer, Mark, Plot, Unit, escape, plot};
use super::{INCOMPLETE, Report, Traces, busiest};
use crate::analyse::{Direction, Finding, Verdict};
use crate::clock;

/// Directions in the throughput plot: one for each colour.
const LINES_MAX: usize = 6;
/// Directions with a plot of packet sequence numbers.
const SEQUENCES_MAX: usize = 4;
/// Most rows of a table.
const ROWS_MAX: usize = 500;
/// Most findings marked in plots.
const EVENTS_MAX: usize = 100;

const COLOURS: [&str; LINES_MAX] = ["c0", "c1", "c2", "c3", "c4", "c5"];

const STYLE: &str = "\
:root{--bg:#fff;--fg:#1b1f24;--faint:#6a737d;--grid:#e3e6ea;--card:#f6f8fa;\
--bad:#c62828;--warn:#a15c00;--good:#1a7f37}\n\
@media(prefers-color-scheme:dark){:root{--bg:#0f1318;--fg:#dde3ea;--faint:#8b949e;--grid:#2a3038;\
--card:#171c23;--bad:#ff6b6b;--warn:#e0a030;--good:#4cc26a}}\n\
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1040px;\
padding:24px}\n\
h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:32px 0 8px}.faint{color:var(--faint)}\n\
.verdict{background:var(--card);border-left:5px solid var(--good);padding:12px 16px;margin:16px 0;\
border-radius:4px}\n\
.verdict.bad{border-color:var(--bad);color:inherit}.verdict.open{border-color:var(--warn)}\
svg{width:100%;height:auto;background:var(--card);border-radius:4px}\n\
table{border-collapse:collapse;width:100%;font-size:14px}\
th,td{text-align:left;padding:4px 10px 4px 0;vertical-align:top;\
border-bottom:1px solid var(--grid)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\n\
svg text{font:12px system-ui,sans-serif;fill:var(--faint)}text.y{text-anchor:end}\
text.x{text-anchor:middle}\n\
.grid{stroke:var(--grid)}.event{stroke:var(--bad);stroke-dasharray:4 4;opacity:.55}\
polyline{fill:none;stroke:currentColor;stroke-width:1.6}\n\
.dots{stroke:currentColor;stroke-width:4;stroke-linecap:round;fill:none}\
.cross{stroke:currentColor;stroke-width:1.8;fill:none}\n\
.legend{margin:4px 0 0;font-size:13px}.legend span{margin-right:18px}\
.legend span:before{content:'\\25cf  '}\n\
.warn{color:var(--warn)}\n";
/// Follows the colour classes, to override theirs in dark mode.
const DARK: &str = ".bad{color:var(--bad)}";

/// A page without scripts and external files: its title, and the HTML below it, which [`plot`](super::plot)
/// makes for plots.
#[must_use]
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title>\n\
         <style>\n{STYLE}{CLASSES}{DARK}\n</style></head><body>\n<h1>{title}</h1>\n{body}</body></html>\n"
    )
}

pub(super) fn html(report: &Report<'_>) -> String {
    let Report { name, verdict, traces, notes, .. } = report;
    let totals = &verdict.totals;
    let lasted = clock::span(totals.last.ns.saturating_sub(totals.first.ns));
    let mut out = String::new();
    // A write to a string cannot fail.
    let _ = writeln!(
        out,
        "<p class=\"faint\">From {}, for {lasted}: {} packets, {} of them RoCEv2 ({} bytes).</p>",
        clock::date(totals.first.ns),
        totals.packets,
        totals.roce,
        totals.roce_bytes
    );
    let bad = match (verdict.is_inconclusive(), verdict.findings.is_empty()) {
        (true, _) => " open",
        (false, true) => "",
        (false, false) => " bad",
    };
    let [said, next] = report.verdict_lines();
    let _ = writeln!(
        out,
        "<div class=\"verdict{bad}\">{}<br><code>{}</code></div>",
        escape(&said),
        escape(&next)
    );
    for note in *notes {
        let _ = writeln!(out, "<p class=\"warn\">{}</p>", escape(note));
    }
    for (title, plot) in plots(verdict, traces) {
        let _ = writeln!(out, "<h2>{}</h2>\n{}", escape(&title), plot.html());
    }
    findings(&mut out, &verdict.findings, verdict.unlisted);
    directions(&mut out, verdict);
    page(name, &out)
}

/// The plots that have values, with their titles.
pub(super) fn plots(verdict: &Verdict, traces: &Traces) -> Vec<(String, Plot)> {
    let mut plots = Vec::new();
    let mark = if verdict.is_inconclusive() { INCOMPLETE } else { "" };
    let mut add = |title: String, plot: Option<Plot>| {
        plots.extend(plot.map(|plot| (format!("{mark}{title}"), plot)));
    };
    let span = (verdict.totals.first.ns, verdict.totals.last.ns);
    let events: Vec<(u64, String)> = verdict
        .findings
        .iter()
        .take(EVENTS_MAX)
        .map(|finding| (finding.at.ns, format!("{} at packet {}", finding.kind.name(), finding.at.number)))
        .collect();
    let traced = |index: &usize| *index < traces.directions.len();
    let order: Vec<usize> = busiest(verdict, LINES_MAX).into_iter().filter(traced).collect();
    let rates: Vec<_> = order.iter().map(|index| traces.directions[*index].throughput.rates()).collect();
    let lines: Vec<Layer<'_>> = order
        .iter()
        .zip(&rates)
        .zip(COLOURS)
        .map(|((index, values), class)| Layer {
            name: verdict.directions[*index].name(),
            mark: Mark::Line,
            class,
            values,
        })
        .collect();
    add("Throughput (payload)".to_owned(), plot(span, Unit::Rate, &lines, &events));
    let latency = [Layer {
        name: "time from the last packet of a message to its answer, at the capture point".into(),
        mark: Mark::Dots,
        class: "c0",
        values: traces.latency.list(),
    }];
    add("Latency".to_owned(), plot(span, Unit::Time, &latency, &events));
    for index in
        order.into_iter().filter(|index| verdict.directions[*index].has_requests()).take(SEQUENCES_MAX)
    {
        let trace = &traces.directions[index];
        let layers = [
            Layer { name: "requests".into(), mark: Mark::Dots, class: "c0", values: trace.psn.list() },
            Layer { name: "answers".into(), mark: Mark::Dots, class: "ack", values: trace.acks.list() },
            Layer {
                name: "retransmitted, duplicated or out of order".into(),
                mark: Mark::Crosses,
                class: "bad",
                values: trace.repeated.list(),
            },
        ];
        let first = trace.first.map_or(0, |psn| psn.value());
        let title = format!("Packet sequence numbers after {first}, {}", verdict.directions[index].name());
        add(title, plot(span, Unit::Count, &layers, &events));
    }
    plots
}

fn findings(out: &mut String, list: &[Finding], unlisted: u64) {
    if list.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Findings</h2>\n<table><tr><th class=\"n\">packet</th><th>what</th><th>where and why</th></tr>\n",
    );
    for finding in list.iter().take(ROWS_MAX) {
        let class = if finding.kind.is_fatal() { "bad" } else { "warn" };
        let times = finding.times();
        let _ = writeln!(
            out,
            "<tr><td class=\"n\">{}</td><td class=\"{class}\" style=\"white-space:nowrap\">{}</td>\
             <td>{}{times}<br><span class=\"faint\">{}</span></td></tr>",
            finding.at.number,
            finding.kind.name(),
            escape(&finding.text),
            escape(&finding.subject)
        );
    }
    out.push_str("</table>\n");
    let more = unlisted + list.len().saturating_sub(ROWS_MAX) as u64;
    if more > 0 {
        let _ = writeln!(out, "<p class=\"faint\">and {more} more</p>");
    }
}

fn directions(out: &mut String, verdict: &Verdict) {
    out.push_str(
        "<h2>Directions</h2>\n<table><tr><th>from, to</th><th>messages</th><th class=\"n\">packets</th>\
         <th class=\"n\">bytes</th><th class=\"n\">latency, median</th><th class=\"n\">99th percentile</th>\
         <th class=\"n\">retransmitted</th><th class=\"n\">NAK, RNR</th></tr>\n",
    );
    let mut order: Vec<&Direction> = verdict.directions.iter().collect();
    order.sort_by_key(|direction| std::cmp::Reverse(direction.counts.packets));
    for direction in order.iter().take(ROWS_MAX) {
        let counts = &direction.counts;
        let time = |percent| counts.latency.percentile(percent).map_or_else(String::new, clock::span);
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}, {}</td></tr>",
            escape(&direction.name()),
            escape(&direction.verbs().join(", ")),
            counts.packets,
            counts.bytes,
            time(50),
            time(99),
            counts.resent,
            counts.naks,
            counts.rnr_naks
        );
    }
    out.push_str("</table>\n");
}
