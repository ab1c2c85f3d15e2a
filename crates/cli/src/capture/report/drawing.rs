//! The plots alone, as one SVG file.

use std::fmt::Write;

use super::Traces;
use super::page::plots;
use super::svg::{Plot, escape};
use crate::capture::analyse::Verdict;

const MARGIN: f64 = 24.0;
/// Room for a title, or a line of the verdict.
const LINE: f64 = 22.0;
/// Characters of a line.
const LINE_LEN: usize = 125;

/// Colours are spelt out: not every program that draws SVG knows variables.
const STYLE: &str = "text{font:12px sans-serif;fill:#6a737d}text.y{text-anchor:end}text.x{text-anchor:middle}\
text.h{font-size:16px;font-weight:bold;fill:#1b1f24}text.v{font-size:14px;fill:#1b1f24}.grid{stroke:#e3e6ea}\
.event{stroke:#c62828;stroke-dasharray:4 4;opacity:.55}polyline{fill:none;stroke:currentColor;stroke-width:1.6}\
.dots{stroke:currentColor;stroke-width:4;stroke-linecap:round;fill:none}.cross{stroke:currentColor;stroke-width:1.8;fill:none}\
.c0{color:#2f6fde}.c1{color:#d9822b}.c2{color:#2aa198}.c3{color:#a05bd6}.c4{color:#7a9a01}.c5{color:#d6547f}.bad{color:#c62828}\
.ack{color:#2aa198;opacity:.75}";

pub(super) fn svg(name: &str, verdict: &Verdict, traces: &Traces) -> String {
    let plots = plots(verdict, traces);
    let lines = lines(&verdict.text());
    let height =
        2.0 * MARGIN + LINE * (1 + lines.len()) as f64 + plots.len() as f64 * (MARGIN + LINE + Plot::HEIGHT);
    let width = Plot::WIDTH + 2.0 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let mut y = MARGIN;
    // Writing to a string does not fail.
    let text = |out: &mut String, class: &str, words: &str, y: f64| {
        let _ = writeln!(out, "<text class=\"{class}\" x=\"{MARGIN}\" y=\"{y}\">{}</text>", escape(words));
    };
    text(&mut out, "h", name, y + 14.0);
    for line in &lines {
        y += LINE;
        text(&mut out, "v", line, y + 14.0);
    }
    for (title, plot) in plots {
        y += MARGIN + LINE;
        text(&mut out, "h", &title, y + 14.0);
        y += LINE;
        out.push_str(&plot.group(MARGIN, y));
        y += Plot::HEIGHT - LINE;
    }
    out.push_str("</svg>\n");
    out
}

/// Text in lines that fit.
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
    fn lines_keep_every_word_and_fit() {
        let words: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let text = words.join(" ");
        let lines = lines(&text);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= LINE_LEN));
        assert_eq!(lines.join(" "), text);
    }
}
