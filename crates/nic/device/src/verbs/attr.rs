//! Limits and attributes of the device and its port (ibv_query_device(3), ibv_query_port(3)).

use transport::PathMtu;
use wire::Gid;

/// One row of the GID table: an IP address of the netdev.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u8,
    /// The address as a GID (IPv4 as `::ffff:a.b.c.d`).
    pub gid: Gid,
    /// Interface that owns the address.
    pub ifindex: u32,
}

/// Limits and identity of the device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceAttr {
    /// EUI-64 of the netdev's MAC address, host byte order.
    pub node_guid: u64,
    /// Vendor id; not one that perftest or UCX treat specially.
    pub vendor_id: u32,
    /// Part number of the vendor.
    pub vendor_part_id: u32,
    /// Version of this crate.
    pub fw_ver: &'static str,
    /// Largest region in bytes.
    pub max_mr_size: u64,
    /// Supported page sizes, one bit each.
    pub page_size_cap: u64,
    /// Largest number of QPs.
    pub max_qp: u32,
    /// Largest number of work requests in a queue.
    pub max_qp_wr: u32,
    /// Largest number of SGEs in a work request.
    pub max_sge: u32,
    /// Largest amount of inline data, in bytes.
    pub max_inline_data: u32,
    /// Largest number of CQs.
    pub max_cq: u32,
    /// Largest number of entries in a CQ.
    pub max_cqe: u32,
    /// Largest number of memory regions.
    pub max_mr: u32,
    /// True if regions need not be mapped, neither at registration nor later: unmapped memory fails only the
    /// transfer that reaches it.
    pub on_demand_paging: bool,
    /// Largest number of queue pairs attached to multicast groups.
    pub max_mcast: u32,
    /// Bytes of device memory.
    pub max_dm_size: usize,
    /// Largest number of memory windows.
    pub max_mw: u32,
    /// Largest number of protection domains.
    pub max_pd: u32,
    /// Largest number of READs and atomics in flight on a QP, as responder and as initiator.
    pub max_qp_rd_atom: u8,
    /// Largest number of SRQs.
    pub max_srq: u32,
    /// Largest number of receives in an SRQ.
    pub max_srq_wr: u32,
    /// Largest number of SGEs in a receive of an SRQ.
    pub max_srq_sge: u32,
    /// Largest number of address handles.
    pub max_ah: u32,
    /// Local ACK delay n: 4.096 us * 2^n.
    pub local_ca_ack_delay: u8,
}

/// State of the only port, number 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortAttr {
    /// True if the netdev is up and has a carrier, and the requested port kind is possible
    /// ([`Context::port_refusal`]).
    ///
    /// [`Context::port_refusal`]: super::Context::port_refusal
    pub active: bool,
    /// True if the netdev is administratively up.
    pub is_enabled: bool,
    /// Largest path MTU of RoCE.
    pub max_mtu: PathMtu,
    /// Largest path MTU that fits the netdev's MTU.
    pub active_mtu: PathMtu,
    /// Number of rows in the GID table.
    pub gid_tbl_len: u32,
    /// Largest message in bytes.
    pub max_msg_sz: u32,
}
