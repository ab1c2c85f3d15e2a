//! Data of attached programs for other processes: maps, records of ring buffers, lines of `bpf_printk`.
//!
//! Requests come from a process of the same user, and may ask for anything. Each is answered with at most
//! [`DATA_BYTES_MAX`] bytes, and examines a map for about 100 us at most, without the engine's lock. The
//! replies may come from a hostile process: the client checks every length.

use std::sync::Arc;

use bpf::{Map, MapDef, MapError, UpdateMode};

use super::log::LogLine;
use super::{Hook, HookError, HookPoint, Hooks};

/// Bytes of keys, values, records or lines in one reply, counting [`ITEM_COST`] more for each.
pub(crate) const DATA_BYTES_MAX: usize = 128 * 1024;
/// Bytes that an item takes in a reply besides its own.
pub(crate) const ITEM_COST: usize = 16;
/// Bytes that the description of a map takes besides its name, at most: numbers and the program's name.
const MAP_COST: usize = 512;
/// Longest record of a ring buffer in a reply; the rest of a longer one is cut.
const RECORD_BYTES_MAX: usize = 64 * 1024;

/// A map of an attached program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HookMap {
    /// Identifies it in requests.
    pub id: MapId,
    /// The hook point.
    pub point: HookPoint,
    /// The program that has it.
    pub program: String,
    /// Its definition, without initial contents.
    pub def: MapDef,
}

/// Identifies a map of an attached hook. A hook that is attached later has other numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MapId {
    /// Number of the hook.
    pub hook: u64,
    /// Index of the map in the hook.
    pub index: u32,
}

/// Records of a ring buffer or perf event array.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HookRecords {
    /// The oldest first; a record longer than 64 KiB is cut.
    pub records: Vec<Vec<u8>>,
    /// Records that did not fit into the ring since it was made.
    pub lost: u64,
}

/// What a client wants to know or to change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum DataRequest {
    Maps,
    /// Asks for the type information (BTF) of the program that has a map.
    Types(MapId),
    /// Asks for entries from this number on.
    Page {
        map: MapId,
        from: u32,
        with_zeros: bool,
    },
    Lookup {
        map: MapId,
        key: Vec<u8>,
    },
    Update {
        map: MapId,
        key: Vec<u8>,
        value: Vec<u8>,
        mode: UpdateMode,
    },
    Delete {
        map: MapId,
        key: Vec<u8>,
    },
    Records(MapId),
    /// Asks for lines since the last request. The caller counts as a reader for two seconds.
    Log,
}

/// The answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum DataReply {
    Done,
    Maps(Vec<HookMap>),
    Types(Vec<u8>),
    Page(bpf::Page),
    Value(Option<Vec<u8>>),
    Records(HookRecords),
    Log { lines: Vec<LogLine>, lost: u64 },
}

/// What a request needs of the hooks, taken under the engine's lock and used without it.
#[derive(Debug)]
pub(crate) enum DataAccess {
    Ready(DataReply),
    Map(Arc<Map>, DataRequest),
}

impl Hooks {
    /// Answers a request, or returns the map that it is about.
    ///
    /// # Errors
    /// The hook of the map was replaced or detached.
    pub(crate) fn data(&mut self, request: DataRequest, now_ns: u64) -> Result<DataAccess, HookError> {
        let map = match request {
            DataRequest::Maps => return Ok(DataAccess::Ready(DataReply::Maps(self.map_list()))),
            DataRequest::Types(map) => {
                let types = self.hook_of(map)?.types_of(map.index as usize).unwrap_or_default();
                // Types that do not fit into a reply are left out: the client then shows bytes.
                let types = if types.len() <= DATA_BYTES_MAX { types.to_vec() } else { Vec::new() };
                return Ok(DataAccess::Ready(DataReply::Types(types)));
            }
            DataRequest::Log => {
                let (lines, lost) = self.read_log(now_ns);
                return Ok(DataAccess::Ready(DataReply::Log { lines, lost }));
            }
            DataRequest::Page { map, .. }
            | DataRequest::Lookup { map, .. }
            | DataRequest::Update { map, .. }
            | DataRequest::Delete { map, .. }
            | DataRequest::Records(map) => map,
        };
        let maps = self.hook_of(map)?.maps();
        let map = maps.get(map.index as usize).ok_or(HookError::MapGone)?;
        Ok(DataAccess::Map(Arc::clone(map), request))
    }

