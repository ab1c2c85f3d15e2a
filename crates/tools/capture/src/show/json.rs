//! Shows a packet as one JSON object on one line. Fields have Wireshark's names; fields unknown to Wireshark
//! have names that begin with `roxie.`.
//!
//! Decimal fields are numbers and flags are booleans. Hexadecimal fields are strings, as Wireshark shows
//! them: addresses and keys have 64 bits, which many JSON readers round.

use serde_json::{Map, Value as Json};
use wire::capture::{NotRoce, Seen};

use crate::fields::{self, Value};
use crate::source::Record;

pub(super) fn packet<'a>(out: &mut String, record: &Record<'a>, seen: &Result<Seen<'a>, NotRoce>) {
    let mut object = Map::new();
    if let Some(name) = record.interface_name {
        object.insert("frame.interface_name".to_owned(), name.into());
    }
    for field in fields::layers(record, seen).into_iter().flat_map(|layer| layer.fields) {
        let value = match field.value {
            Value::Number(n) => n.into(),
            Value::Flag(set) => set.into(),
            other => other.to_string().into(),
        };
        // A second VLAN tag has the same field names: both values are kept.
        match object.get_mut(&*field.name) {
            Some(Json::Array(list)) => list.push(value),
            Some(first) => *first = Json::Array(vec![first.take(), value]),
            None => drop(object.insert(field.name.into_owned(), value)),
        }
    }
    out.push_str(&Json::Object(object).to_string());
    out.push('\n');
}
