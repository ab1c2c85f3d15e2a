//! AF_XDP ports beside other processes, other XDP programs, the network stack, and an interface that
//! changes or is deleted. Afterwards the interface must be as before.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Both, Pair, Ready, end_running, flowing, start, wait_ready};
use roxie_tests::place::{Family, Place, Port, Topology, User};
use roxie_tests::process::{Ended, Running, eventually};
use serde_json::Value;

use crate::case::{Case, LONG, SHORT, good, roxie, says};
use crate::kill::{PING_BYTES, STREAM_BYTES};

/// Bytes that TCP carries each way beside the device, and datagrams that are sent back one by one.
const TCP_BYTES: usize = 16 << 20;
const ECHOES: u32 = 2000;
/// A datagram that has not arrived after this time is lost.
const LOST_AFTER: Duration = Duration::from_secs(3);
/// One packet in so many may be overtaken.
const LATE_SHARE: u64 = 50;

/// An AF_XDP port of each mode, with other families and MTUs.
fn modes() -> [Place; 2] {
    [
        Place::xsk(Family::V4, 1500, Port::Native, Port::Native),
        Place::xsk(Family::V6, 9000, Port::Generic, Port::Generic),
    ]
}

fn case(
    place: Place,
    what: &str,
    program: &'static str,
    run: fn(&Lab, &Place, &str) -> Result<(), String>,
) -> Case {
    Case::new(place, what, program, move |lab, name| run(lab, &place, name))
}

pub(crate) fn cases() -> Vec<Case> {
    let [native, _] = modes();
    // An interface that is deleted is used by no other case.
    let doomed = Place { mtu: 1480, ..native };
    let mut cases = vec![
        case(doomed, "the interface is deleted under load", "ib_write_bw", deleted),
        case(native, "the link goes down and up under rping", "rping", down_and_up),
        case(native, "another program has the interface", "ibv_devinfo", occupied),
        case(native, "further processes use UDP sockets beside the first", "rping", several),
        case(native, "a program that ip(8) has loaded is used, and stays", "rping", loaded_by_others),
    ];
    for place in modes() {
        let taken = |lab: &_, place: &_, name: &_| is_taken(lab, place, name).map(drop);
        cases.push(case(place, "packets take the AF_XDP sockets", "rping", taken));
        cases.push(case(
            place,
            "its program is counted, and attached again after another tool detached it",
            "rping",
            taken_off,
        ));
        cases.push(case(place, "the interface is afterwards as before", "rping", as_before));
    }
    let ordinary = Place::new(Topology::SameHost, Family::V4, User::Ordinary);
    cases.push(case(ordinary, "AF_XDP without privileges says what is missing", "ibv_rc_pingpong", refusals));
    cases
}

/// A link with a rate, and streams on both CPUs.
pub(crate) fn busy_cases() -> Vec<Case> {
    // No other case uses an interface with this queueing discipline.
    let slow = Place::xsk(Family::V4, 1470, Port::Generic, Port::Generic);
    let order = "bursts and single packets keep their order on a slow link";
    let mut cases = vec![case(slow, order, "ib_write_bw", slow_link)];
    cases.extend(
        modes().map(|place| case(place, "TCP and UDP go on beside a stream", "ib_write_bw", stack_goes_on)),
    );
    cases
}

/// The queueing discipline of a link of 100 Mbit/s still holds a burst when its flow counts as calm. The
/// flow stays on its UDP socket until that is empty; without that, 12 % of the packets were retransmitted.
/// The socket is empty when the last packet has left the qdisc. That packet may still wait in the receive
/// queue of another CPU: on a slow machine at most 0.5 % were overtaken, in half of the runs.
fn slow_link(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let limit = || {
        let tc = "qdisc replace dev veth0 root tbf rate 100mbit burst 16k limit 4000000";
        let ended = Command::new("tc").args(tc.split(' ')).output()?;
        if ended.status.success() { Ok(()) } else { Err(io::Error::other(format!("tc: {ended:?}"))) }
    };
    for side in [Side::Server, Side::Client] {
        lab.visit(place, side, limit).map_err(|error| error.to_string())?;
    }
    let port = lab.port();
    let port_word = port.to_string();
    let stats = ["env", "ROXIE_STATS=1"];
    let server = [&stats[..], &["ib_write_bw", "-d", "roxie0", "-F", "-n", "400", "-p", &port_word]].concat();
    let client = [&server[..], &[lab.address(place)]].concat();
    let both = Pair { name, server, client, ready: Ready::Tcp(port), limit: LONG }.run(lab, place)?;
    let (bursts, late) =
        (counter(&both.client, "xsk_tx_bursts_by_udp"), counter(&both.server, "out_of_sequence"));
    if bursts == 0 || late * LATE_SHARE > bursts {
        return Err(format!("{bursts} packets of bursts, {late} out of order\n{}", both.client.describe()));
    }
    Ok(())
}

