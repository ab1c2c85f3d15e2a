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
use std::fmt::{self, Write};
use std::net::IpAddr;

use wire::capture::{NotRoce, Seen};
use wire::{Ethernet, ExtHeader, Ipv4, Ipv6, Mac, Opcode, Syndrome, Udp};

use crate::clock;
use crate::source::Record;

/// Fields that a layer begins with room for: most have no more. Further ones are moved with those before.
const FIELDS: usize = 8;
/// The same for the layers with the most fields, which nearly every packet has.
const FIELDS_MANY: usize = 16;

/// A header, or another named part of a packet.
#[derive(Clone, Debug)]
pub struct Layer<'a> {
    /// Heading of the layer, to be shown.
    pub title: Words,
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
    pub meaning: Option<Words>,
}

/// A title or a meaning. The JSON style shows none of them, so their text is made when it is shown.
#[derive(Clone, Debug)]
pub enum Words {
    /// This text.
    Text(Cow<'static, str>),
    /// The date of these nanoseconds since 1970.
    Date(u64),
    /// The title of a record: its number, and its bytes on the wire and in the file.
    Frame(u64, usize, usize),
    /// This header, in a line.
    Ethernet(Ethernet),
    /// This header, in a line.
    Ipv4(Ipv4),
    /// This header, in a line.
    Ipv6(Box<Ipv6>),
    /// This header, in a line.
    Udp(Udp),
    /// The title of a base transport header with this opcode.
    Bth(Opcode),
    /// The name of an opcode.
    Opcode(Opcode),
    /// The title of an extension header.
    Extension(ExtHeader),
    /// What a syndrome says.
    Syndrome(Syndrome),
    /// The title of a payload of so many bytes.
    Payload(usize),
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Date(ns) => f.write_str(&clock::date(*ns)),
            Self::Frame(number, len, captured) => {
                write!(f, "Frame {number}: {len} bytes on wire, {captured} captured")
            }
            Self::Ethernet(header) => header.fmt(f),
            Self::Ipv4(header) => header.fmt(f),
            Self::Ipv6(header) => header.fmt(f),
            Self::Udp(header) => header.fmt(f),
            Self::Bth(opcode) => write!(f, "Base Transport Header: {opcode}"),
            Self::Opcode(opcode) => opcode.fmt(f),
            Self::Extension(header) => write!(f, "{header} - {}", roce::words(*header)),
            Self::Syndrome(syndrome) => syndrome.fmt(f),
            Self::Payload(len) => write!(f, "Payload: {len} bytes"),
        }
    }
}

impl<T: Into<Cow<'static, str>>> From<T> for Words {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
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
    /// Nanoseconds since 1970, shown as seconds.
    Time(u64),
    /// Text.
    Text(Cow<'a, str>),
}

impl Value<'_> {
    /// Writes the value as it is displayed. Into a string, this is faster than by a formatter.
    pub(crate) fn write(&self, f: &mut impl Write) -> fmt::Result {
        match self {
            Self::Number(n) => f.write_str(itoa::Buffer::new().format(*n)),
            Self::Hex(n, digits) => {
                let needed = (64 - n.leading_zeros() as usize).div_ceil(4);
                f.write_str("0x")?;
                hex(f, &n.to_be_bytes(), 16 - needed.max(*digits).min(16))
            }
            Self::Flag(set) => f.write_str(if *set { "1" } else { "0" }),
            Self::Bytes(bytes) => hex(f, bytes, 0),
            Self::Ip(IpAddr::V4(ip)) => {
                for (nth, byte) in ip.octets().into_iter().enumerate() {
                    f.write_str(if nth == 0 { "" } else { "." })?;
                    f.write_str(itoa::Buffer::new().format(byte))?;
                }
                Ok(())
            }
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::Mac(mac) => {
                let mut text = *b"00:00:00:00:00:00";
                for (digits, byte) in text.chunks_mut(3).zip(mac.0) {
                    digits[..2].copy_from_slice(&digits_of(byte));
                }
                f.write_str(ascii(&text)?)
            }
            Self::Time(ns) => f.write_str(&clock::epoch(*ns)),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f)
    }
}

/// Writes the hexadecimal digits of bytes without the first `skip` ones. Payloads are most of a capture.
fn hex(f: &mut impl Write, bytes: &[u8], mut skip: usize) -> fmt::Result {
    let mut digits = [0; 128];
    for part in bytes.chunks(digits.len() / 2) {
        for (pair, byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(part) {
            *pair = digits_of(*byte);
        }
        f.write_str(ascii(&digits[skip..2 * part.len()])?)?;
        skip = 0;
    }
    Ok(())
}

/// The two hexadecimal digits of a byte.
#[inline]
fn digits_of(byte: u8) -> [u8; 2] {
    // Without branches, so that the compiler computes many at once.
    let digit = |n: u8| n + if n < 10 { b'0' } else { b'a' - 10 };
    [digit(byte >> 4), digit(byte & 0xf)]
}

#[inline]
fn ascii(digits: &[u8]) -> Result<&str, fmt::Error> {
    str::from_utf8(digits).map_err(|_| fmt::Error)
}

impl<'a> Layer<'a> {
    fn new(title: impl Into<Words>) -> Self {
        Self { title: title.into(), fields: Vec::with_capacity(FIELDS) }
    }

    fn long(title: Words) -> Self {
        Self { title, fields: Vec::with_capacity(FIELDS_MANY) }
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

    fn text(
        self,
        name: impl Into<Cow<'static, str>>,
        label: &'static str,
        value: impl Into<Cow<'a, str>>,
    ) -> Self {
        self.add(name, label, Value::Text(value.into()))
    }

    /// Explains the value of the field added last.
    fn means(mut self, meaning: impl Into<Words>) -> Self {
        if let Some(field) = self.fields.last_mut() {
            field.meaning = Some(meaning.into());
        }
        self
    }
}

/// All fields of a packet, layer by layer.
#[must_use]
pub fn layers<'a>(record: &Record<'a>, seen: &Result<Seen<'a>, NotRoce>) -> Vec<Layer<'a>> {
    let mut layers = Vec::with_capacity(FIELDS);
    layers.push(outer::frame(record));
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
