//! One JSON object in a line: Wireshark's field names, `roxie.` in front of what Wireshark has no name for.
//!
//! Decimal fields are numbers, flags are booleans, hexadecimal fields strings as Wireshark shows them: they are addresses and
//! keys, and 64 bits do not survive every JSON reader.

use serde_json::{Map, Value as Json};
use wire::capture::{NotRoce, Seen};

use crate::capture::fields::{self, Value};
use crate::capture::source::Record;

pub(super) fn packet<'a>(out: &mut String, record: &Record<'a>, seen: &Result<Seen<'a>, NotRoce>) {
    let mut object = Map::new();
    for field in fields::layers(record, seen).into_iter().flat_map(|layer| layer.fields) {
        let value = match field.value {
            Value::Number(n) => n.into(),
            Value::Flag(set) => set.into(),
            other => other.to_string().into(),
        };
        // A name that comes twice is a VLAN tag's: both are kept.
        match object.get_mut(field.name) {
            Some(Json::Array(list)) => list.push(value),
            Some(first) => *first = Json::Array(vec![first.take(), value]),
            None => drop(object.insert(field.name.to_owned(), value)),
        }
    }
    out.push_str(&Json::Object(object).to_string());
    out.push('\n');
}