/// Starts an endless rping of two processes.
fn endless(lab: &Lab, place: &Place, name: &str) -> Result<[Running; 2], String> {
    let (port, address) = (lab.port().to_string(), lab.address(place));
    let ready = Ready::Cm(port.parse().unwrap_or_default());
    let common = ["-a", address, "-p", &port];
    let mut server = start(lab, place, Side::Server, name, &[&["rping", "-s"], &common[..]].concat())?;
    wait_ready(&mut server, ready)?;
    let mut client = start(lab, place, Side::Client, name, &[&["rping", "-c"], &common[..]].concat())?;
    flowing(&mut client, PING_BYTES)?;
    Ok([server, client])
}

/// Starts a stream with these words, and waits until it runs.
fn stream(lab: &Lab, place: &Place, name: &str, words: &[&str]) -> Result<[Running; 2], String> {
    let port = lab.port();
    let port_word = port.to_string();
    let mut common = [&["ib_write_bw", "-d", "roxie0", "-F", "-p", &port_word], words].concat();
    if place.family == Family::V6 {
        common.push("--ipv6");
    }
    let mut server = start(lab, place, Side::Server, name, &common)?;
    wait_ready(&mut server, Ready::Tcp(port))?;
    // perftest's own exchange is IPv4 only.
    common.push(lab.address(&Place { family: Family::V4, ..*place }));
    let mut client = start(lab, place, Side::Client, name, &common)?;
    flowing(&mut client, STREAM_BYTES)?;
    Ok([server, client])
}

fn is_taken(lab: &Lab, place: &Place, name: &str) -> Result<Both, String> {
    let (port, address) = (lab.port(), lab.address(place));
    let port_word = port.to_string();
    let common = ["-V", "-C", "100", "-a", address, "-p", &port_word];
    let both = Pair {
        name,
        server: [&["env", "ROXIE_STATS=1", "rping", "-s"], &common[..]].concat(),
        client: [&["env", "ROXIE_STATS=1", "rping", "-c"], &common[..]].concat(),
        ready: Ready::Cm(port),
        limit: LONG,
    }
    .run(lab, place)?;
    let mode = if place.ports[0] == Port::Native { "native" } else { "generic" };
    let words = ["devinfo", "--netdev", lab.netdev(place), "--port", "xsk", "--xdp-mode", mode];
    says(&good(roxie(lab, place, Side::Server, name, &words)?)?, &format!("xsk, {mode} mode, copy"))?;
    for side in [&both.server, &both.client] {
        says(side, &format!("roxie: port xsk, {mode} mode, copy"))?;
        // Three messages each way per ping; the first one may have waited for the neighbour.
        for row in ["xsk_tx_packets", "xsk_rx_packets"] {
            if counter(side, row) < 290 {
                return Err(format!("{row} is less than 290\n{}", side.describe()));
            }
        }
    }
    Ok(both)
}

