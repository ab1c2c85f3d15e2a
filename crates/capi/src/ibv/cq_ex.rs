//! Extended completion queues: polling field by field (ibv_create_cq_ex(3)).

use std::cell::UnsafeCell;
use std::ffi::c_int;

use roxie::transport::Wc;
use sys::time_of_day_ns;

use crate::abi::context::ibv_context;
use crate::abi::objects::{ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_tm_info};
use crate::errno::null;

use super::cq::{self, CqObject};

/// IBV_WC_STANDARD_FLAGS: everything but time stamps, VLANs, flow tags and tag matching.
const STANDARD_FLAGS: u64 = 0x7f;
/// IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, by the device's clock, and the same by that of the day.
const TIMESTAMPS: u64 = 1 << 7 | 1 << 11;
/// IBV_CQ_INIT_ATTR_MASK_FLAGS, and the flag that promises one polling thread.
const MASK_FLAGS: u32 = 1;
const SINGLE_THREADED: u32 = 1;

/// The completion that the `read_*` functions look at, and its time.
#[derive(Default)]
pub(crate) struct Cursor(UnsafeCell<(Wc, u64)>);

// SAFETY: only touched between start_poll and end_poll, which programs call from one thread at a time
// (ibv_create_cq_ex(3)).
unsafe impl Sync for Cursor {}

impl Cursor {
    /// The current completion.
    ///
    /// # Safety
    /// No other thread polls this CQ through the extended interface.
    #[inline]
    unsafe fn get(&self) -> (Wc, u64) {
        // SAFETY: upheld by the caller.
        unsafe { *self.0.get() }
    }

    /// # Safety
    /// As [`Self::get`].
    #[inline]
    unsafe fn set(&self, timed: (Wc, u64)) {
        // SAFETY: upheld by the caller.
        unsafe { *self.0.get() = timed };
    }
}

/// The operation behind `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: NULL or the program's attributes.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return null(libc::EINVAL) };
    let flags = if attr.comp_mask & MASK_FLAGS != 0 { attr.flags } else { 0 };
    let known = STANDARD_FLAGS | TIMESTAMPS;
    if attr.comp_mask & !MASK_FLAGS != 0 || flags & !SINGLE_THREADED != 0 || attr.wc_flags & !known != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: as the caller's.
    let created = unsafe { cq::create(context, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector) };
    match created {
        Ok(cq) => {
            // SAFETY: just created; the program does not know it yet.
            unsafe { fill_operations(&mut *cq) };
            // SAFETY: as above.
            let object = unsafe { CqObject::from_ptr(cq) };
            if let Some(object) = object.filter(|_| attr.wc_flags & TIMESTAMPS != 0) {
                object.tail.cq.record_times();
            }
            cq
        }
        Err(errno) => null(errno),
    }
}

/// All of them, although programs only call those they asked for.
fn fill_operations(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_cvlan = Some(read_zero_u16);
    cq.read_flow_tag = Some(read_zero_u32);
    cq.read_tm_info = Some(read_tm_info);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: NULL or the program's attributes.
    if unsafe { attr.as_ref() }.is_none_or(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: as the caller's.
    unsafe { next_poll(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: one of ours or NULL.
    let Some(object) = (unsafe { CqObject::from_ptr(cq) }) else { return libc::EINVAL };
    let Some(timed) = object.tail.cq.poll_timed() else { return libc::ENOENT };
    let (wc, _) = timed;
    // SAFETY: one thread polls at a time; `status` and `wr_id` are members of a live object.
    unsafe {
        object.tail.cursor.set(timed);
        (*cq).status = wc.status as c_int;
        (*cq).wr_id = wc.wr_id;
    }
    0
}

unsafe extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {}

/// The current completion and its time.
///
/// # Safety
/// `cq` is ours, between start_poll and end_poll.
#[inline]
unsafe fn current(cq: *mut ibv_cq_ex) -> (Wc, u64) {
    // SAFETY: upheld by the caller.
    unsafe { CqObject::from_ptr(cq).map_or_else(Default::default, |object| object.tail.cursor.get()) }
}

macro_rules! readers {
    ($($name:ident -> $ty:ty: |$wc:pat_param| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: programs call it between start_poll and end_poll.
            let $wc = unsafe { current(cq) };
            $value
        }
    )*};
}

readers! {
    read_opcode -> c_int: |(wc, _)| wc.opcode as c_int;
    read_vendor_err -> u32: |(wc, _)| wc.vendor_err;
    read_byte_len -> u32: |(wc, _)| wc.byte_len;
    read_imm_data -> u32: |(wc, _)| u32::from_ne_bytes(wc.imm_data);
    read_qp_num -> u32: |(wc, _)| wc.qp_num;
    read_src_qp -> u32: |(wc, _)| wc.src_qp;
    read_wc_flags -> u32: |(wc, _)| wc.wc_flags;
    read_slid -> u32: |(wc, _)| u32::from(wc.slid);
    read_sl -> u8: |(wc, _)| wc.sl;
    read_dlid_path_bits -> u8: |(wc, _)| wc.dlid_path_bits;
    read_completion_ts -> u64: |(_, time_ns)| time_ns;
    read_completion_wallclock_ns -> u64: |(_, time_ns)| time_of_day_ns(time_ns);
}

unsafe extern "C" fn read_zero_u32(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_zero_u16(_cq: *mut ibv_cq_ex) -> u16 {
    0
}

unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    if !info.is_null() {
        // SAFETY: the caller passes room for the structure.
        unsafe { info.write(ibv_wc_tm_info { tag: 0, r#priv: 0 }) };
    }
}
