//! Throughput of a connection under random loss, relative to its own loss-free rate, in virtual time.
//!
//! Goal: a change that makes recovery worse shows as a difference on any machine. Method: one side sends 32
//! MiB over a link with a rate and random losses of 0, 0.1, 1 and 5 per cent. The goodput relative to that
//! without loss, and the number of packets sent, must equal `goodput.txt`. `ROXIE_BLESS=1` writes that file.

#[path = "goodput/link.rs"]
mod link;

use std::fmt::Write;

use link::{Link, Operation, Outcome, Peer};

const LOSSES_PER_100_000: [u64; 4] = [0, 100, 1000, 5000];
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goodput.txt");

fn table() -> String {
    let mut text = String::from(
        "Goodput as a share of that without loss (packets sent for each 100 needed)\n\
         one way 10 us and 0.4 us per packet of 1 KiB, polled every 5 us, losses in both directions\n\n\
         peer       operation    size     0 %         0.1 %         1 %           5 %\n",
    );
    for peer in [Peer::SelectiveRepeat, Peer::GoBackN] {
        for operation in [Operation::Write, Operation::Send, Operation::Read] {
            for (size, name) in [(64 << 10, "64 KiB"), (8 << 20, "8 MiB")] {
                let outcomes = LOSSES_PER_100_000.map(|loss| Link::new(peer, operation, size, loss).run());
                write!(text, "{:<10} {:<10} {name:>6}", peer.name(), operation.name()).expect("a string");
                for outcome in &outcomes {
                    let Outcome { elapsed_ns, packets, needed } = *outcome;
                    let share = 100.0 * outcomes[0].elapsed_ns as f64 / elapsed_ns as f64;
                    let cost = 100.0 * packets as f64 / needed as f64;
                    write!(text, "{share:>6.0} % ({cost:.0})").expect("a string");
                }
                text.push('\n');
            }
        }
    }
    text
}

#[test]
fn goodput_under_loss_equals_the_checked_in_table() {
    let table = table();
    if std::env::var_os("ROXIE_BLESS").is_some() {
        std::fs::write(TABLE, &table).expect("goodput.txt is writable");
        return;
    }
    let expected = std::fs::read_to_string(TABLE).unwrap_or_default();
    assert!(
        table == expected,
        "the table differs; ROXIE_BLESS=1 writes it. Expected:\n{expected}\nActual:\n{table}"
    );
}