/// The program is loaded from its object file; processes use it, and it stays when they end.
fn loaded_by_others(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let file = std::env::temp_dir().join(format!("roxie-xsk-{}.o", std::process::id()));
    let file = file.to_string_lossy();
    good(roxie(lab, place, Side::Server, name, &["xdp", "object", &file])?)?;
    let ip = |words: &str| lab.ip(place, Side::Server, words).map_err(|error| error.to_string());
    ip(&format!("link set dev veth0 xdpdrv obj {file} sec xdp.frags"))?;
    let there = ip("-d link show dev veth0")?;
    let run = || {
        for _ in 0..2 {
            let both = is_taken(lab, place, name)?;
            says(&both.server, " loaded by others")?;
        }
        Ok(())
    };
    let (ran, after) = (run(), ip("-d link show dev veth0")?);
    ip("link set dev veth0 xdpdrv off")?;
    // The next process attaches its own program again.
    ran.and_then(|()| is_taken(lab, place, name)).map(drop)?;
    if !there.contains("roxie_xsk") || there != after {
        return Err(format!("before: {there}\nafter: {after}"));
    }
    std::fs::remove_file(&*file).map_err(|error| error.to_string())
}

fn counter(ended: &Ended, row: &str) -> u64 {
    let value = ended.output.lines().find_map(|line| line.strip_prefix("roxie: ")?.strip_prefix(row));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Two servers and two clients, each side on one interface: every client connects to every server, and the
/// messages name the process that has the interface.
fn several(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let address = lab.address(place);
    let ports = [lab.port(), lab.port()];
    let words = ports.map(|port| port.to_string());
    let mut servers = Vec::new();
    for (port, word) in ports.iter().zip(&words) {
        let server = ["rping", "-s", "-P", "-a", address, "-p", word];
        let mut server = start(lab, place, Side::Server, &format!("{name}-{port}"), &server)?;
        wait_ready(&mut server, Ready::Cm(*port))?;
        servers.push(server);
    }
    let beside = format!("process {} has it, so this one uses UDP sockets", servers[0].pid());
    let told = servers[1].output();
    if !told.contains(&beside) {
        return Err(format!("'{beside}' is not in\n{told}"));
    }
    let devinfo = ["devinfo", "--netdev", lab.netdev(place), "--port", "xsk"];
    let foreseen = format!("udp (no AF_XDP: process {} has it)", servers[0].pid());
    says(&good(roxie(lab, place, Side::Server, name, &devinfo)?)?, &foreseen)?;
    for side in [Side::Client, Side::Server] {
        for word in &words {
            let mut clients = Vec::new();
            for n in 0..2 {
                let client = ["rping", "-c", "-V", "-C", "200", "-a", address, "-p", word];
                clients.push(start(lab, place, side, &format!("{name}-{n}"), &client)?);
            }
            clients.iter_mut().try_for_each(|client| good(client.wait(SHORT)).map(drop))?;
        }
    }
    // The next process gets the interface again.
    servers[0].signal(Signal::SIGKILL);
    servers[0].wait(SHORT);
    let next = ["env", "ROXIE_STATS=1", "rping", "-c", "-V", "-C", "20", "-a", address, "-p", &words[1]];
    let ended = good(start(lab, place, Side::Server, name, &next)?.wait(SHORT))?;
    says(&ended, "roxie: port xsk")
}

/// The port is down while a program of another tool is attached, and up without it.
fn occupied(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let run = |words: &[&str]| roxie(lab, place, Side::Server, name, words);
    let ibv = ["run", "--netdev", "veth0", "--port", "xsk", "--", "ibv_devinfo"];
    good(run(&["xdp", "attach", "veth0", "--recipe", "pass"])?)?;
    let (down, devinfo) = (run(&ibv), run(&["devinfo", "--netdev", "veth0", "--port", "xsk"]));
    good(run(&["xdp", "detach", "veth0"])?)?;
    let (down, devinfo) = (good(down?)?, good(devinfo?)?);
    says(&down, "PORT_DOWN")?;
    says(&down, "no AF_XDP on veth0: XDP program already attached (id ")?;
    says(&down, "roxie_pass, native mode) (have its owner take it off")?;
    says(&devinfo, "state              down")?;
    let up = good(run(&ibv)?)?;
    if up.output.contains("no AF_XDP") {
        return Err(up.describe());
    }
    says(&up, "PORT_ACTIVE")
}

/// The kernel's description of the interfaces of both sides.
fn links(lab: &Lab, place: &Place) -> Result<[String; 2], String> {
    let link = |side| lab.ip(place, side, "-j -d link show dev veth0").map_err(|error| error.to_string());
    Ok([link(Side::Server)?, link(Side::Client)?])
}

fn as_before(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let before = links(lab, place)?;
    if before.iter().any(|link| link.contains("xdp")) {
        return Err(format!("a program was there already: {before:?}"));
    }
    for signal in [None, Some(Signal::SIGINT), Some(Signal::SIGKILL)] {
        let [mut server, mut client] = endless(lab, place, name)?;
        let during = links(lab, place)?;
        if !during.iter().all(|link| link.contains("\"name\":\"roxie_steer\"")) {
            return Err(format!("no program while it runs: {during:?}"));
        }
        // The server ends when its client disconnects; a killed client cannot disconnect.
        client.signal(signal.unwrap_or(Signal::SIGTERM));
        client.wait(SHORT);
        if let Some(signal) = signal {
            server.signal(signal);
        }
        let ended = server.wait(SHORT);
        if ended.status.is_none() {
            return Err(ended.describe());
        }
        let mut after = before.clone();
        let back = eventually(SHORT, || {
            links(lab, place).is_ok_and(|now| {
                after = now;
                after == before
            })
        });
        if !back {
            return Err(format!("{signal:?}\nbefore: {before:?}\nafter: {after:?}"));
        }
    }
    Ok(())
}

/// While the device uses the interface, TCP and UDP beside it lose nothing.
fn stack_goes_on(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let ports = [lab.port(), lab.port()];
    let address = lab.address(place);
    let programs = stream(lab, place, name, &["--run_infinitely"])?;
    let there = lab.visit(place, Side::Server, || {
        Ok((TcpListener::bind((address, ports[0]))?, udp(address, ports[1])?))
    });
    let (listener, datagrams) = there.map_err(|error| error.to_string())?;
    let echo = std::thread::spawn(move || echo(&listener, &datagrams));
    let asked = lab.visit(place, Side::Client, || ask(address, ports));
    asked.map_err(|error| format!("beside the stream: {error}"))?;
    echo.join().map_err(|_| "the echo server panicked")?.map_err(|error| error.to_string())?;
    end_running(programs)
}

fn udp(address: &str, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, port))?;
    socket.set_read_timeout(Some(LOST_AFTER))?;
    Ok(socket)
}

