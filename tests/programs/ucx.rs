//! UCX's performance test: it looks for the device in files, which `roxie run` provides for it; connects by
//! datagrams, then uses RC.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Place, User};
use roxie_tests::ucx::Perftest;

use crate::case::{Case, LONG, Scale, Spread, good, places, roxie, says};

/// Tagged messages (also by rendezvous), one-sided operations, atomics.
const TESTS: [Perftest; 6] = [
    Perftest { test: "tag_lat", size: 8, iterations: 500 },
    Perftest { test: "tag_bw", size: 1_048_576, iterations: 50 },
    Perftest { test: "ucp_put_bw", size: 65_536, iterations: 500 },
    Perftest { test: "ucp_put_lat", size: 8, iterations: 500 },
    Perftest { test: "ucp_get", size: 65_536, iterations: 300 },
    Perftest { test: "ucp_fadd", size: 8, iterations: 300 },
];

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for place in places(scale, Spread::Two) {
        cases.push(Case::new(place, "roxie run --device-files", "sh", move |lab, name| {
            files(lab, &place, name)
        }));
        for test in TESTS {
            cases.push(Case::new(place, &test.what(), "ucx_perftest", move |lab, name| {
                test.run(lab, &place, name, LONG).map(drop)
            }));
        }
    }
    cases
}

/// The command sees the files and keeps its user id; processes outside do not see the files.
fn files(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let script = "test -c /dev/infiniband/uverbs0 && : >/dev/infiniband/uverbs0 && \
                  test -e /dev/urandom && test -e /sys/class/net \
                  && cd /sys/class/infiniband/roxie0 && cat ports/1/gid_attrs/types/0 \
                  && ls device/net | grep -qx \"$(cat ports/1/gid_attrs/ndevs/0)\" \
                  && test -s device/numa_node && grep -q ffff ports/1/pkeys/0 && id -u";
    let words = ["run", "--device-files", "--netdev", lab.netdev(place), "--", "sh", "-c", script];
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    says(&ended, "RoCE v2")?;
    let uid = if place.user == User::Root { "\n0\n" } else { "\n65534\n" };
    says(&ended, uid)?;
    let words =
        ["run", "--netdev", lab.netdev(place), "--", "sh", "-c", "! test -e /sys/class/infiniband/roxie0"];
    good(roxie(lab, place, Side::Server, name, &words)?).map(drop)
}
