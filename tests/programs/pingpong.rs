//! The ibv_*_pingpong programs: they exchange addresses over TCP, then SEND and RECV on their own queue
//! pairs.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LONG, Scale, Spread, gid_index, places, says};

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |spread: Spread, program: &'static str, words: &'static [&'static str]| {
        cases.extend(places(scale, spread).into_iter().map(|place| case(place, program, words)));
    };
    add(Spread::All, "ibv_rc_pingpong", &["-c"]);
    add(Spread::Two, "ibv_rc_pingpong", &["-c", "-s", "1"]);
    add(Spread::Two, "ibv_rc_pingpong", &["-c", "-s", "1023"]);
    add(Spread::Two, "ibv_rc_pingpong", &["-c", "-s", "1025"]);
    add(Spread::Two, "ibv_rc_pingpong", &["-c", "-s", "65536", "-n", "200"]);
    add(Spread::Third(0), "ibv_rc_pingpong", &["-c", "-s", "1048576", "-n", "30"]);
    add(Spread::Two, "ibv_rc_pingpong", &["-c", "-s", "8388608", "-n", "5"]);
    add(Spread::Third(1), "ibv_rc_pingpong", &["-c", "-e"]);
    add(Spread::Third(2), "ibv_rc_pingpong", &["-c", "-N"]);
    add(Spread::Two, "ibv_rc_pingpong", &["-c", "-e", "-N", "-s", "65536", "-n", "200"]);
    add(Spread::Two, "ibv_rc_pingpong", &["-c", "-o", "-P"]);
    add(Spread::Two, "ibv_rc_pingpong", &["-c", "-O"]);
    add(Spread::Two, "ibv_rc_pingpong", &["-c", "-t"]);
    add(Spread::Two, "ibv_srq_pingpong", &["-c", "-q", "4"]);
    add(Spread::Two, "ibv_ud_pingpong", &["-c", "-s", "1000"]);
    add(Spread::Two, "ibv_uc_pingpong", &["-s", "65536", "-n", "200"]);
    add(Spread::Third(0), "ibv_xsrq_pingpong", &[]);
    add(Spread::Two, "ibv_xsrq_pingpong", &["-s", "65536", "-n", "200"]);
    cases.extend(mtu_cases(scale));
    cases
}

/// Every path MTU, on links that support it.
fn mtu_cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for (mtu, words) in [
        (256, ["-c", "-s", "100000", "-n", "50", "-m", "256"]),
        (512, ["-c", "-s", "100000", "-n", "50", "-m", "512"]),
        (1024, ["-c", "-s", "100000", "-n", "50", "-m", "1024"]),
        (2048, ["-c", "-s", "100000", "-n", "50", "-m", "2048"]),
        (4096, ["-c", "-s", "100000", "-n", "50", "-m", "4096"]),
    ] {
        let mut wanted = places(scale, Spread::Two);
        wanted.push(Place { mtu: 9000, ..Place::new(Topology::TwoHosts, Family::V6, User::Root) });
        wanted.retain(|place| place.path_mtu() >= mtu);
        cases.extend(wanted.into_iter().map(|place| case(place, "ibv_rc_pingpong", &words)));
    }
    cases
}

fn case(place: Place, program: &'static str, words: &[&'static str]) -> Case {
    let words = words.to_vec();
    Case::new(place, &format!("{program} {}", words.join(" ")), program, move |lab, name| {
        run(lab, &place, name, program, &words)
    })
}

fn run(lab: &Lab, place: &Place, name: &str, program: &str, words: &[&str]) -> Result<(), String> {
    let port = lab.port();
    let port_word = port.to_string();
    let (at_server, at_client) = (gid_index(lab, place, Side::Server)?, gid_index(lab, place, Side::Client)?);
    // The TCP exchange is IPv4 only; the GID selects the address of the queue pairs.
    let host = lab.address(&Place { family: Family::V4, ..*place });
    let common = [&[program, "-p", &port_word], words].concat();
    let pair = Pair {
        name,
        server: [&common[..], &["-g", &at_server]].concat(),
        client: [&common[..], &["-g", &at_client, host]].concat(),
        ready: Ready::Tcp(port),
        limit: LONG,
    };
    let both = pair.run(lab, place)?;
    for ended in [&both.client, &both.server] {
        says(ended, if program == "ibv_xsrq_pingpong" { "success" } else { "bytes in" })?;
    }
    if both.client.output.contains("invalid data") || both.server.output.contains("invalid data") {
        return Err(format!("data differ\n{}{}", both.client.describe(), both.server.describe()));
    }
    Ok(())
}
