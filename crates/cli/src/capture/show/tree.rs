//! Every field of every header, indented.

use std::fmt::Write;

use wire::capture::{NotRoce, Seen};

use crate::capture::fields::{self, Value};
use crate::capture::source::Record;
use crate::terminal::{Terminal, Tone};

/// Bytes of a long field that are shown; `--json` and `--format hex` have all.
const BYTES_MAX: usize = 48;

pub(super) fn packet<'a>(
    out: &mut String,
    terminal: Terminal,
    record: &Record<'a>,
    seen: &Result<Seen<'a>, NotRoce>,
) {
    for layer in fields::layers(record, seen) {
        out.push_str(&terminal.paint(Tone::Strong, &layer.title));
        out.push('\n');
        for field in layer.fields {
            let value = match &field.value {
                Value::Flag(set) => (if *set { "yes" } else { "no" }).to_owned(),
                Value::Bytes(bytes) if bytes.len() > BYTES_MAX => {
                    format!("{}... {} bytes", Value::Bytes(&bytes[..BYTES_MAX]), bytes.len())
                }
                other => other.to_string(),
            };
            // Writing to a string does not fail.
            let _ = write!(out, "    {}: {value}", field.label);
            if let Some(meaning) = field.meaning {
                let _ = write!(out, " ({meaning})");
            }
            out.push('\n');
        }
    }
    out.push('\n');
}
