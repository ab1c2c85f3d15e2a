//! gloo's ibverbs transport, as Debian packages it: a ring of two ranks adds 1 MiB of numbers.
//!
//! | gloo 0.5 (Debian), transport `ibverbs` | allreduce |

use std::process::Command;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::start;
use roxie_tests::place::Place;

use crate::case::{Case, LIMIT, Need, beside, carried, good, prepare, says, source, two_places};

/// Bytes that a rank sends: half of the numbers twice, in each of 20 rounds.
const BYTES: u64 = 20 << 20;

pub(crate) fn cases() -> Vec<Case> {
    let case = |place: Place| {
        Case::new(place, "gloo", "c++", move |lab, name| run(lab, &place, name))
            .with(Need::File("/usr/include/gloo/transport/ibverbs/device.h"), "libgloo-dev")
    };
    two_places().map(case).into()
}

fn run(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = beside(lab, "gloo.program");
    if !program.exists() {
        let mut compiler = Command::new("c++");
        prepare(compiler.args(["-O1", "-w", "-o"]).arg(&program).arg(source("gloo.cc")).arg("-lgloo"))?;
    }
    let meeting = std::env::temp_dir().join(format!("roxie-gloo-{}-{}", std::process::id(), lab.port()));
    std::fs::create_dir(&meeting).map_err(|error| error.to_string())?;
    let (program, directory) = (program.display().to_string(), meeting.display().to_string());
    // The ordinary user writes there, too.
    prepare(Command::new("chmod").args(["777", &directory]))?;
    let rank =
        |side, rank| start(lab, place, side, name, &["env", "ROXIE_STATS=1", &program, rank, &directory]);
    let both = rank(Side::Server, "0").and_then(|first| Ok([first, rank(Side::Client, "1")?]));
    let ended = both.map(|both| both.map(|mut one| one.wait(LIMIT)));
    drop(std::fs::remove_dir_all(&meeting));
    for ended in ended? {
        says(&ended, "data right")?;
        carried(&good(ended)?, BYTES)?;
    }
    Ok(())
}
