//! Applications as Debian or PyPI packages them, on the device: MPI, storage, benchmarks, bindings.
//!
//! Every case checks data where the program can, and that the device's counters, which the programs print
//! with `ROXIE_STATS=1`, show the bytes: a program that chose another transport fails. Cases that cannot
//! run here are named at the end: `skipped: needs X`. `--full` adds more ranks and
//! places of MPI, and the applications below `if full`.
//!
//! A row `| name | what is tested |` at the head of a file is a row of docs/programs-tried.md.
#![forbid(unsafe_code)]

mod case;
mod fio;
mod gloo;
mod intel_mpi;
mod iser;
mod libfabric;
mod mooncake;
mod mpi;
mod mpi4py;
mod nixl;
mod pypi;
mod pyverbs;
mod qemu;
mod qperf;
mod rails;
mod rpma;
mod shmem;
mod sockets;
mod ucx;
mod udapl;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use roxie_tests::harness::is_full;
use roxie_tests::suite;

use case::Case;

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().collect();
    let full = is_full(&mut words);
    suite::run("applications", Arguments::from_iter(words), cases(full))
}

fn cases(full: bool) -> Vec<Case> {
    let mut cases = mpi::cases(full);
    cases.extend(mpi4py::cases(full));
    cases.extend(ucx::cases());
    cases.extend(fio::cases());
    cases.extend(qperf::cases());
    cases.extend(rpma::cases());
    cases.extend(pyverbs::cases());
    cases.extend(sockets::cases());
    cases.extend(iser::cases());
    cases.extend(rails::cases());
    if full {
        // One of 69 runs ended with signal 11 in a new thread of the device; the cause is not known.
        cases.extend(libfabric::cases());
        cases.extend(intel_mpi::cases());
        cases.extend(gloo::cases());
        cases.extend(udapl::cases());
        cases.extend(shmem::cases());
        cases.extend(qemu::cases());
        cases.extend(nixl::cases());
        cases.extend(mooncake::cases());
    }
    cases
}
