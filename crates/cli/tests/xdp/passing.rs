//! TCP, UDP, ping and RDMA through every recipe that passes packets on, between two hosts with plain veths:
//! their sockets leave checksums to the device.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
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

/// A client, a server and what is between them: the thread of the test.
fn hosts(is_routed: bool) -> (Host, Host, &'static str) {
    let (client, server) = (Host::new(), Host::new());
    for (near, far) in [("ra", "a0"), ("rb", "b0")] {
        ip(&["link", "add", near, "type", "veth", "peer", "name", far]);
        ip(&["link", "set", near, "up"]);
    }
    if !is_routed {
        client.take("a0", "10.3.0.2/24", None);
        server.take("b0", "10.3.0.3/24", None);
        take_redirected(&client, &server);
        return (client, server, "10.3.0.3");
    }
    ip(&["address", "add", "10.1.0.1/24", "dev", "ra"]);
    ip(&["address", "add", "10.2.0.1/24", "dev", "rb"]);
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    client.take("a0", "10.1.0.2/24", Some("10.1.0.1"));
    server.take("b0", "10.2.0.2/24", Some("10.2.0.1"));
    take_redirected(&client, &server);
    (client, server, "10.2.0.2")
}

/// A veth takes redirected packets only while its peer has a program.
fn take_redirected(client: &Host, server: &Host) {
    for (host, netdev) in [(client, "a0"), (server, "b0")] {
        host.run(move || good(&["attach", netdev, "--recipe", "pass", "--mode", "native"]));
    }
}

/// What passed, by name.
fn passes(client: &Host, server: &Host, address: &'static str) -> Vec<(&'static str, bool)> {
    let (ready, is_ready) = channel();
    let received = server.begin(move || {
        let listener = TcpListener::bind((address, 5000)).unwrap();
        let socket = UdpSocket::bind((address, 5001)).unwrap();
        let mut rdma = demo("demo-server", "udp", "b0", address, 0);
        let port = listening_port(&mut rdma).expect("the server listens");
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
        while start.elapsed() < 6 * WAIT {
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
        // It has ended with the client, unless nothing passed.
        let _ended = rdma.kill();
        rdma.wait().unwrap();
        all.len()
    });
    let rdma_port = is_ready.recv_timeout(2 * WAIT).unwrap();
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
        let stream = TcpStream::connect_timeout(&SocketAddr::new(address.parse().unwrap(), 5000), WAIT / 2);
        if let Ok(mut stream) = stream {
            stream.set_write_timeout(Some(WAIT)).unwrap();
            let _sent = stream.write_all(&vec![7; TCP_BYTES]);
        }
        vec![("ping", ping), ("UDP", udp), ("RDMA", rdma)]
    });
    let received = received.recv_timeout(7 * WAIT).unwrap();
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

fn attach(netdev: &str, recipe: &str) {
    good(&["attach", netdev, "--recipe", recipe, "--replace", "--mode", "native"]);
}

/// Attaches a recipe to both interfaces, which may have a program in the other mode.
fn attach_again(recipe: &str, mode: &str) {
    for netdev in ["ra", "rb"] {
        roxie(&["detach", netdev]);
        good(&["attach", netdev, "--recipe", recipe, "--mode", mode]);
    }
}

const ALL: [(&str, bool); 4] = [("ping", true), ("UDP", true), ("RDMA", true), ("TCP", true)];

#[test]
fn everything_passes_through_recipes_that_route_and_that_spread_over_cpus() {
    if !enter() {
        return;
    }
    let (client, server, address) = hosts(true);
    for recipe in [
        "forward:to=ra+rb",
        "lb:to=cpu,ways=1",
        "access:deny=192.0.2.0/24+police:rate=10G,burst=1G+forward:to=ra+rb",
        "sample:every=10+lb:to=cpu,ways=1",
    ] {
        ["ra", "rb"].iter().for_each(|netdev| attach(netdev, recipe));
        assert_eq!(passes(&client, &server, address), ALL, "{recipe}");
    }
    arrives_at_cpus();
    for recipe in ["lb:to=cpu,ways=1", "sample:every=10+lb:to=cpu,ways=1"] {
        attach_again(recipe, "generic");
        assert_eq!(passes(&client, &server, address), ALL, "{recipe} in generic mode");
        arrives_at_cpus();
    }
}

