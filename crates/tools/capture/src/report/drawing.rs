//! Arranges the plots below each other on one sheet, and writes it as SVG.

use std::fmt::Write;

use super::Report;
use super::colours::{EVENT, GRID, LABEL, TEXT, classes, hex};
use super::page::plots;
use super::plot::Plot;
use super::svg::escape;

const MARGIN: f64 = 24.0;
/// Height of a title or a line of the verdict.
const LINE: f64 = 22.0;
/// Most characters of a line.
const LINE_LEN: usize = 125;

/// The style sheet. It has no CSS variables: not every SVG viewer knows them.
fn style() -> String {
    let (label, text, grid, event) = (hex(LABEL), hex(TEXT), hex(GRID), hex(EVENT));
    format!(
        "text{{font:12px sans-serif;fill:{label}}}text.y{{text-anchor:end}}text.x{{text-anchor:middle}}\
         text.h{{font-size:16px;font-weight:bold;fill:{text}}}text.v{{font-size:14px;fill:{text}}}\
         .grid{{stroke:{grid}}}.event{{stroke:{event};stroke-dasharray:4 4;opacity:{}}}\
         polyline{{fill:none;stroke:currentColor;stroke-width:1.6}}\
         .dots{{stroke:currentColor;stroke-width:4;stroke-linecap:round;fill:none}}\
         .cross{{stroke:currentColor;stroke-width:1.8;fill:none}}{}",
        EVENT.1,
        classes()
    )
}

/// Texts and plots with their positions. The position of a text is on its base line, that of a plot its upper
/// left corner.
pub(super) struct Sheet {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) texts: Vec<Text>,
    pub(super) plots: Vec<(f64, f64, Plot)>,
}

pub(super) struct Text {
    pub(super) is_title: bool,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) words: String,
}

impl Sheet {
    pub(super) fn new(report: &Report<'_>) -> Self {
        let Report { name, verdict, traces, .. } = report;
        let plots = plots(verdict, traces);
        let lines: Vec<String> = report.verdict_lines().iter().flat_map(|text| lines(text)).collect();
        let height = 2.0 * MARGIN
            + LINE * (1 + lines.len()) as f64
            + plots.len() as f64 * (MARGIN + LINE + Plot::HEIGHT);
        let width = Plot::WIDTH + 2.0 * MARGIN;
        let mut sheet = Self { width, height, texts: Vec::new(), plots: Vec::new() };
        let text = |is_title, words, y: f64| Text { is_title, x: MARGIN, y: y + 14.0, words };
        let mut y = MARGIN;
        sheet.texts.push(text(true, (*name).to_owned(), y));
        for line in lines {
            y += LINE;
            sheet.texts.push(text(false, line, y));
        }
        for (title, plot) in plots {
            y += MARGIN + LINE;
            sheet.texts.push(text(true, title, y));
            y += LINE;
            sheet.plots.push((MARGIN, y, plot));
            y += Plot::HEIGHT - LINE;
        }
        sheet
    }

    pub(super) fn svg(&self) -> String {
        let (width, height) = (self.width, self.height);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\">\n\
             <style>{}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
            style()
        );
        for Text { is_title, x, y, words } in &self.texts {
            let class = if *is_title { "h" } else { "v" };
            // A write to a string cannot fail.
            let _ = writeln!(out, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escape(words));
        }
        for (x, y, plot) in &self.plots {
            out.push_str(&plot.group(*x, *y));
        }
        out.push_str("</svg>\n");
        out
    }
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
