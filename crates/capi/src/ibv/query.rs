//! What device and port can do (ibv_query_device(3), ibv_query_device_ex(3), ibv_query_port(3)).

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;

use libc::size_t;
use roxie::verbs::Context;
use sys::now_ns;

use crate::abi::context::ibv_context;
use crate::abi::device::{
    ibv_device_attr, ibv_device_attr_ex, ibv_odp_caps, ibv_port_attr, ibv_query_device_ex_input,
    ibv_values_ex,
};
use crate::errno::code;
use crate::refusal;

use super::device::ContextObject;
use super::qp::{QPT_RC, QPT_UC};

/// The number of the only port.
pub(crate) const PORT: u8 = 1;

/// IBV_ATOMIC_GLOB: atomics are CPU instructions, so they are atomic for everything in the machine.
const ATOMIC_GLOB: c_int = 2;
/// IBV_DEVICE_UD_AV_PORT_ENFORCE, SYS_IMAGE_GUID, RC_RNR_NAK_GEN, SRQ_RESIZE, MEM_WINDOW, XRC, MEM_MGT_EXTENSIONS,
/// MEM_WINDOW_TYPE_2B.
const DEVICE_CAPS: u32 = 1 << 6 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 24;

/// IBV_ODP_SUPPORT, SUPPORT_IMPLICIT; per transport IBV_ODP_SUPPORT_SEND, RECV, WRITE, READ, ATOMIC, SRQ_RECV as far as
/// it has them.
const ODP_CAPS: ibv_odp_caps =
    ibv_odp_caps { general_caps: 1 | 1 << 1, per_transport_caps: [0x3f, 0x07, 0x23] };

/// Least and most of a rate limit in kbit/s, and the services that have one.
const PACKET_PACING_CAPS: [u32; 3] = [1, 4_000_000_000, 1 << QPT_RC | 1 << QPT_UC];

/// IB_UVERBS_DEVICE_FLUSH_GLOBAL, ATOMIC_WRITE.
const DEVICE_CAPS_EX: u64 = 1 << 38 | 1 << 40;

/// The device's clock counts nanoseconds (`CLOCK_MONOTONIC`), in 64 bits; `hca_core_clock` is in kHz.
const CLOCK_KHZ: u64 = 1_000_000;
const CLOCK_MASK: u64 = u64::MAX;

/// IBV_PORT_DOWN, IBV_PORT_ACTIVE.
const PORT_DOWN: c_int = 1;
const PORT_ACTIVE: c_int = 4;
/// Physical states of IBA 14.2.5.6: Disabled, LinkUp.
const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
/// IBV_PORT_CM_SUP, IBV_PORT_IP_BASED_GIDS.
const PORT_CAPS: u32 = 1 << 16 | 1 << 26;
/// IBV_LINK_LAYER_ETHERNET.
const LINK_LAYER_ETHERNET: u8 = 2;
/// IBV_QPF_GRH_REQUIRED: address vectors need a GID, as always on RoCE.
const GRH_REQUIRED: u8 = 1;
/// 4 lanes.
const WIDTH_4X: u8 = 2;
/// 25 Gbit/s each: together what moves within a host; there is no wire to ask. UCX concludes from it from which size on rendezvous pays:
/// with 10 Gbit/s its messages of 64 KiB go eagerly, at half the rate.
const SPEED_EDR: u8 = 32;

fn device_attr(context: &Context) -> ibv_device_attr {
    let from = context.query_device();
    // SAFETY: zero bytes are a valid `ibv_device_attr`.
    let mut attr: ibv_device_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    let room = attr.fw_ver.len() - 1;
    for (to, from) in attr.fw_ver[..room].iter_mut().zip(from.fw_ver.bytes()) {
        *to = from as c_char;
    }
    attr.node_guid = from.node_guid.to_be();
    attr.sys_image_guid = from.node_guid.to_be();
    attr.max_mr_size = from.max_mr_size;
    attr.page_size_cap = from.page_size_cap;
    attr.vendor_id = from.vendor_id;
    attr.vendor_part_id = from.vendor_part_id;
    attr.device_cap_flags = DEVICE_CAPS;
    attr.max_qp = from.max_qp as c_int;
    attr.max_qp_wr = from.max_qp_wr as c_int;
    attr.max_sge = from.max_sge as c_int;
    attr.max_sge_rd = from.max_sge as c_int;
    attr.max_cq = from.max_cq as c_int;
    attr.max_cqe = from.max_cqe as c_int;
    attr.max_mr = from.max_mr as c_int;
    attr.max_mcast_grp = from.max_mcast as c_int;
    attr.max_mcast_qp_attach = from.max_mcast as c_int;
    attr.max_total_mcast_qp_attach = from.max_mcast as c_int;
    attr.max_mw = from.max_mw as c_int;
    attr.max_pd = from.max_pd as c_int;
    attr.max_qp_rd_atom = c_int::from(from.max_qp_rd_atom);
    attr.max_qp_init_rd_atom = c_int::from(from.max_qp_rd_atom);
    attr.max_res_rd_atom = c_int::from(from.max_qp_rd_atom).saturating_mul(from.max_qp as c_int);
    attr.atomic_cap = ATOMIC_GLOB;
    attr.max_ah = from.max_ah as c_int;
    attr.max_srq = from.max_srq as c_int;
    attr.max_srq_wr = from.max_srq_wr as c_int;
    attr.max_srq_sge = from.max_srq_sge as c_int;
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = from.local_ca_ack_delay;
    attr.phys_port_cnt = PORT;
    attr
}

pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: a context of ours or NULL.
    let Some(context) = (unsafe { ContextObject::from_ptr(context) }) else { return code(libc::EINVAL) };
    if attr.is_null() {
        return code(libc::EINVAL);
    }
    // SAFETY: the caller passes room for the structure.
    unsafe { attr.write(device_attr(&context.tail.context)) };
    0
}

/// The operation behind `ibv_query_device_ex`: fills as much as the program knows of, and zeroes what we do not.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: size_t,
) -> c_int {
    // SAFETY: a context of ours or NULL.
    let Some(context) = (unsafe { ContextObject::from_ptr(context) }) else { return code(libc::EINVAL) };
    // SAFETY: NULL or the program's input.
    let asked = unsafe { input.as_ref() }.map_or(0, |input| input.comp_mask);
    if attr.is_null() || attr_size < size_of::<ibv_device_attr>() || asked != 0 {
        return code(libc::EINVAL);
    }
    // SAFETY: zero bytes are a valid `ibv_device_attr_ex`.
    let mut full: ibv_device_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    full.orig_attr = device_attr(&context.tail.context);
    full.device_cap_flags_ex = u64::from(DEVICE_CAPS) | DEVICE_CAPS_EX;
    if context.tail.context.query_device().on_demand_paging {
        full.odp_caps = ODP_CAPS;
    }
    full.completion_timestamp_mask = CLOCK_MASK;
    full.hca_core_clock = CLOCK_KHZ;
    full.cq_mod_caps = [u16::MAX; 2];
    full.packet_pacing_caps = PACKET_PACING_CAPS;
    full.phys_port_cnt_ex = u32::from(PORT);
    // SAFETY: the caller passes room for `attr_size` bytes.
    unsafe { fill(attr, &full, attr_size) };
    0
}

/// The operation behind `ibv_query_rt_values_ex`: the device's clock as it is now, in the nanoseconds of the time as hardware
/// providers have their counter there.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    /// IBV_VALUES_MASK_RAW_CLOCK.
    const RAW_CLOCK: u32 = 1;
    // SAFETY: NULL or the program's structure.
    let Some(values) = (unsafe { values.as_mut() }) else { return code(libc::EINVAL) };
    if context.is_null() {
        return code(libc::EINVAL);
    }
    values.comp_mask &= RAW_CLOCK;
    if values.comp_mask != 0 {
        values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now_ns() as i64 };
    }
    0
}

fn port_attr(context: &Context) -> ibv_port_attr {
    if let Some(why) = context.port_refusal() {
        refusal::explain(&why.into());
    }
    let from = context.query_port();
    ibv_port_attr {
        state: if from.active { PORT_ACTIVE } else { PORT_DOWN },
        max_mtu: from.max_mtu as c_int,
        active_mtu: from.active_mtu as c_int,
        gid_tbl_len: from.gid_tbl_len as c_int,
        port_cap_flags: PORT_CAPS,
        max_msg_sz: from.max_msg_sz,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        active_speed_ex: u32::from(SPEED_EDR),
        phys_state: if from.active { PHYS_LINK_UP } else { PHYS_DISABLED },
        link_layer: LINK_LAYER_ETHERNET,
        flags: GRH_REQUIRED,
        ..ibv_port_attr::default()
    }
}

/// The operation behind `ibv_query_port`; `attr_size` is what the program was compiled with.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    attr_size: size_t,
) -> c_int {
    // SAFETY: a context of ours or NULL.
    let Some(context) = (unsafe { ContextObject::from_ptr(context) }) else { return code(libc::EINVAL) };
    if attr.is_null() || port != PORT {
        return code(libc::EINVAL);
    }
    // SAFETY: the caller passes room for `attr_size` bytes.
    unsafe { fill(attr, &port_attr(&context.tail.context), attr_size) };
    0
}

/// The function of that name writes the structure of before rdma-core 20 only.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    const OLD_SIZE: size_t = 48;
    // SAFETY: the caller passes room for the old structure.
    unsafe { query_port(context, port, attr, OLD_SIZE) }
}

/// Copies the first `size` bytes of `full`, and zeroes what `size` has beyond it.
///
/// # Safety
/// `to` has room for `size` bytes.
unsafe fn fill<T>(to: *mut T, full: &T, size: size_t) {
    let known = size.min(size_of::<T>());
    // SAFETY: upheld by the caller; `known` bytes exist on both sides.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(full).cast::<u8>(), to.cast(), known);
        ptr::write_bytes(to.cast::<u8>().add(known), 0, size - known);
    }
}
