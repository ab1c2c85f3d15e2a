//! What the device and its port can do (ibv_query_device(3), ibv_query_port(3)).

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
    /// Vendor; not one that perftest or UCX treat specially.
    pub vendor_id: u32,
    /// Part number of that vendor.
    pub vendor_part_id: u32,
    /// Version of this crate.
    pub fw_ver: &'static str,
    /// Largest region in bytes.
    pub max_mr_size: u64,
    /// Page sizes, as a mask of bits.
    pub page_size_cap: u64,
    /// Most QPs.
    pub max_qp: u32,
    /// Most work requests of a queue.
    pub max_qp_wr: u32,
    /// Most SGEs of a work request.
    pub max_sge: u32,
    /// Most bytes of an inline send.
    pub max_inline_data: u32,
    /// Most CQs.
    pub max_cq: u32,
    /// Most entries of a CQ.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Regions need not be mapped, neither when they are registered nor later: a transfer that meets a hole fails alone.
    pub on_demand_paging: bool,
    /// Queue pairs attached to multicast groups.
    pub max_mcast: u32,
    /// Most memory windows.
    pub max_mw: u32,
    /// Most protection domains.
    pub max_pd: u32,
    /// READs and atomics a QP may have outstanding as responder, and as initiator.
    pub max_qp_rd_atom: u8,
    /// Most SRQs.
    pub max_srq: u32,
    /// Most receives of an SRQ.
    pub max_srq_wr: u32,
    /// Most SGEs of an SRQ's receive.
    pub max_srq_sge: u32,
    /// Most address handles.
    pub max_ah: u32,
    /// Local ACK delay, 4.096 us * 2^n.
    pub local_ca_ack_delay: u8,
}

/// State of the only port, number 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortAttr {
    /// Whether the netdev is up, and the port the one that was asked for or possible ([`Context::port_refusal`]).
    ///
    /// [`Context::port_refusal`]: super::Context::port_refusal
    pub active: bool,
    /// Largest path MTU of the protocol.
    pub max_mtu: PathMtu,
    /// Largest path MTU that fits the netdev's MTU.
    pub active_mtu: PathMtu,
    /// Rows of the GID table.
    pub gid_tbl_len: u32,
    /// Largest message in bytes.
    pub max_msg_sz: u32,
}
