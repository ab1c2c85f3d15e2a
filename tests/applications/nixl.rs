//! NIXL: one agent writes to the memory of another one, reads it back and compares. Its wheel brings a
//! libibverbs of its own, which `roxie run` replaces.

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::Place;

use crate::case::{Case, LIMIT, carried, says, two_places};
use crate::pypi::{PYTHON, need, script, shared};

/// Bytes of one transfer in `nixl_copy.py`.
const BYTES: u64 = 1 << 20;

pub(crate) fn cases() -> Vec<Case> {
    let case = |place: Place| {
        Case::new(place, "NIXL", PYTHON, move |lab, name| run(lab, &place, name)).with(need("nixl"), "nixl")
    };
    two_places().map(case).into()
}

fn run(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let port = lab.port();
    let (path, port_word) = (format!("PYTHONPATH={}", shared(lab, "nixl")?), port.to_string());
    let script = script(lab, "nixl_copy.py")?;
    // UCX connects over TCP first.
    let tls = "UCX_TLS=rc_verbs,ud_verbs,tcp";
    let common = ["env", "ROXIE_STATS=1", tls, &path, PYTHON, "-B", &script];
    let address = lab.address(place);
    let pair = Pair {
        name,
        server: [&common[..], &["target", address, &port_word]].concat(),
        client: [&common[..], &["initiator", address, &port_word]].concat(),
        ready: Ready::Tcp(port),
        limit: LIMIT,
    };
    let both = pair.run(lab, place)?;
    says(&both.server, "its memory is right: True")?;
    says(&both.client, "what was read back is right: True")?;
    carried(&both.client, BYTES)?;
    carried(&both.server, BYTES)
}
