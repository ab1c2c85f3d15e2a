//! Times that several rules compare with, in nanoseconds.

/// An answer that takes longer makes a finding.
pub(super) const SLOW_NS: u64 = 1_000_000_000;
/// An identical copy within this time was duplicated in transit, and is not a retransmission. Shorter than
/// the time after which roxie sends a probe.
pub(super) const DUPLICATED_NS: u64 = 200_000;
/// The same for hosts that number their packets. Longer than any delay in a network; 2^16 packets of 64 bytes
/// take 40 ms at 1 Gbit/s, after which identifications repeat.
pub(super) const SAME_ID_NS: u64 = 30_000_000;
/// Longest delay of a packet that counts as out of order and not as retransmitted, if IP identifications do
/// not tell.
pub(super) const OUT_OF_ORDER_NS: u64 = 20_000_000;
