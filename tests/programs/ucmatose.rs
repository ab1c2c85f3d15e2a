//! ucmatose and cmtime: many connections of one process; rdma_server and rdma_xserver: the endpoint calls.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, start, wait_ready};
use roxie_tests::place::{Family, Place};

use crate::case::{Case, LONG, Scale, Spread, good, places, says};

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for place in places(scale, Spread::Third(0)) {
        cases.push(case(place, &["-c", "100"]));
    }
    for place in places(scale, Spread::Two) {
        cases.push(case(place, &["-c", "10", "-C", "50", "-S", "10000"]));
        cases.push(case(place, &["-c", "10", "-m"]));
        cases.push(Case::new(place, "rdma_server", "rdma_server", move |lab, name| {
            endpoints(lab, &place, name)
        }));
        cases.push(Case::new(place, "cmtime -c 100", "cmtime", move |lab, name| steps(lab, &place, name)));
        // It listens on IPv4 only.
        if place.family == Family::V4 {
            for service in ["r", "x"] {
                let what = format!("rdma_xserver -c {service}");
                cases.push(Case::new(place, &what, "rdma_xserver", move |lab, name| {
                    one_message(lab, &place, name, service)
                }));
            }
        }
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

/// A server on any address, and a message from the client.
fn one_message(lab: &Lab, place: &Place, name: &str, service: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let both = Pair {
        name,
        server: vec!["rdma_xserver", "-c", service, "-p", &port_word],
        client: vec!["rdma_xclient", "-c", service, "-s", address, "-p", &port_word],
        ready: Ready::Cm(port),
        limit: LONG,
    }
    .run(lab, place)?;
    says(&both.client, "rdma_xclient: end 0")?;
    says(&both.server, "rdma_xserver: end 0")
}

/// The client measures each step of a hundred connections; the server is endless.
fn steps(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["cmtime", "-c", "100", "-p", &port_word];
    let mut server = start(lab, place, Side::Server, name, &[&common[..], &["-b", address]].concat())?;
    wait_ready(&mut server, Ready::Cm(port))?;
    let mut client = start(lab, place, Side::Client, name, &[&common[..], &["-s", address]].concat())?;
    let client = good(client.wait(LONG))?;
    for step in ["resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"] {
        says(&client, step)?;
    }
    if client.output.contains("failed") || client.output.contains("error") {
        return Err(client.describe());
    }
    Ok(())
}
