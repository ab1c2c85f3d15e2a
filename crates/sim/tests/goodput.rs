//! How much of its speed a connection keeps when packets are lost, in virtual time.
//!
//! Goal: a change that makes recovery worse shows as a difference, on any machine. Method: one side sends 32 MiB over a link
//! that takes time for each byte and loses packets by chance, at 0, 0.1, 1 and 5 per cent; the goodput as a share of that
//! without loss, and the packets it cost, must be those of `goodput.txt`. `ROXIE_BLESS=1` writes that file anew.

#[path = "goodput/link.rs"]
mod link;

use std::fmt::Write;

use link::{Link, Operation, Outcome, Peer};

const LOSSES_PER_100_000: [u64; 4] = [0, 100, 1000, 5000];
const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goodput.txt");

fn table() -> String {
    let mut text = String::from(
        "Goodput as a share of that without loss (packets sent for each 100 needed)\n\
         one way 10 us and 0.4 us per packet of 1 KiB, polled every 5 us, losses in both directions\n\n\
         peer       operation    size     0 %         0.1 %         1 %           5 %\n",
    );
    for peer in [Peer::Keeps, Peer::GoesBack] {
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
fn goodput_over_loss_is_as_pictured() {
    let table = table();
    if std::env::var_os("ROXIE_BLESS").is_some() {
        std::fs::write(PICTURE, &table).expect("the source tree can be written");
        return;
    }
    let picture = std::fs::read_to_string(PICTURE).unwrap_or_default();
    assert!(table == picture, "ROXIE_BLESS=1 writes it anew; was\n{picture}\nis\n{table}");
}
