//! GIDs and P_Keys (ibv_query_gid(3), ibv_query_gid_ex(3), ibv_query_gid_table(3), ibv_query_pkey(3)).

use std::ffi::c_int;

use libc::size_t;
use roxie::verbs::{Context, GidEntry};
use roxie::wire::PKey;

use crate::abi::context::ibv_context;
use crate::abi::device::{ibv_gid, ibv_gid_entry};
use crate::errno::{code, minus1};

use super::device::ContextObject;
use super::query::PORT;

/// IBV_GID_TYPE_ROCE_V2 of `ibv_gid_entry`.
const GID_TYPE_ROCE_V2: u32 = 2;
/// IBV_GID_TYPE_SYSFS_ROCE_V2 of `ibv_query_gid_type`.
const GID_TYPE_SYSFS_ROCE_V2: c_int = 1;

/// A row of the table by index.
fn row(context: &Context, index: u32) -> Option<GidEntry> {
    context.gids().into_iter().find(|row| u32::from(row.index) == index)
}

/// Whether `index` lies within the table.
fn within(context: &Context, index: u32) -> bool {
    usize::try_from(index).is_ok_and(|index| index < context.device().gids().entries.len())
}

fn entry(row: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: row.gid.0 },
        gid_index: u32::from(row.index),
        port_num: u32::from(PORT),
        gid_type: GID_TYPE_ROCE_V2,
        ndev_ifindex: row.ifindex,
    }
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: a context of ours or NULL.
    let Some(context) = (unsafe { ContextObject::from_ptr(context) }) else { return minus1(libc::EINVAL) };
    let context = &context.tail.context;
    match u32::try_from(index) {
        Ok(index) if port == PORT && !gid.is_null() && within(context, index) => {
            let raw = row(context, index).map_or([0; 16], |row| row.gid.0);
            // SAFETY: the caller passes room for a GID.
            unsafe { gid.write(ibv_gid { raw }) };
            0
        }
        _ => minus1(libc::EINVAL),
    }
}

/// Whether a program's `ibv_gid_entry` is the one we know.
fn entry_fits(flags: u32, entry_size: size_t) -> bool {
    flags == 0 && entry_size >= size_of::<ibv_gid_entry>()
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    entry_size: size_t,
) -> c_int {
    // SAFETY: a context of ours or NULL.
    let Some(context) = (unsafe { ContextObject::from_ptr(context) }) else { return code(libc::EINVAL) };
    let context = &context.tail.context;
    if flags != 0 {
        return code(libc::EOPNOTSUPP);
    }
    if to.is_null() || !entry_fits(flags, entry_size) || port != u32::from(PORT) || !within(context, index) {
        return code(libc::EINVAL);
    }
    let Some(row) = row(context, index) else { return code(libc::ENODATA) };
    // SAFETY: the caller passes room for `entry_size` bytes.
    unsafe { to.write_unaligned(entry(&row)) };
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
    // SAFETY: a context of ours or NULL.
    let Some(context) = (unsafe { ContextObject::from_ptr(context) }) else { return failed(libc::EINVAL) };
    if flags != 0 {
        return failed(libc::EOPNOTSUPP);
    }
    let rows = context.tail.context.gids();
    if to.is_null() || !entry_fits(flags, entry_size) || rows.len() > max_entries {
        return failed(libc::EINVAL);
    }
    for (i, row) in rows.iter().enumerate() {
        // SAFETY: the caller passes room for `max_entries` times `entry_size` bytes.
        unsafe { to.byte_add(i * entry_size).write_unaligned(entry(row)) };
    }
    rows.len() as isize
}

pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    gid_type: *mut c_int,
) -> c_int {
    // SAFETY: a context of ours or NULL.
    let Some(context) = (unsafe { ContextObject::from_ptr(context) }) else { return minus1(libc::EINVAL) };
    if port != PORT || gid_type.is_null() || !within(&context.tail.context, index) {
        return minus1(libc::EINVAL);
    }
    // SAFETY: the caller passes room for the enum.
    unsafe { gid_type.write(GID_TYPE_SYSFS_ROCE_V2) };
    0
}

pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if context.is_null() || pkey.is_null() || port != PORT || index != 0 {
        return minus1(libc::EINVAL);
    }
    // SAFETY: the caller passes room for a P_Key.
    unsafe { pkey.write(PKey::DEFAULT.0.to_be()) };
    0
}

/// `pkey` is in network byte order.
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    if context.is_null() || port != PORT || pkey != PKey::DEFAULT.0.to_be() {
        return minus1(libc::EINVAL);
    }
    0
}
