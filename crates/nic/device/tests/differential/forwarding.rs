//! Forwarding with routes: the kernel looks them up in a new namespace, the interpreter asks the test.

use std::process::Command;

use bpf::recipe::PORTS;
use bpf::{Action, Recipe, XdpAction};

use crate::packets::packet;
use crate::twins::{Twins, possible};
use roxie_tests::random::Rng;

const PACKETS: u32 = 400;
/// 10.2.0.0/24 and fd00:0:0:2::/64 are reached through `out`, 10.2.0.77 and fd00:0:0:2::4d have no
/// neighbour entry, and 10.2.0.128/25 leaves through an interface that is no port.
const NETWORK: [&str; 17] = [
    "link set lo up",
    "link add in index 20 type veth peer name in_peer",
    "link add out index 30 address 02:00:00:00:aa:01 type veth peer name out_peer",
    "link add other index 40 address 02:00:00:00:aa:02 type veth peer name other_peer",
    "link set in up",
    "link set in_peer up",
    "link set out up",
    "link set out_peer up",
    "link set other up",
    "link set other_peer up",
    "address add 10.1.0.254/24 dev in",
    "address add 10.2.0.254/24 dev out",
    "address add fd00:0:0:1::fe/64 dev in nodad",
    "address add fd00:0:0:2::fe/64 dev out nodad",
    "address add 10.3.0.254/24 dev other",
    "route add 10.2.0.128/25 via 10.3.0.1",
    "neigh add 10.3.0.1 lladdr 02:00:00:00:bb:03 dev other nud permanent",
];
const MTU: u16 = 1500;
const IN: u32 = 20;
const OUT: u32 = 30;
const OTHER: u32 = 40;

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Moves this thread into a namespace with routes.
fn enter_router() {
    // SAFETY: unshare takes no pointer; only this thread is affected.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
    NETWORK.iter().for_each(|words| ip(words));
    for last in [1, 2, 3] {
        for host in [format!("10.2.0.{last}"), format!("fd00:0:0:2::{last:x}")] {
            ip(&format!("neigh add {host} lladdr 02:00:00:00:bb:01 dev out nud permanent"));
        }
    }
    for family in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
        std::fs::write(format!("/proc/sys/net/{family}"), "1").unwrap();
    }
}

/// Answers like the kernel's tables, in the layout of `struct bpf_fib_lookup`: length at 6, source at 16,
/// destination at 32, answers at 8, 52 and 58.
fn route(query: &mut [u8; 64]) -> i64 {
    const NOT_FORWARDED: i64 = 4;
    const NO_NEIGHBOUR: i64 = 7;
    const TOO_LONG: i64 = 8;
    let host = match query[0] {
        2 if query[32..35] == [10, 2, 0] => query[35],
        10 if query[32..47] == [0xfd, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0] => query[47],
        _ => return NOT_FORWARDED,
    };
    let (interface, last, neighbour) = match host {
        1..=3 => (OUT, 1, 1),
        128.. if query[0] == 2 => (OTHER, 2, 3),
        _ => return NO_NEIGHBOUR,
    };
    if u16::from_le_bytes([query[6], query[7]]) > MTU {
        return TOO_LONG;
    }
    query[8..12].copy_from_slice(&interface.to_le_bytes());
    query[52..58].copy_from_slice(&[2, 0, 0, 0, 0xaa, last]);
    query[58..64].copy_from_slice(&[2, 0, 0, 0, 0xbb, neighbour]);
    0
}

#[test]
fn kernel_and_interpreter_agree_on_forwarding_with_routes() {
    if !possible() {
        return;
    }
    enter_router();
    let recipe =
        Recipe { action: Action::Forward { ports: 4 }, counters: true, ..Recipe::verdict(XdpAction::Pass) };
    let mut twins = Twins::new(recipe.program("forward", bpf::ProgramKind::Xdp).unwrap());
    twins.fill(PORTS, &OUT.to_le_bytes(), &OUT.to_le_bytes());
    twins.world.route = Some(route);
    let (mut rng, mut forwarded) = (Rng(40), [0; 2]);
    for _ in 0..PACKETS {
        let packet = packet(&mut rng);
        if twins.run_on(&packet, IN) == XdpAction::Redirect.number() {
            forwarded[usize::from(packet[12] == 0x86)] += 1;
        }
    }
    twins.compare_maps();
    assert!(forwarded.iter().all(|&n| n > 10), "IPv4, IPv6: {forwarded:?}");
}
