//! What an XDP program is given and what it may answer (`linux/bpf.h`).

use std::fmt;

/// Verdict of a program on a packet (`enum xdp_action`).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum XdpAction {
    /// The program failed: drop the packet and say so in a trace event.
    Aborted = 0,
    /// Drop the packet.
    Drop = 1,
    /// To the network stack (in roxie: to the transport).
    Pass = 2,
    /// Back out of the interface it came in on.
    Tx = 3,
    /// To where the redirect helper was told.
    Redirect = 4,
}

impl XdpAction {
    /// All verdicts, by number.
    pub const ALL: [XdpAction; 5] =
        [XdpAction::Aborted, XdpAction::Drop, XdpAction::Pass, XdpAction::Tx, XdpAction::Redirect];

    /// The verdict with this number. Numbers without one count as [`XdpAction::Aborted`] in the kernel.
    #[must_use]
    pub fn from_number(number: u32) -> Option<XdpAction> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// 0..=4.
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

/// Fields of `struct xdp_md`, the program's argument; all 32 bits wide. The value is the byte offset.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum XdpMd {
    /// First byte of the packet.
    Data = 0,
    /// Behind the last byte of its linear part.
    DataEnd = 4,
    /// First byte of the metadata, which ends at `Data`.
    DataMeta = 8,
    /// Interface it came in on.
    IngressIfindex = 12,
    /// Receive queue it came in on.
    RxQueueIndex = 16,
    /// Interface it will go out on; programs in a DEVMAP entry only.
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

    /// Bytes of the structure.
    pub const LEN: usize = 24;

    /// Byte offset of the field.
    #[must_use]
    pub const fn offset(self) -> i16 {
        self as i16
    }
}
