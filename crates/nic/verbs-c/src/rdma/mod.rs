//! The functions of librdmacm, one module per group of manual pages. librdmacm.so.1 jumps here
//! (`symbols/rdmacm.txt`).
//!
//! The connection manager itself is in the crate `roxie`. This module does what librdmacm does around the
//! kernel's: it has synchronous identifiers, and creates and destroys the QPs, CQs and SRQs of identifiers.

pub(crate) mod addr;
pub(crate) mod addrinfo;
pub(crate) mod channel;
pub(crate) mod connect;
pub(crate) mod device;
pub(crate) mod ep;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod multicast;
pub(crate) mod option;
pub(crate) mod qp;

/// The functions that `symbols/rdmacm.txt` names.
pub(crate) mod exported {
    pub(crate) use super::addr::{rdma_bind_addr, rdma_get_dst_port, rdma_get_src_port, rdma_listen};
    pub(crate) use super::addr::{rdma_resolve_addr, rdma_resolve_route};
    pub(crate) use super::addrinfo::{
        rdma_freeaddrinfo, rdma_getaddrinfo, rdma_query_addrinfo, rdma_resolve_addrinfo,
    };
    pub(crate) use super::channel::{rdma_create_event_channel, rdma_destroy_event_channel, rdma_migrate_id};
    pub(crate) use super::connect::{
        rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_notify, rdma_reject, rdma_reject_ece,
    };
    pub(crate) use super::device::{rdma_free_devices, rdma_get_devices};
    pub(crate) use super::ep::{rdma_create_ep, rdma_destroy_ep, rdma_get_request};
    pub(crate) use super::event::{
        rdma_ack_cm_event, rdma_event_str, rdma_get_cm_event, rdma_write_cm_event,
    };
    pub(crate) use super::id::{rdma_create_id, rdma_destroy_id};
    pub(crate) use super::multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
    pub(crate) use super::option::{rdma_get_remote_ece, rdma_set_local_ece, rdma_set_option};
    pub(crate) use super::qp::{
        rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp,
        rdma_destroy_srq, rdma_init_qp_attr,
    };
}
