//! rping: connection manager, READ, WRITE, SEND; the program compares every byte.

use std::time::Duration;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LONG, SHORT, Scale, Spread, places, says};

/// Message sizes; rping refuses less than 23 and more than 65535.
const SIZES: [&str; 8] = ["23", "64", "1000", "1024", "1025", "4096", "16385", "65535"];
const CLIENTS: usize = 20;
/// The request fails after a second of refusals; with room for a busy machine.
const REFUSED_MAX: Duration = Duration::from_secs(10);
/// rping's time limit for rdma_resolve_addr.
const RESOLVE_MAX: Duration = Duration::from_secs(2);

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    let many = if scale == Scale::Full { "1000" } else { "200" };
    for place in places(scale, Spread::All) {
        cases.push(one(place, &["-C", many, "-V"]));
    }
    for place in places(scale, Spread::Two) {
        cases.push(one(place, &["-C", "10", "-v", "-V", "-d"]));
        cases.push(one(place, &["-C", "100", "-V", "-q"]));
        cases.push(Case::new(place, "rping -S 23..65535", "rping", move |lab, name| {
            SIZES.iter().try_for_each(|size| pair(lab, &place, name, &["-C", "20", "-V", "-S", size]))
        }));
    }
    for place in places(scale, Spread::Third(1)) {
        cases.push(Case::new(place, "rping -P with 20 clients at once", "rping", move |lab, name| {
            crowd(lab, &place, name)
        }));
    }
    for family in [Family::V4, Family::V6] {
        let place = Place::new(Topology::TwoHosts, family, User::Ordinary);
        cases.push(Case::new(place, "rping to a host that does not exist", "rping", move |lab, name| {
            nobody_there(lab, &place, name)
        }));
        cases.push(Case::new(place, "rping to a host without a roxie process", "rping", move |lab, name| {
            no_process_there(&lab.apart(), &place, name)
        }));
        cases.push(Case::new(
            place,
            "rping from a loopback address to another host",
            "rping",
            move |lab, name| from_loopback(lab, &place, name),
        ));
    }
    cases
}

/// rping waits 2 s for the neighbour.
fn nobody_there(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let address = if place.family == Family::V4 { "10.77.0.99" } else { "fd77::99" };
    let ended = start(lab, place, Side::Client, name, &["rping", "-c", "-a", address, "-d"])?.wait(SHORT);
    if ended.took < RESOLVE_MAX {
        return Err(format!("took {:?}\n{}", ended.took, ended.describe()));
    }
    says(
        &ended,
        &format!("RDMA_CM_EVENT_ADDR_ERROR, -110): no answer from {address} on {}", lab.netdev(place)),
    )?;
    says(&ended, "RDMA_CM_EVENT_ADDR_ERROR, error -110")
}

/// The host answers with ICMP port unreachable; without it the client would repeat its request for 74 s.
fn no_process_there(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let words = ["rping", "-c", "-a", lab.address(place), "-d"];
    let ended = start(lab, place, Side::Client, name, &words)?.wait(SHORT);
    if ended.took > REFUSED_MAX {
        return Err(format!("took {:?}\n{}", ended.took, ended.describe()));
    }
    says(&ended, "RDMA_CM_EVENT_UNREACHABLE, -111): the host answers, and refuses the UDP port of RoCE")?;
    says(&ended, "RDMA_CM_EVENT_UNREACHABLE, error -111")
}

/// The kernel has no route from a loopback address to another host; with IPv6 no device has the address.
fn from_loopback(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (source, says_why) = match place.family {
        Family::V4 => ("127.0.0.1", "rdma_resolve_addr: Invalid argument"),
        Family::V6 => ("::1", "RDMA_CM_EVENT_ADDR_ERROR, error -19"),
    };
    let words = ["rping", "-c", "-I", source, "-a", lab.address(place)];
    says(&start(lab, place, Side::Client, name, &words)?.wait(SHORT), says_why)
}

fn one(place: Place, words: &[&'static str]) -> Case {
    let words = words.to_vec();
    Case::new(place, &format!("rping {}", words.join(" ")), "rping", move |lab, name| {
        pair(lab, &place, name, &words)
    })
}

fn pair(lab: &Lab, place: &Place, name: &str, words: &[&str]) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = [&["-a", address, "-p", &port_word], words].concat();
    Pair {
        name,
        server: [&["rping", "-s"], &common[..]].concat(),
        client: [&["rping", "-c"], &common[..]].concat(),
        ready: Ready::Cm(port),
        limit: LONG,
    }
    .run(lab, place)
    .map(drop)
}

fn crowd(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let mut server =
        start(lab, place, Side::Server, name, &["rping", "-s", "-P", "-a", address, "-p", &port_word])?;
    wait_ready(&mut server, Ready::Cm(port))?;
    let words = ["rping", "-c", "-V", "-C", "100", "-a", address, "-p", &port_word];
    let clients: Result<Vec<_>, String> =
        (0..CLIENTS).map(|n| start(lab, place, Side::Client, &format!("{name}-{n}"), &words)).collect();
    for (n, mut client) in clients?.into_iter().enumerate() {
        let ended = client.wait(LONG);
        if !ended.succeeded() {
            let server = server.wait(Duration::ZERO);
            return Err(format!("client {n} of {CLIENTS}\n{}{}", ended.describe(), server.describe()));
        }
    }
    if server.has_ended() {
        return Err(format!("the persistent server ended\n{}", server.wait(SHORT).describe()));
    }
    Ok(())
}
