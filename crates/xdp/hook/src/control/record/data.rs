//! Encoding of requests for data of programs, and of the replies.

use bpf::{Page, UpdateMode};

use super::{Field, Reader, fields, kinds};
use crate::{DataReply, DataRequest, HookMap, HookRecords, LogLine, MapId};

kinds! {
    DataRequest {
        1 => Maps,
        2 => Types(map),
        3 => Page { map, from, with_zeros },
        4 => Lookup { map, key },
        5 => Update { map, key, value, mode },
        6 => Delete { map, key },
        7 => Records(map),
        8 => Log,
    }
    DataReply {
        1 => Done,
        2 => Maps(maps),
        3 => Types(types),
        4 => Page(page),
        5 => Value(value),
        6 => Records(records),
        7 => Log { lines, lost },
    }
    UpdateMode {
        0 => Any,
        1 => NoExist,
        2 => Exist,
    }
}

fields! {
    MapId { hook, index }
    HookMap { id, point, program, def }
    Page { entries, next }
    HookRecords { records, lost }
    LogLine { time_ns, point, program, text }
}