/// Sends everything back: first the data of one TCP connection, then datagrams.
fn echo(listener: &TcpListener, datagrams: &UdpSocket) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(LOST_AFTER))?;
    io::copy(&mut stream.try_clone()?, &mut stream)?;
    drop(stream);
    let mut buf = [0; 64];
    for _ in 0..ECHOES {
        let (len, from) = datagrams.recv_from(&mut buf)?;
        datagrams.send_to(&buf[..len], from)?;
    }
    Ok(())
}

fn ask(address: &str, ports: [u16; 2]) -> io::Result<()> {
    let sent: Vec<u8> = (0..TCP_BYTES as u32).map(|i| (i >> 2) as u8).collect();
    let mut stream = TcpStream::connect((address, ports[0]))?;
    stream.set_read_timeout(Some(LOST_AFTER))?;
    let mut back = Vec::with_capacity(TCP_BYTES);
    std::thread::scope(|scope| {
        let (mut writer, sent) = (stream.try_clone()?, &sent);
        let writer =
            scope.spawn(move || writer.write_all(sent).and_then(|()| writer.shutdown(Shutdown::Write)));
        stream.read_to_end(&mut back)?;
        writer.join().map_err(|_| io::Error::other("the sender panicked"))??;
        if back == *sent { Ok(()) } else { Err(io::Error::other("TCP brought other bytes back")) }
    })?;
    let datagrams = udp(if address.contains(':') { "::" } else { "0.0.0.0" }, 0)?;
    datagrams.connect((address, ports[1]))?;
    let mut buf = [0; 64];
    for number in 0..ECHOES {
        datagrams.send(&number.to_be_bytes())?;
        let len = datagrams.recv(&mut buf)?;
        if buf[..len] != number.to_be_bytes() {
            return Err(io::Error::other(format!("datagram {number} came back as another")));
        }
    }
    Ok(())
}

