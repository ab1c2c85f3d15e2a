//! What a host with two devices does, line by line as Linux: `several.txt` is what the program printed on the
//! kernel's Soft-RoCE (`tests/peers` compares again).

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Ready, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, build, good, roxie, says};

const OF_LINUX: &str = include_str!("several.txt");

/// Where roxie differs (docs/deviations.md): the line of Linux, and those of roxie.
const DIFFERENCES: [(&str, &str); 3] = [
    (
        "resolve B, from A: RDMA_CM_EVENT_ADDR_ERROR ETIMEDOUT, no device, source -",
        "resolve B, from A: RDMA_CM_EVENT_ADDR_RESOLVED ok, device A, source A",
    ),
    (
        "127.0.0.1: no route, ENODEV\n",
        "127.0.0.1: RDMA_CM_EVENT_CONNECT_REQUEST, at the listener no device, in the request device A, \
         127.0.0.1 from 127.0.0.1\n  client: RDMA_CM_EVENT_ESTABLISHED\n  server: \
         RDMA_CM_EVENT_ESTABLISHED\n",
    ),
    ("QP with an SRQ of another device: ENOENT", "QP with an SRQ of another device: EINVAL"),
];

/// The second interface, its neighbour, and an address of the host that no device has.
const SETUP: [&str; 9] = [
    // A link-local address would come at a time of its own.
    "link set veth0 addrgenmode none",
    "address flush dev veth0 scope link",
    "link add veth1 type veth peer name veth2",
    "link set veth1 addrgenmode none",
    "link set veth1 up",
    "link set veth2 up",
    "address add 10.78.0.1/24 dev veth1",
    "neighbour add 10.78.0.2 lladdr 02:00:00:00:00:02 dev veth1 nud permanent",
    "address add 10.99.77.1/32 dev lo",
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for user in [User::Root, User::Ordinary] {
        let place = Place::new(Topology::TwoHosts, Family::V4, user);
        cases.push(Case::new(place, "two devices as with Linux", "cc", move |lab, name| {
            as_linux(&lab.apart(), &place, name)
        }));
    }
    for user in [User::Root, User::Ordinary] {
        let place = Place::new(Topology::TwoHosts, Family::V4, user);
        let what = "servers on 0.0.0.0 and :: at each address of three networks";
        cases.push(Case::new(place, what, "rping", move |lab, name| {
            each_address(&lab.with_networks(3), &place, name)
        }));
    }
    let place = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    for (what, first, later) in LATER {
        cases.push(Case::new(place, what, "cc", move |lab, name| {
            wildcards(&lab.apart(), &place, name, first, later)
        }));
    }
    for user in [User::Root, User::Ordinary] {
        let place = Place::new(Topology::TwoHosts, Family::V6, user);
        let what = "a link-local address of two interfaces is told by the interface";
        cases.push(Case::new(place, what, "cc", move |lab, name| link_local(&lab.apart(), &place, name)));
    }
    cases.push(Case::new(place, "rsocket datagrams over two devices", "cc", move |lab, name| {
        datagrams(&lab.apart(), &place, name)
    }));
    cases
}

/// Clients without a source address, and bound to the one of their network.
fn each_address(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let addresses = |host: u32| {
        let v4 = (0..3).map(move |n| format!("10.77.{n}.{host}"));
        v4.chain(["fd77", "fd77:1", "fd77:2"].map(|net| format!("{net}::{host}")))
    };
    for (wildcard, count) in [("0.0.0.0", 3), ("::", 6)] {
        let (number, run) = (lab.port(), ["run", "--shm", "off", "--", "rping", "-p"]);
        let port = number.to_string();
        let words = [&run[..], &[&port, "-s", "-P", "-a", wildcard]].concat();
        let started = lab.roxie_command(place, Side::Server, name, &words);
        let mut server = started.map_err(|error| error.to_string())?;
        wait_ready(&mut server, Ready::Cm(number))?;
        for (to, from) in addresses(1).zip(addresses(2)).take(count) {
            for source in [&[][..], &["-I", &from]] {
                let words = [&run[..], &[&port, "-c", "-C", "2", "-V", "-a", &to], source].concat();
                good(roxie(lab, place, Side::Client, name, &words)?)?;
            }
        }
    }
    Ok(())
}

