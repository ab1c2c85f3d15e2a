//! librpma: a client writes 1 MiB to a server's memory, flushes, reads it back and compares.
//!
//! | librpma 1.2.0 | write, flush, read |

use std::process::Command;

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LIMIT, Need, beside, carried, prepare, says, source, two_places};

const BYTES: u64 = 1 << 20;

pub(crate) fn cases() -> Vec<Case> {
    let case = |place: Place| {
        Case::new(place, "librpma", "cc", move |lab, name| run(lab, &place, name))
            .with(Need::File("/usr/include/librpma.h"), "librpma-dev")
            .with(Need::File("/usr/include/infiniband/verbs.h"), "libibverbs-dev")
    };
    let shm = Place::shm(Topology::SameHost, Family::V4, User::Ordinary);
    two_places().into_iter().chain([shm]).map(case).collect()
}

fn run(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = beside(lab, "rpma");
    if !program.exists() {
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-o"]).arg(&program).arg(source("rpma.c")).args(["-lrpma", "-libverbs"]);
        prepare(&mut compiler)?;
    }
    let (program, port) = (program.display().to_string(), lab.port());
    let (address, port_word) = (lab.address(place), port.to_string());
    let words = |role| vec!["env", "ROXIE_STATS=1", &program, role, address, &port_word];
    let pair =
        Pair { name, server: words("server"), client: words("client"), ready: Ready::Cm(port), limit: LIMIT };
    let both = pair.run(lab, place)?;
    says(&both.client, "data right")?;
    carried(&both.client, BYTES)?;
    carried(&both.server, BYTES)
}
