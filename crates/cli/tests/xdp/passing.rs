//! TCP, UDP, ping and RDMA through every recipe that passes packets on, between two hosts with plain veths:
//! their sockets leave checksums to the device.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::spawn;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use serde_json::Value;

use crate::host::*;
use crate::hosts::*;

/// Bytes sent over TCP: some hundred segments.
const TCP_BYTES: usize = 256 << 10;
/// Longest wait for an answer.
const WAIT: Duration = Duration::from_secs(5);

/// Port of rping, which is bound to /svc/PORT/ of the registry.
const RPING_PORT: &str = "7174";

/// A client, a server and what is between them: the thread of the test, as a router or a bridge. `gro`: on at
/// client and server: the veths here then take redirected packets.
fn hosts(is_routed: bool, gro: bool) -> (Host, Host, &'static str) {
    let (client, server) = (Host::new(), Host::new());
    for (near, far) in [("ra", "a0"), ("rb", "b0")] {
        ip(&["link", "add", near, "type", "veth", "peer", "name", far]);
        ip(&["link", "set", near, "up"]);
    }
    let address = if is_routed {
        ip(&["address", "add", "10.1.0.1/24", "dev", "ra"]);
        ip(&["address", "add", "10.2.0.1/24", "dev", "rb"]);
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        client.take("a0", "10.1.0.2/24", Some("10.1.0.1"));
        server.take("b0", "10.2.0.2/24", Some("10.2.0.1"));
        "10.2.0.2"
    } else {
        ip(&["link", "add", "br0", "type", "bridge"]);
        ip(&["link", "set", "br0", "up"]);
        ["ra", "rb"].iter().for_each(|port| ip(&["link", "set", port, "master", "br0"]));
        client.take("a0", "10.3.0.2/24", None);
        server.take("b0", "10.3.0.3/24", None);
        "10.3.0.3"
    };
    for (host, netdev) in [(&client, "a0"), (&server, "b0")] {
        host.run(move || set_gro(netdev, gro));
    }
    (client, server, address)
}

/// `ethtool -K NETDEV gro on|off`: ETHTOOL_SGRO of linux/ethtool.h by SIOCETHTOOL.
fn set_gro(netdev: &str, on: bool) {
    const SET: &str = "import array, fcntl, socket, struct, sys\n\
        value = array.array('I', [0x2c, int(sys.argv[2])])\n\
        request = struct.pack('16sP', sys.argv[1].encode(), value.buffer_info()[0])\n\
        fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8946, request)\n";
    let done = Command::new("python3").args(["-c", SET, netdev, if on { "1" } else { "0" }]).status();
    assert!(done.unwrap().success(), "GRO of {netdev}");
}

