//! UCX's performance test: the kinds that `tests/programs` does not run.

use roxie_tests::ucx::Perftest;

use crate::case::{Case, LIMIT, carried, two_places};

const TESTS: [Perftest; 8] = [
    Perftest { test: "tag_sync_lat", size: 1024, iterations: 300 },
    Perftest { test: "stream_bw", size: 4096, iterations: 1000 },
    Perftest { test: "stream_lat", size: 8, iterations: 300 },
    Perftest { test: "ucp_am_lat", size: 64, iterations: 300 },
    Perftest { test: "ucp_am_bw", size: 65_536, iterations: 100 },
    Perftest { test: "ucp_add", size: 8, iterations: 300 },
    Perftest { test: "ucp_swap", size: 8, iterations: 300 },
    Perftest { test: "ucp_cswap", size: 8, iterations: 300 },
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in two_places() {
        for test in TESTS {
            cases.push(Case::new(place, &test.what(), "ucx_perftest", move |lab, name| {
                let client = test.run(lab, &place, name, LIMIT)?.client;
                carried(&client, test.size * test.iterations)
            }));
        }
    }
    cases
}
