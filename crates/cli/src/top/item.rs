//! What is read of a queue pair at one time.

use std::net::IpAddr;

use ::wire::Qpn;
use roxie::status::QpStatus;

/// A counter; its value is the index in [`Counts`] and [`Rates`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Metric {
    TxBytes,
    RxBytes,
    TxMessages,
    RxMessages,
    TxPackets,
    RxPackets,
    Retransmitted,
    Timeouts,
    Naks,
    RnrNaks,
    Cnps,
}

impl Metric {
    /// The names of the counters, in order. The last one, packets with a congestion mark, is only reported.
    pub(super) const NAMES: [&str; 12] = [
        "tx_bytes",
        "rx_bytes",
        "tx_messages",
        "rx_messages",
        "tx_packets",
        "rx_packets",
        "retransmitted",
        "timeouts",
        "naks",
        "rnr_naks",
        "cnps",
        "marked",
    ];
}

/// Counters since the queue pair exists.
pub(super) type Counts = [u64; Metric::NAMES.len()];
/// Changes per second.
pub(super) type Rates = [f64; Metric::NAMES.len()];

/// Identifies a queue pair of a process, or a connection on the wire.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) enum Key {
    /// A queue pair of a process.
    Process { pid: u32, slot: u16, qpn: Qpn },
    /// A direction of a connection: from one host to the queue pair of another.
    Wire { src: IpAddr, dst: IpAddr, qpn: Qpn },
}

/// The state of a queue pair at one time.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) key: Key,
    /// Name of the program.
    pub(super) command: String,
    /// Name of the device; empty for a connection on the wire.
    pub(super) device: String,
    /// The network interface of the device, or the captured one.
    pub(super) netdev: String,
    pub(super) status: QpStatus,
    pub(super) totals: Counts,
}
