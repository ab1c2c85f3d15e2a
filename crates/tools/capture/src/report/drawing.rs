//! Arranges the plots below each other on one sheet, and writes it as SVG.

use std::fmt::Write;

use super::Report;
use super::page::plots;
use super::plot::{CLASSES, Plot, escape};

const MARGIN: f64 = 24.0;
/// Height of a title or a line of the verdict.
const LINE: f64 = 22.0;
/// Most characters of a line.
const LINE_LEN: usize = 125;

/// The style sheet. It has no CSS variables: not every SVG viewer knows them.
const STYLE: &str = "\
text{font:12px sans-serif;fill:#6a737d}text.y{text-anchor:end}text.x{text-anchor:middle}\
text.h{font-size:16px;font-weight:bold;fill:#1b1f24}text.v{font-size:14px;fill:#1b1f24}\
.grid{stroke:#e3e6ea}.event{stroke:#c62828;stroke-dasharray:4 4;opacity:0.55}\
polyline{fill:none;stroke:currentColor;stroke-width:1.6}\
.dots{stroke:currentColor;stroke-width:4;stroke-linecap:round;fill:none}\
.cross{stroke:currentColor;stroke-width:1.8;fill:none}";

/// The verdict and the plots of a report as an SVG drawing.
pub(super) fn svg(report: &Report<'_>) -> String {
    let Report { name, verdict, traces, .. } = report;
    let plots = plots(verdict, traces);
    let lines: Vec<String> = report.verdict_lines().iter().flat_map(|text| lines(text)).collect();
    let height =
        2.0 * MARGIN + LINE * (1 + lines.len()) as f64 + plots.len() as f64 * (MARGIN + LINE + Plot::HEIGHT);
    let width = Plot::WIDTH + 2.0 * MARGIN;
    let (mut texts, mut groups) = (String::new(), String::new());
    let mut text = |class, words: &str, y: f64| {
        let (y, words) = (y + 14.0, escape(words));
        // A write to a string cannot fail.
        let _ = writeln!(texts, "<text class=\"{class}\" x=\"{MARGIN}\" y=\"{y}\">{words}</text>");
    };
    let mut y = MARGIN;
    text("h", name, y);
    for line in lines {
        y += LINE;
        text("v", &line, y);
    }
    for (title, plot) in plots {
        y += MARGIN + LINE;
        text("h", &title, y);
        y += LINE;
        groups.push_str(&plot.group(MARGIN, y));
        y += Plot::HEIGHT - LINE;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\">\n\
         <style>{STYLE}{CLASSES}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         {texts}{groups}</svg>\n"
    )
}

/// Breaks text into lines.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= LINE_LEN => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_lines_have_all_words_and_fit() {
        let words: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let text = words.join(" ");
        let lines = lines(&text);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= LINE_LEN));
        assert_eq!(lines.join(" "), text);
    }
}
