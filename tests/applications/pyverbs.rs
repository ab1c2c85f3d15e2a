//! The Python tests of rdma-core that Debian ships with its documentation.
//!
//! | pyverbs 44 | rdma-core's tests: 143 of 273 pass, 130 are skipped |

use std::path::Path;
use std::process::Command;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LIMIT, Need, beside, carried, good, prepare};

const TESTS: &str = "/usr/share/doc/rdma-core/tests";
const PYTHON: &str = "/usr/bin/python3";
/// Of 273 tests of rdma-core 44, the others need hardware. Lines that end with "ok": a few tests print on
/// theirs.
const PASSED_MIN: usize = 130;
/// Root also passes the tests of raw packet queue pairs, flow rules and RSS.
const PASSED_MIN_ROOT: usize = 142;
/// Less than they move.
const BYTES: u64 = 10_000_000;

pub(crate) fn cases() -> Vec<Case> {
    let case = |user| {
        let place = Place::shm(Topology::Loopback, Family::V4, user);
        Case::new(place, "pyverbs' own tests", "gunzip", move |lab, name| run(lab, &place, name))
            .with(Need::File(TESTS), "rdma-core's tests (/usr/share/doc)")
            .with(Need::File("/usr/lib/python3/dist-packages/pyverbs"), "python3-pyverbs")
    };
    [User::Ordinary, User::Root].map(case).into()
}

fn run(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let copy = beside(lab, "rdma-core-tests");
    if !copy.exists() {
        prepare(Command::new("cp").args(["-r", TESTS]).arg(&copy))?;
        prepare(Command::new("gunzip").arg("-r").arg(&copy))?;
    }
    let script = Path::new(&copy).join("run_tests.py").display().to_string();
    let words = ["env", "ROXIE_STATS=1", PYTHON, "-B", &script, "-v"];
    let mut running = lab.run(place, Side::Server, name, &words).map_err(|error| error.to_string())?;
    let ended = good(running.wait(LIMIT))?;
    let passed = ended.output.lines().filter(|line| line.ends_with("... ok")).count();
    if passed < if place.user == User::Root { PASSED_MIN_ROOT } else { PASSED_MIN } {
        return Err(format!("{passed} tests passed\n{}", ended.describe()));
    }
    carried(&ended, BYTES)
}
