//! Shows a packet as one JSON object on one line. Fields have Wireshark's names; fields unknown to Wireshark
//! have names that begin with `roxie.`.
//!
//! Decimal fields are numbers and flags are booleans. Hexadecimal fields are strings, as Wireshark shows
//! them: addresses and keys have 64 bits, which many JSON readers round.

use std::fmt::Write;

use serde_json::Value as Json;
use wire::capture::{NotRoce, Seen};

use crate::fields::{self, Field, Layer, Value};
use crate::source::Record;

pub(super) fn packet<'a>(out: &mut String, record: &Record<'a>, seen: &Result<Seen<'a>, NotRoce>) {
    let layers = fields::layers(record, seen);
    let mut start = "{\"";
    if let Some(name) = record.interface_name {
        start = ",\"";
        out.push_str("{\"frame.interface_name\":");
        text(out, name);
    }
    // Layers that share a name begin with the same one, so only these are compared.
    let is_twin = |(nth, layer)| layers[..nth].iter().any(|other| begins(other) == begins(layer));
    let has_twins = layers.iter().enumerate().any(is_twin);
    for field in all(&layers) {
        let same = || all(&layers).filter(|other| other.name == field.name);
        debug_assert!(has_twins || same().count() == 1, "{}", field.name);
        if has_twins && !same().next().is_some_and(|first| std::ptr::eq(first, field)) {
            continue;
        }
        out.push_str(start);
        start = ",\"";
        out.push_str(&field.name);
        out.push_str("\":");
        if !has_twins || same().count() == 1 {
            value(out, &field.value);
            continue;
        }
        // A second VLAN tag has the same field names: both values are kept.
        for (nth, other) in same().enumerate() {
            out.push(if nth == 0 { '[' } else { ',' });
            value(out, &other.value);
        }
        out.push(']');
    }
    out.push_str("}\n");
}

fn begins<'b>(layer: &'b Layer<'_>) -> Option<&'b str> {
    layer.fields.first().map(|field| &*field.name)
}

fn all<'a, 'b>(layers: &'b [Layer<'a>]) -> impl Iterator<Item = &'b Field<'a>> {
    layers.iter().flat_map(|layer| &layer.fields)
}

fn value(out: &mut String, value: &Value<'_>) {
    match value {
        Value::Flag(set) => out.push_str(if *set { "true" } else { "false" }),
        Value::Text(of) => text(out, of),
        // Numbers; and digits and addresses, which have no characters that JSON escapes.
        other => {
            let quote = if matches!(other, Value::Number(_)) { "" } else { "\"" };
            out.push_str(quote);
            // A write to a string cannot fail.
            let _ = other.write(out);
            out.push_str(quote);
        }
    }
}

fn text(out: &mut String, text: &str) {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
        out.extend(["\"", text, "\""]);
    } else {
        let _ = write!(out, "{}", Json::from(text));
    }
}
