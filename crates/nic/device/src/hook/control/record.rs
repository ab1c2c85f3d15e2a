//! Encoding of requests and replies: a version, a kind, then the fields, little-endian; texts and lists
//! are preceded by their length. A record with trailing bytes is invalid.

mod data;
mod program;
mod status;

use wire::capture::{Conditions, OpcodeSet, PsnRange};
use wire::{Psn, Qpn};

use super::super::{HookCounters, HookPoint, HookStatus, KeptFrame, TapFilter};
use super::{Reply, Request};
use crate::printable;

/// Changes with every change of the layout.
const VERSION: u32 = 0x524f_5809;

impl Request {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Request::Attach { point, plan, replace, held } => {
                out.u8(1);
                out.point(*point);
                out.u8(u8::from(*replace));
                out.u8(u8::from(*held));
                out.plan(plan);
            }
            Request::Detach { point } => {
                out.u8(2);
                out.point(*point);
            }
            Request::Status => out.u8(3),
            Request::Frames => out.u8(4),
            Request::Tap(filter) => {
                out.u8(5);
                out.u32(filter.snap_len);
                out.u32(filter.room);
                out.list(&filter.hosts, |out, host| out.text(&host.to_string()));
                out.list(&filter.qps, |out, qpn| out.u32(qpn.value()));
                out.conditions(&filter.conditions);
                out.u32(filter.sample);
                out.u8(u8::from(filter.verdicts));
            }
            Request::Engine => out.u8(6),
            Request::QueuePairs { from } => {
                out.u8(7);
                out.u32(*from);
            }
            Request::Objects { kind, from } => {
                out.u8(9);
                out.u8(*kind as u8);
                out.u32(*from);
            }
            Request::Data(request) => {
                out.u8(8);
                out.data_request(request);
            }
        }
        out.0
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Request> {
        let mut fields = Reader::new(bytes)?;
        let request = match fields.u8()? {
            1 => {
                let (point, replace, held) = (fields.point()?, fields.u8()? != 0, fields.u8()? != 0);
                Request::Attach { point, plan: fields.plan()?, replace, held }
            }
            2 => Request::Detach { point: fields.point()? },
            3 => Request::Status,
            4 => Request::Frames,
            5 => Request::Tap(TapFilter {
                snap_len: fields.u32()?,
                room: fields.u32()?,
                hosts: fields.list(|fields| fields.text()?.parse().ok())?,
                qps: fields.list(|fields| Some(Qpn::new(fields.u32()?)))?,
                conditions: fields.conditions()?,
                sample: fields.u32()?,
                verdicts: fields.u8()? != 0,
            }),
            6 => Request::Engine,
            7 => Request::QueuePairs { from: fields.u32()? },
            8 => Request::Data(fields.data_request()?),
            9 => Request::Objects { kind: fields.kind()?, from: fields.u32()? },
            _ => return None,
        };
        fields.0.is_empty().then_some(request)
    }
}

