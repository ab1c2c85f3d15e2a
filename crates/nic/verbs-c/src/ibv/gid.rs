//! GIDs and P_Keys (ibv_query_gid(3), ibv_query_gid_ex(3), ibv_query_gid_table(3), ibv_query_pkey(3)).

use std::ffi::c_int;

use libc::size_t;
use roxie::gid::GID_TBL_LEN;
use roxie::verbs::{Context, GidEntry};
use roxie::wire::PKey;

use crate::abi::context::ibv_context;
use crate::abi::device::{IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_SYSFS_ROCE_V2, ibv_gid, ibv_gid_entry};
use crate::errno::{code, done, given, known_bits, minus1, no_argument};
use crate::handle::{Out, OutBytes, typed};
use roxie::transport::{VerbsError, refuse};

use super::context::ContextObject;
use super::query::{PORT, check_port};

/// Returns the row with this index.
fn row(context: &Context, index: u32) -> Option<GidEntry> {
    context.gids().into_iter().find(|row| u32::from(row.index) == index)
}

/// Checks that `index` lies within the table, where most rows are empty.
fn check_index(index: u32) -> Result<(), VerbsError> {
    if usize::try_from(index).is_ok_and(|index| index < GID_TBL_LEN) {
        return Ok(());
    }
    Err(refuse!(EINVAL, "GID table", "index"; index;
        is "{index}, the table has {GID_TBL_LEN} rows (gid_tbl_len of ibv_query_port)"))
}

/// Checks that the caller's entries are at least as long as the structure.
fn check_entry(size: size_t) -> Result<(), VerbsError> {
    let needed = size_of::<ibv_gid_entry>();
    if size >= needed {
        return Ok(());
    }
    Err(refuse!(EINVAL, "GID table", "entry_size"; size, needed; is "{size}, an entry has {needed} bytes"))
}

fn entry(row: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: row.gid.0 },
        gid_index: u32::from(row.index),
        port_num: u32::from(PORT),
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: row.ifindex,
    }
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: ibv_query_gid(3).
    let (context, gid): (Option<&ContextObject>, Option<Out<ibv_gid>>) = unsafe { typed((context, gid)) };
    given!(minus1; context, gid);
    done!(minus1; check_port(port.into()));
    let index = index as u32;
    done!(minus1; check_index(index));
    let context = &context.tail.context;
    gid.write(ibv_gid { raw: row(context, index).map_or([0; 16], |row| row.gid.0) });
    0
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    entry_size: size_t,
) -> c_int {
    // SAFETY: ibv_query_gid_ex(3).
    let (context, to): (Option<&ContextObject>, Option<OutBytes>) =
        unsafe { typed((context, (to, entry_size))) };
    given!(code; context);
    let context = &context.tail.context;
    known_bits!(code; EOPNOTSUPP, "GID table", "flags"; flags, 0);
    given!(code; to as "entry");
    done!(code; check_entry(to.size()).and_then(|()| check_port(port)).and_then(|()| check_index(index)));
    let Some(row) = row(context, index) else {
        return code(refuse!(ENODATA, "GID table", "index"; index; "the row {index} of the table is empty"));
    };
    to.write_at(0, &entry(&row));
    0
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    to: *mut ibv_gid_entry,
    max_entries: size_t,
    flags: u32,
    entry_size: size_t,
) -> isize {
    let failed = |refused: VerbsError| -(code(refused) as isize);
    // SAFETY: ibv_query_gid_table(3).
    let (context, to): (Option<&ContextObject>, Option<OutBytes>) =
        unsafe { typed((context, (to, max_entries.saturating_mul(entry_size)))) };
    given!(failed; context);
    known_bits!(failed; EOPNOTSUPP, "GID table", "flags"; flags, 0);
    given!(failed; to as "entries");
    done!(failed; check_entry(entry_size));
    let rows = context.tail.context.gids();
    let count = rows.len();
    if count > max_entries {
        return failed(refuse!(EINVAL, "GID table", "max_entries"; max_entries, count;
            is "{max_entries}, the table has {count} entries"));
    }
    for (i, row) in rows.iter().enumerate() {
        to.write_at(i * entry_size, &entry(row));
    }
    rows.len() as isize
}

pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    gid_type: *mut c_int,
) -> c_int {
    // SAFETY: the contract of libibverbs' providers, which is that of ibv_query_gid(3).
    let (context, gid_type): (Option<&ContextObject>, Option<Out<c_int>>) =
        unsafe { typed((context, gid_type)) };
    given!(minus1; context, gid_type);
    done!(minus1; check_port(port.into()));
    done!(minus1; check_index(index));
    gid_type.write(IBV_GID_TYPE_SYSFS_ROCE_V2);
    0
}

pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: ibv_query_pkey(3).
    let (context, pkey): (Option<&ContextObject>, Option<Out<u16>>) = unsafe { typed((context, pkey)) };
    given!(minus1; context, pkey);
    done!(minus1; check_port(port.into()));
    if index != 0 {
        return minus1(refuse!(EINVAL, "P_Key table", "index"; index as i32;
            is "{index}, the device has one P_Key, of index 0"));
    }
    pkey.write(PKey::DEFAULT.0.to_be());
    0
}

/// Returns the index of a P_Key in network byte order.
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    if context.is_null() {
        return minus1(no_argument!("context"));
    }
    done!(minus1; check_port(port.into()));
    if pkey != PKey::DEFAULT.0.to_be() {
        let pkey = u16::from_be(pkey);
        return minus1(refuse!(EINVAL, "P_Key table", "pkey"; pkey;
            is "{pkey:#06x}, the device has one P_Key, 0xffff"));
    }
    0
}
