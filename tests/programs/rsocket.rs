//! rsockets: rstream, riostream, rcopy and udpong, which compare the data, and programs for plain sockets
//! through rdma-core's librspreload.so.

use std::fs;
use std::path::Path;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, start, wait_ready};
use roxie_tests::place::Place;

use crate::case::{Case, LONG, SHORT, Scale, Spread, good, places, says};

/// Size and number of transfers in each direction: below and above the sizes of a message, a packet, a
/// credit grant and the buffers.
const SIZES: [(&str, &str); 7] = [
    ("1", "1000"),
    ("64", "1000"),
    ("1025", "1000"),
    ("65536", "100"),
    ("65537", "100"),
    ("1000000", "10"),
    ("4194304", "5"),
];
/// Debian's path of it.
const PRELOAD: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";
const COPIED_BYTES: usize = 3_000_001;

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for place in places(scale, Spread::Third(2)) {
        cases.push(stream(place, "rstream", &["-S", "50000", "-C", "100", "-T", "v"]));
    }
    for place in places(scale, Spread::Two) {
        for program in ["rstream", "riostream"] {
            for mode in ["b", "a", "n"] {
                cases.push(stream(place, program, &["-S", "50000", "-C", "100", "-T", "v", "-T", mode]));
            }
            cases.push(stream(place, program, &["-S", "5000", "-C", "100", "-B", "3000", "-T", "v"]));
            cases.push(Case::new(place, &format!("{program} of all sizes"), program, move |lab, name| {
                SIZES.iter().try_for_each(|(size, count)| {
                    pair(lab, &place, name, program, &["-S", size, "-C", count, "-T", "v", "-T", "b"])
                })
            }));
        }
        cases.push(stream(place, "rstream", &["-S", "1000", "-i", "0", "-k", "5", "-T", "r"]));
        for mode in ["b", "a", "n", "e"] {
            let title = format!("udpong -T {mode}");
            cases.push(Case::new(place, &title, "udpong", move |lab, name| {
                datagrams(lab, &place, name, mode)
            }));
        }
        cases.push(Case::new(place, "rcopy", "rcopy", move |lab, name| copy(lab, &place, name)));
        let iperf =
            Case::new(place, "iperf3 by librspreload", "iperf3", move |lab, name| iperf(lab, &place, name));
        if Path::new(PRELOAD).exists() {
            cases.push(iperf);
        }
    }
    // A process of that host must send the rejection.
    for place in places(Scale::Quick, Spread::Ordinary) {
        cases.push(Case::new(place, "rstream to a port without a listener", "rstream", move |lab, name| {
            nobody(lab, &place, name)
        }));
    }
    if scale == Scale::Full {
        for place in places(Scale::Quick, Spread::Root) {
            cases.push(stream(place, "rstream", &["-S", "all"]));
            cases.push(stream(place, "riostream", &["-S", "all"]));
        }
    }
    cases
}

fn stream(place: Place, program: &'static str, words: &[&'static str]) -> Case {
    let words = words.to_vec();
    Case::new(place, &format!("{program} {}", words.join(" ")), program, move |lab, name| {
        pair(lab, &place, name, program, &words)
    })
}

fn pair(lab: &Lab, place: &Place, name: &str, program: &str, words: &[&str]) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = [&[program, "-p", &port_word], words].concat();
    Pair {
        name,
        server: [&common[..], &["-b", address]].concat(),
        client: [&common[..], &["-s", address]].concat(),
        ready: Ready::Cm(port),
        limit: LONG,
    }
    .run(lab, place)
    .map(drop)
}

fn nobody(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let port = lab.port().to_string();
    let words = ["rstream", "-p", &port, "-s", lab.address(place), "-T", "b"];
    says(&start(lab, place, Side::Client, name, &words)?.wait(SHORT), "Connection refused")
}

/// Messages of several sizes up to a packet; the client repeats each until the reply arrives. The server is
/// endless.
fn datagrams(lab: &Lab, place: &Place, name: &str, mode: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["udpong", "-p", &port_word, "-T", mode];
    let mut server = start(lab, place, Side::Server, name, &[&common[..], &["-b", address]].concat())?;
    wait_ready(&mut server, Ready::Udp(port))?;
    for size in ["16", "64", "1000"] {
        let words = [&common[..], &["-s", address, "-S", size, "-C", "50"]].concat();
        let client = good(start(lab, place, Side::Client, name, &words)?.wait(LONG))?;
        says(&client, "custom")?;
    }
    if server.has_ended() {
        return Err(format!("the server has ended\n{}", server.wait(SHORT).describe()));
    }
    Ok(())
}

/// A copied file has the bytes of the original.
fn copy(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let file = |what: &str| std::env::temp_dir().join(format!("roxie-rcopy-{port}-{what}"));
    let (from, to) = (file("from"), file("to"));
    let bytes: Vec<u8> = (0..COPIED_BYTES).map(|n| (n % 251) as u8).collect();
    fs::write(&from, &bytes).map_err(|error| error.to_string())?;
    let copied = || {
        let mut server = start(lab, place, Side::Server, name, &["rcopy", "-p", &port_word])?;
        wait_ready(&mut server, Ready::Cm(port))?;
        let target = format!("{address}:{}", to.display());
        let words = ["rcopy", &from.to_string_lossy(), &target, "-p", &port_word];
        good(start(lab, place, Side::Client, name, &words)?.wait(LONG))?;
        let arrived = fs::read(&to).map_err(|error| error.to_string())?;
        if arrived == bytes { Ok(()) } else { Err(format!("{} bytes arrived, or others", arrived.len())) }
    };
    let outcome = copied();
    for file in [&from, &to] {
        // The second file does not exist if the copy failed.
        drop(fs::remove_file(file));
    }
    outcome
}

/// A program for plain sockets: a control connection and two streams, with select(2).
fn iperf(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let (port_word, preload) = (port.to_string(), format!("LD_PRELOAD={PRELOAD}"));
    let common = ["env", &preload, "iperf3", "-p", &port_word];
    let both = Pair {
        name,
        server: [&common[..], &["-s", "-1", "-B", address]].concat(),
        client: [&common[..], &["-c", address, "-n", "20M", "-P", "2"]].concat(),
        ready: Ready::Cm(port),
        limit: LONG,
    }
    .run(lab, place)?;
    says(&both.client, "iperf Done")
}
