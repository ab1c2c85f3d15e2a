//! Programs over several devices of a host, each of which is on a network of its own.
//!
//! | Several devices | UCX over two and four, MPI and iSER over two, `ib_write_bw` on each of eight |

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, wait_ready};
use roxie_tests::place::{Family, Place, Port, Topology, User};
use roxie_tests::process::{Ended, Running, eventually};

use crate::case::{Case, LIMIT, Need, good, says};
use crate::iser;
use crate::mpi::{self, Mpi};

const HOSTS: Place = Place {
    topology: Topology::TwoHosts,
    family: Family::V4,
    user: User::Root,
    mtu: 1500,
    ports: [Port::Udp; 2],
};

pub(crate) fn cases() -> Vec<Case> {
    let case = |what: &str, program, networks, run: fn(&Lab, &str) -> Result<(), String>| {
        Case::new(HOSTS, &format!("several devices: {what}"), program, move |lab, name| {
            run(&lab.with_networks(networks), name)
        })
    };
    let xsk = Place { ports: [Port::Native; 2], ..HOSTS };
    let mut cases = vec![
        case("UCX stripes over two", "ucx_perftest", 2, |lab, name| stripes(lab, &HOSTS, name, 2)),
        case("UCX stripes over four", "ucx_perftest", 4, |lab, name| stripes(lab, &HOSTS, name, 4)),
        case("UCX survives a short loss of one", "ucx_perftest", 2, short_loss),
        case("UCX ends when the interface of one is removed", "ucx_perftest", 2, removed),
        case("ib_write_bw on each of two", "ib_write_bw", 2, |lab, name| each(lab, name, 2)),
        case("ib_write_bw on each of eight", "ib_write_bw", 2, |lab, name| each(lab, name, 8)),
        case("iSER sessions over two", "tgtd", 2, sessions).with_programs(&["tgtadm", "iscsi-test-cu"]),
        Case::new(xsk, "several devices: UCX stripes over two", "ucx_perftest", move |lab, name| {
            stripes(&lab.with_networks(2), &xsk, name, 2)
        }),
    ];
    for mpi in [Mpi::Open, Mpi::Mpich] {
        let (compiler, package) = mpi.compiler();
        let run = move |lab: &Lab, name: &str| messages(&lab.with_networks(2), name, mpi);
        let what = format!("several devices: {} over two", mpi.name());
        cases.push(Case::new(HOSTS, &what, mpi.launcher(), run).with(Need::Program(compiler), package));
    }
    cases
}

/// The bytes on each network so far.
fn carried(lab: &Lab, place: &Place) -> Result<Vec<u64>, String> {
    lab.carried(place, Side::Server).map_err(|error| error.to_string())
}

/// Requires that each network has carried so many bytes since it was made.
pub(crate) fn each_carried(lab: &Lab, place: &Place, bytes: u64) -> Result<(), String> {
    let all = carried(lab, place)?;
    let error = || format!("the networks carried {all:?} bytes, not {bytes} each");
    all.iter().all(|one| *one >= bytes).then_some(()).ok_or_else(error)
}

/// Starts UCX's bandwidth test with messages of 4 MiB over so many devices.
fn begin(
    lab: &Lab,
    place: &Place,
    name: &str,
    devices: usize,
    messages: u64,
) -> Result<[Running; 2], String> {
    let port = lab.port();
    let names: Vec<String> = (0..devices).map(|n| format!("roxie{n}:1")).collect();
    let words = [
        format!("UCX_NET_DEVICES={}", names.join(",")),
        format!("UCX_MAX_RNDV_RAILS={devices}"),
        port.to_string(),
        messages.to_string(),
    ];
    // Without UCX_HANDLE_ERRORS it shows a backtrace when it gives up.
    let common = ["env", "ROXIE_STATS=1", "UCX_TLS=rc_verbs,ud_verbs", "UCX_HANDLE_ERRORS=none"];
    let common = [&common[..], &[&words[0], &words[1], "ucx_perftest", "-p", &words[2]]].concat();
    let test = ["10.77.0.1", "-t", "tag_bw", "-s", "4194304", "-n", &words[3]];
    let client = [&common[..], &test].concat();
    let pair = Pair { name, server: common, client, ready: Ready::Tcp(port), limit: LIMIT };
    pair.begin(lab, place).map(|(server, client)| [server, client])
}

/// The end of the server, and of the client.
fn end([mut server, mut client]: [Running; 2]) -> [Ended; 2] {
    let client = client.wait(LIMIT);
    [server.wait(LIMIT), client]
}

fn stripes(lab: &Lab, place: &Place, name: &str, devices: usize) -> Result<(), String> {
    const MESSAGES: u64 = 50;
    for side in end(begin(lab, place, name, devices, MESSAGES)?) {
        let side = good(side)?;
        let ports = side.output.matches("roxie: port xsk, native mode").count();
        if ports != if place.ports[0] == Port::Native { devices } else { 0 } {
            return Err(format!("{ports} devices use AF_XDP\n{}", side.describe()));
        }
    }
    // 40 % of the bytes with two devices.
    each_carried(lab, place, (MESSAGES << 22) / devices as u64 * 8 / 10)
}

