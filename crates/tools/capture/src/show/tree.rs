//! Shows every field of every header, indented.

use std::fmt::Write;

use wire::capture::{NotRoce, Seen};
use wire::text::Printable;

use crate::fields::{self, Value};
use crate::paint::{Colours, Tone};
use crate::source::Record;

/// Bytes shown of a long field; the JSON and hex styles show all.
const BYTES_MAX: usize = 48;

pub(super) fn packet<'a>(
    out: &mut String,
    colours: Colours,
    record: &Record<'a>,
    seen: &Result<Seen<'a>, NotRoce>,
) {
    for layer in fields::layers(record, seen) {
        out.push_str(&colours.paint(Tone::Strong, &layer.title.to_string()));
        out.push('\n');
        for field in layer.fields {
            let value = match &field.value {
                Value::Flag(set) => (if *set { "yes" } else { "no" }).to_owned(),
                Value::Bytes(bytes) if bytes.len() > BYTES_MAX => {
                    format!("{}... {} bytes", Value::Bytes(&bytes[..BYTES_MAX]), bytes.len())
                }
                Value::Text(text) => Printable(text).to_string(),
                other => other.to_string(),
            };
            // A write to a string cannot fail.
            let _ = write!(out, "    {}: {value}", field.label);
            if let Some(meaning) = field.meaning {
                let _ = write!(out, " ({meaning})");
            }
            out.push('\n');
        }
    }
    out.push('\n');
}
