//! Writes plots as SVG.

use std::fmt::Write;

use wire::text::is_unsafe;

use super::plot::{Axis, BOTTOM, HEIGHT, LEFT, Mark, Plot, RIGHT, Shape, TOP, WIDTH};

impl Plot {
    /// An SVG element for the HTML page, with its legend below.
    pub(super) fn html(&self) -> String {
        let span =
            |(class, name): &(&str, String)| format!("<span class=\"{class}\">{}</span>", escape(name));
        let legend: Vec<String> = self.legend.iter().map(span).collect();
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n{}</svg>\n<p class=\"legend\">{}</p>\n",
            self.elements(),
            legend.join(" ")
        )
    }

    /// An SVG group for a drawing, with its upper left corner at this position.
    pub(super) fn group(&self, x: f64, y: f64) -> String {
        let mut out = format!("<g transform=\"translate({x} {y})\">\n{}", self.elements());
        for (x, y, class, name) in self.legend() {
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

    fn elements(&self) -> String {
        let mut out = String::new();
        for shape in &self.shapes {
            // A write to a string cannot fail.
            let _ = writeln!(out, "{}", element(shape));
        }
        out
    }
}

fn element(shape: &Shape) -> String {
    match shape {
        Shape::Grid { y } => {
            let right = WIDTH - RIGHT;
            format!("<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>")
        }
        Shape::Label { axis, x, y, words } => {
            let class = match axis {
                Axis::X => "x",
                Axis::Y => "y",
            };
            format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(words))
        }
        Shape::Event { x, words } => format!(
            "<line class=\"event\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\">\
             <title>{}</title></line>",
            HEIGHT - BOTTOM,
            escape(words)
        ),
        Shape::Values { class, name, mark, points } => {
            format!("<g class=\"{class}\"><title>{}</title>\n{}\n</g>", escape(name), values(*mark, points))
        }
    }
}

fn values(mark: Mark, points: &[(f64, f64)]) -> String {
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

/// Escapes text for HTML and SVG.
pub(super) fn escape(text: &str) -> String {
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
    use super::super::plot::{Layer, Unit, plot};
    use super::*;

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
