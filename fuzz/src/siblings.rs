//! Fuzzes what other processes of this host write: rings of packets and the disconnect journal.
//!
//! Checked: no panic; no batch is longer than its buffer; a ring has an end; notices are neither lost nor
//! doubled when another process takes them over.

use roxie::fuzz;

/// Runs one input. Byte 0 selects the kind, the rest is the memory.
pub fn run(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else { return };
    match which % 2 {
        0 => fuzz::ring(bytes),
        _ => fuzz::journal(bytes),
    }
}
