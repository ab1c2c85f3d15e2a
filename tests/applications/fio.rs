//! fio's `rdma` engine: the client writes to the server's memory, or reads it.
//!
//! | fio 3.33, engine `rdma` | write, read; by hand: `send` ends with RNR retries exceeded |

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::Place;

use crate::case::{Case, LIMIT, carried, says, two_places};

/// Bytes that the client moves.
const BYTES: u64 = 8 << 20;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in two_places() {
        for (verb, depth) in [("write", "1"), ("write", "16"), ("read", "1"), ("read", "16")] {
            let what = format!("fio --verb={verb} --iodepth={depth}");
            cases.push(Case::new(place, &what, "fio", move |lab, name| run(lab, &place, name, verb, depth)));
        }
    }
    cases
}

fn run(lab: &Lab, place: &Place, name: &str, verb: &str, depth: &str) -> Result<(), String> {
    let port = lab.port();
    let (port_word, size) = (format!("--port={port}"), format!("--size={BYTES}"));
    let (verb, depth) = (format!("--verb={verb}"), format!("--iodepth={depth}"));
    let hostname = format!("--hostname={}", lab.address(place));
    // In a thread: a process of fio ends by `_exit`, and prints no counters.
    let common =
        ["env", "ROXIE_STATS=1", "fio", "--thread", "--ioengine=rdma", "--bs=256k", &size, &port_word];
    let pair = Pair {
        name,
        server: [&common[..], &["--name=server", "--rw=read"]].concat(),
        client: [&common[..], &["--name=client", "--rw=write", &hostname, &verb, &depth]].concat(),
        ready: Ready::Cm(port),
        limit: LIMIT,
    };
    let both = pair.run(lab, place)?;
    says(&both.client, "err= 0")?;
    carried(&both.client, BYTES)?;
    carried(&both.server, BYTES)
}
