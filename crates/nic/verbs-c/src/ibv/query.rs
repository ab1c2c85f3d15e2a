//! The capabilities of the device and its port (ibv_query_device(3), ibv_query_device_ex(3),
//! ibv_query_port(3)).

use std::ffi::{c_char, c_int};

use libc::size_t;
use roxie::raw::{IndTable, RxHash};
use roxie::verbs::{Context, PortAttr};
use sys::now_ns;

use crate::abi::Zeroed;
use crate::abi::context::ibv_context;
use crate::abi::device::{
    IB_UVERBS_DEVICE_ATOMIC_WRITE, IB_UVERBS_DEVICE_FLUSH_GLOBAL, IBV_ATOMIC_HCA,
    IBV_DEVICE_MANAGED_FLOW_STEERING, IBV_DEVICE_MEM_MGT_EXTENSIONS, IBV_DEVICE_MEM_WINDOW,
    IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SRQ_RESIZE,
    IBV_DEVICE_SYS_IMAGE_GUID, IBV_DEVICE_UD_AV_PORT_ENFORCE, IBV_DEVICE_XRC, IBV_LINK_LAYER_ETHERNET,
    IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_ATOMIC_WRITE, IBV_ODP_SUPPORT_FLUSH,
    IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_SEND,
    IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE, IBV_PORT_ACTIVE, IBV_PORT_CM_SUP, IBV_PORT_DOWN,
    IBV_PORT_IP_BASED_GIDS, IBV_QPF_GRH_REQUIRED, IBV_VALUES_MASK_RAW_CLOCK, ibv_device_attr,
    ibv_device_attr_ex, ibv_odp_caps, ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex,
};
use crate::abi::objects::{IBV_QPT_RAW_PACKET, IBV_QPT_RC, IBV_QPT_UC};
use crate::abi::steering::ibv_rss_caps;
use crate::errno::{code, done, given, known_bits};
use crate::handle::{Out, OutBytes, typed};
use crate::refusal;
use roxie::transport::{VerbsError, refuse};

use super::context::ContextObject;

/// The number of the only port.
pub(crate) const PORT: u8 = 1;

pub(crate) const DEVICE_CAPS: u32 = IBV_DEVICE_UD_AV_PORT_ENFORCE
    | IBV_DEVICE_SYS_IMAGE_GUID
    | IBV_DEVICE_RC_RNR_NAK_GEN
    | IBV_DEVICE_SRQ_RESIZE
    | IBV_DEVICE_MEM_WINDOW
    | IBV_DEVICE_XRC
    | IBV_DEVICE_MEM_MGT_EXTENSIONS
    | IBV_DEVICE_MANAGED_FLOW_STEERING
    | IBV_DEVICE_MEM_WINDOW_TYPE_2B;

/// The operations that support on-demand paging: on RC, UC and UD.
const ODP_CAPS: ibv_odp_caps = ibv_odp_caps {
    general_caps: IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT,
    per_transport_caps: [
        IBV_ODP_SUPPORT_SEND
            | IBV_ODP_SUPPORT_RECV
            | IBV_ODP_SUPPORT_WRITE
            | IBV_ODP_SUPPORT_READ
            | IBV_ODP_SUPPORT_ATOMIC
            | IBV_ODP_SUPPORT_SRQ_RECV
            | IBV_ODP_SUPPORT_FLUSH
            | IBV_ODP_SUPPORT_ATOMIC_WRITE,
        IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE,
        IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV,
    ],
};

/// What on-demand paging supports on XRC queue pairs, which receive from shared receive queues only.
const XRC_ODP_CAPS: u32 = IBV_ODP_SUPPORT_SEND
    | IBV_ODP_SUPPORT_WRITE
    | IBV_ODP_SUPPORT_READ
    | IBV_ODP_SUPPORT_ATOMIC
    | IBV_ODP_SUPPORT_SRQ_RECV;

/// Smallest and largest rate limit in kbit/s, and the QP types that have one.
const PACKET_PACING_CAPS: [u32; 3] = [1, 4_000_000_000, 1 << IBV_QPT_RC | 1 << IBV_QPT_UC];

const RSS_CAPS: ibv_rss_caps = ibv_rss_caps {
    supported_qpts: 1 << IBV_QPT_RAW_PACKET,
    max_rwq_indirection_tables: IndTable::COUNT_MAX,
    max_rwq_indirection_table_size: IndTable::LEN_MAX,
    rx_hash_fields_mask: RxHash::FIELDS,
    rx_hash_function: RxHash::TOEPLITZ,
};

const DEVICE_CAPS_EX: u64 = IB_UVERBS_DEVICE_FLUSH_GLOBAL | IB_UVERBS_DEVICE_ATOMIC_WRITE;

/// The device's clock counts nanoseconds (`CLOCK_MONOTONIC`) in 64 bits; `hca_core_clock` is in kHz.
const CLOCK_KHZ: u64 = 1_000_000;
const CLOCK_MASK: u64 = u64::MAX;

/// Physical port states (IBA 14.2.5.6).
const PHYS_POLLING: u8 = 2;
const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
const PORT_CAPS: u32 = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
/// 4 lanes.
const WIDTH_4X: u8 = 2;
/// 25 Gbit/s per lane: with 4 lanes about the throughput within a host. There is no wire with a speed of its
/// own. UCX derives from the speed the size from which rendezvous pays: with 10 Gbit/s per lane it sends
/// messages of 64 KiB eagerly, at half the throughput.
const SPEED_EDR: u8 = 32;
/// The product of the two, in units of 100 Mbit/s.
const SPEED_100_MBPS: u64 = 1000;

