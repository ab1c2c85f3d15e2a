//! Completion counters.

use std::ffi::c_int;

use super::context::ibv_context;
use super::{constants, layouts};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_comp_cntr_caps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}

#[repr(C)]
pub struct ibv_comp_cntr {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub r#type: c_int,
    pub flags: u32,
}

#[repr(C)]
pub struct ibv_qp_attach_comp_cntr_attr {
    pub comp_mask: u32,
    pub op_mask: u32,
}

constants! {
    c_int {
        IBV_COMP_CNTR_TYPE_WRS = 0,
        IBV_COMP_CNTR_TYPE_BYTES = 1,
    }
}

layouts! {
    ibv_comp_cntr_caps: 16 { max_value @ 0, max_counters @ 8, supported_qp_attach_ops @ 12 }
    ibv_comp_cntr: 16 { context @ 0, handle @ 8 }
    ibv_comp_cntr_init_attr: 12 { comp_mask @ 0, r#type @ 4, flags @ 8 }
    ibv_qp_attach_comp_cntr_attr: 8 { comp_mask @ 0, op_mask @ 4 }
}
