//! Intel MPI between two hosts, with nothing but `I_MPI_OFI_PROVIDER=verbs`: its libfabric then uses
//! `verbs;ofi_rxm`.
//!
//! | Intel MPI 2021.18, libfabric 2.4 | messages, collectives, one-sided; two hosts |

use std::process::Command;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, LIMIT, Need, beside, carried, good, prepare, says, source};
use crate::mpi::RING;
use crate::pypi::{need, shared};

const PACKAGE: &str = "impi-rt";
/// The headers of MPICH, which has the same binary interface.
const HEADERS: &str = "/usr/include/x86_64-linux-gnu/mpich";
/// `$1`: the directory of the package, `$2`: the interface, `$3`: the launch agent, `$4`: ranks on each host,
/// `$5`: the program. The package's scripts for shells set the variables, and those of its provider.
const SCRIPT: &str = r#"
export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$1/lib I_MPI_ROOT=$1 FI_PROVIDER_PATH=$1/lib PATH=$1/bin:$PATH
export I_MPI_OFI_PROVIDER=verbs ROXIE_STATS=1
exec mpiexec.hydra -iface $2 -bootstrap ssh -bootstrap-exec $3 -hosts 10.77.0.1,10.77.0.2 \
    -ppn $4 -n $(($4 * 2)) $5
"#;

pub(crate) fn cases() -> Vec<Case> {
    let place = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    let case = |each: u64| {
        let what = format!("Intel MPI, {} ranks", 2 * each);
        Case::new(place, &what, "cc", move |lab, name| run(lab, &place, name, each))
            .with(need(PACKAGE), PACKAGE)
            .with(Need::File(HEADERS), "libmpich-dev")
    };
    [1, 2].map(case).into()
}

fn run(lab: &Lab, place: &Place, name: &str, each: u64) -> Result<(), String> {
    let dir = shared(lab, PACKAGE)?;
    let (program, agent) = (beside(lab, "intel.program"), beside(lab, "intel-agent"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-I", HEADERS, "-o"]).arg(&program).arg(source("mpi.c"));
    prepare(compiler.arg(format!("{dir}/lib/libmpi.so.12")))?;
    lab.launch_agent(place, &agent, "--shm off --quiet").map_err(|error| error.to_string())?;
    let (agent, program) = (agent.display().to_string(), program.display().to_string());
    let ranks = each.to_string();
    let words = ["sh", "-euc", SCRIPT, "sh", &dir, lab.netdev(place), &agent, &ranks, &program];
    let mut running = lab.run(place, Side::Server, name, &words).map_err(|error| error.to_string())?;
    let ended = good(running.wait(LIMIT))?;
    says(&ended, &format!("{} ranks: all data right", 2 * each))?;
    // Of the ranks of one host, Intel MPI's own shared memory carries the messages.
    carried(&ended, 2 * RING)
}
