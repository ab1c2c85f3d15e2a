//! Open MPI through UCX: messages, collectives and one-sided operations between two and four ranks.

use std::process::Command;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LIMIT, Need, beside, carried, good, prepare, says, source};

/// Each rank sends so many bytes to the next one in the ring of `mpi.c`.
const RING: u64 = 299_593;

pub(crate) fn cases(full: bool) -> Vec<Case> {
    let (v4, v6) = (Family::V4, Family::V6);
    let mut variants = vec![
        (Place::new(Topology::Loopback, v4, User::Ordinary), 2),
        (Place::shm(Topology::SameHost, v4, User::Root), 4),
    ];
    if full {
        variants.extend([
            (Place::shm(Topology::Loopback, v4, User::Ordinary), 4),
            (Place::new(Topology::SameHost, v6, User::Root), 2),
            (Place::new(Topology::SameHost, v4, User::Ordinary), 4),
        ]);
    }
    let case = |(place, ranks)| {
        let what = format!("Open MPI, {ranks} ranks");
        let case = Case::new(place, &what, "mpirun.openmpi", move |lab, name| run(lab, &place, name, ranks));
        case.with(Need::Program("mpicc.openmpi"), "libopenmpi-dev")
    };
    variants.into_iter().map(case).collect()
}

fn run(lab: &Lab, place: &Place, name: &str, ranks: u64) -> Result<(), String> {
    let program = beside(lab, "mpi");
    if !program.exists() {
        let mut compiler = Command::new("mpicc.openmpi");
        prepare(compiler.args(["-O1", "-o"]).arg(&program).arg(source("mpi.c")))?;
    }
    let (program, count) = (program.display().to_string(), ranks.to_string());
    let words = [
        &["env", "ROXIE_STATS=1", "mpirun.openmpi", "--oversubscribe", "-n", &count][..],
        if place.user == User::Root { &["--allow-run-as-root"] } else { &[] },
        &["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "^openib"],
        // Without the list UCX would use the shared memory of its own.
        &["-x", "UCX_TLS=rc_verbs,ud_verbs,self", "-x", "UCX_NET_DEVICES=roxie0:1", &program],
    ]
    .concat();
    let mut running = lab.run(place, Side::Server, name, &words).map_err(|error| error.to_string())?;
    let ended = good(running.wait(LIMIT))?;
    says(&ended, &format!("{ranks} ranks: all data right"))?;
    carried(&ended, RING)
}
