//! The `roxie` program itself: demo, devinfo, doctor, env, and what `run` says when it cannot run.

use std::time::{Duration, Instant};

use roxie_tests::lab::Side;
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, devinfo, good, roxie, says};

/// Starts measured for the start-up time, of which the median counts.
const STARTS: usize = 11;
/// Start-up of `roxie run -- ibv_devices`, sandbox entry included.
const START_MAX: Duration = Duration::from_millis(100);

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for user in [User::Root, User::Ordinary] {
        let place = Place::new(Topology::Loopback, Family::V4, user);
        cases.extend(at(place));
        let veth = Place::new(Topology::SameHost, Family::V4, user);
        cases.push(Case::new(veth, "roxie demo --netdev", "taskset", move |lab, name| {
            let words = ["demo", "--no-figures", "--netdev", lab.netdev(&veth)];
            good(roxie(lab, &veth, Side::Server, name, &words)?).map(drop)
        }));
    }
    cases
}

fn at(place: Place) -> Vec<Case> {
    let case = |what: &str, program, run| Case::new(place, what, program, run);
    let mut cases = vec![case("roxie demo", "taskset", demo as fn(&_, &_) -> _)];
    cases.clear();
    cases.push(Case::new(place, "roxie demo", "taskset", move |lab, name| {
        let start = Instant::now();
        let ended = good(roxie(lab, &place, Side::Server, name, &["demo"])?)?;
        if start.elapsed() > Duration::from_secs(20) {
            return Err(format!("took {:.1} s\n{}", start.elapsed().as_secs_f64(), ended.describe()));
        }
        ["SEND", "WRITE", "READ", "compare-and-swap", "fetch-and-add", "ICRC", "udp", "p99"]
            .iter()
            .try_for_each(|word| says(&ended, word))
    }));
    cases
}