/// Whether rping can run: it needs the libraries of roxie beside the program.
fn has_rping() -> bool {
    let library = Path::new(env!("CARGO_BIN_EXE_roxie")).with_file_name("librdmacm.so");
    library.exists() && Command::new("rping").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// One end of rping: the connection manager, SEND, READ and WRITE. It ends after so many seconds at most.
fn rping(netdev: &str, seconds: &str, words: &[&str]) -> Child {
    let mut command = Command::new("timeout");
    command.args([seconds, env!("CARGO_BIN_EXE_roxie"), "run", "--netdev", netdev, "--", "rping"]);
    command.args(words).args(["-p", RPING_PORT, "-C", "5", "-V"]).env("ROXIE_SHM", "off");
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// The server of rping, once it listens. It waits until everything else has passed: on a busy machine the
/// other program of RDMA takes more than 20 s through a CPUMAP.
fn rping_server(address: &str) -> Child {
    let server = rping("b0", "90", &["-s", "-a", address]);
    let part = format!("/{:04x}/", RPING_PORT.parse::<u16>().unwrap());
    eventually("a server of rping", || {
        let sockets = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap();
        sockets.lines().any(|line| line.contains("/svc/") && line.contains(&part))
    });
    server
}

/// What passed, by name.
fn passes(client: &Host, server: &Host, address: &'static str) -> Vec<(&'static str, bool)> {
    let (ready, is_ready) = channel();
    let received = server.begin(move || {
        let listener = TcpListener::bind((address, 5000)).unwrap();
        let socket = UdpSocket::bind((address, 5001)).unwrap();
        let mut rdma = demo("demo-server", "udp", "b0", address, 0);
        let port = listening_port(&mut rdma).expect("the server listens");
        let mut rping = has_rping().then(|| rping_server(address));
        ready.send(port).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let echo = spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                let mut bytes = [0; 2048];
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok((len, from)) = socket.recv_from(&mut bytes) {
                        // The checksum of the answer is left to the device, too.
                        socket.send_to(&bytes[..len], from).unwrap();
                    }
                }
            }
        });
        listener.set_nonblocking(true).unwrap();
        let mut all = Vec::new();
        let start = std::time::Instant::now();
        // The client connects last: it may have waited for everything else.
        while start.elapsed() < 16 * WAIT {
            if let Ok((mut stream, _)) = listener.accept() {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(WAIT)).unwrap();
                // A timeout leaves what has arrived.
                let _ended = stream.read_to_end(&mut all);
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, Ordering::Relaxed);
        echo.join().unwrap();
        // They have ended with the client, unless nothing passed.
        for server in [Some(&mut rdma), rping.as_mut()].into_iter().flatten() {
            let _ended = server.kill();
            server.wait().unwrap();
        }
        all.len()
    });
    let rdma_port = is_ready.recv_timeout(6 * WAIT).unwrap();
    let mut passed = client.run(move || {
        let ping = is_pinged(address);
        let echoed = |port: u16| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            // The first packets may wait for a neighbour.
            (0..3).any(|_| {
                socket.send_to(&[0x5a; 700], (address, port)).is_ok()
                    && socket.recv(&mut [0; 2048]).is_ok_and(|len| len == 700)
            })
        };
        let udp = echoed(5001);
        let rdma = demo("demo-client", "udp", "a0", address, rdma_port).wait().unwrap().success();
        let rping = !has_rping() || rping("a0", "20", &["-c", "-a", address]).wait().unwrap().success();
        let stream = TcpStream::connect_timeout(&SocketAddr::new(address.parse().unwrap(), 5000), WAIT / 2);
        if let Ok(mut stream) = stream {
            stream.set_write_timeout(Some(WAIT)).unwrap();
            let _sent = stream.write_all(&vec![7; TCP_BYTES]);
        }
        vec![("ping", ping), ("UDP", udp), ("RDMA", rdma), ("rping", rping)]
    });
    let received = received.recv_timeout(18 * WAIT).unwrap();
    passed.push(("TCP", received == TCP_BYTES));
    passed
}

/// Sends an ICMP echo request (RFC 792) and waits for its reply.
fn is_pinged(address: &str) -> bool {
    let icmp = SockProtocol::Icmp;
    let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, icmp).unwrap();
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    // Type, code, checksum, identifier, sequence number.
    let mut request = [8, 0, 0, 0, 0x5a, 0x5a, 0, 1];
    let sum: u32 = request.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    request[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let mut reply = [0; 128];
    // The first packets may wait for a neighbour. A reply has its IPv4 header of 20 bytes.
    (0..3).any(|_| {
        socket.send_to(&request, (address, 0)).is_ok()
            && socket.recv(&mut reply).is_ok_and(|len| {
                len == 20 + request.len() && reply[20] == 0 && reply[24..len] == request[4..]
            })
    })
}

const ALL: [(&str, bool); 5] =
    [("ping", true), ("UDP", true), ("RDMA", true), ("rping", true), ("TCP", true)];

/// On both ports of a router.
const ROUTED: [&str; 14] = [
    "pass",
    "tx:only=roce,port=9",
    "steer",
    "drop:only=roce,port=9",
    "police:rate=10G,burst=1G",
    "access:deny=192.0.2.0/24",
    "access:allow=10.0.0.0/8",
    "lose:ppm=1",
    "sample:every=1",
    "lb:to=xsk",
    "lb:to=cpu,ways=1",
    "sample:every=10+lb:to=cpu,ways=1",
    "forward:to=ra+rb",
    "access:deny=192.0.2.0/24+police:rate=10G,burst=1G+forward:to=ra+rb",
];
/// On one port of a bridge, and on the other one.
const BRIDGED: [[&str; 2]; 2] = [["redirect:to=rb", "redirect:to=ra"], ["lb:to=rb", "lb:to=ra"]];

