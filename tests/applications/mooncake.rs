//! Mooncake: its engine's benchmark, the engine from Python, and the store.
//!
//! | Mooncake 0.3.13.post1 | engine, benchmark, store |

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Ready, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Ended, Running, eventually};

use crate::case::{Case, LIMIT, carried, good, says, two_places};
use crate::pypi::{PYTHON, need, script, shared};
use crate::rails;

const PACKAGE: &str = "mooncake";
/// Time until the first side is ready.
const READY_MAX: Duration = Duration::from_secs(30);
/// Less than the benchmark writes in a second, and than the scripts write or read.
const BYTES: u64 = 4 << 20;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in two_places() {
        let case = |what, run: fn(&Lab, &Place, &str) -> Result<(), String>| {
            Case::new(place, what, PYTHON, move |lab, name| run(lab, &place, name))
                .with(need(PACKAGE), "mooncake-transfer-engine-non-cuda")
        };
        cases.extend([
            case("Mooncake, engine's benchmark", benchmark),
            case("Mooncake, engine from Python", engine),
            case("Mooncake, store", store),
        ]);
    }
    let hosts = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    cases.push(
        Case::new(hosts, "several devices: Mooncake, engine from Python", PYTHON, move |lab, name| {
            let lab = lab.with_networks(2);
            engine(&lab, &hosts, name)?;
            rails::each_carried(&lab, &hosts, BYTES / 4)
        })
        .with(need(PACKAGE), "mooncake-transfer-engine-non-cuda"),
    );
    cases
}

fn benchmark(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = format!("{}/mooncake/transfer_engine_bench", shared(lab, PACKAGE)?);
    let own = |side, port| format!("-local_server_name={}:{port}", lab.own_address(place, side));
    let names = [own(Side::Server, lab.port()), own(Side::Client, lab.port())];
    let common = ["env", "ROXIE_STATS=1", &program, "-metadata_server=P2PHANDSHAKE", "-protocol=rdma"];
    let sizes = ["-device_name=roxie0", "-buffer_size=16777216", "-threads=1", "-batch_size=4"];
    let words = [&common[..], &sizes, &["-mode=target", &names[0]]].concat();
    let mut target = start(lab, place, Side::Server, name, &words)?;
    // It registers its memory after it has chosen its port.
    if !eventually(READY_MAX, || target.has_ended() || target.output().contains("numa node")) {
        return Err(format!("the target is not ready\n{}", target.wait(Duration::ZERO).describe()));
    }
    let output = target.output();
    let listens = output.split("listening on ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let segment = format!("-segment_id={}", listens.ok_or("the target does not say where it listens")?);
    let own = ["-mode=initiator", &names[1], &segment, "-operation=write", "-duration=1"];
    let words = [&common[..], &sizes, &own].concat();
    let ended = good(start(lab, place, Side::Client, name, &words)?.wait(LIMIT))?;
    target.signal(Signal::SIGINT);
    let _ = target.wait(Duration::from_secs(5));
    says(&ended, "Test completed")?;
    carried(&ended, BYTES)
}

fn engine(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (target, initiator) = two(lab, place, name, "mooncake_engine.py", ["target", "initiator"], None)?;
    says(&target, "its memory is right: True")?;
    says(&initiator, "what was read back is right: True")?;
    carried(&target, BYTES)?;
    carried(&initiator, BYTES)
}

fn store(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let port = lab.port();
    let program = format!("{}/mooncake/mooncake_master", shared(lab, PACKAGE)?);
    let ports = [format!("-rpc_port={port}"), format!("-metrics_port={}", lab.port())];
    let words = ["env", "ROXIE_QUIET=1", &program, &ports[0], &ports[1]];
    let mut master = start(lab, place, Side::Server, &format!("{name}.master"), &words)?;
    wait_ready(&mut master, Ready::Tcp(port))?;
    let address = format!("{}:{port}", lab.address(place));
    let (lender, user) = two(lab, place, name, "mooncake_store.py", ["lender", "user"], Some(&address))?;
    says(&user, "8 of 8 objects are right")?;
    carried(&lender, BYTES)?;
    carried(&user, BYTES)
}

/// Runs a script's two roles: the first one makes a file when it is ready, the second one removes it.
fn two(
    lab: &Lab,
    place: &Place,
    name: &str,
    file: &str,
    roles: [&str; 2],
    master: Option<&str>,
) -> Result<(Ended, Ended), String> {
    let (path, script) = (format!("PYTHONPATH={}", shared(lab, PACKAGE)?), script(lab, file)?);
    let several = lab.netdev(place).contains(',');
    let devices = if several { "MOONCAKE_DEVICES=roxie0,roxie1" } else { "MOONCAKE_DEVICES=roxie0" };
    // A directory that every user may write to.
    let meeting = std::env::temp_dir().join(format!("roxie-mooncake-{}-{}", std::process::id(), lab.port()));
    let meeting_word = meeting.display().to_string();
    let begin = |side: Side| -> Result<Running, String> {
        let host = match place.topology {
            Topology::TwoHosts => lab.own_address(place, side),
            _ => lab.address(place),
        };
        let mut words =
            vec!["env", "ROXIE_STATS=1", devices, &path, PYTHON, "-B", &script, roles[side as usize], host];
        words.push("rdma");
        words.extend(master);
        words.push(&meeting_word);
        start(lab, place, side, name, &words)
    };
    let mut first = begin(Side::Server)?;
    if !eventually(READY_MAX, || first.has_ended() || Path::new(&meeting).exists()) || first.has_ended() {
        return Err(format!("{} is not ready\n{}", roles[0], first.wait(Duration::ZERO).describe()));
    }
    let second = good(begin(Side::Client)?.wait(LIMIT));
    // The second one removed it, unless it failed.
    let _ = std::fs::remove_file(&meeting);
    let second = second?;
    Ok((good(first.wait(Duration::from_secs(20)))?, second))
}
