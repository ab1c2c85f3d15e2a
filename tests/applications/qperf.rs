//! qperf: reliable connections. Its `ver_*` tests check the values of atomics.
//!
//! | qperf 0.4.11 | `rc_*` with `-cm 1`; by hand: `ud_lat` does not work |

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::Place;

use crate::case::{Case, LIMIT, carried, says, two_places};

/// Tests of one second each, and what their results are called.
const TESTS: [(&str, &str); 6] = [
    ("rc_lat", "latency"),
    ("rc_bw", "bw"),
    ("rc_rdma_write_bw", "bw"),
    ("rc_rdma_read_lat", "latency"),
    ("ver_rc_compare_swap", "msg_rate"),
    ("ver_rc_fetch_add", "msg_rate"),
];
/// Less than any second of `rc_bw` moves.
const BYTES: u64 = 1 << 20;

pub(crate) fn cases() -> Vec<Case> {
    let case =
        |place: Place| Case::new(place, "qperf -cm 1 rc_*", "qperf", move |lab, name| run(lab, &place, name));
    two_places().map(case).into()
}

fn run(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let port = lab.port();
    let port_word = port.to_string();
    let common = ["env", "ROXIE_STATS=1", "qperf", "-lp", &port_word];
    let mut client = [&common[..], &[lab.address(place), "-cm", "1", "-t", "1"]].concat();
    client.extend(TESTS.iter().map(|(test, _)| *test));
    // Ends the server.
    client.push("quit");
    let pair = Pair { name, server: common.to_vec(), client, ready: Ready::Tcp(port), limit: LIMIT };
    let ended = pair.run(lab, place)?.client;
    for (test, value) in TESTS {
        let results = ended.output.split(&format!("{test}:\n")).nth(1).unwrap_or_default();
        if !results.lines().next().is_some_and(|line| line.trim_start().starts_with(value)) {
            return Err(format!("no {value} of {test}\n{}", ended.describe()));
        }
    }
    says(&ended, "quit:")?;
    carried(&ended, BYTES)
}
