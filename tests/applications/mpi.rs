//! Open MPI and MPICH through UCX: messages, collectives and one-sided operations between two and four
//! ranks, on one host and between two.
//!
//! | Open MPI 4.1.4, MPICH 4.0.2 | messages, collectives, one-sided; one host and two |

use std::process::Command;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::Ended;

use crate::case::{Case, LIMIT, Need, beside, carried, good, prepare, says, source};

/// Each rank sends so many bytes to the next one in the ring of `mpi.c`.
pub(crate) const RING: u64 = 299_593;

/// An implementation of MPI, as Debian packages it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mpi {
    Open,
    Mpich,
}

impl Mpi {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Open => "Open MPI",
            Self::Mpich => "MPICH",
        }
    }

    /// Its compiler, and the package of that.
    pub(crate) fn compiler(self) -> (&'static str, &'static str) {
        match self {
            Self::Open => ("mpicc.openmpi", "libopenmpi-dev"),
            Self::Mpich => ("mpicc.mpich", "libmpich-dev"),
        }
    }

    pub(crate) fn launcher(self) -> &'static str {
        match self {
            Self::Open => "mpirun.openmpi",
            Self::Mpich => "mpiexec.mpich",
        }
    }

    /// Words that start `ranks` ranks with UCX's RC transport; `agent` starts those of other hosts. Without
    /// the list of transports UCX would use the shared memory of its own.
    fn words<'a>(self, place: &Place, ranks: &'a str, agent: Option<&'a str>) -> Vec<&'a str> {
        let mut words = vec!["env", "ROXIE_STATS=1", self.launcher(), "-n", ranks];
        match self {
            Self::Open => {
                words.extend(["--oversubscribe", "--mca", "pml", "ucx", "--mca", "osc", "ucx"]);
                words.extend(["--mca", "btl", "^openib", "-x", "UCX_TLS=rc_verbs,ud_verbs,self"]);
                words.extend((place.user == User::Root).then_some("--allow-run-as-root"));
                if let Some(agent) = agent {
                    words.extend(["--map-by", "node", "-H", "10.77.0.1:2,10.77.0.2:2"]);
                    words.extend(["--mca", "plm_rsh_agent", agent]);
                }
            }
            Self::Mpich => {
                words.extend(["-env", "UCX_TLS", "rc_verbs,ud_verbs,self"]);
                if let Some(agent) = agent {
                    words.extend(["-launcher", "ssh", "-launcher-exec", agent]);
                    words.extend(["-hosts", "10.77.0.1,10.77.0.2"]);
                }
            }
        }
        words
    }

    /// Runs `program` in so many ranks.
    pub(crate) fn run(
        self,
        lab: &Lab,
        place: &Place,
        name: &str,
        ranks: u64,
        program: &[&str],
    ) -> Result<Ended, String> {
        let agent = beside(lab, "launch-agent").display().to_string();
        let apart = place.topology == Topology::TwoHosts;
        if apart {
            // Of a shell `roxie run` does not know that it starts MPI.
            let words = "--shm off --quiet --device-files";
            lab.launch_agent(place, agent.as_ref(), words).map_err(|error| error.to_string())?;
        }
        let ranks = ranks.to_string();
        let mut words = self.words(place, &ranks, apart.then_some(&agent));
        words.extend(program);
        let mut running = lab.run(place, Side::Server, name, &words).map_err(|error| error.to_string())?;
        good(running.wait(LIMIT))
    }
}

pub(crate) fn cases(full: bool) -> Vec<Case> {
    let (v4, v6) = (Family::V4, Family::V6);
    let mut variants = vec![
        (Place::new(Topology::Loopback, v4, User::Ordinary), 2),
        (Place::shm(Topology::SameHost, v4, User::Root), 4),
        (Place::new(Topology::TwoHosts, v4, User::Root), 2),
    ];
    if full {
        variants.extend([
            (Place::shm(Topology::Loopback, v4, User::Ordinary), 4),
            (Place::new(Topology::SameHost, v6, User::Root), 2),
            (Place::new(Topology::SameHost, v4, User::Ordinary), 4),
            (Place::new(Topology::TwoHosts, v4, User::Root), 4),
        ]);
    }
    let case = |mpi: Mpi, (place, ranks)| {
        let what = format!("{}, {ranks} ranks", mpi.name());
        let (compiler, package) = mpi.compiler();
        Case::new(place, &what, mpi.launcher(), move |lab, name| check(mpi, lab, &place, name, ranks))
            .with(Need::Program(compiler), package)
    };
    let both = |variant| [Mpi::Open, Mpi::Mpich].map(|mpi| case(mpi, variant));
    variants.into_iter().flat_map(both).collect()
}

pub(crate) fn check(mpi: Mpi, lab: &Lab, place: &Place, name: &str, ranks: u64) -> Result<(), String> {
    let (compiler, _) = mpi.compiler();
    let program = beside(lab, &format!("{compiler}.program"));
    if !program.exists() {
        prepare(Command::new(compiler).args(["-O1", "-o"]).arg(&program).arg(source("mpi.c")))?;
    }
    let ended = mpi.run(lab, place, name, ranks, &[&program.display().to_string()])?;
    says(&ended, &format!("{ranks} ranks: all data right"))?;
    carried(&ended, ranks * RING)
}
