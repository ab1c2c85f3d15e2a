//! Work queues, indirection tables and flow rules.

use std::ffi::{c_int, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::context::ibv_context;
use super::objects::{ibv_cq, ibv_pd};
use super::work::ibv_recv_wr;
use super::{M, constants, layouts};

#[repr(C)]
pub struct ibv_wq {
    pub context: *mut ibv_context,
    pub wq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub wq_num: u32,
    pub handle: u32,
    pub state: c_int,
    pub wq_type: c_int,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
    pub comp_mask: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wq_init_attr {
    pub wq_context: *mut c_void,
    pub wq_type: c_int,
    pub max_wr: u32,
    pub max_sge: u32,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub comp_mask: u32,
    pub create_flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wq_attr {
    pub attr_mask: u32,
    pub wq_state: c_int,
    pub curr_wq_state: c_int,
    pub flags: u32,
    pub flags_mask: u32,
}

#[repr(C)]
pub struct ibv_rwq_ind_table {
    pub context: *mut ibv_context,
    pub ind_tbl_handle: c_int,
    pub ind_tbl_num: c_int,
    pub comp_mask: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_rwq_ind_table_init_attr {
    pub log_ind_tbl_size: u32,
    pub ind_tbl: *mut *mut ibv_wq,
    pub comp_mask: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_rx_hash_conf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}

/// The specifications follow.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_flow_attr {
    pub comp_mask: u32,
    pub r#type: c_int,
    pub size: u16,
    pub priority: u16,
    pub num_of_specs: u8,
    pub port: u8,
    pub flags: u32,
}

#[repr(C)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}

constants! {
    c_int {
        IBV_WQT_RQ = 0,
        IBV_WQS_RESET = 0,
        IBV_WQS_RDY = 1,
        IBV_WQS_ERR = 2,
        IBV_FLOW_ATTR_NORMAL = 0,
        IBV_FLOW_ATTR_ALL_DEFAULT = 1,
        IBV_FLOW_ATTR_MC_DEFAULT = 2,
        IBV_FLOW_ATTR_SNIFFER = 3,
    }
    u32 {
        IBV_WQ_INIT_ATTR_FLAGS = 1,
        IBV_WQ_ATTR_STATE = 1,
        IBV_WQ_ATTR_CURR_STATE = 1 << 1,
        IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 1 << 1,
        IBV_FLOW_ATTR_FLAGS_EGRESS = 1 << 2,
    }
}

layouts! {
    ibv_wq: (152 + M) {
        context @ 0, wq_context @ 8, pd @ 16, cq @ 24, wq_num @ 32, handle @ 36, state @ 40, wq_type @ 44,
        post_recv @ 48, mutex @ 56, cond @ 96 + M, events_completed @ 144 + M, comp_mask @ 148 + M,
    }
    ibv_wq_init_attr: 48 {
        wq_context @ 0, wq_type @ 8, max_wr @ 12, max_sge @ 16, pd @ 24, cq @ 32, comp_mask @ 40,
        create_flags @ 44,
    }
    ibv_wq_attr: 20 { attr_mask @ 0, wq_state @ 4, curr_wq_state @ 8, flags @ 12, flags_mask @ 16 }
    ibv_rwq_ind_table: 24 { context @ 0, ind_tbl_handle @ 8, ind_tbl_num @ 12, comp_mask @ 16 }
    ibv_rwq_ind_table_init_attr: 24 { log_ind_tbl_size @ 0, ind_tbl @ 8, comp_mask @ 16 }
    ibv_rx_hash_conf: 24 {
        rx_hash_function @ 0, rx_hash_key_len @ 1, rx_hash_key @ 8, rx_hash_fields_mask @ 16,
    }
    ibv_rss_caps: 32 {
        supported_qpts @ 0, max_rwq_indirection_tables @ 4, max_rwq_indirection_table_size @ 8,
        rx_hash_fields_mask @ 16, rx_hash_function @ 24,
    }
    ibv_flow_attr: 20 {
        comp_mask @ 0, r#type @ 4, size @ 8, priority @ 10, num_of_specs @ 12, port @ 13, flags @ 16,
    }
    ibv_flow: 24 { comp_mask @ 0, context @ 8, handle @ 16 }
}
