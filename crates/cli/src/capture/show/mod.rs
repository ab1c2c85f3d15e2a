//! A packet as text: one file per style.

mod hex;
mod json;
mod layout;
mod line;
mod tree;

use clap::ValueEnum;
use wire::capture::{NotRoce, Seen};

use super::clock;
use super::source::Record;
use crate::terminal::{Terminal, Tone};

/// How packets are shown.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Style {
    /// One line for each packet
    #[default]
    Line,
    /// The headers as the C structs of Linux' rxe driver
    Struct,
    /// Every field of every header
    Tree,
    /// One JSON object for each packet, a line each, with Wireshark's field names
    Json,
    /// One line for each packet, and its bytes
    Hex,
}

/// How times are shown in lines.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Times {
    /// Time of day, UTC
    #[default]
    Day,
    /// Seconds since the first packet
    Relative,
    /// Seconds since the packet shown before
    Delta,
    /// Seconds since 1970
    Epoch,
    /// No times
    None,
}

/// Shows packets in one style.
#[derive(Clone, Debug)]
pub struct Show {
    style: Style,
    times: Times,
    terminal: Terminal,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Show {
    /// A style, with colours if `terminal` wants them.
    #[must_use]
    pub fn new(style: Style, times: Times, terminal: Terminal) -> Self {
        Self { style, times, terminal, first_ns: None, last_ns: 0 }
    }

    /// Appends the packet to `out`.
    pub fn packet<'a>(&mut self, out: &mut String, record: &Record<'a>, seen: &Result<Seen<'a>, NotRoce>) {
        match self.style {
            Style::Line => self.line(out, record, seen),
            Style::Struct => layout::packet(out, record, seen),
            Style::Tree => tree::packet(out, self.terminal, record, seen),
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
        out.push_str(&self.terminal.paint(Tone::Faint, &number));
        out.push(' ');
        if let Some(time) = self.time(record.time_ns) {
            out.push_str(&time);
            out.push(' ');
        }
        line::packet(out, self.terminal, record, seen);
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
