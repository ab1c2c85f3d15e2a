//! Places of the cases, and what their programs must show.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use roxie_tests::lab::Lab;
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::Ended;
pub(crate) use roxie_tests::suite::{Case, Need, good, says};

/// Time limit for a program. On two idle cores each takes at most six seconds.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// Two hosts with the user root, and the loopback interface with an ordinary user.
pub(crate) fn two_places() -> [Place; 2] {
    [
        Place::new(Topology::TwoHosts, Family::V4, User::Root),
        Place::new(Topology::Loopback, Family::V4, User::Ordinary),
    ]
}

/// One host with a veth: libfabric's verbs provider omits loopback interfaces.
pub(crate) fn one_host() -> [Place; 2] {
    [User::Root, User::Ordinary].map(|user| Place::new(Topology::SameHost, Family::V4, user))
}

/// Sum of a counter of the device over all processes that print their counters (`ROXIE_STATS=1`).
pub(crate) fn counted(output: &str, counter: &str) -> u64 {
    let start = format!("roxie: {counter} ");
    output.lines().filter_map(|line| line.strip_prefix(&start)?.trim().parse::<u64>().ok()).sum()
}

/// Requires that the devices of a program's processes sent or received at least so many bytes in RDMA
/// packets, without the packets' headers.
pub(crate) fn carried(ended: &Ended, bytes: u64) -> Result<(), String> {
    let seen = counted(&ended.output, "sent_bytes").max(counted(&ended.output, "rcvd_bytes"));
    if seen >= bytes {
        return Ok(());
    }
    Err(format!("RDMA carried {seen} bytes instead of {bytes} or more\n{}", ended.describe()))
}

/// Path of a file of this suite's own directory beside the copied binaries, which every user may read.
pub(crate) fn beside(lab: &Lab, file: &str) -> PathBuf {
    lab.roxie().with_file_name(file)
}

/// Runs a tool that prepares a case.
pub(crate) fn prepare(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// A source file of this suite.
pub(crate) fn source(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("applications").join(file)
}
