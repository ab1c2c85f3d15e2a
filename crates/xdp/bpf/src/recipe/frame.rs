//! Stack frame of a composed program, as byte offsets from R10. Blocks share no other memory.

/// Source address of the packet, 16 bytes; IPv4 as `::ffff:a.b.c.d`. `Select::Ip` and `Select::Roce` set it.
pub(super) const SOURCE: i16 = -16;
/// Prefix length in front of the source address. Both together are the key of an LPM trie.
pub(super) const PREFIX_LEN: i16 = -20;
/// Destination QPN in host byte order, 32 bits. `Select::Roce` sets it.
pub(super) const DEST_QP: i16 = -24;
/// A 32-bit map key of the current block.
pub(super) const KEY: i16 = -28;
/// A 64-bit value of the current block.
pub(super) const VALUE: i16 = -40;
/// Destination address of the packet, in the form of [`SOURCE`]. It is set if a stage needs it.
pub(super) const DESTINATION: i16 = -120;
/// `struct bpf_fib_lookup`, 64 bytes.
pub(super) const FIB: i16 = -104;