    fn hook_of(&self, map: MapId) -> Result<&Hook, HookError> {
        let mut attached = [&self.ingress, &self.egress].into_iter().filter(|point| point.id == map.hook);
        attached.find_map(|point| point.hook.as_ref()).ok_or(HookError::MapGone)
    }

    fn map_list(&self) -> Vec<HookMap> {
        let (mut list, mut used) = (Vec::new(), 0);
        for (at, point) in [(HookPoint::Ingress, &self.ingress), (HookPoint::Egress, &self.egress)] {
            for (index, map) in (0..).zip(point.hook.iter().flat_map(Hook::maps)) {
                used += map.def().name.len() + MAP_COST;
                if used > DATA_BYTES_MAX {
                    return list;
                }
                let hook = point.hook.as_ref().map(|hook| hook.program_of(index as usize).to_owned());
                list.push(HookMap {
                    id: MapId { hook: point.id, index },
                    point: at,
                    program: hook.unwrap_or_default(),
                    def: described(map.def()),
                });
            }
        }
        list
    }
}

/// Returns the definition without its initial contents, which may be larger than a reply.
fn described(def: &MapDef) -> MapDef {
    let (name, inner) = (def.name.clone(), def.inner.as_deref().map(|inner| Box::new(described(inner))));
    MapDef { name, inner, initial: Vec::new(), entries: Vec::new(), ..*def }
}

impl DataAccess {
    /// Finishes the request. Takes at most about 100 us, apart from copying.
    ///
    /// # Errors
    /// The reason of the map.
    pub(crate) fn finish(self) -> Result<DataReply, HookError> {
        let (map, request) = match self {
            DataAccess::Ready(reply) => return Ok(reply),
            DataAccess::Map(map, request) => (map, request),
        };
        let refused = |error: MapError| HookError::Map { name: map.def().name.clone(), error };
        match request {
            DataRequest::Page { from, with_zeros, .. } => {
                fits(&map)?;
                Ok(DataReply::Page(map.page(from, DATA_BYTES_MAX, ITEM_COST, with_zeros)))
            }
            DataRequest::Lookup { key, .. } => {
                fits(&map)?;
                if map.ring().is_some() {
                    return Err(refused(MapError::Unsupported));
                }
                Ok(DataReply::Value(map.lookup_exact(&key)))
            }
            DataRequest::Update { key, value, mode, .. } => {
                map.update(&key, &value, mode).map_err(refused)?;
                Ok(DataReply::Done)
            }
            DataRequest::Delete { key, .. } => {
                map.delete(&key).map_err(refused)?;
                Ok(DataReply::Done)
            }
            DataRequest::Records(_) => {
                let ring = map.ring().ok_or_else(|| refused(MapError::Unsupported))?;
                let (mut records, mut used) = (Vec::new(), 0);
                ring.consume_while(|record| {
                    let record = &record[..record.len().min(RECORD_BYTES_MAX)];
                    used += record.len() + ITEM_COST;
                    records.push(record.to_vec());
                    used + RECORD_BYTES_MAX + ITEM_COST <= DATA_BYTES_MAX
                });
                Ok(DataReply::Records(HookRecords { records, lost: ring.lost() }))
            }
            DataRequest::Maps | DataRequest::Types(_) | DataRequest::Log => Ok(DataReply::Done),
        }
    }
}

/// Whether an entry fits into a reply.
fn fits(map: &Map) -> Result<(), HookError> {
    let def = map.def();
    let bytes = def.key_size as usize + def.value_size.next_multiple_of(8) as usize + ITEM_COST;
    if bytes <= DATA_BYTES_MAX {
        Ok(())
    } else {
        Err(HookError::ValueTooLarge { name: def.name.clone(), bytes })
    }
}

#[cfg(test)]
#[path = "data_tests.rs"]
mod tests;
