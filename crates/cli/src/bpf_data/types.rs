//! Shows bytes by the types of a program (BTF), as text and as JSON. Types and bytes may come from a hostile
//! process.

use std::net::IpAddr;
use std::rc::Rc;

use bpf::{Btf, MapDef, Typed, Types};
use roxie_capture::filter::parse_number;
use serde_json::{Map as Object, Value, json};

use crate::frames::hex_digits;

/// The type of a key or value; without one, bytes are shown as numbers where their length allows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    types: Option<(Rc<Types>, u32)>,
}

/// What is needed to show and to parse the entries of a map.
#[derive(Clone, Debug)]
pub(crate) struct MapView {
    /// Its definition.
    pub(crate) def: MapDef,
    /// Type of the key.
    pub(crate) key: Shape,
    /// Type of the value.
    pub(crate) value: Shape,
}

impl MapView {
    /// Takes the types of a map from those of its program. Types with other lengths are not used.
    pub(crate) fn new(def: MapDef, types: Option<&Rc<Types>>) -> MapView {
        let of = types.map(|types| types.map(&def.name)).unwrap_or_default();
        let shape = |id: Option<u32>, len: u32| {
            let types = types.zip(id).filter(|(types, id)| {
                // A data section has no length of its own.
                types.len_of(*id).is_none_or(|known| known == len as usize)
            });
            Shape { types: types.map(|(types, id)| (Rc::clone(types), id)) }
        };
        MapView { key: shape(of.key, def.key_size), value: shape(of.value, def.value_size), def }
    }
}

/// Parses a blob of BTF; `None` if there is none or it cannot be used.
pub(crate) fn parse(blob: Vec<u8>) -> Option<Rc<Types>> {
    Types::parse(&Btf { blob, ..Btf::default() }).map(Rc::new)
}

impl Shape {
    /// The type with this name.
    pub(crate) fn named(types: &Rc<Types>, name: &str) -> Option<Shape> {
        types.named(name).map(|id| Shape { types: Some((Rc::clone(types), id)) })
    }

    /// Whether there is a type.
    pub(crate) fn is_known(&self) -> bool {
        self.types.is_some()
    }

    /// Length of the type in bytes.
    pub(crate) fn len(&self) -> Option<usize> {
        self.types.as_ref().and_then(|(types, id)| types.len_of(*id))
    }

    /// The bytes as a value, if there is a type.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Option<Typed> {
        self.types.as_ref().map(|(types, id)| types.decode(*id, bytes))
    }

    /// Parses a constant, or the members of a structure joined by `+`, in which an address stands for the
    /// members that have it. `None` if the text has another form.
    pub(crate) fn parse(&self, text: &str, len: usize) -> Option<Vec<u8>> {
        let (types, id) = self.types.as_ref()?;
        let number = |text: &str| {
            let is_negative = text.starts_with('-');
            if is_negative { text.parse().ok().map(i64::cast_unsigned) } else { parse_number(text) }
        };
        let leaves = types.leaves(*id)?;
        let mut left = &leaves[..];
        let mut bytes = vec![0; len];
        for part in text.split('+') {
            let (leaf, rest) = left.split_first()?;
            left = rest;
            if let Ok(address) = part.parse::<IpAddr>() {
                let address = match address {
                    IpAddr::V4(ip) => ip.octets().to_vec(),
                    IpAddr::V6(ip) => ip.octets().to_vec(),
                };
                let end = leaf.at + address.len();
                // The members that are exactly these bytes.
                let others = rest.iter().take_while(|one| one.at < end && one.len == leaf.len).count();
                let last = others.checked_sub(1).map_or(leaf, |last| &rest[last]);
                bytes.get_mut(leaf.at..end).filter(|_| last.at + last.len == end)?.copy_from_slice(&address);
                left = &rest[others..];
                continue;
            }
            let word = number(part).or_else(|| types.constant(*id, part))?;
            let word = word.to_le_bytes();
            let (low, high) = word.split_at_checked(leaf.len)?;
            let sign = if part.starts_with('-') { 0xff } else { 0 };
            if high.iter().any(|byte| *byte != sign) {
                return None;
            }
            bytes.get_mut(leaf.at..)?.get_mut(..leaf.len)?.copy_from_slice(low);
        }
        left.is_empty().then_some(bytes)
    }
}

/// A typed value as JSON. Numbers that JSON cannot hold exactly stay exact: serde writes 64 bits.
pub(crate) fn as_json(value: &Typed) -> Value {
    match value {
        Typed::Unsigned(number) => json!(number),
        Typed::Signed(number) => json!(number),
        Typed::Bool(truth) => json!(truth),
        Typed::Float(number) => json!(number),
        Typed::Text(text) => json!(text),
        Typed::List(values) => Value::Array(values.iter().map(as_json).collect()),
        Typed::Bytes(bytes) => json!(bytes),
        Typed::Struct(members) => {
            let members = members.iter().map(|(name, value)| (name.clone(), as_json(value)));
            Value::Object(members.collect::<Object<String, Value>>())
        }
    }
}

/// A typed value as text: `packets=4 bytes=640`.
pub(crate) fn as_text(value: &Typed) -> String {
    match value {
        Typed::Unsigned(number) => number.to_string(),
        Typed::Signed(number) => number.to_string(),
        Typed::Bool(truth) => truth.to_string(),
        Typed::Float(number) => number.to_string(),
        Typed::Text(text) => {
            if text.contains(' ') || text.is_empty() {
                format!("{text:?}")
            } else {
                text.clone()
            }
        }
        Typed::Bytes(bytes) => hex(bytes),
        Typed::List(values) => format!("[{}]", values.iter().map(as_text).collect::<Vec<_>>().join(" ")),
        Typed::Struct(members) => {
            let member = |(name, value): &(String, Typed)| match value {
                Typed::Struct(_) => format!("{name}={{{}}}", as_text(value)),
                _ if name.is_empty() => as_text(value),
                _ => format!("{name}={}", as_text(value)),
            };
            members.iter().map(member).collect::<Vec<_>>().join(" ")
        }
    }
}

/// Bytes as digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    format!("hex:{}", hex_digits(bytes))
}
