//! The client's requests for data of programs: maps, records, printed lines.

use bpf::{Page, UpdateMode};

use super::client::{ControlError, Remote};
use super::{Reply, Request};
use crate::{DataReply, DataRequest, HookMap, HookRecords, LogLine, MapId};

impl Remote {
    /// Lists the maps of the attached programs.
    ///
    /// # Errors
    /// The process does not answer.
    pub fn maps(&self) -> Result<Vec<HookMap>, ControlError> {
        expect!(self.data(DataRequest::Maps)?, DataReply::Maps(maps) => maps)
    }

    /// Returns the type information (BTF) of the program that has this map; empty if there is none, or if it
    /// takes more than 128 KiB. It comes from the other process, which may be hostile.
    ///
    /// # Errors
    /// The hook was replaced, or the process does not answer.
    pub fn types(&self, map: MapId) -> Result<Vec<u8>, ControlError> {
        expect!(self.data(DataRequest::Types(map))?, DataReply::Types(types) => types)
    }

    /// Returns entries of a map, as [`bpf::Map::page`] does. The lengths are those that the process reports.
    ///
    /// # Errors
    /// The hook was replaced, an entry does not fit into a reply, or the process does not answer.
    pub fn page(&self, map: MapId, from: u32, with_zeros: bool) -> Result<Page, ControlError> {
        let reply = self.data(DataRequest::Page { map, from, with_zeros })?;
        // A page that does not lead on would be read for ever.
        expect!(reply, DataReply::Page(page) if page.next.is_none_or(|next| next > from) => page)
    }

    /// Returns the value of exactly this key.
    ///
    /// # Errors
    /// As [`page`](Self::page); the map is a ring.
    pub fn lookup(&self, map: MapId, key: &[u8]) -> Result<Option<Vec<u8>>, ControlError> {
        expect!(self.data(DataRequest::Lookup { map, key: key.to_vec() })?, DataReply::Value(value) => value)
    }

    /// Creates or replaces an entry.
    ///
    /// # Errors
    /// The reasons of [`bpf::Map::update`]; the hook was replaced, or the process does not answer.
    pub fn update(&self, map: MapId, key: &[u8], value: &[u8], mode: UpdateMode) -> Result<(), ControlError> {
        self.done(DataRequest::Update { map, key: key.to_vec(), value: value.to_vec(), mode })
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// The reasons of [`bpf::Map::delete`]; the hook was replaced, or the process does not answer.
    pub fn delete(&self, map: MapId, key: &[u8]) -> Result<(), ControlError> {
        self.done(DataRequest::Delete { map, key: key.to_vec() })
    }

    /// Takes the oldest records of a ring buffer or perf event array, as many as fit into a reply. Each
    /// record goes to one reader.
    ///
    /// # Errors
    /// The map is no ring, the hook was replaced, or the process does not answer.
    pub fn records(&self, map: MapId) -> Result<HookRecords, ControlError> {
        expect!(self.data(DataRequest::Records(map))?, DataReply::Records(records) => records)
    }

    /// Takes the lines that programs printed since the last call, in order of time, and the number of lost
    /// ones. The process keeps lines only for a client that calls this at least every two seconds.
    ///
    /// # Errors
    /// The process does not answer.
    pub fn log(&self) -> Result<(Vec<LogLine>, u64), ControlError> {
        expect!(self.data(DataRequest::Log)?, DataReply::Log { lines, lost } => (lines, lost))
    }

    fn done(&self, request: DataRequest) -> Result<(), ControlError> {
        expect!(self.data(request)?, DataReply::Done => ())
    }

    fn data(&self, request: DataRequest) -> Result<DataReply, ControlError> {
        expect!(self.ask(&Request::Data(request))?, Reply::Data(reply) => reply)
    }
}
