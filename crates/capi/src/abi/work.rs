//! Work requests, completions, and what events carry.

use std::ffi::{c_int, c_void};

use libc::size_t;
use roxie::transport::{Sge, Wc};

use super::context::ibv_context;
use super::device::ibv_gid;
use super::layouts;
use super::objects::{ibv_cq, ibv_mw, ibv_mw_bind_info, ibv_pd, ibv_qp, ibv_srq};

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

layouts! {
    ibv_ah: 24 { context @ 0, pd @ 8, handle @ 16 }
    ibv_grh: 40 { version_tclass_flow @ 0, paylen @ 4, next_hdr @ 6, hop_limit @ 7, sgid @ 8, dgid @ 24 }
    ibv_data_buf: 16 { addr @ 0, length @ 8 }
    ibv_sge: 16 { addr @ 0, length @ 8, lkey @ 12 }
    ibv_send_wr: 128 {
        wr_id @ 0, next @ 8, sg_list @ 16, num_sge @ 24, opcode @ 28, send_flags @ 32, imm_data @ 36, wr @ 40,
        wr.rdma.remote_addr @ 40, wr.rdma.rkey @ 48, wr.atomic.remote_addr @ 40, wr.atomic.compare_add @ 48,
        wr.atomic.swap @ 56, wr.atomic.rkey @ 64, wr.ud.ah @ 40, wr.ud.remote_qpn @ 48, wr.ud.remote_qkey @ 52,
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
