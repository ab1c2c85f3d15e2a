//! Context and verdicts of XDP programs (`linux/bpf.h`).

use std::fmt;

/// Verdict of a program on a packet (`enum xdp_action`).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum XdpAction {
    /// The program failed: drop the packet and emit a trace event.
    Aborted = 0,
    /// Drop the packet.
    Drop = 1,
    /// Pass the packet to the network stack (in roxie: to the transport).
    Pass = 2,
    /// Transmit the packet through the interface that received it.
    Tx = 3,
    /// Send the packet to the target of the redirect helper.
    Redirect = 4,
}

impl XdpAction {
    /// All verdicts, in the order of their numbers.
    pub const ALL: [XdpAction; 5] =
        [XdpAction::Aborted, XdpAction::Drop, XdpAction::Pass, XdpAction::Tx, XdpAction::Redirect];

    /// Returns the verdict with this number, or `None`. The kernel treats other numbers as
    /// [`XdpAction::Aborted`].
    #[must_use]
    pub fn from_number(number: u32) -> Option<XdpAction> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns the number, 0..=4.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for XdpAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            XdpAction::Aborted => "XDP_ABORTED",
            XdpAction::Drop => "XDP_DROP",
            XdpAction::Pass => "XDP_PASS",
            XdpAction::Tx => "XDP_TX",
            XdpAction::Redirect => "XDP_REDIRECT",
        })
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