/// Sends everything through every recipe that redirects packets, or every other one. Packets are redirected
/// if the targets take them, and otherwise the network stack forwards them.
fn every_recipe_passes(mode: &str, gro: bool, redirects: bool) {
    if !enter() {
        return;
    }
    if !has_rping() {
        println!("skipped: rping, which needs librdmacm.so of roxie beside the program");
    }
    let through = |hosts: &(Host, Host, &'static str), [one, other]: [&str; 2]| {
        for (netdev, recipe) in [("ra", one), ("rb", other)] {
            good(&["attach", netdev, "--recipe", recipe, "--mode", mode]);
        }
        let case = format!("{one}, {mode}, GRO {gro}");
        assert_eq!(passes(&hosts.0, &hosts.1, hosts.2), ALL, "{case}");
        let stats: Value = serde_json::from_str(&good(&["stats", "ra", "--json"])).unwrap();
        let redirected = stats["verdicts"]["XDP_REDIRECT.packets"].as_u64();
        if one.contains("to=cpu") {
            let arrived = stats["cpumap"]["arrived.packets"].as_u64();
            assert!(redirected > Some(0) && arrived == redirected, "{case}: {stats}");
        } else if one.contains("to=r") {
            assert_eq!(redirected > Some(0), gro || mode == "generic", "{case}: {stats}");
        }
        ["ra", "rb"].iter().for_each(|netdev| drop(good(&["detach", netdev])));
    };
    let routed = hosts(true, gro);
    let chosen = ROUTED.into_iter().filter(|recipe| recipe.contains("to=") == redirects);
    chosen.for_each(|recipe| through(&routed, [recipe; 2]));
    if !redirects {
        return;
    }
    ["ra", "rb"].iter().for_each(|netdev| ip(&["link", "delete", netdev]));
    let bridged = hosts(false, gro);
    BRIDGED.into_iter().for_each(|recipes| through(&bridged, recipes));
}

/// GRO decides which redirected packets the ends take; these are the other ones.
fn every_recipe_without_targets_passes(mode: &str) {
    every_recipe_passes(mode, false, false);
    if std::env::var_os("ROXIE_TEST_FULL").is_some() {
        every_recipe_passes(mode, true, false);
    }
}

#[test]
fn everything_passes_through_native_recipes_without_targets() {
    every_recipe_without_targets_passes("native");
}

#[test]
fn everything_passes_through_generic_recipes_without_targets() {
    every_recipe_without_targets_passes("generic");
}

#[test]
fn everything_passes_through_native_recipes_with_targets_between_plain_veths() {
    every_recipe_passes("native", false, true);
}

#[test]
fn everything_passes_through_native_recipes_with_targets_between_veths_with_gro() {
    every_recipe_passes("native", true, true);
}

#[test]
fn everything_passes_through_generic_recipes_with_targets_between_plain_veths() {
    every_recipe_passes("generic", false, true);
}

#[test]
fn everything_passes_through_generic_recipes_with_targets_between_veths_with_gro() {
    every_recipe_passes("generic", true, true);
}

