//! Work requests, completions and events.

use std::ffi::{c_int, c_void};

use libc::size_t;
use roxie::transport::{Sge, Wc};

use super::context::ibv_context;
use super::device::ibv_gid;
use super::objects::{ibv_cq, ibv_mw, ibv_mw_bind_info, ibv_pd, ibv_qp, ibv_srq};
use super::{constants, layouts};

#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}

/// The first 40 bytes of a UD receive buffer, as an IPv6 header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_grh {
    pub version_tclass_flow: u32,
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}

#[repr(C)]
pub struct ibv_data_buf {
    pub addr: *mut c_void,
    pub length: size_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// Which member is valid follows from the opcode and the type of the QP.
#[repr(C)]
pub union SendWrArguments {
    pub rdma: Rdma,
    pub atomic: Atomic,
    pub ud: Ud,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct BindMw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: u32,
    /// `imm_data` in network byte order, or `invalidate_rkey`.
    pub imm_data: u32,
    pub wr: SendWrArguments,
    /// `qp_type.xrc.remote_srqn`, and padding.
    pub qp_type: [u32; 2],
    pub bind_mw: BindMw,
}

#[repr(C)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union Element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub port_num: c_int,
}

#[repr(C)]
pub struct ibv_async_event {
    pub element: Element,
    pub event_type: c_int,
}

type ibv_sge = Sge;
type ibv_wc = Wc;

constants! {
    c_int {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        IBV_WR_SEND = 2,
        IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4,
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
        IBV_WR_LOCAL_INV = 7,
        IBV_WR_BIND_MW = 8,
        IBV_WR_SEND_WITH_INV = 9,
        IBV_WR_TSO = 10,
        IBV_WR_DRIVER1 = 11,
        IBV_WR_FLUSH = 14,
        IBV_WR_ATOMIC_WRITE = 15,
        IBV_EVENT_CQ_ERR = 0,
        IBV_EVENT_QP_FATAL = 1,
        IBV_EVENT_QP_REQ_ERR = 2,
        IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4,
        IBV_EVENT_SQ_DRAINED = 5,
        IBV_EVENT_PATH_MIG = 6,
        IBV_EVENT_PATH_MIG_ERR = 7,
        IBV_EVENT_SRQ_ERR = 14,
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        IBV_RATE_MAX = 0,
        IBV_RATE_2_5_GBPS = 2,
        IBV_RATE_5_GBPS = 5,
        IBV_RATE_10_GBPS = 3,
        IBV_RATE_20_GBPS = 6,
        IBV_RATE_30_GBPS = 4,
        IBV_RATE_40_GBPS = 7,
        IBV_RATE_60_GBPS = 8,
        IBV_RATE_80_GBPS = 9,
        IBV_RATE_120_GBPS = 10,
        IBV_RATE_14_GBPS = 11,
        IBV_RATE_56_GBPS = 12,
        IBV_RATE_112_GBPS = 13,
        IBV_RATE_168_GBPS = 14,
        IBV_RATE_25_GBPS = 15,
        IBV_RATE_100_GBPS = 16,
        IBV_RATE_200_GBPS = 17,
        IBV_RATE_300_GBPS = 18,
        IBV_RATE_28_GBPS = 19,
        IBV_RATE_50_GBPS = 20,
        IBV_RATE_400_GBPS = 21,
        IBV_RATE_600_GBPS = 22,
        IBV_RATE_800_GBPS = 23,
        IBV_RATE_1200_GBPS = 24,
    }
}

layouts! {
    ibv_ah: 24 { context @ 0, pd @ 8, handle @ 16 }
    ibv_grh: 40 { version_tclass_flow @ 0, paylen @ 4, next_hdr @ 6, hop_limit @ 7, sgid @ 8, dgid @ 24 }
    ibv_data_buf: 16 { addr @ 0, length @ 8 }
    ibv_sge: 16 { addr @ 0, length @ 8, lkey @ 12 }
    ibv_send_wr: 128 {
        wr_id @ 0, next @ 8, sg_list @ 16, num_sge @ 24, opcode @ 28, send_flags @ 32, imm_data @ 36, wr @ 40,
        wr.rdma.remote_addr @ 40, wr.rdma.rkey @ 48, wr.atomic.remote_addr @ 40, wr.atomic.compare_add @ 48,
        wr.atomic.swap @ 56, wr.atomic.rkey @ 64, wr.ud.ah @ 40, wr.ud.remote_qpn @ 48,
        wr.ud.remote_qkey @ 52,
        qp_type @ 72, bind_mw @ 80, bind_mw.mw @ 80, bind_mw.rkey @ 88, bind_mw.bind_info @ 96,
    }
    ibv_recv_wr: 32 { wr_id @ 0, next @ 8, sg_list @ 16, num_sge @ 24 }
    ibv_wc: 48 {
        wr_id @ 0, status @ 8, opcode @ 12, vendor_err @ 16, byte_len @ 20, imm_data @ 24, qp_num @ 28,
        src_qp @ 32, wc_flags @ 36, pkey_index @ 40, slid @ 42, sl @ 44, dlid_path_bits @ 45,
    }
    ibv_async_event: 16 {
        element.cq @ 0, element.qp @ 0, element.srq @ 0, element.port_num @ 0, event_type @ 8,
    }
}
