//! mpi4py's own tests: with Debian's package, which is for Open MPI, and with MPICH and PyPI's package.
//!
//! | mpi4py 3.1.4 and 4.1.2 | its own tests |

use std::path::Path;
use std::process::Command;

use roxie_tests::lab::Lab;
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, Need, beside, carried, prepare};
use crate::mpi::Mpi;
use crate::pypi::{PYTHON, need, shared};

/// The source packages of PyPI, with the tests: of Debian's version, and of a version that works with any
/// MPI.
const DEBIAN: &str = "mpi4py-3.1.4";
const NEW: &str = "mpi4py-4.1.2";
/// The wheel of `NEW`.
const WHEEL: &str = "mpi4py";
const MPICH: &str = "/usr/lib/x86_64-linux-gnu/libmpich.so.12";

/// Less than any rank sends.
const BYTES: u64 = 50_000;

pub(crate) fn cases(full: bool) -> Vec<Case> {
    let v4 = Family::V4;
    // MPI_Get_accumulate of test_rma posts a WRITE after a READ of the same memory without a fence. Not among
    // the modules for Open MPI: test_win (testAttachDetach ends with signal 11, over TCP, too).
    let mut cases = vec![
        debian(Place::new(Topology::Loopback, v4, User::Ordinary), 2, &["p2p_buf", "cco_buf", "rma"]),
        debian(Place::shm(Topology::SameHost, v4, User::Root), 4, &["p2p_buf", "cco_buf"]),
    ];
    if full {
        let modules = &["p2p", "cco", "request", "pack", "comm", "threads", "msgzero", "util_pkl5"];
        cases.extend([
            debian(Place::new(Topology::SameHost, v4, User::Root), 2, modules),
            new(Place::new(Topology::Loopback, v4, User::Ordinary), 2),
            new(Place::shm(Topology::SameHost, v4, User::Root), 2),
        ]);
    }
    cases
}

/// Open MPI with Debian's package: the tests in modules that begin with one of these words.
fn debian(place: Place, ranks: u64, modules: &'static [&'static str]) -> Case {
    let what = format!("mpi4py's own tests, Open MPI, {ranks} ranks");
    let run = move |lab: &Lab, name: &str| {
        let runner = format!("{}/test/runtests.py", shared(lab, DEBIAN)?);
        let mut words = vec![PYTHON.to_owned(), "-B".to_owned(), runner, "-v".to_owned()];
        // The runner searches the names for the patterns.
        words.extend(modules.iter().map(|module| format!("--include=^test_{module}")));
        check(Mpi::Open, lab, &place, name, ranks, &words)
    };
    Case::new(place, &what, Mpi::Open.launcher(), run)
        .with(Need::File("/usr/lib/python3/dist-packages/mpi4py"), "python3-mpi4py")
        .with(need(DEBIAN), DEBIAN)
}

/// Tests for MPICH. Not among them: `test_util_sync`, which waits for ever, and those that start processes.
const MODULES: [&str; 6] =
    ["test_p2p_buf", "test_p2p_obj", "test_cco_buf", "test_cco_obj", "test_rma", "test_win"];

/// MPICH with PyPI's package.
fn new(place: Place, ranks: u64) -> Case {
    let what = format!("mpi4py's own tests, MPICH, {ranks} ranks");
    let run = move |lab: &Lab, name: &str| {
        // Debian's MPICH has another file name than the one that the wheel links to.
        let links = beside(lab, "mpich-abi");
        if !links.exists() {
            prepare(Command::new("mkdir").arg(&links))?;
            prepare(Command::new("ln").args(["-s", MPICH]).arg(links.join("libmpi.so.12")))?;
        }
        let variables = [
            format!("PYTHONPATH={}", shared(lab, WHEEL)?),
            format!("LD_LIBRARY_PATH={}", links.display()),
            "MPI4PY_MPIABI=mpich".to_owned(),
        ];
        let main = format!("{}/test/main.py", shared(lab, NEW)?);
        let mut words = vec!["env".to_owned()];
        words.extend(variables);
        words.extend([PYTHON, "-B", &main, "-v"].iter().chain(&MODULES).map(|&word| word.to_owned()));
        check(Mpi::Mpich, lab, &place, name, ranks, &words)
    };
    Case::new(place, &what, Mpi::Mpich.launcher(), run)
        .with(Need::Found(Path::new(MPICH).exists()), "mpich")
        .with(need(WHEEL), "mpi4py of PyPI")
        .with(need(NEW), NEW)
}

fn check(mpi: Mpi, lab: &Lab, place: &Place, name: &str, ranks: u64, words: &[String]) -> Result<(), String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = mpi.run(lab, place, name, ranks, &words)?;
    // Each rank says how many tests it ran; other output may precede it in the line.
    let ran = ended.output.matches("Ran ").count() as u64;
    if ran != ranks {
        return Err(format!("{ran} of {ranks} ranks ran the tests\n{}", ended.describe()));
    }
    carried(&ended, ranks * BYTES)
}
