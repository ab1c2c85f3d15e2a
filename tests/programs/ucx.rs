//! UCX's performance test: it looks for the device in files, which `roxie run` provides for it; connects by
//! datagrams, then uses RC.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::{Place, User};

use crate::case::{Case, LONG, Scale, Spread, good, places, roxie, says};

/// Test, size, iterations: tagged messages (also by rendezvous), one-sided operations, atomics.
const TESTS: [(&str, &str, &str); 6] = [
    ("tag_lat", "8", "500"),
    ("tag_bw", "1048576", "50"),
    ("ucp_put_bw", "65536", "500"),
    ("ucp_put_lat", "8", "500"),
    ("ucp_get", "65536", "300"),
    ("ucp_fadd", "8", "300"),
];

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for place in places(scale, Spread::Two) {
        cases.push(Case::new(place, "roxie run --device-files", "sh", move |lab, name| {
            files(lab, &place, name)
        }));
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
    (test, size, iterations): (&str, &str, &str),
) -> Result<(), String> {
    let port = lab.port();
    let (port_word, roxie) = (port.to_string(), lab.roxie().display().to_string());
    let common =
        [
            &[&roxie, "run", "--netdev", lab.netdev(place), "--"],
            &[
                "env",
                "UCX_TLS=rc_verbs,ud_verbs",
                "UCX_NET_DEVICES=roxie0:1",
                "ucx_perftest",
                "-p",
                &port_word,
            ][..],
        ]
        .concat();
    let pair = Pair {
        name,
        server: common.clone(),
        client: [&common[..], &[lab.address(place), "-t", test, "-s", size, "-n", iterations]].concat(),
        ready: Ready::Tcp(port),
        limit: LONG,
    };
    says(&pair.run(lab, place)?.client, "Final:")
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
