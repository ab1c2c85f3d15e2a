//! Extended completion queues: polling field by field (ibv_create_cq_ex(3)).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr;
use std::slice;

use roxie::transport::{Wc, refuse};
use roxie::verbs::Pd;
use sys::day_offset_ns;

use crate::abi::context::ibv_context;
use crate::abi::objects::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    IBV_WC_STANDARD_FLAGS, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_tm_info,
};
use crate::errno::{code, done, given, known_bits, null};
use crate::handle::{Hot, Out, typed};
use crate::refused::note_completions;

use super::context::ContextObject;
use super::cq::{self, ChannelObject, CqObject};
use super::pd_mr::PdObject;

const TIMESTAMPS: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// The completion that the `read_*` functions return the fields of.
#[derive(Default)]
pub(crate) struct Cursor {
    polled: UnsafeCell<Polled>,
    /// Whether the application reads times of day.
    has_days: bool,
}

#[derive(Clone, Copy, Default)]
struct Polled {
    wc: Wc,
    /// When it was added.
    time_ns: u64,
    /// What makes that a time of day: measured once for the completions of a start_poll.
    day_offset_ns: u64,
}

// SAFETY: only accessed between start_poll and end_poll, which the application calls from one thread at a
// time (ibv_create_cq_ex(3)).
unsafe impl Sync for Cursor {}

impl Cursor {
    fn get(&self) -> Polled {
        // SAFETY: one thread polls at a time, and no reference into the cell exists.
        unsafe { *self.polled.get() }
    }

    fn set(&self, polled: Polled) {
        // SAFETY: one thread polls at a time, and no reference into the cell exists.
        unsafe { *self.polled.get() = polled };
    }
}

/// Implements `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: ibv_create_cq_ex(3).
    let (context, attr): (Option<&ContextObject>, Option<&ibv_cq_init_attr_ex>) =
        unsafe { typed((context, attr.cast_const())) };
    given!(null; attr);
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    known_bits!(null; EOPNOTSUPP, "completion queue", "comp_mask"; attr.comp_mask, known);
    known_bits!(null; EOPNOTSUPP, "completion queue", "flags"; flags, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
    let fields = IBV_WC_STANDARD_FLAGS | TIMESTAMPS;
    known_bits!(null; EOPNOTSUPP, "completion queue", "wc_flags"; attr.wc_flags, fields);
    given!(null; context);
    // SAFETY: ibv_create_cq_ex(3): the attributes name a channel or NULL.
    let channel: Option<&ChannelObject> = unsafe { typed(attr.channel) };
    let has_parent = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0;
    // SAFETY: ibv_create_cq_ex(3): the attributes name a domain if `comp_mask` says so.
    let parent: Option<&PdObject> =
        unsafe { typed(if has_parent { attr.parent_domain } else { ptr::null_mut() }) };
    if has_parent && !parent.is_some_and(|parent| parent.tail.is_parent()) {
        let comp_mask = attr.comp_mask;
        return null(refuse!(EINVAL, "completion queue", "parent_domain"; comp_mask;
            "IBV_CQ_INIT_ATTR_MASK_PD is set, and parent_domain is no domain of ibv_alloc_parent_domain"));
    }
    if let Some(parent) = parent {
        done!(null; parent.check_device(context));
    }
    let mut cq = done!(null; cq::create(context, attr.cqe, attr.cq_context, channel, attr.comp_vector));
    fill_operations(cq.public_mut());
    cq.tail.parent = parent.map(|parent| Pd::clone(&parent.tail));
    if attr.wc_flags & TIMESTAMPS != 0 {
        cq.tail.cq.record_times();
    }
    let days = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    cq.tail.cursor.has_days = attr.wc_flags & days != 0;
    cq.give()
}

/// Sets every operation, although applications call only those for the fields that they asked for.
fn fill_operations(cq: &mut ibv_cq_ex) {
    set!(cq;
        start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data,
        read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts,
        read_tm_info, read_completion_wallclock_ns);
    cq.read_cvlan = Some(read_zero_u16);
    cq.read_flow_tag = Some(read_zero_u32);
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: ibv_create_cq_ex(3).
    let (cq, attr): (Option<&CqObject>, Option<&ibv_poll_cq_attr>) =
        unsafe { typed((Hot(cq), attr.cast_const())) };
    given!(code; attr);
    known_bits!(code; EINVAL, "completion queue", "comp_mask"; attr.comp_mask, 0);
    advance(cq, |cursor| if cursor.has_days { day_offset_ns() } else { 0 })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: ibv_create_cq_ex(3).
    advance(unsafe { typed(Hot(cq)) }, |cursor| cursor.get().day_offset_ns)
}

/// Moves the cursor to the next completion; returns 0 or an errno.
#[inline]
#[track_caller]
fn advance(cq: Option<&CqObject>, day_offset_ns: fn(&Cursor) -> u64) -> c_int {
    given!(code; cq);
    let Some((wc, time_ns)) = cq.tail.cq.poll_timed() else { return libc::ENOENT };
    note_completions(&cq.tail.cq, slice::from_ref(&wc));
    let cursor = &cq.tail.cursor;
    cursor.set(Polled { wc, time_ns, day_offset_ns: day_offset_ns(cursor) });
    cq.status().set(wc.status as c_int);
    cq.wr_id().set(wc.wr_id);
    0
}

unsafe extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {}

macro_rules! readers {
    ($($name:ident -> $ty:ty: |$polled:ident| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: ibv_create_cq_ex(3).
            let cq: Option<&CqObject> = unsafe { typed(Hot(cq)) };
            let $polled = cq.map_or_else(Default::default, |cq| cq.tail.cursor.get());
            $value
        }
    )*};
}

readers! {
    read_opcode -> c_int: |polled| polled.wc.opcode as c_int;
    read_vendor_err -> u32: |polled| polled.wc.vendor_err;
    read_byte_len -> u32: |polled| polled.wc.byte_len;
    read_imm_data -> u32: |polled| u32::from_ne_bytes(polled.wc.imm_data);
    read_qp_num -> u32: |polled| polled.wc.qp_num;
    read_src_qp -> u32: |polled| polled.wc.src_qp;
    read_wc_flags -> u32: |polled| polled.wc.wc_flags;
    read_slid -> u32: |polled| u32::from(polled.wc.slid);
    read_sl -> u8: |polled| polled.wc.sl;
    read_dlid_path_bits -> u8: |polled| polled.wc.dlid_path_bits;
    read_completion_ts -> u64: |polled| polled.time_ns;
    read_completion_wallclock_ns -> u64: |polled| polled.time_ns.wrapping_add(polled.day_offset_ns);
}

unsafe extern "C" fn read_zero_u32(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_zero_u16(_cq: *mut ibv_cq_ex) -> u16 {
    0
}

unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: ibv_create_cq_ex(3).
    let info: Option<Out<ibv_wc_tm_info>> = unsafe { typed(info) };
    if let Some(info) = info {
        info.write(ibv_wc_tm_info { tag: 0, r#priv: 0 });
    }
}
