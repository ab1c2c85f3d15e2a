//! UCX's performance test: the kinds that `tests/programs` does not run, and the atomics of the device.
//!
//! | `ucx_perftest` 1.13.1 | each kind of test, atomics |

use std::process::Command;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::recording::Recording;
use roxie_tests::ucx::Perftest;

use crate::case::{Case, LIMIT, carried, says, two_places};

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

/// Operations of a test with the device's atomics; further ones warm up.
const ATOMICS: u64 = 100;

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
    let place = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    for (test, operation) in [("fadd", "fetch-and-add"), ("cswap", "compare-and-swap")] {
        let what = format!("ucx_perftest -x rc_verbs -t {test}");
        let run = move |lab: &Lab, name: &str| atomics(lab, &place, name, test, operation);
        cases.push(Case::new(place, &what, "ucx_perftest", run));
    }
    cases
}

/// UCX's transport layer (UCT) sends atomics of the device, which a capture shows.
///
/// UCP, and so MPI, sends messages instead: it uses a transport's atomics only if it has all kinds of them.
fn atomics(lab: &Lab, place: &Place, name: &str, test: &str, operation: &str) -> Result<(), String> {
    let port = lab.port();
    let file = std::env::temp_dir().join(format!("roxie-atomics-{}-{port}.pcapng", std::process::id()));
    let (file_word, port_word, count) = (file.display().to_string(), port.to_string(), ATOMICS.to_string());
    let words = ["capture", "record", "-i", lab.netdev(place), "-o", &file_word];
    let recorder = lab.roxie_command(place, Side::Server, &format!("{name}-recording"), &words);
    let recording = Recording::begin(recorder.map_err(|error| error.to_string())?)?;
    let common = ["ucx_perftest", "-p", &port_word, "-x", "rc_verbs", "-d", "roxie0:1", "-t", test];
    let common = [&common[..], &["-s", "8", "-n", &count]].concat();
    let pair = Pair {
        name,
        client: [&common[..], &[lab.address(place)]].concat(),
        server: common,
        ready: Ready::Tcp(port),
        limit: LIMIT,
    };
    let both = pair.run(lab, place);
    let recorded = recording.end(false);
    let analysed = Command::new(lab.roxie()).args(["capture", "analyse", &file_word]).output();
    // It does not exist if the recording failed.
    drop(std::fs::remove_file(&file));
    recorded?;
    says(&both?.client, "Final:")?;
    let analysed = analysed.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&analysed.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    let counts = words.windows(2).filter(|pair| pair[1].trim_end_matches(',') == operation);
    let seen: u64 = counts.filter_map(|pair| pair[0].parse::<u64>().ok()).sum();
    match seen >= ATOMICS {
        true => Ok(()),
        false => Err(format!("{seen} times {operation} instead of {ATOMICS} or more\n{text}")),
    }
}
