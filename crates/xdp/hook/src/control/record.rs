//! Encoding of requests and replies: a version, then the value. Numbers are little-endian; texts and lists
//! are preceded by their length, optional values by 0 or 1, the fields of an enum by the number of its
//! variant. A record with trailing bytes is invalid.
//!
//! One list of fields, by [`fields`] or [`kinds`], serves both directions.

mod data;
mod program;
mod status;

use std::net::{IpAddr, SocketAddr};

use wire::capture::{Conditions, OpcodeSet, PsnRange};
use wire::{Psn, Qpn};

use super::super::{HookCounters, HookPoint, HookStatus, KeptFrame, TapFilter};
use super::{Reply, Request};
use roxie::printable;

/// Changes with every change of the layout.
const VERSION: u32 = 0x524f_580a;

impl Request {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        encoded(self)
    }

    /// Decodes a request; `None` if it is malformed or of another version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Request> {
        decoded(bytes)
    }
}

impl Reply {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        encoded(self)
    }

    /// Decodes a reply; `None` if it is malformed or of another version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Reply> {
        decoded(bytes)
    }
}

/// Checks that a parsed request survives encoding and parsing, and that building its hook does not panic.
#[cfg(feature = "fuzz")]
pub fn check_request(bytes: &[u8]) {
    let Some(request) = Request::parse(bytes) else { return };
    assert_eq!(Request::parse(&request.to_bytes()).as_ref(), Some(&request));
    if let Request::Attach { plan, .. } = request {
        build(&plan);
    }
}

/// Checks the same of the plan of a hook, as a file has it after the version.
#[cfg(feature = "fuzz")]
pub fn check_plan(bytes: &[u8]) {
    let parse = super::HookPlan::from_bytes;
    let Some(plan) = parse(&[&VERSION.to_le_bytes(), bytes].concat()) else { return };
    assert_eq!(parse(&plan.to_bytes()).as_ref(), Some(&plan));
    build(&plan);
}

/// Builds the hook, unless its maps take so long to create that few inputs are tried.
#[cfg(feature = "fuzz")]
fn build(plan: &super::HookPlan) {
    const MAPS_MAX: u64 = 1 << 20;
    assert!(plan.doubts().iter().all(|doubt| !doubt.is_empty()));
    if plan.maps().map(|def| def.memory_bytes(1)).fold(0, u64::saturating_add) <= MAPS_MAX {
        let _made_or_refused = plan.build();
    }
}

/// Checks that a parsed reply survives encoding and parsing.
#[cfg(feature = "fuzz")]
pub fn check_reply(bytes: &[u8]) {
    let Some(reply) = Reply::parse(bytes) else { return };
    assert_eq!(Reply::parse(&reply.to_bytes()), Some(reply));
}

fn encoded(value: &impl Field) -> Vec<u8> {
    let mut out = Vec::new();
    VERSION.put(&mut out);
    value.put(&mut out);
    out
}

fn decoded<T: Field>(bytes: &[u8]) -> Option<T> {
    let mut from = Reader(bytes);
    u32::get(&mut from).filter(|version| *version == VERSION)?;
    let value = T::get(&mut from)?;
    from.0.is_empty().then_some(value)
}

/// A value of a record.
trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);

    /// Reads what `put` writes; `None` if the bytes are no such value.
    fn get(from: &mut Reader<'_>) -> Option<Self>;
}

/// The bytes that were not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(array)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = u32::get(self)? as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Returns a list of at most `max` items.
    fn list<T>(&mut self, max: u32, mut get: impl FnMut(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
        let len = u32::get(self).filter(|len| *len <= max)?;
        // The length is not trusted with an allocation.
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(get(self)?);
        }
        Some(items)
    }
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    (bytes.len() as u32).put(out);
    out.extend(bytes);
}

fn put_list<T>(items: &[T], out: &mut Vec<u8>, put: impl Fn(&T, &mut Vec<u8>)) {
    (items.len() as u32).put(out);
    items.iter().for_each(|item| put(item, out));
}

