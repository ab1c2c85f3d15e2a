//! Interfaces that change under a program: links, addresses, names, and interfaces that are removed. Root
//! changes them; the program waits for the events as root and as an ordinary user (`follow.c`).

use std::time::Duration;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Pair, Ready, flowing, start, wait_ready};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Running, eventually};

use crate::case::{Case, LONG, SHORT, build, good, roxie, says};
use crate::kill::{RETRY_EXCEEDED, STREAM_BYTES};

/// The kernel notices a lost carrier up to a second late.
const EVENT_MAX: Duration = Duration::from_secs(5);

/// A change on one side, and the lines that the program at the server prints then, in this order.
type Step = (Side, &'static str, &'static [&'static str]);

/// `DEV` is the interface after it was renamed. Steps without lines raise no event: the lines of the next
/// step follow directly.
const STEPS: [Step; 14] = [
    (Side::Server, "address add 10.77.9.1/24 dev veth0", &["GID table change: active, 3 gids"]),
    (Side::Server, "address del 10.77.9.1/24 dev veth0", &["GID table change: active, 2 gids"]),
    (Side::Server, "address change 10.77.0.1/24 dev veth0 valid_lft 9000 preferred_lft 9000", &[]),
    (Side::Server, "address add 127.0.0.9/8 dev lo", &[]),
    (Side::Server, "link set veth0 mtu 4200", &[]),
    (
        Side::Server,
        "link set veth0 down",
        &["port error: down, phys_state 3, mtu 4096", "GID table change: down, 1 gids"],
    ),
    (Side::Server, "link set veth0 name DEV", &[]),
    (Side::Server, "link set DEV address 02:00:00:00:00:77", &[]),
    (Side::Server, "link set DEV up", &["port active: active, phys_state 5, mtu 4096"]),
    (Side::Server, "address add fd77::1/64 dev DEV nodad", &["GID table change: active, 2 gids"]),
    (Side::Client, "link set veth0 down", &["port error: down, phys_state 2, mtu 4096"]),
    (Side::Client, "link set veth0 up", &["port active: active, phys_state 5, mtu 4096"]),
    (Side::Server, "link set DEV mtu 1500", &[]),
    (Side::Server, "address add 10.77.9.2/24 dev DEV", &["GID table change: active, 3 gids"]),
];

/// What a program sees of an interface that is deleted, or moved to another network namespace.
const REMOVED: [&str; 5] = [
    "port error: down, phys_state 3",
    "GID table change: down,",
    "GID table change: down,",
    "GID table change: down,",
    "local catastrophic error: down",
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (user, removal) in [(User::Root, "link delete DEV"), (User::Ordinary, "link set DEV netns PID")] {
        let place = Place::new(Topology::TwoHosts, Family::V4, user);
        for how in ["get", "poll", "used"] {
            cases.push(Case::new(
                place,
                &format!("events of an interface: {how}"),
                "cc",
                move |lab, name| follow(&lab.apart(), &place, name, how, removal),
            ));
        }
        cases.push(Case::new(place, "rping after the MTU of both hosts grew", "rping", move |lab, name| {
            grown(&lab.apart(), &place, name)
        }));
        cases.push(Case::new(
            place,
            "identifiers of an interface that is removed",
            "cc",
            move |lab, name| identifiers(&lab.apart(), &place, name, removal),
        ));
    }
    let place = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    cases.push(Case::new(place, "50 interfaces that are removed leave nothing", "cc", move |lab, name| {
        let lab = lab.apart();
        let program = build(&lab, "removed.c", &["-libverbs", "-lrdmacm"])?;
        let words = ["run", "--", program.path(), "50"];
        says(&good(roxie(&lab, &place, Side::Server, name, &words)?)?, "rounds 10 to 50")
    }));
    cases
}

/// Streams over an interface that changes; they are a matter of time.
pub(crate) fn streams() -> Vec<Case> {
    let place = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    let stream = |what: &str, timeout, change: &'static [Step], says: Option<&'static str>| {
        Case::new(place, what, "ib_write_bw", move |lab, name| {
            stream_over(&lab.apart(), &place, name, timeout, change, says)
        })
    };
    vec![
        stream("ib_write_bw while a link goes down and up", "18", &DOWN_AND_UP, None),
        stream("ib_write_bw while the MTU grows and shrinks", "18", &OTHER_MTU, None),
        stream("ib_write_bw fails by retry without its peer's address", "12", &NO_PEER, Some(RETRY_EXCEEDED)),
        stream("ib_write_bw without its own address says so", "16", &NO_ADDRESS, Some("removed from veth0")),
        stream(
            "ib_write_bw without a link says so",
            "12",
            &NO_LINK,
            Some("veth0, the interface of its device"),
        ),
    ]
}

const DOWN_AND_UP: [Step; 4] = [
    (Side::Server, "link set veth0 down", &[]),
    (Side::Server, "link set veth0 up", &[]),
    (Side::Client, "link set veth0 down", &[]),
    (Side::Client, "link set veth0 up", &[]),
];
const OTHER_MTU: [Step; 4] = [
    (Side::Server, "link set veth0 mtu 9000", &[]),
    (Side::Client, "link set veth0 mtu 9000", &[]),
    (Side::Server, "link set veth0 mtu 1500", &[]),
    (Side::Client, "link set veth0 mtu 1500", &[]),
];
const NO_PEER: [Step; 1] = [(Side::Server, "address del 10.77.0.1/24 dev veth0", &[])];
const NO_ADDRESS: [Step; 1] = [(Side::Client, "address del 10.77.0.2/24 dev veth0", &[])];
const NO_LINK: [Step; 1] = [(Side::Client, "link set veth0 down", &[])];

/// A program under test, and the words that its steps leave open.
struct Followed<'a> {
    lab: &'a Lab,
    place: &'a Place,
    running: Running,
    dev: String,
    seen: usize,
}

impl<'a> Followed<'a> {
    /// Starts `follow` on an interface with two addresses.
    fn start(lab: &'a Lab, place: &'a Place, name: &str, how: &str) -> Result<Self, String> {
        for side in [Side::Server, Side::Client] {
            // A link-local address would come at a time of its own.
            for words in ["link set veth0 addrgenmode none", "address flush dev veth0 scope link"] {
                lab.ip(place, side, words).map_err(|error| error.to_string())?;
            }
        }
        let program = build(lab, "follow.c", &["-libverbs", "-lrdmacm"])?;
        let running = start(lab, place, Side::Server, name, &[program.path(), how, lab.address(place)])?;
        // The name of the interface in the namespace of the tests, if it is moved there.
        let mut followed = Self { lab, place, running, dev: format!("ev{}", lab.port()), seen: 0 };
        followed.expect("start", &["start: active, phys_state 5, mtu 1024"])?;
        Ok(followed)
    }

    fn step(&mut self, (side, words, lines): &Step) -> Result<(), String> {
        let words = words.replace("DEV", &self.dev).replace("PID", &std::process::id().to_string());
        self.lab.ip(self.place, *side, &words).map_err(|error| error.to_string())?;
        self.expect(&words, lines)
    }

    /// Waits until the program has printed these lines next.
    fn expect(&mut self, after: &str, lines: &[&str]) -> Result<(), String> {
        let mut new = Vec::new();
        let has_printed = eventually(EVENT_MAX, || {
            let output = self.running.output();
            let complete = output.rsplit_once('\n').map_or("", |(complete, _)| complete);
            let of_port = |line: &&str| !line.contains("RDMA_CM_EVENT");
            new = complete.lines().filter(of_port).skip(self.seen).map(str::to_owned).collect();
            new.len() >= lines.len()
        });
        let are_equal = new.iter().zip(lines).all(|(line, want)| line.starts_with(want));
        if !has_printed || !are_equal {
            return Err(format!("after '{after}': {new:#?} instead of {lines:#?}"));
        }
        self.seen += lines.len();
        Ok(())
    }
}

fn follow(lab: &Lab, place: &Place, name: &str, how: &str, removal: &'static str) -> Result<(), String> {
    let mut followed = Followed::start(lab, place, name, how)?;
    STEPS.iter().try_for_each(|step| followed.step(step))?;
    followed.step(&(Side::Server, removal, &REMOVED))?;
    good(followed.running.wait(SHORT)).map(drop)
}

/// A server accepts the path MTU of a client that started when the MTU was larger.
fn grown(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["-a", address, "-p", &port_word, "-C", "3", "-V"];
    let mut server = start(lab, place, Side::Server, name, &[&["rping", "-s"], &common[..]].concat())?;
    wait_ready(&mut server, Ready::Cm(port))?;
    for side in [Side::Server, Side::Client] {
        lab.ip(place, side, "link set veth0 mtu 9000").map_err(|error| error.to_string())?;
    }
    let words = [&["rping", "-c"], &common[..]].concat();
    good(start(lab, place, Side::Client, name, &words)?.wait(SHORT))?;
    good(server.wait(SHORT)).map(drop)
}

/// Each identifier that has the device gets one event, and can be destroyed. A listener on all addresses has
/// none. If the interface is created again, so is the device.
fn identifiers(lab: &Lab, place: &Place, name: &str, removal: &'static str) -> Result<(), String> {
    let mut followed = Followed::start(lab, place, name, "cm")?;
    followed.step(&(Side::Server, "link set veth0 name DEV", &[]))?;
    followed.step(&(Side::Server, removal, &[]))?;
    for words in ["link add veth0 type veth peer name veth1", "link set veth1 up", "link set veth0 up"] {
        followed.step(&(Side::Server, words, &[]))?;
    }
    // The program looks for the device until it has this address.
    followed.step(&(Side::Server, "address add 10.77.0.1/24 dev veth0", &[]))?;
    let ended = good(followed.running.wait(SHORT))?;
    for id in ["listener", "bound", "client", "accepted"] {
        says(&ended, &format!("{id}: RDMA_CM_EVENT_DEVICE_REMOVAL 0"))?;
    }
    says(&ended, "again: active")?;
    match ended.output.matches("RDMA_CM_EVENT_DEVICE_REMOVAL").count() {
        4 => Ok(()),
        count => Err(format!("{count} events for 4 identifiers\n{}", ended.describe())),
    }
}

/// Changes the interface under a stream, which ends well or `says` why it does not.
fn stream_over(
    lab: &Lab,
    place: &Place,
    name: &str,
    timeout: &str,
    change: &[Step],
    says: Option<&str>,
) -> Result<(), String> {
    for (side, n) in [(Side::Server, 1), (Side::Client, 2)] {
        let words = format!("address add 10.77.8.{n}/24 dev veth0");
        lab.ip(place, side, &words).map_err(|error| error.to_string())?;
    }
    let port = lab.port().to_string();
    let duration = if says.is_some() { ["-n", "1000000"] } else { ["-D", "3"] };
    // The queue pairs use the first address; the programs exchange their numbers over another one.
    let words = ["ib_write_bw", "-d", "roxie0", "-F", "-x", "0", "-u", timeout, "-p", &port];
    let server = [&words[..], &duration].concat();
    let client = [&server[..], &["10.77.8.1"]].concat();
    let ready = Ready::Tcp(port.parse().map_err(|_| "a port")?);
    let pair = Pair { name, server, client, ready, limit: LONG };
    let (mut server, mut client) = pair.begin(lab, place)?;
    flowing(&mut client, STREAM_BYTES)?;
    for (side, words, _) in change {
        lab.ip(place, *side, words).map_err(|error| error.to_string())?;
        std::thread::sleep(Duration::from_millis(300));
    }
    let ended = client.wait(LONG);
    match says {
        Some(text) => crate::kill::failed_with(&ended, text),
        None => good(ended).and(good(server.wait(SHORT))).map(drop),
    }
}
