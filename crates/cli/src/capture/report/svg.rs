//! Plots as SVG: axes, lines, points.

use std::fmt::Write;

use crate::capture::clock;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 36.0;
/// Height of a legend in a drawing.
const LEGEND: f64 = 36.0;
/// Ticks aimed at on an axis.
const TICKS: f64 = 6.0;

/// How values of the vertical axis are written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    /// Bytes in a second.
    Rate,
    /// Nanoseconds.
    Time,
    /// A count.
    Count,
}

/// What is drawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Mark {
    Line,
    Dots,
    /// Crosses, for what went wrong.
    Crosses,
}

/// One set of values.
pub(super) struct Layer<'a> {
    pub(super) name: String,
    pub(super) mark: Mark,
    /// CSS class that decides the colour.
    pub(super) class: &'static str,
    pub(super) values: &'a [(u64, f64)],
}

/// A plot that is drawn.
#[derive(Debug)]
pub(super) struct Plot {
    elements: String,
    /// CSS class and name of each layer.
    legend: Vec<(&'static str, String)>,
}

impl Plot {
    /// Size in a drawing, legend included.
    pub(super) const WIDTH: f64 = WIDTH;
    pub(super) const HEIGHT: f64 = HEIGHT + LEGEND;

    /// For a page: an element, and its legend below.
    pub(super) fn html(&self) -> String {
        let span =
            |(class, name): &(&str, String)| format!("<span class=\"{class}\">{}</span>", escape(name));
        let legend: Vec<String> = self.legend.iter().map(span).collect();
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n{}</svg>\n<p class=\"legend\">{}</p>\n",
            self.elements,
            legend.join(" ")
        )
    }

    /// For a drawing, with its upper left corner there.
    pub(super) fn group(&self, x: f64, y: f64) -> String {
        let mut out = format!("<g transform=\"translate({x} {y})\">\n{}", self.elements);
        for ((class, name), row) in self.legend.iter().zip(0_u8..) {
            // Six names are the most there are; three fit beside each other.
            let (column, row) = (f64::from(row % 3), f64::from(row / 3));
            let (x, y) = (LEFT + column * (WIDTH - LEFT) / 3.0, HEIGHT + 8.0 + row * LEGEND / 2.0);
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "<g class=\"{class}\"><path class=\"dots\" d=\"M{x:.1} {y:.1}h0\"/></g><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 10.0,
                y + 4.0,
                escape(name)
            );
        }
        out.push_str("</g>\n");
        out
    }
}

/// A plot over `span` (first and last nanosecond); `None` if there is nothing in it. `events` are times marked by a vertical line, with
/// words.
pub(super) fn plot(
    span: (u64, u64),
    unit: Unit,
    layers: &[Layer<'_>],
    events: &[(u64, String)],
) -> Option<Plot> {
    let values = || layers.iter().flat_map(|layer| layer.values);
    values().next()?;
    let most = values().map(|(_, value)| *value).fold(0.0, f64::max);
    let least = values().map(|(_, value)| *value).fold(0.0, f64::min);
    let most = if most > least { most * 1.05 } else { least + 1.0 };
    let duration = span.1.saturating_sub(span.0).max(1) as f64;
    let x = |ns: u64| LEFT + ns.saturating_sub(span.0) as f64 / duration * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - (value - least) / (most - least) * (HEIGHT - TOP - BOTTOM);
    let mut out = String::new();
    // Writing to a string does not fail.
    for tick in ticks(least, most) {
        let (at, words) = (y(tick), words(unit, tick));
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - RIGHT
        );
        let _ =
            writeln!(out, "<text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{words}</text>", LEFT - 8.0, at + 4.0);
    }
    for tick in ticks(0.0, duration) {
        let (at, words) = (x(span.0 + tick as u64), clock::span(tick as u64));
        let _ = writeln!(out, "<text class=\"x\" x=\"{at:.1}\" y=\"{:.1}\">{words}</text>", HEIGHT - 12.0);
    }
    for (ns, words) in events {
        let at = x(*ns);
        let _ = writeln!(
            out,
            "<line class=\"event\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"><title>{}</title></line>",
            HEIGHT - BOTTOM,
            escape(words)
        );
    }
    for layer in layers.iter().filter(|layer| !layer.values.is_empty()) {
        let _ = writeln!(out, "<g class=\"{}\"><title>{}</title>", layer.class, escape(&layer.name));
        match layer.mark {
            Mark::Line => {
                let points: Vec<String> = layer
                    .values
                    .iter()
                    .map(|(ns, value)| format!("{:.1},{:.1}", x(*ns), y(*value)))
                    .collect();
                let _ = writeln!(out, "<polyline points=\"{}\"/>", points.join(" "));
            }
            // One path with a stroke as round as a dot is far smaller than a circle for each.
            Mark::Dots => {
                let dots: String = layer
                    .values
                    .iter()
                    .map(|(ns, value)| format!("M{:.1} {:.1}h0", x(*ns), y(*value)))
                    .collect();
                let _ = writeln!(out, "<path class=\"dots\" d=\"{dots}\"/>");
            }
            Mark::Crosses => {
                let crosses: String = layer
                    .values
                    .iter()
                    .map(|(ns, value)| format!("M{:.1} {:.1}l6 6m0 -6l-6 6", x(*ns) - 3.0, y(*value) - 3.0))
                    .collect();
                let _ = writeln!(out, "<path class=\"cross\" d=\"{crosses}\"/>");
            }
        }
        out.push_str("</g>\n");
    }
    let drawn = layers.iter().filter(|layer| !layer.values.is_empty());
    let legend = drawn.map(|layer| (layer.class, layer.name.clone())).collect();
    Some(Plot { elements: out, legend })
}

/// Round numbers from `least` to `most`, some six of them.
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

/// Text that is safe in HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 10.5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(-3.0, 3.0), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]);
        assert_eq!(words(Unit::Rate, 2_500_000_000.0), "2.5 GB/s");
        assert_eq!(words(Unit::Count, 40_000.0), "40k");
    }

    #[test]
    fn a_plot_is_one_element_and_its_text_is_escaped() {
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
