//! Encoding of requests for data of programs, and of the replies.

use bpf::{Page, UpdateMode};

use super::{Reader, Writer};
use crate::hook::{DataReply, DataRequest, HookMap, HookRecords, LogLine, MapId};

impl Writer {
    pub(super) fn data_request(&mut self, request: &DataRequest) {
        match request {
            DataRequest::Maps => self.u8(1),
            DataRequest::Types(map) => self.about(2, *map),
            DataRequest::Page { map, from, with_zeros } => {
                self.about(3, *map);
                self.u32(*from);
                self.u8(u8::from(*with_zeros));
            }
            DataRequest::Lookup { map, key } => {
                self.about(4, *map);
                self.bytes(key);
            }
            DataRequest::Update { map, key, value, mode } => {
                self.about(5, *map);
                self.bytes(key);
                self.bytes(value);
                self.u8(match mode {
                    UpdateMode::Any => 0,
                    UpdateMode::NoExist => 1,
                    UpdateMode::Exist => 2,
                });
            }
            DataRequest::Delete { map, key } => {
                self.about(6, *map);
                self.bytes(key);
            }
            DataRequest::Records(map) => self.about(7, *map),
            DataRequest::Log => self.u8(8),
        }
    }

    pub(super) fn data_reply(&mut self, reply: &DataReply) {
        match reply {
            DataReply::Done => self.u8(1),
            DataReply::Maps(maps) => {
                self.u8(2);
                self.list(maps, |out, map| {
                    out.map_id(map.id);
                    out.point(map.point);
                    out.text(&map.program);
                    out.map(&map.def);
                });
            }
            DataReply::Types(types) => {
                self.u8(3);
                self.bytes(types);
            }
            DataReply::Page(page) => {
                self.u8(4);
                self.list(&page.entries, |out, (key, value)| {
                    out.bytes(key);
                    out.bytes(value);
                });
                self.list(page.next.as_slice(), |out, next| out.u32(*next));
            }
            DataReply::Value(value) => {
                self.u8(5);
                self.list(value.as_slice(), |out, value| out.bytes(value));
            }
            DataReply::Records(records) => {
                self.u8(6);
                self.list(&records.records, |out, record| out.bytes(record));
                self.u64(records.lost);
            }
            DataReply::Log { lines, lost } => {
                self.u8(7);
                self.list(lines, |out, line| {
                    out.u64(line.time_ns);
                    out.point(line.point);
                    out.text(&line.program);
                    out.text(&line.text);
                });
                self.u64(*lost);
            }
        }
    }

    fn about(&mut self, kind: u8, map: MapId) {
        self.u8(kind);
        self.map_id(map);
    }

    fn map_id(&mut self, id: MapId) {
        self.u64(id.hook);
        self.u32(id.index);
    }
}

impl Reader<'_> {
    pub(super) fn data_request(&mut self) -> Option<DataRequest> {
        Some(match self.u8()? {
            1 => DataRequest::Maps,
            2 => DataRequest::Types(self.map_id()?),
            3 => DataRequest::Page { map: self.map_id()?, from: self.u32()?, with_zeros: self.u8()? != 0 },
            4 => DataRequest::Lookup { map: self.map_id()?, key: self.bytes()?.to_vec() },
            5 => DataRequest::Update {
                map: self.map_id()?,
                key: self.bytes()?.to_vec(),
                value: self.bytes()?.to_vec(),
                mode: UpdateMode::from_flags(self.u8()?.into())?,
            },
            6 => DataRequest::Delete { map: self.map_id()?, key: self.bytes()?.to_vec() },
            7 => DataRequest::Records(self.map_id()?),
            8 => DataRequest::Log,
            _ => return None,
        })
    }

    pub(super) fn data_reply(&mut self) -> Option<DataReply> {
        Some(match self.u8()? {
            1 => DataReply::Done,
            2 => DataReply::Maps(self.list(|fields| {
                let (id, point) = (fields.map_id()?, fields.point()?);
                Some(HookMap { id, point, program: fields.text()?, def: fields.map()? })
            })?),
            3 => DataReply::Types(self.bytes()?.to_vec()),
            4 => {
                let entries =
                    self.list(|fields| Some((fields.bytes()?.to_vec(), fields.bytes()?.to_vec())))?;
                DataReply::Page(Page { entries, next: self.list(Reader::u32)?.first().copied() })
            }
            5 => {
                let value = self.list(|fields| fields.bytes().map(<[u8]>::to_vec))?;
                DataReply::Value(value.into_iter().next())
            }
            6 => {
                let records = self.list(|fields| fields.bytes().map(<[u8]>::to_vec))?;
                DataReply::Records(HookRecords { records, lost: self.u64()? })
            }
            7 => {
                let line = |fields: &mut Self| {
                    let (time_ns, point) = (fields.u64()?, fields.point()?);
                    Some(LogLine { time_ns, point, program: fields.text()?, text: fields.text()? })
                };
                DataReply::Log { lines: self.list(line)?, lost: self.u64()? }
            }
            _ => return None,
        })
    }

    fn map_id(&mut self) -> Option<MapId> {
        Some(MapId { hook: self.u64()?, index: self.u32()? })
    }
}
