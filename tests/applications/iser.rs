//! iSER: libiscsi's SCSI tests against a disk of tgt. They compare the data, and so does the target.
//!
//! | tgt 1.0.85, libiscsi 1.19 (iSER) | SCSI VERIFY |

use std::fs::File;
use std::process::Command;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::Running;

use crate::case::{Case, LIMIT, beside, carried, good, prepare, says};

/// tgt's port; another one cannot be chosen.
const PORT: u16 = 3260;
/// Size of the disk, and the bytes that the tests move at least: each of eight tests reads up to 256 blocks
/// and sends them back, many times.
const DISK: u64 = 64 << 20;
pub(crate) const BYTES: u64 = 32 << 20;
const TARGET: &str = "iqn.2026-11.example:disk";
/// The initiator, and its name on the second path of two.
const INITIATORS: [&str; 2] = ["iqn.2026-11.example:me", "iqn.2026-11.example:me2"];

pub(crate) fn cases() -> Vec<Case> {
    let hosts = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    let shm = Place::shm(Topology::SameHost, Family::V4, User::Root);
    let case = |place: Place| {
        Case::new(place, "iSER, tgt and libiscsi", "tgtd", move |lab, name| run(lab, &place, name))
            .with_programs(&["tgtadm", "iscsi-test-cu"])
    };
    [hosts, shm].map(case).into()
}

fn run(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let _target = target(lab, place, name)?;
    check(verify(lab, place, name, lab.address(place))?)
}

/// Starts a target with a disk, on all addresses of its host.
pub(crate) fn target(lab: &Lab, place: &Place, name: &str) -> Result<Running, String> {
    let disk = beside(lab, "iser-disk");
    let made = File::create(&disk).and_then(|file| file.set_len(DISK));
    made.map_err(|error| format!("{}: {error}", disk.display()))?;
    // tgtd and tgtadm meet at a path with this number.
    let control = lab.port().to_string();
    let words = ["env", "ROXIE_STATS=1", "tgtd", "-f", "-C", &control];
    let mut server = start(lab, place, Side::Server, name, &words)?;
    wait_ready(&mut server, Ready::Cm(PORT))?;
    let disk_word = disk.display().to_string();
    administer(&control, &["--mode", "target", "--op", "new", "--targetname", TARGET])?;
    administer(&control, &["--mode", "logicalunit", "--op", "new", "--lun", "1", "-b", &disk_word])?;
    administer(&control, &["--mode", "target", "--op", "bind", "-I", "ALL"])?;
    for name in INITIATORS {
        administer(&control, &["--mode", "target", "--op", "bind", "-Q", name])?;
    }
    // tgtd ignores SIGTERM, and is killed.
    Ok(server)
}

/// Starts the tests of SCSI VERIFY at an address of the target.
pub(crate) fn verify(lab: &Lab, place: &Place, name: &str, address: &str) -> Result<Running, String> {
    start_test(lab, place, name, "SCSI.Verify10", &[address])
}

/// Starts tests of an initiator at one or two addresses of the target.
pub(crate) fn start_test(
    lab: &Lab,
    place: &Place,
    name: &str,
    test: &str,
    addresses: &[&str],
) -> Result<Running, String> {
    let urls: Vec<String> = addresses.iter().map(|address| format!("iser://{address}/{TARGET}/1")).collect();
    let [first, second] = INITIATORS;
    let tests = ["iscsi-test-cu", "-d", "-i", first, "-I", second, "-t", test];
    // When libiscsi connects again, it reads a field of the connection that it has not set. With this glibc
    // sets new memory to zeroes.
    let mut words = [&["env", "ROXIE_STATS=1", "MALLOC_PERTURB_=255"], &tests[..]].concat();
    words.extend(urls.iter().map(String::as_str));
    start(lab, place, Side::Client, name, &words)
}

/// Waits for the tests to pass.
pub(crate) fn check(mut tests: Running) -> Result<(), String> {
    let client = good(tests.wait(LIMIT))?;
    says(&client, "Test: Mismatch ...passed")?;
    carried(&client, BYTES)
}

/// Asks the running tgtd for a change of target 1.
fn administer(control: &str, words: &[&str]) -> Result<(), String> {
    let mut command = Command::new("tgtadm");
    prepare(command.args(["-C", control, "--lld", "iser", "--tid", "1"]).args(words))
}
