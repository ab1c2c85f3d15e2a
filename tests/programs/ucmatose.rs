//! ucmatose and rdma_server: many connections of one process, and the endpoint calls.

use roxie_tests::lab::Lab;
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::Place;

use crate::case::{Case, LONG, Scale, Spread, places, says};

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for place in places(scale, Spread::All) {
        cases.push(case(place, &["-c", "100"]));
    }
    for place in places(scale, Spread::Two) {
        cases.push(case(place, &["-c", "10", "-C", "50", "-S", "10000"]));
        cases.push(case(place, &["-c", "10", "-m"]));
        cases.push(Case::new(place, "rdma_server", "rdma_server", move |lab, name| {
            endpoints(lab, &place, name)
        }));
    }
    cases
}

fn case(place: Place, words: &[&'static str]) -> Case {
    let words = words.to_vec();
    Case::new(place, &format!("ucmatose {}", words.join(" ")), "ucmatose", move |lab, name| {
        let (port, address) = (lab.port(), lab.address(&place));
        let port_word = port.to_string();
        let common = [&["ucmatose", "-p", &port_word], &words[..]].concat();
        let pair = Pair {
            name,
            server: [&common[..], &["-b", address]].concat(),
            client: [&common[..], &["-s", address]].concat(),
            ready: Ready::Cm(port),
            limit: LONG,
        };
        let both = pair.run(lab, &place)?;
        says(&both.client, "return status 0")?;
        says(&both.server, "return status 0")
    })
}

fn endpoints(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    Pair {
        name,
        server: vec!["rdma_server", "-s", address, "-p", &port_word],
        client: vec!["rdma_client", "-s", address, "-p", &port_word],
        ready: Ready::Cm(port),
        limit: LONG,
    }
    .run(lab, place)
    .and_then(|both| says(&both.client, "rdma_client: end 0"))
}
