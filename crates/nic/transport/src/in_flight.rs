//! Packets in flight: what both halves of a connection derive their limits from.

/// Consecutive packet numbers that a requester tells apart; more than the send window.
pub(crate) const SPAN: u64 = 768;

/// Shortest wait before the first probe (400 us). An acknowledgement may be delayed for 250 us
/// (`ack_policy.rs`), and the peer may have to wake a thread (40 us) or hand its device to another thread
/// (250 us).
pub(crate) const PROBE_MIN_NS: u64 = 400_000;

/// How many whole packets `bytes` fill. A path MTU is a power of two (IBA 9.2); a division per packet would
/// show.
#[inline]
pub(crate) fn full_packets(bytes: u64, mtu: usize) -> u64 {
    bytes >> mtu.trailing_zeros()
}
