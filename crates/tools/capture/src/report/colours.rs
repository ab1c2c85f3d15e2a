//! The colours of plots, the same in HTML and SVG.

use std::fmt::Write;

/// Red, green and blue, and the opacity.
pub(super) type Ink = ([u8; 3], f32);

pub(super) const LABEL: Ink = ([0x6a, 0x73, 0x7d], 1.0);
pub(super) const TEXT: Ink = ([0x1b, 0x1f, 0x24], 1.0);
pub(super) const GRID: Ink = ([0xe3, 0xe6, 0xea], 1.0);
pub(super) const EVENT: Ink = ([0xc6, 0x28, 0x28], 0.55);

/// Colours of lines and dots, by CSS class.
const CLASSES: [(&str, Ink); 8] = [
    ("c0", ([0x2f, 0x6f, 0xde], 1.0)),
    ("c1", ([0xd9, 0x82, 0x2b], 1.0)),
    ("c2", ([0x2a, 0xa1, 0x98], 1.0)),
    ("c3", ([0xa0, 0x5b, 0xd6], 1.0)),
    ("c4", ([0x7a, 0x9a, 0x01], 1.0)),
    ("c5", ([0xd6, 0x54, 0x7f], 1.0)),
    ("bad", ([0xc6, 0x28, 0x28], 1.0)),
    ("ack", ([0x2a, 0xa1, 0x98], 0.75)),
];

/// The classes as CSS rules.
pub(super) fn classes() -> String {
    let mut css = String::new();
    for (class, ink) in CLASSES {
        let opacity = if ink.1 < 1.0 { format!(";opacity:{}", ink.1) } else { String::new() };
        // A write to a string cannot fail.
        let _ = write!(css, ".{class}{{color:{}{opacity}}}", hex(ink));
    }
    css
}

/// A colour as CSS writes it: `#2f6fde`.
pub(super) fn hex(([red, green, blue], _opacity): Ink) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_sheet_has_a_rule_for_each_class() {
        let css = classes();
        assert!(
            css.starts_with(".c0{color:#2f6fde}.c1{") && css.ends_with(".ack{color:#2aa198;opacity:0.75}"),
            "{css}"
        );
    }
}
