//! GIDs and P_Keys (ibv_query_gid(3), ibv_query_gid_ex(3), ibv_query_gid_table(3), ibv_query_pkey(3)).

use std::ffi::c_int;

use libc::size_t;
use roxie::gid::GID_TBL_LEN;
use roxie::verbs::{Context, GidEntry};
use roxie::wire::PKey;

use crate::abi::context::ibv_context;
use crate::abi::device::{IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_SYSFS_ROCE_V2, ibv_gid, ibv_gid_entry};
use crate::errno::{code, minus1};
use crate::handle::{Out, OutBytes, typed};

use super::device::ContextObject;
use super::query::PORT;

/// Returns the row with this index.
fn row(context: &Context, index: u32) -> Option<GidEntry> {
    context.gids().into_iter().find(|row| u32::from(row.index) == index)
}

/// Returns whether `index` lies within the table, where most rows are empty.
fn within(index: u32) -> bool {
    usize::try_from(index).is_ok_and(|index| index < GID_TBL_LEN)
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
    let (Some(context), Some(gid), PORT, Ok(index)) = (context, gid, port, u32::try_from(index)) else {
        return minus1(libc::EINVAL);
    };
    let context = &context.tail.context;
    if !within(index) {
        return minus1(libc::EINVAL);
    }
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
    let Some(context) = context else { return code(libc::EINVAL) };
    let context = &context.tail.context;
    if flags != 0 {
        return code(libc::EOPNOTSUPP);
    }
    let Some(to) = to.filter(|to| to.size() >= size_of::<ibv_gid_entry>()) else { return code(libc::EINVAL) };
    if port != u32::from(PORT) || !within(index) {
        return code(libc::EINVAL);
    }
    let Some(row) = row(context, index) else { return code(libc::ENODATA) };
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
    let failed = |errno: c_int| -(code(errno) as isize);
    // SAFETY: ibv_query_gid_table(3).
    let (context, to): (Option<&ContextObject>, Option<OutBytes>) =
        unsafe { typed((context, (to, max_entries.saturating_mul(entry_size)))) };
    let Some(context) = context else { return failed(libc::EINVAL) };
    if flags != 0 {
        return failed(libc::EOPNOTSUPP);
    }
    let rows = context.tail.context.gids();
    let fits = entry_size >= size_of::<ibv_gid_entry>() && rows.len() <= max_entries;
    let Some(to) = to.filter(|_| fits) else { return failed(libc::EINVAL) };
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
    let (Some(_), Some(gid_type), PORT) = (context, gid_type, port) else {
        return minus1(libc::EINVAL);
    };
    if !within(index) {
        return minus1(libc::EINVAL);
    }
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
    let (Some(_), Some(pkey), PORT, 0) = (context, pkey, port, index) else { return minus1(libc::EINVAL) };
    pkey.write(PKey::DEFAULT.0.to_be());
    0
}

/// Returns the index of a P_Key in network byte order.
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    if context.is_null() || port != PORT || pkey != PKey::DEFAULT.0.to_be() {
        return minus1(libc::EINVAL);
    }
    0
}
