//! Draws plots as SVG: axes, lines, points, events. Any report can use it.

use std::fmt::Write;

use wire::text::is_unsafe;

use crate::clock;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 36.0;
/// Height of a legend in a drawing.
const LEGEND: f64 = 36.0;
/// Approximate number of ticks on an axis.
const TICKS: f64 = 6.0;

/// Colours of lines and dots by CSS class, the same in HTML and SVG.
pub(super) const CLASSES: &str = "\
.c0{color:#2f6fde}.c1{color:#d9822b}.c2{color:#2aa198}.c3{color:#a05bd6}.c4{color:#7a9a01}.c5{color:#d6547f}\
.bad{color:#c62828}.ack{color:#2aa198;opacity:0.75}";

/// Unit of the vertical axis.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    /// Bytes per second.
    Rate,
    /// Nanoseconds.
    Time,
    /// A count.
    Count,
}

/// How values are drawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mark {
    /// A line through all values.
    Line,
    /// A dot at each value.
    Dots,
    /// Crosses, for errors.
    Crosses,
}

/// A set of values.
#[derive(Debug)]
pub struct Layer<'a> {
    /// What the legend calls it.
    pub name: String,
    /// How it is drawn.
    pub mark: Mark,
    /// CSS class that decides the colour: `c0` to `c5`, `bad` or `ack`.
    pub class: &'static str,
    /// Nanoseconds and values.
    pub values: &'a [(u64, f64)],
}

/// A plot, drawn.
#[derive(Debug)]
pub struct Plot {
    /// Its axes and values as SVG elements, one in a line.
    elements: String,
    /// CSS class and name of each layer.
    legend: Vec<(&'static str, String)>,
}

impl Plot {
    /// Size in a drawing, legend included.
    pub(super) const WIDTH: f64 = WIDTH;
    pub(super) const HEIGHT: f64 = HEIGHT + LEGEND;

    /// An SVG element for the HTML page, with its legend below.
    #[must_use]
    pub fn html(&self) -> String {
        let span =
            |(class, name): &(&str, String)| format!("<span class=\"{class}\">{}</span>", escape(name));
        let legend: Vec<String> = self.legend.iter().map(span).collect();
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n{}</svg>\n<p class=\"legend\">{}</p>\n",
            self.elements,
            legend.join(" ")
        )
    }

    /// An SVG group for a drawing, with its upper left corner at this position.
    pub(super) fn group(&self, x: f64, y: f64) -> String {
        let mut out = format!("<g transform=\"translate({x} {y})\">\n{}", self.elements);
        for ((class, name), row) in self.legend.iter().zip(0_u8..) {
            // There are at most six names; three fit into a row.
            let (column, row) = (f64::from(row % 3), f64::from(row / 3));
            let (x, y) = (LEFT + column * (WIDTH - LEFT) / 3.0, HEIGHT + 8.0 + row * LEGEND / 2.0);
            // A write to a string cannot fail.
            let _ = writeln!(
                out,
                "<g class=\"{class}\"><path class=\"dots\" d=\"M{x:.1} {y:.1}h0\"/></g>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 10.0,
                y + 4.0,
                escape(name)
            );
        }
        out.push_str("</g>\n");
        out
    }
}

