//! The stack frame of a composed program: byte offsets from R10. Blocks share nothing else.

/// Source address of the packet, 16 bytes; IPv4 as `::ffff:a.b.c.d`. Set by `Select::Ip` and `Select::Roce`.
pub(super) const SOURCE: i16 = -16;
/// Prefix length, right in front of the source: together the key of an LPM trie.
pub(super) const PREFIX_LEN: i16 = -20;
/// Destination QPN in host order, 32 bits. Set by `Select::Roce`.
pub(super) const DEST_QP: i16 = -24;
/// A 32-bit map key, for the block that is running.
pub(super) const KEY: i16 = -28;
/// A 64-bit value, for the block that is running.
pub(super) const VALUE: i16 = -40;
/// Destination address of the packet, as [`SOURCE`]. Set if a stage wants it.
pub(super) const DESTINATION: i16 = -120;
/// `struct bpf_fib_lookup`, 64 bytes.
pub(super) const FIB: i16 = -104;
