//! Shows packets as text; each style has a file.

mod hex;
mod json;
mod layout;
mod line;
mod tree;

use wire::capture::{NotRoce, Seen};

use crate::clock;
use crate::paint::{Colours, Tone, text};
use crate::source::Record;

/// How a packet is shown.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Style {
    /// One line for each packet.
    #[default]
    Line,
    /// The headers as the C structs of Linux's rxe driver.
    Struct,
    /// Every field of every header.
    Tree,
    /// One JSON object for each packet, on one line, with Wireshark's field names.
    Json,
    /// One line for each packet, and its bytes.
    Hex,
}

/// How times are shown in lines.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Times {
    /// Time of day, UTC.
    #[default]
    Day,
    /// Seconds since the first packet.
    Relative,
    /// Seconds since the packet shown before.
    Delta,
    /// Seconds since 1970.
    Epoch,
    /// No times.
    None,
}

/// Shows packets in one style.
#[derive(Clone, Debug)]
pub struct Show {
    style: Style,
    times: Times,
    colours: Colours,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Show {
    /// Shows packets in this style. Only [`Style::Line`], [`Style::Tree`] and [`Style::Hex`] have colours.
    #[must_use]
    pub fn new(style: Style, times: Times, colours: Colours) -> Self {
        Self { style, times, colours, first_ns: None, last_ns: 0 }
    }

    /// Appends the text of a packet, which ends with a newline, to `out`.
    pub fn packet<'a>(&mut self, out: &mut String, record: &Record<'a>, seen: &Result<Seen<'a>, NotRoce>) {
        match self.style {
            Style::Line => self.line(out, record, seen),
            Style::Struct => layout::packet(out, record, seen),
            Style::Tree => tree::packet(out, self.colours, record, seen),
            Style::Json => json::packet(out, record, seen),
            Style::Hex => {
                self.line(out, record, seen);
                hex::dump(out, record.data);
            }
        }
        self.last_ns = record.time_ns;
    }

    fn line<'a>(&mut self, out: &mut String, record: &Record<'a>, seen: &Result<Seen<'a>, NotRoce>) {
        let number = format!("{:>6}", record.number);
        out.push_str(&self.colours.paint(Tone::Faint, &number));
        out.push(' ');
        if let Some(time) = self.time(record.time_ns) {
            out.push_str(&time);
            out.push(' ');
        }
        if let Some(name) = record.interface_name {
            out.push_str(&self.colours.paint(Tone::Faint, &format!("[{}] ", text(name.as_bytes()))));
        }
        line::packet(out, self.colours, record, seen);
        out.push('\n');
    }

    fn time(&mut self, ns: u64) -> Option<String> {
        let first = *self.first_ns.get_or_insert(ns);
        let since = |then: u64| {
            let sign = if ns < then { "-" } else { "" };
            format!("{sign}{}", clock::epoch(ns.abs_diff(then)))
        };
        match self.times {
            Times::Day => Some(clock::time_of_day(ns)),
            Times::Relative => Some(since(first)),
            Times::Delta => Some(since(if self.last_ns == 0 { ns } else { self.last_ns })),
            Times::Epoch => Some(clock::epoch(ns)),
            Times::None => None,
        }
    }
}
