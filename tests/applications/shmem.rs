//! OpenSHMEM of Open MPI: puts, gets and atomics over UCX between two hosts.
//!
//! | OpenSHMEM of Open MPI 4.1.4 | put, get, atomics; two hosts |

use std::process::Command;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LIMIT, Need, beside, prepare, says, source};

pub(crate) fn cases() -> Vec<Case> {
    let place = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    let case = Case::new(place, "OpenSHMEM", "oshrun", move |lab, name| run(lab, &place, name));
    vec![case.with(Need::Program("oshcc"), "libopenmpi-dev")]
}

fn run(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (program, agent) = (beside(lab, "shmem.program"), beside(lab, "shmem-agent"));
    prepare(Command::new("oshcc").args(["-O1", "-o"]).arg(&program).arg(source("shmem.c")))?;
    let options = "--shm off --quiet --device-files";
    lab.launch_agent(place, &agent, options).map_err(|error| error.to_string())?;
    let (program, agent) = (program.display().to_string(), agent.display().to_string());
    let mut words = vec!["env", "ROXIE_STATS=1", "oshrun", "--allow-run-as-root", "--map-by", "node"];
    words.extend(["-n", "2", "-H", "10.77.0.1:1,10.77.0.2:1", "--mca", "plm_rsh_agent", &agent]);
    words.extend(["--mca", "spml", "ucx", "-x", "ROXIE_STATS", "-x", "UCX_TLS=rc_verbs,ud_verbs,self"]);
    words.push(&program);
    let mut running = lab.run(place, Side::Server, name, &words).map_err(|error| error.to_string())?;
    // The PEs end without shmem_finalize, so they have no good exit status, and print no counters. The list
    // of transports leaves nothing but RDMA between hosts.
    let ended = running.wait(LIMIT);
    ["PE 0 of 2: data right", "PE 1 of 2: data right"].iter().try_for_each(|line| says(&ended, line))
}
