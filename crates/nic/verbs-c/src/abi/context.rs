//! `ibv_device`, `ibv_context` and the operation tables that the inline functions of verbs.h call through.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_mutex_t, size_t};
use roxie::transport::{Sge, Wc};

use super::device::{ibv_device_attr_ex, ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex};
use super::memory::{ibv_alloc_dm_attr, ibv_buf, ibv_dm, ibv_mr_init_attr};
use super::objects::{
    ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_mr, ibv_mw, ibv_mw_bind,
    ibv_parent_domain_init_attr, ibv_pd, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    ibv_qp_rate_limit_attr, ibv_srq, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_xrcd,
    ibv_xrcd_init_attr,
};
use super::steering::{
    ibv_flow, ibv_flow_attr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr,
    ibv_wq_init_attr,
};
use super::work::{ibv_recv_wr, ibv_send_wr};
use super::{M, layouts};

/// A slot of an operation table that this library leaves empty. Programs take NULL for "not supported".
pub type Empty = *const c_void;

#[repr(C)]
pub struct ibv_device {
    pub _ops: [*const c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

/// Operations that inline functions call without looking for NULL; the `_compat` slots are never called.
#[repr(C)]
pub struct ibv_context_ops {
    pub _compat_query_device: Empty,
    pub _compat_query_port: Empty,
    pub _compat: [Empty; 5],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub _compat_create_cq: Empty,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _compat_cq: [Empty; 7],
    pub post_srq_recv:
        Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_qp: [Empty; 4],
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_ah: [Empty; 5],
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex_t,
    /// All ones: says that a [`verbs_context`] surrounds this structure.
    pub abi_compat: *mut c_void,
}

/// Extended operations lie *before* the context, newest first. A program checks whether `sz` covers the one
/// it wants.
#[repr(C)]
pub struct verbs_context {
    pub free_buf: Option<unsafe extern "C" fn(*mut ibv_buf)>,
    pub alloc_buf: Option<unsafe extern "C" fn(*mut ibv_pd, size_t, *mut *mut ibv_buf) -> *mut c_void>,
    pub dm_export_dmabuf_fd: Empty,
    pub reg_mr_ex: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_mr_init_attr) -> *mut ibv_mr>,
    pub dealloc_dmah: Empty,
    pub alloc_dmah: Empty,
    pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, size_t) -> c_int>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, c_int, u32, *mut Sge, u32) -> c_int>,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub read_counters: Empty,
    pub attach_counters_point_flow: Empty,
    pub create_counters: Empty,
    pub destroy_counters: Empty,
    pub reg_dm_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, size_t, c_uint) -> *mut ibv_mr>,
    pub alloc_dm: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
    pub free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub modify_flow_action_esp: Empty,
    pub destroy_flow_action: Empty,
    pub create_flow_action_esp: Empty,
    pub modify_qp_rate_limit: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int>,
    pub alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    pub modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
    pub post_srq_ops: Empty,
    pub destroy_rwq_ind_table: Option<unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int>,
    pub create_rwq_ind_table: Option<
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table,
    >,
    pub destroy_wq: Option<unsafe extern "C" fn(*mut ibv_wq) -> c_int>,
    pub modify_wq: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int>,
    pub create_wq: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq>,
    pub query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub r#priv: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            size_t,
        ) -> c_int,
    >,
    pub ibv_destroy_flow: Option<unsafe extern "C" fn(*mut ibv_flow) -> c_int>,
    pub placeholder2: Empty,
    pub ibv_create_flow: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow>,
    pub placeholder1: Empty,
    pub open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub placeholder3: Empty,
    pub sz: size_t,
    pub context: ibv_context,
}

layouts! {
    ibv_device: 664 {
        _ops @ 0, node_type @ 16, transport_type @ 20, name @ 24, dev_name @ 88, dev_path @ 152,
        ibdev_path @ 408,
    }
    ibv_context: (328 + M) {
        device @ 0, ops @ 8, ops._compat_query_device @ 8, ops._compat_query_port @ 16, ops.alloc_mw @ 64,
        ops.bind_mw @ 72, ops.dealloc_mw @ 80, ops._compat_create_cq @ 88, ops.poll_cq @ 96,
        ops.req_notify_cq @ 104, ops.post_srq_recv @ 168, ops.post_send @ 208, ops.post_recv @ 216,
        cmd_fd @ 264, async_fd @ 268, num_comp_vectors @ 272, mutex @ 280, abi_compat @ 320 + M,
    }
    verbs_context: (696 + M) {
        free_buf @ 0, alloc_buf @ 8, dm_export_dmabuf_fd @ 16, reg_mr_ex @ 24, dealloc_dmah @ 32,
        alloc_dmah @ 40,
        query_port @ 48, advise_mr @ 56, alloc_null_mr @ 64, read_counters @ 72,
        attach_counters_point_flow @ 80, create_counters @ 88, destroy_counters @ 96, reg_dm_mr @ 104,
        alloc_dm @ 112, free_dm @ 120, modify_flow_action_esp @ 128, destroy_flow_action @ 136,
        create_flow_action_esp @ 144, modify_qp_rate_limit @ 152, alloc_parent_domain @ 160, dealloc_td @ 168,
        alloc_td @ 176, modify_cq @ 184, post_srq_ops @ 192, destroy_rwq_ind_table @ 200,
        create_rwq_ind_table @ 208, destroy_wq @ 216, modify_wq @ 224, create_wq @ 232, query_rt_values @ 240,
        create_cq_ex @ 248, r#priv @ 256, query_device_ex @ 264, ibv_destroy_flow @ 272, placeholder2 @ 280,
        ibv_create_flow @ 288, placeholder1 @ 296, open_qp @ 304, create_qp_ex @ 312, get_srq_num @ 320,
        create_srq_ex @ 328, open_xrcd @ 336, close_xrcd @ 344, placeholder3 @ 352, sz @ 360, context @ 368,
    }
}
