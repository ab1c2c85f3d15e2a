//! The structures that queries of a device, a port and its GID table fill in.

use std::ffi::{c_char, c_int};

use libc::timespec;

use super::steering::ibv_rss_caps;
use super::{constants, layouts};

/// A GID as bytes on the wire; C's union makes it 8-byte aligned.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    /// Network byte order.
    pub node_guid: u64,
    /// Network byte order.
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: u32,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
pub struct ibv_query_device_ex_input {
    pub comp_mask: u32,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub per_transport_caps: [u32; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: [u32; 2],
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: [u32; 3],
    pub raw_packet_caps: u32,
    pub tm_caps: [u32; 5],
    pub cq_mod_caps: [u16; 2],
    pub max_dm_size: u64,
    pub pci_atomic_caps: [u16; 3],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_port_attr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}

#[repr(C)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: timespec,
}

constants! {
    c_int {
        IBV_NODE_CA = 1,
        // RoCE devices report it, too.
        IBV_TRANSPORT_IB = 0,
        IBV_ATOMIC_HCA = 1,
        IBV_PORT_DOWN = 1,
        IBV_PORT_ACTIVE = 4,
        // Of ibv_query_gid_type, unlike that of `ibv_gid_entry`.
        IBV_GID_TYPE_SYSFS_ROCE_V2 = 1,
        IBV_FORK_UNNEEDED = 2,
    }
    u8 {
        IBV_LINK_LAYER_ETHERNET = 2,
        IBV_QPF_GRH_REQUIRED = 1,
    }
    u32 {
        IBV_GID_TYPE_ROCE_V2 = 2,
        IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
        IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
        IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        IBV_DEVICE_SRQ_RESIZE = 1 << 13,
        IBV_DEVICE_MEM_WINDOW = 1 << 17,
        IBV_DEVICE_XRC = 1 << 20,
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
        IBV_ODP_SUPPORT_SEND = 1,
        IBV_ODP_SUPPORT_RECV = 1 << 1,
        IBV_ODP_SUPPORT_WRITE = 1 << 2,
        IBV_ODP_SUPPORT_READ = 1 << 3,
        IBV_ODP_SUPPORT_ATOMIC = 1 << 4,
        IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5,
        IBV_ODP_SUPPORT_FLUSH = 1 << 6,
        IBV_ODP_SUPPORT_ATOMIC_WRITE = 1 << 7,
        IBV_VALUES_MASK_RAW_CLOCK = 1,
        IBV_PORT_CM_SUP = 1 << 16,
        IBV_PORT_IP_BASED_GIDS = 1 << 26,
    }
    u64 {
        IBV_ODP_SUPPORT = 1,
        IBV_ODP_SUPPORT_IMPLICIT = 1 << 1,
        IB_UVERBS_DEVICE_FLUSH_GLOBAL = 1 << 38,
        IB_UVERBS_DEVICE_ATOMIC_WRITE = 1 << 40,
    }
}

layouts! {
    ibv_gid_entry: 32 { gid @ 0, gid_index @ 16, port_num @ 20, gid_type @ 24, ndev_ifindex @ 28 }
    ibv_device_attr: 232 {
        fw_ver @ 0, node_guid @ 64, sys_image_guid @ 72, max_mr_size @ 80, page_size_cap @ 88, vendor_id @ 96,
        vendor_part_id @ 100, hw_ver @ 104, max_qp @ 108, max_qp_wr @ 112, device_cap_flags @ 116,
        max_sge @ 120,
        max_sge_rd @ 124, max_cq @ 128, max_cqe @ 132, max_mr @ 136, max_pd @ 140, max_qp_rd_atom @ 144,
        max_ee_rd_atom @ 148, max_res_rd_atom @ 152, max_qp_init_rd_atom @ 156, max_ee_init_rd_atom @ 160,
        atomic_cap @ 164, max_ee @ 168, max_rdd @ 172, max_mw @ 176, max_raw_ipv6_qp @ 180,
        max_raw_ethy_qp @ 184, max_mcast_grp @ 188, max_mcast_qp_attach @ 192,
        max_total_mcast_qp_attach @ 196,
        max_ah @ 200, max_fmr @ 204, max_map_per_fmr @ 208, max_srq @ 212, max_srq_wr @ 216,
        max_srq_sge @ 220,
        max_pkeys @ 224, local_ca_ack_delay @ 226, phys_port_cnt @ 227,
    }
    ibv_device_attr_ex: 400 {
        orig_attr @ 0, comp_mask @ 232, odp_caps @ 240, completion_timestamp_mask @ 264, hca_core_clock @ 272,
        device_cap_flags_ex @ 280, tso_caps @ 288, rss_caps @ 296, max_wq_type_rq @ 328,
        packet_pacing_caps @ 332, raw_packet_caps @ 344, tm_caps @ 348, cq_mod_caps @ 368, max_dm_size @ 376,
        pci_atomic_caps @ 384, xrc_odp_caps @ 392, phys_port_cnt_ex @ 396,
    }
    ibv_odp_caps: 24 { general_caps @ 0, per_transport_caps @ 8 }
    ibv_port_attr: 56 {
        state @ 0, max_mtu @ 4, active_mtu @ 8, gid_tbl_len @ 12, port_cap_flags @ 16, max_msg_sz @ 20,
        bad_pkey_cntr @ 24, qkey_viol_cntr @ 28, pkey_tbl_len @ 32, lid @ 34, sm_lid @ 36, lmc @ 38,
        max_vl_num @ 39, sm_sl @ 40, subnet_timeout @ 41, init_type_reply @ 42, active_width @ 43,
        active_speed @ 44, phys_state @ 45, link_layer @ 46, flags @ 47, port_cap_flags2 @ 48,
        active_speed_ex @ 52,
    }
    ibv_values_ex: 24 { comp_mask @ 0, raw_clock @ 8 }
}
