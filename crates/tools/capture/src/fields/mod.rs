//! Dissects a packet into layers of named fields, for the tree and JSON styles and the comparison with
//! Wireshark.
//!
//! A field has Wireshark's name. A field without one, or in a header that Wireshark 4.0 does not decode, has
//! a name that begins with `roxie.`.

mod class;
mod cm;
mod mad;
mod outer;
mod roce;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use wire::Mac;
use wire::capture::{NotRoce, Seen};

use crate::source::Record;

/// A header, or another named part of a packet.
#[derive(Clone, Debug)]
pub struct Layer<'a> {
    /// Heading of the layer, to be shown.
    pub title: String,
    /// Its fields, in wire order.
    pub fields: Vec<Field<'a>>,
}

/// One field.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    /// Wireshark's field name, or one that begins with `roxie.`.
    pub name: Cow<'static, str>,
    /// Name of the field, to be shown.
    pub label: &'static str,
    /// Value in the packet.
    pub value: Value<'a>,
    /// Explanation of the value, if it is a code.
    pub meaning: Option<String>,
}

/// A field's value, in the form Wireshark shows it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Decimal.
    Number(u64),
    /// Hexadecimal, and the number of digits.
    Hex(u64, usize),
    /// One bit.
    Flag(bool),
    /// Bytes.
    Bytes(&'a [u8]),
    /// An IP address.
    Ip(IpAddr),
    /// An Ethernet address.
    Mac(Mac),
    /// Text.
    Text(String),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => n.fmt(f),
            Self::Hex(n, digits) => write!(f, "{n:#0width$x}", width = digits + 2),
            Self::Flag(set) => f.write_str(if *set { "1" } else { "0" }),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Self::Ip(ip) => ip.fmt(f),
            Self::Mac(mac) => mac.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl<'a> Layer<'a> {
    fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), fields: Vec::new() }
    }

    fn add(mut self, name: impl Into<Cow<'static, str>>, label: &'static str, value: Value<'a>) -> Self {
        self.fields.push(Field { name: name.into(), label, value, meaning: None });
        self
    }

    fn number(self, name: impl Into<Cow<'static, str>>, label: &'static str, value: impl Into<u64>) -> Self {
        self.add(name, label, Value::Number(value.into()))
    }

    fn hex(
        self,
        name: impl Into<Cow<'static, str>>,
        label: &'static str,
        digits: usize,
        value: impl Into<u64>,
    ) -> Self {
        self.add(name, label, Value::Hex(value.into(), digits))
    }

    fn flag(self, name: impl Into<Cow<'static, str>>, label: &'static str, value: bool) -> Self {
        self.add(name, label, Value::Flag(value))
    }

    fn bytes(self, name: impl Into<Cow<'static, str>>, label: &'static str, value: &'a [u8]) -> Self {
        self.add(name, label, Value::Bytes(value))
    }

    fn text(self, name: impl Into<Cow<'static, str>>, label: &'static str, value: impl Into<String>) -> Self {
        self.add(name, label, Value::Text(value.into()))
    }

    /// Explains the value of the field added last.
    fn means(mut self, meaning: impl Into<String>) -> Self {
        if let Some(field) = self.fields.last_mut() {
            field.meaning = Some(meaning.into());
        }
        self
    }
}

/// All fields of a packet, layer by layer.
#[must_use]
pub fn layers<'a>(record: &Record<'a>, seen: &Result<Seen<'a>, NotRoce>) -> Vec<Layer<'a>> {
    let mut layers = vec![outer::frame(record)];
    match seen {
        Ok(seen) => {
            outer::headers(record, seen, &mut layers);
            roce::headers(seen, &mut layers);
        }
        Err(reason) => {
            layers.push(Layer::new("Not RoCEv2").text("roxie.not_roce", "Why", reason.to_string()));
        }
    }
    layers
}
