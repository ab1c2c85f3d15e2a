//! The results as an HTML page: plots over virtual time, and the table.

use ::sim::{Results, Series, Spec};
use roxie_capture::report::page;
use roxie_capture::report::plot::{Layer, Mark, Unit, escape, plot};

use super::{Column, table};

/// Lines of a plot, one for each colour.
const CLASSES: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

/// The page of all variants. Plots are those of the first run of each.
pub(super) fn html(name: &str, spec: &Spec, columns: &[Column]) -> String {
    let firsts: Vec<(&str, &Results)> =
        columns.iter().filter_map(|column| Some((column.name.as_str(), column.runs.first()?))).collect();
    let mut body = String::new();
    if let Some((_, first)) = firsts.first() {
        body += &format!(
            "<p class=\"faint\">{} hosts of {}, switches: {}; flows start for {}. The plots are those of the \
             first seed.</p>\n",
            first.hosts, spec.rate, first.switches, spec.duration
        );
    }
    let named = |get: &dyn Fn(&Results) -> Series| -> Vec<(String, Series)> {
        firsts.iter().map(|(name, results)| (variant(name), get(results))).collect()
    };
    body += &drawn("Goodput of all hosts", Unit::Rate, &named(&|results| in_bytes(&results.goodput)));
    body += &drawn("Longest queue (bytes)", Unit::Count, &named(&|results| results.longest_queue.clone()));
    for (name, results) in &firsts {
        let rates = results.flow_rates.iter().zip(1..);
        let rates: Vec<_> = rates.map(|(series, n)| (format!("flow {n}"), in_bytes(series))).collect();
        body += &drawn(&format!("Goodput of the first flows, {}", variant(name)), Unit::Rate, &rates);
    }
    body += "<h2>Results</h2>\n<table><tr><th></th>";
    body.extend(
        columns.iter().map(|column| format!("<th class=\"n\">{}</th>", escape(&variant(&column.name)))),
    );
    body += "</tr>\n";
    for (name, cells) in table::cells(columns) {
        let cell = |cell: &Option<String>| format!("<td class=\"n\">{}</td>", cell.as_deref().unwrap_or("-"));
        let cells: String = cells.iter().map(cell).collect();
        body += &format!("<tr><td>{}</td>{cells}</tr>\n", escape(&name));
    }
    body +=
        "</table>\n<p class=\"faint\">Three values are the median, the 95th and the 99th percentile.</p>\n";
    page(&format!("roxie sim fabric {name}"), &body)
}

fn variant(name: &str) -> String {
    if name.is_empty() { "this run".to_owned() } else { name.to_owned() }
}

/// Bytes instead of bits per second.
fn in_bytes(series: &Series) -> Series {
    series.iter().map(|(at, bps)| (*at, bps / 8.0)).collect()
}

/// A plot with its title; empty without values.
fn drawn(title: &str, unit: Unit, lines: &[(String, Series)]) -> String {
    let in_ns = |series: &Series| series.iter().map(|(at, value)| ((at * 1e9) as u64, *value)).collect();
    let values: Vec<Vec<(u64, f64)>> = lines.iter().map(|(_, series)| in_ns(series)).collect();
    let end = values.iter().filter_map(|values| values.last()).map(|(at, _)| *at).max().unwrap_or(0);
    let layers: Vec<Layer<'_>> = lines
        .iter()
        .zip(&values)
        .zip(CLASSES)
        .map(|(((name, _), values), class)| Layer { name: name.clone(), mark: Mark::Line, class, values })
        .collect();
    let plot = plot((0, end), unit, &layers, &[]);
    plot.map_or_else(String::new, |plot| format!("<h2>{}</h2>\n{}\n", escape(title), plot.html()))
}
