//! Unmodified programs on a device with several engines.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, start};
use roxie_tests::place::{Family, Place, Port, Topology, User};

use crate::case::{Case, LONG, SHORT, good, says};

const ENGINES: &str = "ROXIE_ENGINES=3";

/// Words in front of a program.
pub(crate) const SEVERAL: [&str; 2] = ["env", ENGINES];

pub(crate) fn cases() -> Vec<Case> {
    let hosts = Place::new(Topology::TwoHosts, Family::V4, User::Ordinary);
    let host = Place::new(Topology::Loopback, Family::V4, User::Ordinary);
    let mut cases = Vec::new();
    for place in [hosts, host, Place::xsk(Family::V6, 9000, Port::Native, Port::Native)] {
        for (what, words) in [
            // Four identifiers with their own completion queues; one completion queue for eight queue
            // pairs; events; a shared receive queue.
            ("ucmatose -c 4", &["ucmatose", "-c", "4", "-C", "100"][..]),
            ("rping -C 300 -V", &["rping", "-C", "300", "-V"]),
            ("ib_write_bw -q 8 -R", &["ib_write_bw", "-F", "-q", "8", "-R", "-n", "500"]),
            ("ib_send_lat -e -R", &["ib_send_lat", "-F", "-e", "-R", "-n", "500"]),
            (
                "ib_send_bw --use-srq -q 4 -R",
                &["ib_send_bw", "-F", "--use-srq", "-q", "4", "-R", "-n", "500"],
            ),
        ] {
            // perftest 4.5 has no -R over IPv6.
            if place.family == Family::V6 && words.contains(&"-R") {
                continue;
            }
            let what = format!("{what}, three engines");
            let case =
                Case::new(place, &what, words[0], move |lab, name| pair(lab, &place, name, &SEVERAL, words));
            // Both ends of a ping-pong keep both CPUs busy.
            cases.push(if words[0] == "ib_send_lat" { case } else { case.beside_others() });
        }
    }
    cases.push(Case::new(host, "completion vectors of three engines", "ibv_devinfo", move |lab, name| {
        let words = [&SEVERAL[..], &["ibv_devinfo", "-v"]].concat();
        let ended = good(start(lab, &host, Side::Server, name, &words)?.wait(SHORT))?;
        says(&ended, "num_comp_vectors:\t\t3")
    }));
    cases
}

fn pair(lab: &Lab, place: &Place, name: &str, env: &[&str], words: &[&str]) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = [env, words, &["-p", &port_word]].concat();
    let (server, client): (&[&str], &[&str]) = match words[0] {
        "rping" => (&["-s", "-a", address], &["-c", "-a", address]),
        "ucmatose" => (&["-b", address], &["-s", address]),
        _ => (&["-d", "roxie0"], &["-d", "roxie0", address]),
    };
    let pair = Pair {
        name,
        server: [&common[..], server].concat(),
        client: [&common[..], client].concat(),
        ready: Ready::Cm(port),
        limit: LONG,
    };
    pair.run(lab, place).map(drop)
}
