//! Counters of an engine: drop reasons, retransmissions, port counters.

use wire::DropReason;

use crate::engine::Core;
use crate::port::PortCounters;
use crate::status::Row;

impl Core {
    /// Returns all counters: the port's, one per drop reason, and the sums over all QPs, destroyed ones
    /// included.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let report = self.port.report();
        let mut rows = port_rows(&report.counters);
        rows.extend(report.rows);
        rows.extend(self.hooks.rows());
        rows.push(("tx_back_pressure", self.tables.port_full_count()));
        rows.extend(DropReason::ALL.iter().map(|r| (r.name(), self.tables.drops()[*r as usize])));
        let sum = self.tables.qp_counters();
        // If a drop reason and a QP counter share a name, the larger value, the QPs', is shown.
        for (name, value) in sum.rows() {
            match rows.iter_mut().find(|row| row.0 == name) {
                Some(row) => row.1 = row.1.max(value),
                None => rows.push((name, value)),
            }
        }
        for (alias, name) in ALIASES {
            let value = rows.iter().find(|row| row.0 == name).map_or(0, |row| row.1);
            rows.push((alias, value));
        }
        rows
    }
}

/// Aliases: the mlx5 name, and the name here.
const ALIASES: [(&str, &str); 4] = [
    ("out_of_sequence", "out_of_seq_request"),
    ("packet_seq_err", "rcvd_seq_err"),
    ("rnr_nak_retry_err", "rcvd_rnr_err"),
    ("rx_icrc_encapsulated", "rx_bad_icrc"),
];

fn port_rows(c: &PortCounters) -> Vec<Row> {
    vec![
        ("rx_batches", c.rx_batches),
        ("rx_packets", c.rx_packets),
        ("rx_bytes", c.rx_bytes),
        ("rx_malformed", c.rx_malformed),
        ("rx_no_buffer", c.rx_no_buffer),
        ("rx_errors", c.rx_errors),
        ("tx_bursts", c.tx_bursts),
        ("tx_packets", c.tx_packets),
        ("tx_bytes", c.tx_bytes),
        ("tx_no_buffer", c.tx_no_buffer),
        ("tx_waits", c.tx_waits),
        ("tx_too_long", c.tx_too_long),
        ("tx_unreachable", c.tx_unreachable),
        ("tx_forbidden", c.tx_forbidden),
        ("tx_errors", c.tx_errors),
        ("tx_gso_refused", c.tx_gso_refused),
        ("tx_full", c.tx_full),
    ]
}
