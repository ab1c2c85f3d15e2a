//! The structures of rdma_cma.h.

use std::ffi::{c_char, c_int, c_void};

use libc::{size_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use super::context::ibv_context;
use super::device::ibv_gid;
use super::objects::{ibv_ah_attr, ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_srq};
use super::{Zeroed, constants, layouts};

#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union SockAddr {
    pub sa: sockaddr,
    pub sin: sockaddr_in,
    pub sin6: sockaddr_in6,
    pub storage: sockaddr_storage,
}

// SAFETY: an address of no family.
unsafe impl Zeroed for SockAddr {}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    /// Network byte order.
    pub pkey: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addr {
    pub src_addr: SockAddr,
    pub dst_addr: SockAddr,
    pub addr: rdma_ib_addr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}

#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: c_int,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union EventParam {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    pub arg: u64,
}

// SAFETY: the members are numbers and raw pointers.
unsafe impl Zeroed for EventParam {}

#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: c_int,
    pub status: c_int,
    pub param: EventParam,
}

#[repr(C)]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: size_t,
    pub ai_route: *mut c_void,
    pub ai_connect_len: size_t,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut rdma_addrinfo,
}

#[repr(C)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut sockaddr,
}

/// The path record at `id->route.path_rec`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_sa_path_rec {
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

constants! {
    c_int {
        RDMA_PS_IPOIB = 0x0002,
        RDMA_PS_TCP = 0x0106,
        RDMA_PS_UDP = 0x0111,
        RAI_PASSIVE = 1,
        RAI_NUMERICHOST = 2,
        RAI_FAMILY = 8,
        // Resolve by the subnet administrator of InfiniBand.
        RAI_SA = 0x10,
        RDMA_OPTION_ID = 0,
        RDMA_OPTION_IB = 1,
        RDMA_OPTION_IB_PATH = 1,
        RDMA_OPTION_ID_TOS = 0,
        RDMA_OPTION_ID_REUSEADDR = 1,
        RDMA_OPTION_ID_AFONLY = 2,
    }
    u32 {
        RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1,
        RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
        RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
    }
}

layouts! {
    rdma_event_channel: 4 { fd @ 0 }
    rdma_cm_id: 416 {
        verbs @ 0, channel @ 8, context @ 16, qp @ 24, route @ 32, route.addr.dst_addr @ 160,
        route.addr.addr.sgid @ 288, route.addr.addr.dgid @ 304, route.addr.addr.pkey @ 320,
        route.path_rec @ 328, route.num_paths @ 336, ps @ 344, port_num @ 348, event @ 352,
        send_cq_channel @ 360, send_cq @ 368, recv_cq_channel @ 376, recv_cq @ 384, srq @ 392, pd @ 400,
        qp_type @ 408,
    }
    rdma_route: 312 { addr @ 0, path_rec @ 296, num_paths @ 304 }
    rdma_addr: 296 { src_addr @ 0, dst_addr @ 128, addr @ 256 }
    rdma_ib_addr: 40 { sgid @ 0, dgid @ 16, pkey @ 32 }
    rdma_cm_event: 80 {
        id @ 0, listen_id @ 8, event @ 16, status @ 20, param @ 24, param.conn @ 24, param.ud @ 24,
    }
    rdma_conn_param: 24 {
        private_data @ 0, private_data_len @ 8, responder_resources @ 9, initiator_depth @ 10,
        flow_control @ 11, retry_count @ 12, rnr_retry_count @ 13, srq @ 14, qp_num @ 16,
    }
    rdma_ud_param: 56 { private_data @ 0, private_data_len @ 8, ah_attr @ 16, qp_num @ 48, qkey @ 52 }
    rdma_addrinfo: 96 {
        ai_flags @ 0, ai_family @ 4, ai_qp_type @ 8, ai_port_space @ 12, ai_src_len @ 16, ai_dst_len @ 20,
        ai_src_addr @ 24, ai_dst_addr @ 32, ai_src_canonname @ 40, ai_dst_canonname @ 48, ai_route_len @ 56,
        ai_route @ 64, ai_connect_len @ 72, ai_connect @ 80, ai_next @ 88,
    }
    rdma_cm_join_mc_attr_ex: 16 { comp_mask @ 0, join_flags @ 4, addr @ 8 }
    ibv_sa_path_rec: 64 {
        dgid @ 0, sgid @ 16, dlid @ 32, slid @ 34, raw_traffic @ 36, flow_label @ 40, hop_limit @ 44,
        traffic_class @ 45, reversible @ 48, numb_path @ 52, pkey @ 54, sl @ 56, mtu_selector @ 57, mtu @ 58,
        rate_selector @ 59, rate @ 60, packet_life_time_selector @ 61, packet_life_time @ 62, preference @ 63,
    }
}
