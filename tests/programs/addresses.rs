//! Addresses that are added and removed while a program runs.

use std::thread::sleep;
use std::time::Duration;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, SHORT, good};
use crate::engines::SEVERAL;

pub(crate) fn cases() -> Vec<Case> {
    let place = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    let what = "rping to an address that is younger than the server";
    let kinds = [(what.to_owned(), &[][..]), (format!("{what}, three engines"), &SEVERAL[..])];
    let case = |(what, before): (String, &'static [&str])| {
        Case::new(place, &what, "rping", move |lab, name| {
            let later = [(Side::Server, "10.78.0.1/24"), (Side::Client, "10.78.0.2/24")];
            let change = |verb: &str| {
                later.iter().try_for_each(|(side, ip)| {
                    let words = format!("address {verb} {ip} dev {}", lab.netdev(&place));
                    lab.ip(&place, *side, &words).map(drop).map_err(|error| error.to_string())
                })
            };
            let pinged = ping(lab, &place, name, before, &change);
            change("del")?;
            pinged
        })
    };
    let mut cases: Vec<Case> = kinds.into_iter().map(case).collect();
    let what = "rping to an address that its own host gets while the client looks for it";
    cases.push(Case::new(place, what, "rping", move |lab, name| gets(&lab.apart(), &place, name)));
    cases
}

/// The client looks for a neighbour for 2 s. The address is added after half a second.
fn gets(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let port = lab.port();
    let port_word = port.to_string();
    let common = ["-C", "10", "-V", "-p", &port_word];
    let server = [&["rping", "-s"], &common[..]].concat();
    let mut server = start(lab, place, Side::Server, name, &server)?;
    wait_ready(&mut server, Ready::Cm(port))?;
    let client = [&["rping", "-c", "-a", "10.77.0.9"], &common[..]].concat();
    let mut client = start(lab, place, Side::Server, &format!("{name} client"), &client)?;
    sleep(Duration::from_millis(500));
    let added = lab.ip(place, Side::Server, "address add 10.77.0.9/24 dev veth0");
    added.map_err(|error| error.to_string())?;
    good(client.wait(SHORT))?;
    good(server.wait(SHORT)).map(drop)
}

/// Runs a server on every address; the client connects to one that is added after the server listens.
fn ping(
    lab: &Lab,
    place: &Place,
    name: &str,
    before: &[&str],
    change: &dyn Fn(&str) -> Result<(), String>,
) -> Result<(), String> {
    let port = lab.port();
    let port_word = port.to_string();
    let common = ["-C", "10", "-V", "-p", &port_word];
    let mut server =
        start(lab, place, Side::Server, name, &[before, &["rping", "-s"], &common[..]].concat())?;
    wait_ready(&mut server, Ready::Cm(port))?;
    change("add")?;
    let words = [before, &["rping", "-c", "-a", "10.78.0.1"], &common[..]].concat();
    good(start(lab, place, Side::Client, name, &words)?.wait(SHORT))?;
    good(server.wait(SHORT)).map(drop)
}
