//! Context and verdicts of XDP programs (`linux/bpf.h`).

use std::fmt;

use crate::numbered::numbered;

numbered! {
    /// Verdict of a program on a packet (`enum xdp_action`). The kernel treats other numbers as
    /// [`XdpAction::Aborted`].
    #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
    pub enum XdpAction {
        /// The program failed: drop the packet and emit a trace event.
        Aborted = 0 "XDP_ABORTED",
        /// Drop the packet.
        Drop = 1 "XDP_DROP",
        /// Pass the packet to the network stack (in roxie: to the transport).
        Pass = 2 "XDP_PASS",
        /// Transmit the packet through the interface that received it.
        Tx = 3 "XDP_TX",
        /// Send the packet to the target of the redirect helper.
        Redirect = 4 "XDP_REDIRECT",
    }
    number: u32, from_number;
    /// Returns the name in C.
    name
}

impl fmt::Display for XdpAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Fields of `struct xdp_md`, the program's argument; each has 32 bits. The value is the byte offset.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum XdpMd {
    /// Address of the first byte of the packet.
    Data = 0,
    /// Address after the last byte of the packet's linear part.
    DataEnd = 4,
    /// Address of the first byte of the metadata, which ends at `Data`.
    DataMeta = 8,
    /// Index of the interface that received the packet.
    IngressIfindex = 12,
    /// Receive queue of the packet.
    RxQueueIndex = 16,
    /// Index of the outgoing interface; only for programs in a DEVMAP entry.
    EgressIfindex = 20,
}

impl XdpMd {
    /// The fields in order, with their names in C.
    pub const FIELDS: [(XdpMd, &'static str); 6] = [
        (XdpMd::Data, "data"),
        (XdpMd::DataEnd, "data_end"),
        (XdpMd::DataMeta, "data_meta"),
        (XdpMd::IngressIfindex, "ingress_ifindex"),
        (XdpMd::RxQueueIndex, "rx_queue_index"),
        (XdpMd::EgressIfindex, "egress_ifindex"),
    ];

    /// Length of the structure in bytes.
    pub const LEN: usize = 24;

    /// Returns the byte offset of the field.
    #[must_use]
    pub const fn offset(self) -> i16 {
        self as i16
    }
}
