//! Fuzzes what other processes of this host write: rings of packets, the disconnect journal, and the records
//! of processes that borrow receives in an XRC domain.
//!
//! Checked: no panic; no batch is longer than its buffer; a ring has an end; notices are neither lost nor
//! doubled when another process takes them over; a lent receive completes once or returns, and only its own
//! bytes are written.

use roxie::fuzz;

/// Runs one input. Byte 0 selects the kind, the rest is the memory or the records.
pub fn run(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else { return };
    match which % 3 {
        0 => fuzz::ring(bytes),
        1 => fuzz::journal(bytes),
        _ => fuzz::xrc_records(bytes),
    }
}