#[test]
fn the_map_of_a_command_that_stays_follows_what_drivers_take() {
    if !enter() {
        return;
    }
    let (client, server, address) = hosts(true, false);
    let recipe = ["attach", "ra", "--recipe", "forward:to=ra+rb", "--mode", "native"];
    let said = roxie(&recipe).err;
    assert!(
        said.contains("packets for ra, rb go through the network stack") && said.contains("--foreground")
    );
    good(&["detach", "ra"]);
    let mut running = command(&[&recipe[..], &["--foreground"]].concat()).spawn().unwrap();
    let entries = |what: &str, wanted: &[&str]| {
        eventually(what, || {
            let map = roxie(&["map", "get", "ra", "ports"]).out;
            map.lines().count() == wanted.len() && wanted.iter().all(|name| map.contains(name))
        });
        let pings = client.run(move || is_pinged(address));
        assert!(pings, "{what}");
    };
    entries("attached without a target", &[]);
    server.run(|| drop(good(&["attach", "b0", "--recipe", "pass", "--mode", "native"])));
    entries("followed by a target when its peer has a program", &["rb"]);
    client.run(|| set_gro("a0", true));
    entries("followed by a target when its peer has GRO on", &["ra", "rb"]);
    let said = roxie(&["attach", "rb", "--recipe", "forward:to=ra+rb", "--mode", "native"]).err;
    assert!(said.contains("redirected packets for ra, rb are lost once the peer has neither"), "{said}");
    good(&["detach", "rb"]);
    server.run(|| drop(good(&["detach", "b0"])));
    entries("left by a target when its peer has no program", &["ra"]);
    ip(&["link", "delete", "rb"]);
    eventually("left by a removed target", || !good(&["map", "get", "ra", "ports"]).contains("rb"));
    assert!(running.try_wait().unwrap().is_none(), "the command stays");
    running.kill().unwrap();
    running.wait().unwrap();
}

/// Waits until a command has looked at its targets twice: it sleeps in between.
fn looks(running: &Child) {
    let status = format!("/proc/{}/status", running.id());
    let sleeps = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = sleeps();
    eventually("awake for the third time", || sleeps() > before + 2);
}

#[test]
fn a_target_stays_in_the_map_under_another_name_and_without_free_descriptors() {
    if !enter() {
        return;
    }
    ip(&["link", "add", "out0", "type", "veth", "peer", "name", "out1"]);
    good(&["attach", "out1", "--recipe", "pass", "--mode", "native"]);
    let words = ["attach", "veth0", "--recipe", "redirect:to=out0", "--mode", "native", "--foreground"];
    let mut running = command(&words).stderr(Stdio::piped()).spawn().unwrap();
    let devices = || roxie(&["map", "get", "veth0", "devs"]).out;
    eventually("attached with its target", || devices().contains("out0"));
    ip(&["link", "set", "out0", "name", "other0"]);
    looks(&running);
    assert!(devices().contains("other0"), "{}", devices());
    let pid = running.id().to_string();
    for descriptors in ["--nofile=3:", "--nofile=100:"] {
        let limited = Command::new("prlimit").args(["--pid", &pid, descriptors]).status();
        assert!(limited.unwrap().success());
        looks(&running);
        assert!(devices().contains("other0"), "{descriptors} {}", devices());
    }
    ip(&["link", "delete", "other0"]);
    looks(&running);
    running.kill().unwrap();
    let said = running.wait_with_output().unwrap().stderr;
    let want = "roxie: out0 was removed; the packets for it go through the network stack\n";
    assert_eq!(String::from_utf8_lossy(&said), want);
}

#[test]
fn a_redirect_in_generic_mode_warns_of_a_peer_that_leaves_segmentation_to_the_device() {
    if !enter() {
        return;
    }
    let attach = || {
        let ended =
            roxie(&["attach", "veth0", "--recipe", "redirect:to=lo", "--replace", "--mode", "generic"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.err
    };
    let said = attach();
    assert!(said.contains("leaves those to the network stack") && said.contains("gso_max_segs 1"), "{said}");
    ip(&["link", "set", "veth1", "gso_max_segs", "1"]);
    assert_eq!(attach(), "");
}

#[test]
fn a_warning_names_packets_without_checksums_that_an_object_file_redirects() {
    if !enter() {
        return;
    }
    let Some(file) = object("leaves", include_str!("../../../../xdp/redirect.c")) else { return };
    let attach = || {
        let ended =
            roxie(&["attach", "veth0", &file, "--prog", "to_device", "--replace", "--mode", "native"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.err
    };
    let said = attach();
    assert!(said.contains("have no checksum yet") && said.contains("ethtool -K PEER tx off"), "{said}");
    if Command::new("ethtool").args(["-K", "veth1", "tx", "off"]).status().is_ok_and(|ended| ended.success())
    {
        assert_eq!(attach(), "");
    }
}