fn device_attr(context: &Context) -> ibv_device_attr {
    let from = context.query_device();
    let mut attr = ibv_device_attr::zeroed();
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
    attr.max_raw_ethy_qp = from.max_qp as c_int;
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
    // Atomics are CPU instructions, so they are atomic for every access in the machine (GLOB). UCX and other
    // programs test for equality with HCA, which hardware reports.
    attr.atomic_cap = IBV_ATOMIC_HCA;
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
    // SAFETY: ibv_query_device(3).
    let (context, attr): (Option<&ContextObject>, Option<Out<ibv_device_attr>>) =
        unsafe { typed((context, attr)) };
    given!(code; context, attr);
    attr.write(device_attr(&context.tail.context));
    0
}

/// Implements `ibv_query_device_ex`: fills what the application has room for, and zeroes the rest
/// of the room.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: size_t,
) -> c_int {
    // SAFETY: ibv_query_device_ex(3).
    let (context, input, room): (
        Option<&ContextObject>,
        Option<&ibv_query_device_ex_input>,
        Option<OutBytes>,
    ) = unsafe { typed((context, input, (attr, attr_size))) };
    given!(code; context, room);
    known_bits!(code; EINVAL, "device", "comp_mask"; input.map_or(0, |input| input.comp_mask), 0);
    let (size, needed) = (room.size(), size_of::<ibv_device_attr>());
    if size < needed {
        return code(refuse!(EINVAL, "device", "attr_size"; size, needed;
            is "{size}, the attributes have at least {needed} bytes"));
    }
    let mut full = ibv_device_attr_ex::zeroed();
    full.orig_attr = device_attr(&context.tail.context);
    full.device_cap_flags_ex = u64::from(DEVICE_CAPS) | DEVICE_CAPS_EX;
    let device = context.tail.context.query_device();
    if device.on_demand_paging {
        full.odp_caps = ODP_CAPS;
        full.xrc_odp_caps = XRC_ODP_CAPS;
    }
    full.completion_timestamp_mask = CLOCK_MASK;
    full.hca_core_clock = CLOCK_KHZ;
    full.cq_mod_caps = [u16::MAX; 2];
    full.packet_pacing_caps = PACKET_PACING_CAPS;
    full.rss_caps = RSS_CAPS;
    full.max_wq_type_rq = device.max_qp;
    full.max_dm_size = device.max_dm_size as u64;
    full.phys_port_cnt_ex = u32::from(PORT);
    fill(&room, &full);
    0
}

/// Implements `ibv_query_rt_values_ex`: the device's clock now. The nanoseconds of the time hold
/// all of it, as they hold the raw counter of hardware providers.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: ibv_query_rt_values_ex(3).
    let (context, values): (Option<&ContextObject>, Option<&mut ibv_values_ex>) =
        unsafe { typed((context, values)) };
    given!(code; context, values);
    values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
    if values.comp_mask != 0 {
        values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now_ns() as i64 };
    }
    0
}

/// Checks the number of a port.
pub(super) fn check_port(port: u32) -> Result<(), VerbsError> {
    if port == u32::from(PORT) {
        return Ok(());
    }
    Err(refuse!(EINVAL, "port", "port_num"; port; is "{port}, the only port is {PORT}"))
}

/// The physical state of the port.
pub(crate) fn phys_state(port: &PortAttr) -> u8 {
    match port {
        PortAttr { active: true, .. } => PHYS_LINK_UP,
        PortAttr { is_enabled: true, .. } => PHYS_POLLING,
        _ => PHYS_DISABLED,
    }
}

fn port_attr(context: &Context) -> ibv_port_attr {
    if let Some(why) = context.port_refusal() {
        refusal::explain(&why.into());
    }
    let from = context.query_port();
    ibv_port_attr {
        state: if from.active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
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
        phys_state: phys_state(&from),
        link_layer: IBV_LINK_LAYER_ETHERNET,
        // Address vectors need a GID, as always on RoCE.
        flags: IBV_QPF_GRH_REQUIRED,
        ..ibv_port_attr::default()
    }
}

/// Implements `ibv_query_port`; `attr_size` is the size of the structure that the program was
/// compiled with.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    attr_size: size_t,
) -> c_int {
    // SAFETY: ibv_query_port(3).
    let (context, room): (Option<&ContextObject>, Option<OutBytes>) =
        unsafe { typed((context, (attr, attr_size))) };
    given!(code; context, room);
    done!(code; check_port(port.into()));
    fill(&room, &port_attr(&context.tail.context));
    0
}

/// Returns the speed of the port in units of 100 Mbit/s.
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    // SAFETY: ibv_query_port_speed(3).
    let (context, speed): (Option<&ContextObject>, Option<Out<u64>>) = unsafe { typed((context, speed)) };
    given!(code; context, speed);
    done!(code; check_port(port));
    speed.write(SPEED_100_MBPS);
    0
}

/// Fills the structure that was in use before rdma-core 20, which programs of that time pass to this
/// function.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    const OLD_SIZE: size_t = 48;
    // SAFETY: ibv_query_port(3); the application has room for the old structure.
    unsafe { query_port(context, port, attr, OLD_SIZE) }
}

/// Copies as much of `full` as there is room for, and zeroes the room behind it.
fn fill<T: Copy>(room: &OutBytes, full: &T) {
    room.write_at(0, full);
    room.zero_from(size_of::<T>());
}
