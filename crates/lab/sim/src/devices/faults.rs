//! What goes wrong between simulated hosts.

/// What goes wrong on the way, in packets of a million, and how long the way is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) drop_ppm: u64,
    /// Those of the connection manager.
    pub(super) gsi_drop_ppm: u64,
    /// The first messages of this kind are lost, so many of each sender's connection.
    pub(super) gsi_lost: Option<(u16, u8)>,
    /// Packets that another process of the host receives than the one that they are for.
    pub(super) misroute_ppm: u64,
    pub(super) duplicate_ppm: u64,
    /// Packets that are late by up to this (nanoseconds).
    pub(super) jitter_ns: u64,
    pub(super) delay_ns: u64,
    /// What a byte takes on the link, in nanoseconds times 1024.
    pub(super) byte_time: u64,
    /// No forger sends packets.
    pub(super) is_trusted: bool,
    /// Hosts without a process refuse packets by ICMP; of a million such messages this many are lost. `None`:
    /// these hosts are silent.
    pub(super) icmp_drop_ppm: Option<u64>,
}
