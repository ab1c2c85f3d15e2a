//! libfabric over its verbs provider: connected endpoints, and datagrams of any size over them (`ofi_rxm`).
//!
//! `fi_pingpong` with its check of the data (`-c`), and a program (`fabric.c`) with RMA, on one host and
//! between two.
//!
//! | libfabric 1.17.0 | `fi_pingpong`, RMA; `verbs` and `verbs;ofi_rxm` |

use std::process::Command;

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LIMIT, Need, beside, carried, one_host, prepare, says, source};

/// Messages of each size, and the sum of the sizes that it tries (64 bytes to 1 MiB).
const ITERATIONS: u64 = 20;
const SIZES: u64 = 64 + 256 + 1024 + 4096 + 65_536 + 1_048_576;

/// Bytes that `fabric.c` writes, and reads back.
const RMA: u64 = 1 << 20;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let hosts = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    for place in one_host().into_iter().chain([hosts]) {
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
    let shm = Place::shm(Topology::SameHost, Family::V4, User::Root);
    let ordinary = Place::new(Topology::SameHost, Family::V4, User::Ordinary);
    for place in [hosts, shm, ordinary] {
        for provider in ["verbs", "verbs;ofi_rxm"] {
            let what = format!("libfabric, {provider}: WRITE, READ and SEND");
            let case = Case::new(place, &what, "cc", move |lab, name| rma(lab, &place, name, provider));
            cases.push(case.with(Need::File("/usr/include/rdma/fabric.h"), "libfabric-dev"));
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

fn rma(lab: &Lab, place: &Place, name: &str, provider: &str) -> Result<(), String> {
    let program = beside(lab, "fabric");
    if !program.exists() {
        let mut compiler = Command::new("cc");
        prepare(compiler.args(["-O1", "-o"]).arg(&program).arg(source("fabric.c")).arg("-lfabric"))?;
    }
    let (program, port) = (program.display().to_string(), lab.port());
    let meeting = std::env::temp_dir().join(format!("roxie-fabric-{}-{port}", std::process::id()));
    let (meeting_word, port_word) = (meeting.display().to_string(), port.to_string());
    let words = |role| {
        let address = lab.address(place);
        vec!["env", "ROXIE_STATS=1", &program, role, provider, address, &port_word, &meeting_word]
    };
    let pair =
        Pair { name, server: words("server"), client: words("client"), ready: Ready::Cm(port), limit: LIMIT };
    let both = pair.run(lab, place);
    // It does not exist if the server failed.
    drop(std::fs::remove_file(&meeting));
    let both = both?;
    says(&both.client, "data right")?;
    says(&both.server, "data right")?;
    carried(&both.client, RMA)?;
    carried(&both.server, RMA)
}
