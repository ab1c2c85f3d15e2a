//! Many connections: a server that served them must hold no more memory, descriptors or names than before.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::eventually;

use crate::case::{Case, SHORT, Scale};
use crate::holdings::{Holdings, settled, tables_kib};

/// Connections before the first measurement: caches and stacks are allocated by then.
const WARM_UP: usize = 10;

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let rounds = if scale == Scale::Full { 1000 } else { 100 };
    [(Topology::TwoHosts, User::Root), (Topology::Loopback, User::Ordinary)]
        .into_iter()
        .map(|(topology, user)| {
            let place = Place::new(topology, Family::V4, user);
            let what = format!("{rounds} connects and disconnects leave nothing behind");
            Case::new(place, &what, "rping", move |lab, name| cycle(lab, &place, name, rounds))
        })
        .collect()
}

fn cycle(lab: &Lab, place: &Place, name: &str, rounds: usize) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let mut server =
        start(lab, place, Side::Server, name, &["rping", "-s", "-P", "-a", address, "-p", &port_word])?;
    wait_ready(&mut server, Ready::Cm(port))?;
    let words = ["rping", "-c", "-V", "-C", "2", "-a", address, "-p", &port_word];
    let mut connect = |n: usize| -> Result<(), String> {
        let ended = start(lab, place, Side::Client, name, &words)?.wait(SHORT);
        if ended.succeeded() { Ok(()) } else { Err(format!("connection {n}\n{}", ended.describe())) }
    };
    (0..WARM_UP).try_for_each(&mut connect)?;
    let look = || Holdings::of(&server).ok_or("the server has ended");
    let before = settled(&look)?;
    (WARM_UP..WARM_UP + rounds).try_for_each(&mut connect)?;
    let mut after = before;
    // The last connection is torn down shortly after its client ended.
    let back = eventually(SHORT, || match look() {
        Ok(now) => {
            after = now;
            !now.has_grown_from(before, tables_kib(rounds))
        }
        Err(_) => true,
    });
    look()?;
    if back { Ok(()) } else { Err(format!("before: {before:?}\nafter {rounds} connections: {after:?}")) }
}