/// A request to the first address, and one to an address that comes later, on an interface with an open
/// device, with one that is not open, and without one.
const LATER: [(&str, &str, &str); 3] = [
    ("a listener on 0.0.0.0: an address of an open device", "10.78.0.1", "dev veth1"),
    ("a listener on 0.0.0.0: an address of a device that is not open", "10.77.0.1", "dev veth1"),
    ("a listener on 0.0.0.0: an address of a new device", "10.78.0.1", "dev veth2"),
];

fn wildcards(lab: &Lab, place: &Place, name: &str, first: &str, later: &str) -> Result<(), String> {
    for words in SETUP {
        lab.ip(place, Side::Server, words).map_err(|error| error.to_string())?;
    }
    let program = build(lab, "wildcard.c", &["-libverbs", "-lrdmacm"])?;
    let command = format!("ip address add 10.79.0.1/24 {later}");
    let words = ["run", "--", program.path(), first, &command, "10.79.0.1"];
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    says(&ended, &format!("{first}: a request at 0.0.0.0 on "))?;
    says(&ended, "10.79.0.1: a request at 0.0.0.0 on ")
}

/// A request is given to the device of the interface that it came through: at a listener on `::`, and at two
/// with the same address and port.
fn link_local(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let both = ["address add fe80::1/64 dev veth0 nodad", "address add fe80::1/64 dev veth1 nodad"];
    for words in SETUP.iter().chain(&both) {
        lab.ip(place, Side::Server, words).map_err(|error| error.to_string())?;
    }
    let program = build(lab, "wildcard.c", &["-libverbs", "-lrdmacm"])?;
    let [first, second] = ["fe80::1%veth0", "fe80::1%veth1"];
    let words = ["run", "--", program.path(), first, "true", second, first, second];
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    for (device, address) in [("roxie0", first), ("roxie1", second)] {
        says(&ended, &format!("{address}: a request at :: on {device}"))?;
        says(&ended, &format!("{address}: a request at {address} on {device}"))?;
    }
    Ok(())
}

/// Both devices carry datagrams of the same sockets, and one goes on when the interface of the other one is
/// removed.
fn datagrams(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    for words in SETUP {
        lab.ip(place, Side::Server, words).map_err(|error| error.to_string())?;
    }
    let program = build(lab, "datagrams.c", &["-lrdmacm"])?;
    let words = ["run", "--", "env", "ROXIE_STATS=1", program.path(), "veth1", "10.77.0.1", "10.78.0.1"];
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    says(&ended, "8 messages each way over each of 2 addresses")?;
    says(&ended, "to a removed interface: Network is unreachable")?;
    says(&ended, "the other interfaces go on")?;
    says(&ended, "device roxie0")?;
    says(&ended, "device roxie1")
}

fn as_linux(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    for words in SETUP {
        lab.ip(place, Side::Server, words).map_err(|error| error.to_string())?;
    }
    let program = build(lab, "several.c", &["-libverbs", "-lrdmacm"])?;
    let (address, neighbour) = ("10.77.0.1", "10.77.0.2");
    let second = ["veth1", "10.78.0.1", "10.78.0.2", "10.99.77.1"];
    let program = ["run", "--quiet", "--", program.path(), address, neighbour];
    let words = [&program[..], &second[..]].concat();
    let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
    let mut wanted = OF_LINUX.to_owned();
    for (linux, roxie) in DIFFERENCES {
        wanted = wanted.replace(linux, roxie);
    }
    // An ordinary user does not change the interface.
    let wanted = wanted.lines().filter(|line| ended.output.contains("at rest") || !line.contains(" active"));
    let differs = wanted.zip(ended.output.lines().chain([""; 99])).find(|(want, got)| want != got);
    differs.map_or(Ok(()), |(want, got)| Err(format!("'{got}' instead of '{want}'\n{}", ended.describe())))
}
