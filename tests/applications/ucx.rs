//! UCX's performance test: the kinds that `tests/programs` does not run.

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::Place;

use crate::case::{Case, LIMIT, carried, says, two_places};

/// Test, size, iterations.
const TESTS: [(&str, u64, u64); 8] = [
    ("tag_sync_lat", 1024, 300),
    ("stream_bw", 4096, 1000),
    ("stream_lat", 8, 300),
    ("ucp_am_lat", 64, 300),
    ("ucp_am_bw", 65536, 100),
    ("ucp_add", 8, 300),
    ("ucp_swap", 8, 300),
    ("ucp_cswap", 8, 300),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in two_places() {
        for test in TESTS {
            let what = format!("ucx_perftest -t {} -s {}", test.0, test.1);
            cases
                .push(Case::new(place, &what, "ucx_perftest", move |lab, name| run(lab, &place, name, test)));
        }
    }
    cases
}

fn run(
    lab: &Lab,
    place: &Place,
    name: &str,
    (test, size, iterations): (&str, u64, u64),
) -> Result<(), String> {
    let port = lab.port();
    let (port_word, size_word, iterations_word) =
        (port.to_string(), size.to_string(), iterations.to_string());
    let common = vec![
        "env",
        "ROXIE_STATS=1",
        "UCX_TLS=rc_verbs,ud_verbs",
        "UCX_NET_DEVICES=roxie0:1",
        "ucx_perftest",
        "-p",
        &port_word,
    ];
    let test_words = [lab.address(place), "-t", test, "-s", &size_word, "-n", &iterations_word];
    let pair = Pair {
        name,
        server: common.clone(),
        client: [&common[..], &test_words].concat(),
        ready: Ready::Tcp(port),
        limit: LIMIT,
    };
    let client = pair.run(lab, place)?.client;
    says(&client, "Final:")?;
    carried(&client, size * iterations)
}
