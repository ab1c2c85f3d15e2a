//! AF_XDP frames on one end of a veth; as root, else skipped.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bpf::{Asm, Insn, Program, ProgramKind, Reg};
use sys::Netlink;
use sys::bpf::{Direction, Program as Loaded, TcxLink};
use sys::testing::{Host, ip};

use super::spec::tests::{specs, tag, udp};
use super::table::{FlowAttr, FlowRules, FlowType};
use super::xsk_port::XskFrames;
use crate::xdp::hint_kfuncs;

const TCI: u16 = 0x2007;
const WAIT: Duration = Duration::from_secs(5);

fn ifindex() -> u32 {
    Netlink::new().unwrap().links().unwrap().iter().find(|link| link.name == "veth0").unwrap().index
}

/// A classifier that adds a VLAN tag to what the interface sends. The kernel keeps the tag beside the frame,
/// as for a packet of a VLAN interface.
fn add_tag() -> Program {
    const SKB_VLAN_PUSH: i32 = 18;
    let mut asm = Asm::new("add_tag");
    asm.mov(Reg::R2, i32::from(0x8100_u16.swap_bytes())).mov(Reg::R3, i32::from(TCI));
    asm.insn(Insn::CallHelper { id: SKB_VLAN_PUSH }).mov(Reg::R0, -1).exit();
    Program { kind: ProgramKind::Classifier, ..asm.finish().unwrap() }
}

/// Waits for a frame with this UDP destination port.
fn receive(frames: &mut XskFrames, port: u16) -> Option<Vec<u8>> {
    let end = Instant::now() + WAIT;
    while Instant::now() < end {
        for i in 0..frames.fetch() {
            let frame = frames.frame(i).unwrap();
            if frame.windows(2).any(|bytes| bytes == port.to_be_bytes()) {
                return Some(frame.to_vec());
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

#[test]
fn a_vlan_tag_beside_the_frame_is_matched_and_put_back() {
    let Some(hosts) = Host::new().zip(Host::new()) else { return };
    let (here, peer) = hosts;
    here.visit(|| ip(&format!("link add veth0 type veth peer name veth0 netns {}", peer.path())));
    for (host, n) in [(&here, 1), (&peer, 2)] {
        host.visit(|| {
            ip(&format!("link set veth0 address 02:00:00:00:80:0{n} addrgenmode none up"));
            ip(&format!("address add 10.80.0.{n}/24 dev veth0"));
            ip(&format!("neigh add 10.80.0.{} lladdr 02:00:00:00:80:0{} dev veth0", 3 - n, 3 - n));
        });
    }
    if here.visit(|| hint_kfuncs(ifindex()).unwrap()).vlan.is_none() {
        eprintln!("skipped: needs Linux 6.8");
        return;
    }
    let mut rules = FlowRules::default();
    let seven = specs(&[tag(TCI & 0xfff), udp(2000)]).unwrap();
    let any = specs(&[udp(2001)]).unwrap();
    for specs in [seven, any] {
        let attr = FlowAttr { ty: FlowType::Normal, priority: 0, dont_trap: false, specs };
        rules.add(&attr, 0).unwrap();
    }
    let mut frames = here.visit(|| XskFrames::open(ifindex())).unwrap();
    frames.follow(&rules).unwrap();
    let socket = peer.visit(|| UdpSocket::bind("10.80.0.2:0")).unwrap();
    let tagging = peer.visit(|| {
        let program = Loaded::load(&add_tag(), &[]).unwrap();
        TcxLink::attach(&program, ifindex(), Direction::Egress).unwrap()
    });
    socket.send_to(&[7; 100], "10.80.0.1:2000").unwrap();
    let tagged = receive(&mut frames, 2000).expect("the rule of the VLAN takes the frame");
    assert_eq!(tagged[12..16], [0x81, 0, 0x20, 0x07], "the frame has its tag again");
    assert_eq!((&tagged[16..18], tagged.len()), (&[8, 0][..], 14 + 4 + 28 + 100));
    drop(tagging);
    socket.send_to(&[8; 100], "10.80.0.1:2000").unwrap();
    socket.send_to(&[9; 100], "10.80.0.1:2001").unwrap();
    let untagged = receive(&mut frames, 2001).expect("the rule without a VLAN takes the frame");
    assert_eq!((&untagged[12..14], untagged.len()), (&[8, 0][..], 14 + 28 + 100));
    assert_eq!(frames.fetch(), 0, "the untagged frame to port 2000 went to the network stack");
}
