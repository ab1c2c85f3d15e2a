//! NIXL: one agent writes to the memory of another one, reads it back and compares. Its wheel brings a
//! libibverbs of its own, which `roxie run` replaces.
//!
//! | NIXL 1.5.1 | write and read; its own libibverbs is replaced; two devices |

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LIMIT, carried, says, two_places};
use crate::pypi::{PYTHON, need, script, shared};
use crate::rails;

/// Bytes of one transfer in `nixl_copy.py`.
const BYTES: u64 = 1 << 20;

pub(crate) fn cases() -> Vec<Case> {
    let case = |place: Place| {
        Case::new(place, "NIXL", PYTHON, move |lab, name| run(lab, &place, name)).with(need("nixl"), "nixl")
    };
    let mut cases: Vec<_> = two_places().map(case).into();
    let hosts = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    let several = Case::new(hosts, "several devices: NIXL", PYTHON, move |lab, name| {
        let lab = lab.with_networks(2);
        run(&lab, &hosts, name)?;
        rails::each_carried(&lab, &hosts, BYTES / 2)
    });
    cases.push(several.with(need("nixl"), "nixl"));
    cases
}

fn run(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let port = lab.port();
    let (path, port_word) = (format!("PYTHONPATH={}", shared(lab, "nixl")?), port.to_string());
    let script = script(lab, "nixl_copy.py")?;
    // UCX connects over TCP first.
    let tls = "UCX_TLS=rc_verbs,ud_verbs,tcp";
    // With `route`, the default, UCX 1.23 uses the first device alone.
    let rails = ["UCX_NET_DEVICES=roxie0:1,roxie1:1,veth0", "UCX_IB_ROCE_REACHABILITY_MODE=local_subnet"];
    let several: &[_] = if lab.netdev(place).contains(',') { &rails } else { &[] };
    let common = [&["env", "ROXIE_STATS=1", tls, &path], several, &[PYTHON, "-B", &script]].concat();
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
    if both.client.output.contains("netlink") {
        return Err(format!("UCX looks for the device in the kernel\n{}", both.client.describe()));
    }
    carried(&both.client, BYTES)?;
    carried(&both.server, BYTES)
}