/// Draws a plot over `span` (first and last nanosecond); `None` if there are no values. `events` are times
/// to be marked by vertical lines, with descriptions.
#[must_use]
pub fn plot(span: (u64, u64), unit: Unit, layers: &[Layer<'_>], events: &[(u64, String)]) -> Option<Plot> {
    let values = || layers.iter().flat_map(|layer| layer.values);
    values().next()?;
    let most = values().map(|(_, value)| *value).fold(0.0, f64::max);
    let least = values().map(|(_, value)| *value).fold(0.0, f64::min);
    let most = if most > least { most * 1.05 } else { least + 1.0 };
    let duration = span.1.saturating_sub(span.0).max(1) as f64;
    let x = |ns: u64| LEFT + ns.saturating_sub(span.0) as f64 / duration * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - (value - least) / (most - least) * (HEIGHT - TOP - BOTTOM);
    let (right, bottom, mut out) = (WIDTH - RIGHT, HEIGHT - BOTTOM, String::new());
    // A write to a string cannot fail.
    for tick in ticks(least, most) {
        let (at, words) = (y(tick), escape(&words(unit, tick)));
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\n\
             <text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{words}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for tick in ticks(0.0, duration) {
        let (at, words) = (x(span.0.saturating_add(tick as u64)), escape(&clock::span(tick as u64)));
        let _ = writeln!(out, "<text class=\"x\" x=\"{at:.1}\" y=\"{:.1}\">{words}</text>", HEIGHT - 12.0);
    }
    for (ns, words) in events {
        let (x, words) = (x(*ns), escape(words));
        let _ = writeln!(
            out,
            "<line class=\"event\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\">\
             <title>{words}</title></line>"
        );
    }
    let drawn = || layers.iter().filter(|layer| !layer.values.is_empty());
    for Layer { name, mark, class, values } in drawn() {
        let points: Vec<(f64, f64)> = values.iter().map(|(ns, value)| (x(*ns), y(*value))).collect();
        let (name, marks) = (escape(name), marks(*mark, &points));
        let _ = writeln!(out, "<g class=\"{class}\"><title>{name}</title>\n{marks}\n</g>");
    }
    let legend = drawn().map(|layer| (layer.class, layer.name.clone())).collect();
    Some(Plot { elements: out, legend })
}

fn marks(mark: Mark, points: &[(f64, f64)]) -> String {
    match mark {
        Mark::Line => {
            let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            format!("<polyline points=\"{}\"/>", points.join(" "))
        }
        // One path with round line caps is far smaller than a circle element for each dot.
        Mark::Dots => {
            let dots: String = points.iter().map(|(x, y)| format!("M{x:.1} {y:.1}h0")).collect();
            format!("<path class=\"dots\" d=\"{dots}\"/>")
        }
        Mark::Crosses => {
            let cross = |(x, y): &(f64, f64)| format!("M{:.1} {:.1}l6 6m0 -6l-6 6", x - 3.0, y - 3.0);
            let crosses: String = points.iter().map(cross).collect();
            format!("<path class=\"cross\" d=\"{crosses}\"/>")
        }
    }
}

/// Round numbers between `least` and `most`, about six of them.
fn ticks(least: f64, most: f64) -> Vec<f64> {
    let rough = (most - least) / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
    let first = (least / step).ceil() as i64;
    let last = (most / step).floor() as i64;
    (first..=last).map(|n| n as f64 * step).collect()
}

fn words(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Time => clock::span(value as u64),
        Unit::Rate | Unit::Count => {
            let (value, prefix) = match value.abs() {
                v if v >= 1e9 => (value / 1e9, "G"),
                v if v >= 1e6 => (value / 1e6, "M"),
                v if v >= 1e3 => (value / 1e3, "k"),
                _ => (value, ""),
            };
            let number = format!("{value:.2}");
            let number = number.trim_end_matches('0').trim_end_matches('.');
            match unit {
                Unit::Rate => format!("{number} {prefix}B/s"),
                _ => format!("{number}{prefix}"),
            }
        }
    }
}

/// Escapes text for HTML and SVG.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if is_unsafe(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_inside_the_range() {
        assert_eq!(ticks(0.0, 10.5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(-3.0, 3.0), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]);
        assert_eq!(words(Unit::Rate, 2_500_000_000.0), "2.5 GB/s");
        assert_eq!(words(Unit::Count, 40_000.0), "40k");
    }

    #[test]
    fn a_plot_closes_its_elements_and_escapes_its_text() {
        let layers = [Layer { name: "a<b".into(), mark: Mark::Crosses, class: "bad", values: &[(5, 1.0)] }];
        let plot_of = |layers: &[Layer<'_>]| plot((0, 10), Unit::Count, layers, &[(7, "5 > 3".into())]);
        let drawn = plot_of(&layers).expect("there is a value");
        for text in [drawn.html(), drawn.group(0.0, 10.0)] {
            for element in ["svg", "g"] {
                let count = |tag: String| text.matches(&tag).count();
                let opened = count(format!("<{element} ")) + count(format!("<{element}>"));
                assert_eq!(opened, count(format!("</{element}>")), "{text}");
            }
            assert!(text.contains("a&lt;b") && text.contains("5 &gt; 3") && !text.contains("NaN"));
        }
        assert!(plot_of(&[]).is_none());
    }
}