/// Waits until the test uses the second network.
fn until_flowing(lab: &Lab, pair: &mut [Running; 2]) -> Result<(), String> {
    const BYTES: u64 = 16 << 20;
    let flows = || carried(lab, &HOSTS).is_ok_and(|bytes| bytes[1] > BYTES);
    if eventually(LIMIT, || pair[1].has_ended() || flows()) && !pair[1].has_ended() {
        return Ok(());
    }
    Err(pair[1].wait(Duration::ZERO).describe())
}

fn short_loss(lab: &Lab, name: &str) -> Result<(), String> {
    let mut pair = begin(lab, &HOSTS, name, 2, 300)?;
    until_flowing(lab, &mut pair)?;
    let link = |to: &str| lab.ip(&HOSTS, Side::Client, &format!("link set veth1 {to}"));
    link("down").map_err(|error| error.to_string())?;
    // UCX has a timeout of a second, and eight attempts.
    std::thread::sleep(Duration::from_millis(500));
    link("up").map_err(|error| error.to_string())?;
    let [server, client] = end(pair);
    good(server)?;
    says(&good(client)?, "Final:")
}

/// UCX 1.13 does not fail over: it calls abort(3).
fn removed(lab: &Lab, name: &str) -> Result<(), String> {
    let mut pair = begin(lab, &HOSTS, name, 2, 100_000)?;
    until_flowing(lab, &mut pair)?;
    lab.ip(&HOSTS, Side::Client, "link del veth1").map_err(|error| error.to_string())?;
    end(pair).iter().try_for_each(|side| {
        says(side, "Work Request Flushed Error")?;
        let signal = side.status.and_then(|status| status.signal());
        (signal == Some(Signal::SIGABRT as i32)).then_some(()).ok_or_else(|| side.describe())
    })
}

/// Pairs on all devices at once.
fn each(lab: &Lab, name: &str, devices: usize) -> Result<(), String> {
    const COUNT: u64 = 200;
    const SIZE: u64 = 65_536;
    let (count, all) = (COUNT.to_string(), devices.to_string());
    let start = |n: usize, side: Side, port: u16, to: &[&str]| {
        let (device, port, name) = (format!("mlx5_{n}"), port.to_string(), format!("{name}-{n}"));
        let options = ["run", "--netdev", "veth0,veth1", "--devices", &all, "--name", "mlx5_", "--"];
        let test = ["ib_write_bw", "-F", "-x", "0", "-n", &count, "-p", &port, "-d", &device];
        let words = [&options[..], &test, to].concat();
        lab.roxie_command(&HOSTS, side, &name, &words).map_err(|error| error.to_string())
    };
    let mut running = Vec::new();
    let ports: Vec<u16> = (0..devices).map(|_| lab.port()).collect();
    for (n, port) in ports.iter().enumerate() {
        let mut server = start(n, Side::Server, *port, &[])?;
        wait_ready(&mut server, Ready::Tcp(*port))?;
        running.push(server);
    }
    for (n, port) in ports.iter().enumerate() {
        running.push(start(n, Side::Client, *port, &["10.77.0.1"])?);
    }
    running.iter_mut().try_for_each(|one| good(one.wait(LIMIT)).map(drop))?;
    each_carried(lab, &HOSTS, devices as u64 / 2 * COUNT * SIZE)
}

/// The target listens on 0.0.0.0. An initiator comes over each network; then one uses both paths to the disk.
fn sessions(lab: &Lab, name: &str) -> Result<(), String> {
    let _target = iser::target(lab, &HOSTS, name)?;
    let session = |n| iser::verify(lab, &HOSTS, &format!("{name}-{n}"), &format!("10.77.{n}.1"));
    let sessions = [session(0)?, session(1)?];
    sessions.into_iter().try_for_each(iser::check)?;
    each_carried(lab, &HOSTS, iser::BYTES)?;
    let before = carried(lab, &HOSTS)?.into_iter().max().unwrap_or(0);
    let paths = ["10.77.0.1", "10.77.1.1"];
    let mut both = iser::start_test(lab, &HOSTS, name, "SCSI.MultipathIO.Simple", &paths)?;
    says(&good(both.wait(LIMIT))?, "Test: Simple ...passed")?;
    // 17 MB by each, both ways.
    each_carried(lab, &HOSTS, before + (16 << 20))
}

/// Both devices carry the large messages, and the first one everything else.
fn messages(lab: &Lab, name: &str, mpi: Mpi) -> Result<(), String> {
    const RANKS: u64 = 2;
    mpi::check(mpi, lab, &HOSTS, name, RANKS)?;
    each_carried(lab, &HOSTS, RANKS * mpi::RING * 4 / 10)
}