/// Structs with these fields, in this order. The field behind a `;` is not written, and read as its default.
macro_rules! fields {
    ($($type:ident { $($field:ident),* $(; $other:ident)? })*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn get(from: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: Field::get(from)?,)* $($other: Default::default(),)? })
            }
        }
    )*};
}
use fields;

/// Enums: the number of each variant, and its fields.
macro_rules! kinds {
    ($($type:ident {
        $($number:literal => $variant:ident $(($inner:ident))? $({ $($field:ident),* })?,)*
    })*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($inner))? $({ $($field),* })? => {
                        out.push($number);
                        $($inner.put(out);)?
                        $($($field.put(out);)*)?
                    })*
                }
            }

            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                Some(match u8::get(reader)? {
                    $($number => {
                        $(let $inner = Field::get(reader)?;)?
                        $($(let $field = Field::get(reader)?;)*)?
                        Self::$variant $(($inner))? $({ $($field),* })?
                    })*
                    _ => return None,
                })
            }
        }
    )*};
}
use kinds;

kinds! {
    Request {
        1 => Attach { point, replace, held, plan },
        2 => Detach { point },
        3 => Status,
        4 => Frames,
        5 => Tap(filter),
        6 => Engine,
        7 => QueuePairs { from },
        8 => Data(request),
        9 => Objects { kind, from },
    }
    Reply {
        1 => Done,
        2 => Refused { why, remedy },
        3 => Status(hooks),
        4 => Frames(frames),
        5 => Engine(engine),
        6 => QueuePairs(page),
        7 => Data(reply),
        8 => Objects(page),
    }
    HookPoint {
        0 => Ingress,
        1 => Egress,
    }
}

fields! {
    TapFilter { snap_len, room, hosts, qps, conditions, sample, verdicts }
    Conditions { opcodes, psns, naks, congestion, errors }
    PsnRange { first, last }
    HookStatus { point, name, counters, rows, notes }
    KeptFrame { time_ns, point, key, len, bytes }
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn get(from: &mut Reader<'_>) -> Option<Self> {
                from.array().map(|bytes| Self::from_le_bytes(*bytes))
            }
        }
    )*};
}
numbers! { u8 u16 u32 u64 }

/// Types with a form that is a field itself.
macro_rules! forms {
    ($($type:ty: |$value:ident| $to:expr, |$form:ident: $as:ty| $from:expr;)*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let $value = self;
                $to.put(out);
            }

            fn get(from: &mut Reader<'_>) -> Option<Self> {
                let $form = <$as>::get(from)?;
                $from
            }
        }
    )*};
}
forms! {
    bool: |flag| u8::from(*flag), |number: u8| Some(number != 0);
    Qpn: |qpn| qpn.value(), |number: u32| Some(Qpn::new(number));
    Psn: |psn| psn.value(), |number: u32| Some(Psn::new(number));
    IpAddr: |address| address.to_string(), |text: String| text.parse().ok();
    SocketAddr: |address| address.to_string(), |text: String| text.parse().ok();
}

/// What is read may be printed to a terminal.
impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }

    fn get(from: &mut Reader<'_>) -> Option<Self> {
        std::str::from_utf8(from.bytes()?).ok().map(printable)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn get(from: &mut Reader<'_>) -> Option<Self> {
        if bool::get(from)? { T::get(from).map(Some) } else { Some(None) }
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out, T::put);
    }

    fn get(from: &mut Reader<'_>) -> Option<Self> {
        from.list(u32::MAX, T::get)
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Option<Self> {
        Some((A::get(from)?, B::get(from)?))
    }
}

impl Field for OpcodeSet {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|word| word.put(out));
    }

    fn get(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self([u64::get(from)?, u64::get(from)?, u64::get(from)?, u64::get(from)?]))
    }
}

impl Field for HookCounters {
    fn put(&self, out: &mut Vec<u8>) {
        self.values().iter().for_each(|value| value.put(out));
    }

    fn get(from: &mut Reader<'_>) -> Option<Self> {
        Self::from_values(|| u64::get(from))
    }
}