impl Reply {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Reply::Done => out.u8(1),
            Reply::Refused { why, remedy } => {
                out.u8(2);
                out.text(why);
                out.text(remedy.as_deref().unwrap_or_default());
            }
            Reply::Status(hooks) => {
                out.u8(3);
                out.list(hooks, |out, hook| {
                    out.point(hook.point);
                    out.text(&hook.name);
                    hook.counters.values().into_iter().for_each(|value| out.u64(value));
                    out.rows(&hook.rows);
                    out.list(&hook.notes, |out, note| out.text(note));
                });
            }
            Reply::Frames(frames) => {
                out.u8(4);
                out.list(frames, Writer::frame);
            }
            Reply::Engine(engine) => {
                out.u8(5);
                out.engine(engine);
            }
            Reply::QueuePairs(page) => {
                out.u8(6);
                out.page(page);
            }
            Reply::Objects(page) => {
                out.u8(8);
                out.objects(page);
            }
            Reply::Data(reply) => {
                out.u8(7);
                out.data_reply(reply);
            }
        }
        out.0
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Reply> {
        let mut fields = Reader::new(bytes)?;
        let reply = match fields.u8()? {
            1 => Reply::Done,
            2 => Reply::Refused {
                why: fields.text()?,
                remedy: Some(fields.text()?).filter(|text| !text.is_empty()),
            },
            3 => Reply::Status(fields.list(|fields| {
                Some(HookStatus {
                    point: fields.point()?,
                    name: fields.text()?,
                    counters: HookCounters::from_values(|| fields.u64())?,
                    rows: fields.rows()?,
                    notes: fields.list(Reader::text)?,
                })
            })?),
            4 => Reply::Frames(fields.list(Reader::frame)?),
            5 => Reply::Engine(fields.engine()?),
            6 => Reply::QueuePairs(fields.page()?),
            7 => Reply::Data(fields.data_reply()?),
            8 => Reply::Objects(fields.objects()?),
            _ => return None,
        };
        fields.0.is_empty().then_some(reply)
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

struct Writer(Vec<u8>);

impl Writer {
    fn new() -> Writer {
        Writer(VERSION.to_le_bytes().to_vec())
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn list<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Writer, &T)) {
        self.u32(items.len() as u32);
        items.iter().for_each(|item| put(self, item));
    }

    fn point(&mut self, point: HookPoint) {
        self.u8(u8::from(point == HookPoint::Egress));
    }

    fn conditions(&mut self, conditions: &Conditions) {
        conditions.opcodes.0.into_iter().for_each(|word| self.u64(word));
        self.list(conditions.psns.as_slice(), |out, range| {
            out.u32(range.first.value());
            out.u32(range.last.value());
        });
        for flag in [conditions.naks, conditions.congestion, conditions.errors] {
            self.u8(u8::from(flag));
        }
    }

    fn rows(&mut self, rows: &[(String, u64)]) {
        self.list(rows, |out, (name, value)| {
            out.text(name);
            out.u64(*value);
        });
    }

    fn frame(&mut self, frame: &KeptFrame) {
        self.u64(frame.time_ns);
        self.point(frame.point);
        self.u32(frame.key);
        self.u32(frame.len);
        self.bytes(&frame.bytes);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Option<Reader<'a>> {
        let mut reader = Reader(bytes);
        (reader.u32()? == VERSION).then_some(reader)
    }

    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(array)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| *byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Text of the other process, which may be hostile: it is shown on terminals.
    fn text(&mut self) -> Option<String> {
        std::str::from_utf8(self.bytes()?).ok().map(printable)
    }

    /// Ends with the bytes, whatever length is announced: every item takes at least one byte.
    fn list<T>(&mut self, get: impl FnMut(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
        self.list_of(u32::MAX, get)
    }

    /// A list of at most `max` items.
    fn list_of<T>(&mut self, max: u32, mut get: impl FnMut(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
        let len = self.u32().filter(|len| *len <= max)?;
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(get(self)?);
        }
        Some(items)
    }

    fn point(&mut self) -> Option<HookPoint> {
        HookPoint::ALL.get(usize::from(self.u8()?)).copied()
    }

    fn conditions(&mut self) -> Option<Conditions> {
        let opcodes = OpcodeSet([self.u64()?, self.u64()?, self.u64()?, self.u64()?]);
        let psn = |fields: &mut Self| Some(Psn::new(fields.u32()?));
        let psns = self.list(|fields| Some(PsnRange { first: psn(fields)?, last: psn(fields)? }))?;
        let mut flag = || Some(self.u8()? != 0);
        let (naks, congestion, errors) = (flag()?, flag()?, flag()?);
        // A valid request has at most one range.
        Some(Conditions { opcodes, psns: psns.first().copied(), naks, congestion, errors })
    }

    fn rows(&mut self) -> Option<Vec<(String, u64)>> {
        self.list(|fields| Some((fields.text()?, fields.u64()?)))
    }

    fn frame(&mut self) -> Option<KeptFrame> {
        Some(KeptFrame {
            time_ns: self.u64()?,
            point: self.point()?,
            key: self.u32()?,
            len: self.u32()?,
            bytes: self.bytes()?.to_vec(),
        })
    }
}
