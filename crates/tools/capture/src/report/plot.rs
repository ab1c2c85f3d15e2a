//! Lays out plots as shapes: axes, lines, points and their positions. `svg` writes them.

use crate::clock;

pub(super) const WIDTH: f64 = 960.0;
pub(super) const HEIGHT: f64 = 280.0;
pub(super) const LEFT: f64 = 90.0;
pub(super) const RIGHT: f64 = 20.0;
pub(super) const TOP: f64 = 14.0;
pub(super) const BOTTOM: f64 = 36.0;
/// Height of a legend in a drawing.
pub(super) const LEGEND: f64 = 36.0;
/// Approximate number of ticks on an axis.
const TICKS: f64 = 6.0;

/// Unit of the vertical axis.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    /// Bytes per second.
    Rate,
    /// Nanoseconds.
    Time,
    /// A count.
    Count,
}

/// How values are drawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Mark {
    Line,
    Dots,
    /// Crosses, for errors.
    Crosses,
}

/// A set of values.
pub(super) struct Layer<'a> {
    pub(super) name: String,
    pub(super) mark: Mark,
    /// CSS class that decides the colour.
    pub(super) class: &'static str,
    pub(super) values: &'a [(u64, f64)],
}

/// Alignment of a label.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Axis {
    /// Below the plot, centred on its position.
    X,
    /// To the left of the plot, ending at its position.
    Y,
}

/// A part of a plot. Positions are relative to its upper left corner.
#[derive(Debug)]
pub(super) enum Shape {
    /// A horizontal line of the grid.
    Grid { y: f64 },
    /// The label of a tick.
    Label { axis: Axis, x: f64, y: f64, words: String },
    /// A vertical line that marks an event, and its description.
    Event { x: f64, words: String },
    /// The values of a layer.
    Values { class: &'static str, name: String, mark: Mark, points: Vec<(f64, f64)> },
}

/// A plot, laid out.
#[derive(Debug)]
pub(super) struct Plot {
    pub(super) shapes: Vec<Shape>,
    /// CSS class and name of each layer.
    pub(super) legend: Vec<(&'static str, String)>,
}

impl Plot {
    /// Size in a drawing, legend included.
    pub(super) const WIDTH: f64 = WIDTH;
    pub(super) const HEIGHT: f64 = HEIGHT + LEGEND;

    /// The entries of the legend below the plot: position of the mark, class and name.
    pub(super) fn legend(&self) -> impl Iterator<Item = (f64, f64, &'static str, &str)> {
        self.legend.iter().zip(0_u8..).map(|((class, name), row)| {
            // There are at most six names; three fit into a row.
            let (column, row) = (f64::from(row % 3), f64::from(row / 3));
            let (x, y) = (LEFT + column * (WIDTH - LEFT) / 3.0, HEIGHT + 8.0 + row * LEGEND / 2.0);
            (x, y, *class, name.as_str())
        })
    }
}

/// Lays out a plot over `span` (first and last nanosecond); `None` if there are no values. `events` are times
/// to be marked by vertical lines, with descriptions.
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
    let mut shapes = Vec::new();
    for tick in ticks(least, most) {
        let (at, words) = (y(tick), words(unit, tick));
        shapes.push(Shape::Grid { y: at });
        shapes.push(Shape::Label { axis: Axis::Y, x: LEFT - 8.0, y: at + 4.0, words });
    }
    for tick in ticks(0.0, duration) {
        let (at, words) = (x(span.0 + tick as u64), clock::span(tick as u64));
        shapes.push(Shape::Label { axis: Axis::X, x: at, y: HEIGHT - 12.0, words });
    }
    shapes.extend(events.iter().map(|(ns, words)| Shape::Event { x: x(*ns), words: words.clone() }));
    let drawn = || layers.iter().filter(|layer| !layer.values.is_empty());
    shapes.extend(drawn().map(|layer| Shape::Values {
        class: layer.class,
        name: layer.name.clone(),
        mark: layer.mark,
        points: layer.values.iter().map(|(ns, value)| (x(*ns), y(*value))).collect(),
    }));
    let legend = drawn().map(|layer| (layer.class, layer.name.clone())).collect();
    Some(Plot { shapes, legend })
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
}