/// Packets were spread over CPUs, and are counted where they arrive.
fn arrives_at_cpus() {
    let stats: Value = serde_json::from_str(&good(&["stats", "ra", "--json"])).unwrap();
    let sent = &stats["verdicts"]["XDP_REDIRECT.packets"];
    assert!(sent.as_u64() > Some(0) && stats["cpumap"]["arrived.packets"] == *sent, "{stats}");
    assert_eq!(stats["cpumap"]["not_arrived.packets"], 0, "{stats}");
}

#[test]
fn everything_passes_through_recipes_that_leave_packets_to_the_network_stack() {
    passes_to_the_network_stack("native");
}

#[test]
fn everything_passes_through_generic_recipes_that_leave_packets_to_the_network_stack() {
    passes_to_the_network_stack("generic");
}

fn passes_to_the_network_stack(mode: &str) {
    if !enter() {
        return;
    }
    let (client, server, address) = hosts(true);
    for recipe in [
        "pass",
        "steer",
        "drop:only=roce,port=9",
        "police:rate=10G,burst=1G",
        "access:deny=192.0.2.0/24",
        "access:allow=10.0.0.0/8",
        "lose:ppm=1",
        "sample:every=1",
        "lb:to=xsk",
    ] {
        attach_again(recipe, mode);
        assert_eq!(passes(&client, &server, address), ALL, "{recipe}, {mode}");
    }
}

/// The bridge passes on what `lb` does not redirect.
#[test]
fn everything_passes_through_a_bridge_whose_roce_packets_are_redirected_to_its_ports() {
    if !enter() {
        return;
    }
    let (client, server, address) = hosts(false);
    ip(&["link", "add", "br0", "type", "bridge"]);
    ip(&["link", "set", "br0", "up"]);
    for (netdev, to) in [("ra", "lb:to=rb"), ("rb", "lb:to=ra")] {
        ip(&["link", "set", netdev, "master", "br0"]);
        attach(netdev, to);
    }
    assert_eq!(passes(&client, &server, address), ALL);
    let stats: Value = serde_json::from_str(&good(&["stats", "ra", "--json"])).unwrap();
    assert!(stats["verdicts"]["XDP_REDIRECT.packets"].as_u64() > Some(0), "{stats}");
}

#[test]
fn everything_passes_through_a_redirect_to_another_interface() {
    if !enter() {
        return;
    }
    let (client, server, address) = hosts(false);
    attach("ra", "redirect:to=rb");
    attach("rb", "redirect:to=ra");
    assert_eq!(passes(&client, &server, address), ALL);
    // In the network stack the device completes checksums; the programs must not.
    for (netdev, to) in [("ra", "redirect:to=rb"), ("rb", "redirect:to=ra")] {
        good(&["detach", netdev]);
        let ended = roxie(&["attach", netdev, "--recipe", to, "--mode", "generic"]);
        assert!(ended.code == Some(0) && ended.err.contains("ip link set PEER gso_max_segs 1"), "{ended:?}");
    }
    // The kernel drops several TCP packets in one there, and TCP would wait for a timer after every loss.
    client.run(|| ip(&["link", "set", "a0", "gso_max_segs", "1"]));
    server.run(|| ip(&["link", "set", "b0", "gso_max_segs", "1"]));
    assert_eq!(passes(&client, &server, address), ALL, "generic mode");
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
    assert!(attach().contains("drops those; at the peer: ip link set PEER gso_max_segs 1"));
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
