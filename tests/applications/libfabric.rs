//! libfabric's ping-pong over its verbs provider, with its check of the data (`-c`): connected endpoints,
//! and datagrams of any size over them (`ofi_rxm`).

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::Place;

use crate::case::{Case, LIMIT, carried, one_host, says};

/// Messages of each size, and the sum of the sizes that it tries (64 bytes to 1 MiB).
const ITERATIONS: u64 = 20;
const SIZES: u64 = 64 + 256 + 1024 + 4096 + 65_536 + 1_048_576;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in one_host() {
        for (provider, endpoint, mode) in
            [("verbs", "msg", "msg"), ("verbs;ofi_rxm", "rdm", "msg"), ("verbs;ofi_rxm", "rdm", "tagged")]
        {
            let what = format!("fi_pingpong -p {provider} -e {endpoint} -m {mode}");
            let words = ["-p", provider, "-e", endpoint, "-m", mode];
            let case =
                Case::new(place, &what, "fi_pingpong", move |lab, name| run(lab, &place, name, &words));
            cases.push(case);
        }
    }
    cases
}

fn run(lab: &Lab, place: &Place, name: &str, words: &[&str]) -> Result<(), String> {
    let port = lab.port();
    let (port_word, iterations) = (port.to_string(), ITERATIONS.to_string());
    let common = [&["env", "ROXIE_STATS=1", "fi_pingpong", "-c", "-I", &iterations], words].concat();
    let pair = Pair {
        name,
        server: [&common[..], &["-B", &port_word]].concat(),
        client: [&common[..], &["-P", &port_word, lab.address(place)]].concat(),
        ready: Ready::Tcp(port),
        limit: LIMIT,
    };
    let client = pair.run(lab, place)?.client;
    says(&client, "\n1m ")?;
    carried(&client, ITERATIONS * SIZES)
}