/// A link that goes down loses its IPv6 addresses, which other cases use.
fn down_and_up(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let lab = &lab.apart();
    let [mut server, mut client] = endless(lab, place, name)?;
    let set = |state: &str| lab.ip(place, Side::Server, &format!("link set veth0 {state}"));
    for _ in 0..3 {
        set("down").and_then(|_| set("up")).map_err(|error| error.to_string())?;
        flowing(&mut client, PING_BYTES)?;
    }
    client.signal(Signal::SIGTERM);
    says(&server.wait(SHORT), "DISCONNECT EVENT")
}

/// Verdicts of the steering program are counted; a message follows each time when another tool detaches it.
fn taken_off(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let [mut server, mut client] = endless(lab, place, name)?;
    let xdp = |words: &[&str]| good(roxie(lab, place, Side::Server, name, &[&["xdp"], words].concat())?);
    let stats: Value = serde_json::from_str(&xdp(&["stats", "veth0", "--json"])?.output)
        .map_err(|error| error.to_string())?;
    if stats["verdicts"]["XDP_REDIRECT.packets"].as_u64().unwrap_or(0) == 0 {
        return Err(format!("no packet was redirected: {stats}"));
    }
    for told in ["it is back, and stays off the next time", "off veth0 again: packets come more slowly"] {
        xdp(&["detach", "veth0", "--force"])?;
        if !eventually(SHORT, || server.output().matches(told).count() == 1) {
            return Err(format!("'{told}' was not said\n{}", server.output()));
        }
        flowing(&mut client, PING_BYTES)?;
    }
    let there = links(lab, place)?;
    if there[0].contains("xdp") {
        return Err(format!("it is on the interface again: {}", there[0]));
    }
    client.signal(Signal::SIGTERM);
    says(&server.wait(SHORT), "DISCONNECT EVENT")
}

fn deleted(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let [_server, mut client] = stream(lab, place, name, &["-n", "1000000"])?;
    lab.ip(place, Side::Client, "link del veth0").map_err(|error| error.to_string())?;
    // The peer is not notified, on any device: the TCP connection that it waits on uses the same link.
    let ended = client.wait(SHORT);
    if ended.status.is_none() || ended.succeeded() {
        return Err(ended.describe());
    }
    // The device is removed, so the work requests of the queue pair are flushed.
    says(&ended, "Failed status 5")
}

fn refusals(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let port = lab.port().to_string();
    let pingpong = ["ibv_rc_pingpong", "-g", "0", "-p", &port];
    for (netdev, kind, code, words) in [
        ("veth0", "xsk", false, "run as root, or add CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW, or use --port udp"),
        ("lo", "xsk", false, "no AF_XDP on lo: not an Ethernet interface"),
        ("lo", "auto", true, "no AF_XDP on lo, using UDP sockets: not an Ethernet interface"),
    ] {
        let run = ["run", "--netdev", netdev, "--port", kind, "--"];
        let mut running = lab
            .roxie_command(place, Side::Server, name, &[&run[..], &pingpong].concat())
            .map_err(|error| error.to_string())?;
        if code {
            // It listens for its client, so the device works.
            wait_ready(&mut running, Ready::Tcp(port.parse().unwrap_or_default()))?;
        }
        let ended = running.wait(if code { Duration::ZERO } else { SHORT });
        if code != ended.status.is_none() {
            return Err(ended.describe());
        }
        says(&ended, words)?;
    }
    let words = ["devinfo", "--netdev", "veth0", "--port", "xsk"];
    let devinfo = good(roxie(lab, place, Side::Server, name, &words)?)?;
    says(
        &devinfo,
        "none: AF_XDP privileges: Operation not permitted (os error 1) (run as root, or add CAP_BPF",
    )?;
    says(&devinfo, "state              down")?;
    let ibv = ["run", "--netdev", "veth0", "--port", "xsk", "--", "ibv_devinfo"];
    let ibv = roxie(lab, place, Side::Server, name, &ibv)?;
    says(&ibv, "no AF_XDP on veth0: AF_XDP privileges")?;
    says(&ibv, "PORT_DOWN")
}
