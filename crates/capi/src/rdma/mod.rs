//! librdmacm, by manual page.

pub(crate) mod addrinfo;
pub(crate) mod device;
pub(crate) mod multicast;
pub(crate) mod id { pub(crate) const PS_IPOIB: i32 = 2; pub(crate) const PS_TCP: i32 = 0x106; pub(crate) const PS_UDP: i32 = 0x111; }

/// What `symbols/rdmacm.txt` names.
pub(crate) mod exported {
    pub(crate) unsafe extern "C" fn rdma_accept() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_ack_cm_event() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_bind_addr() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_connect() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_create_ep() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_create_id() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_create_qp() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_create_qp_ex() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_create_srq() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_create_srq_ex() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_destroy_ep() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_destroy_event_channel() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_destroy_id() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_destroy_qp() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_destroy_srq() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_disconnect() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_event_str() -> i32 { -1 }
    pub(crate) use super::device::rdma_free_devices;
    pub(crate) use super::addrinfo::rdma_freeaddrinfo;
    pub(crate) unsafe extern "C" fn rdma_get_cm_event() -> i32 { -1 }
    pub(crate) use super::device::rdma_get_devices;
    pub(crate) unsafe extern "C" fn rdma_get_dst_port() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_get_request() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_get_src_port() -> i32 { -1 }
    pub(crate) use super::addrinfo::rdma_getaddrinfo;
    pub(crate) use super::multicast::rdma_join_multicast;
    pub(crate) use super::multicast::rdma_leave_multicast;
    pub(crate) unsafe extern "C" fn rdma_listen() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_migrate_id() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_notify() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_reject() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_resolve_addr() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_resolve_route() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_set_option() -> i32 { -1 }
    pub(crate) use super::multicast::rdma_join_multicast_ex;
    pub(crate) unsafe extern "C" fn rdma_establish() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_init_qp_attr() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_get_remote_ece() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_set_local_ece() -> i32 { -1 }
    pub(crate) unsafe extern "C" fn rdma_reject_ece() -> i32 { -1 }
}
