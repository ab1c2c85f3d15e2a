//! The functions of libibverbs, one module per group of manual pages.
//!
//! Functions without the prefix `ibv_` are in the operation tables of a context (`abi::context`). Inline
//! functions of verbs.h call them there.

/// Sets members of a structure to the functions with their names.
macro_rules! set {
    ($to:ident; $($module:ident::$name:ident),+) => {
        $($to.$name = Some($module::$name);)+
    };
    ($to:ident; $($name:ident),+) => {
        $($to.$name = Some($name);)+
    };
}

pub(crate) mod ah;
pub(crate) mod async_events;
pub(crate) mod buf;
pub(crate) mod comp_cntr;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_ex;
pub(crate) mod device;
pub(crate) mod device_object;
pub(crate) mod dm;
pub(crate) mod events;
pub(crate) mod flow;
pub(crate) mod gid;
pub(crate) mod handles;
pub(crate) mod mw;
mod pages;
pub(crate) mod pd_mr;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_attr;
pub(crate) mod query;
pub(crate) mod queue_pair;
mod raw;
pub(crate) mod srq;
pub(crate) mod strings;
pub(crate) mod sysfs;
pub(crate) mod td;
pub(crate) mod work;
pub(crate) mod wq;
pub(crate) mod wr;
pub(crate) mod xrc;

/// The functions that `symbols/ibverbs.txt` names.
pub(crate) mod exported {
    pub(crate) use super::ah::{
        ibv_create_ah, ibv_create_ah_from_wc, ibv_destroy_ah, ibv_init_ah_from_wc,
        ibv_resolve_eth_l2_from_gid,
    };
    pub(crate) use super::async_events::{ibv_ack_async_event, ibv_get_async_event};
    pub(crate) use super::buf::{
        ibv_alloc_buf, ibv_export_buf_dmabuf_fd, ibv_free_buf, ibv_reg_buf_mr, ibv_reg_dmabuf_mr,
        ibv_reg_mr_ex,
    };
    pub(crate) use super::comp_cntr::{
        _ibv_query_comp_cntr_caps, ibv_create_comp_cntr, ibv_destroy_comp_cntr, ibv_inc_comp_cntr,
        ibv_inc_err_comp_cntr, ibv_qp_attach_comp_cntr, ibv_read_comp_cntr, ibv_read_err_comp_cntr,
        ibv_set_comp_cntr, ibv_set_err_comp_cntr,
    };
    pub(crate) use super::cq::{
        ibv_ack_cq_events, ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
        ibv_get_cq_event, ibv_resize_cq,
    };
    pub(crate) use super::device::{
        ibv_close_device, ibv_dofork_range, ibv_dontfork_range, ibv_fork_init, ibv_free_device_list,
        ibv_get_device_guid, ibv_get_device_index, ibv_get_device_list, ibv_get_device_name,
        ibv_import_device, ibv_is_fork_initialized, ibv_open_device, register_nothing,
    };
    pub(crate) use super::dm::{ibv_import_dm, ibv_unimport_dm};
    pub(crate) use super::gid::{
        _ibv_query_gid_ex, _ibv_query_gid_table, ibv_get_pkey_index, ibv_query_gid, ibv_query_gid_type,
        ibv_query_pkey,
    };
    pub(crate) use super::pd_mr::{
        ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, ibv_import_mr, ibv_import_pd, ibv_reg_mr,
        ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_rereg_mr, ibv_unimport_mr, ibv_unimport_pd,
    };
    pub(crate) use super::qp::{
        ibv_attach_mcast, ibv_create_qp, ibv_destroy_qp, ibv_detach_mcast, ibv_modify_qp, ibv_qp_to_qp_ex,
        ibv_query_ece, ibv_query_qp, ibv_query_qp_data_in_order, ibv_set_ece,
    };
    pub(crate) use super::query::{ibv_query_device, ibv_query_port, ibv_query_port_speed};
    pub(crate) use super::srq::{ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq};
    pub(crate) use super::strings::{
        ibv_event_type_str, ibv_node_type_str, ibv_port_state_str, ibv_rate_to_mbps, ibv_rate_to_mult,
        ibv_wc_status_str, ibv_wr_opcode_str, mbps_to_ibv_rate, mult_to_ibv_rate,
    };
    pub(crate) use super::sysfs::{ibv_get_sysfs_path, ibv_read_sysfs_file};
}
