//! Hooks between a port and a transport that record what they are given.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use bpf::{AluOp, Asm, Cond, Helper, Kfunc, Program, Reg, Size, XdpAction, XdpMd};

use wire::{FlushIcrc, Mac};

mod foreseen;
mod network;
mod verdicts;

use super::*;
use roxie::port::{
    Destination, FlowId, FlowKey, Headers, Icrc, MAX_PACKET, Port, PortProperties, PortReport, RxBatch,
    RxQueue, RxScope, TxRoom, TxState,
};
use sys::now_ns;
use transport::Instant;

const US: &str = "10.0.0.1";
const PEER: &str = "10.0.0.2";
const IFINDEX: u32 = 7;
/// Bytes of Ethernet, IPv4 and UDP header.
const HEADERS: i16 = 42;

/// A port with address `US`.
struct Recorder {
    flows: Vec<FlowKey>,
    slot: Vec<u8>,
    sent: Vec<(FlowKey, Vec<u8>)>,
    flushed: usize,
    room: TxRoom,
}

impl Port for Recorder {
    fn open_flow(&mut self, key: &FlowKey, _to: Destination) -> io::Result<FlowId> {
        if key.src != US.parse::<IpAddr>().unwrap() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let at = self.flows.iter().position(|known| known == key).unwrap_or_else(|| {
            self.flows.push(*key);
            self.flows.len() - 1
        });
        Ok(FlowId(at as u32))
    }
    fn close_flow(&mut self, _flow: FlowId) {}
    fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        self.open_flow(key, Destination::Elsewhere)
    }
    fn headers(&mut self, flow: FlowId) -> Option<Headers> {
        Headers::new(self.flows.get(flow.0 as usize)?, 0xc001, 4791)
    }
    fn tx_slot(&mut self) -> &mut [u8] {
        &mut self.slot
    }
    fn tx_state(&mut self, _flow: Option<FlowId>) -> TxState {
        TxState { room: self.room, ..TxState::default() }
    }
    fn tx_commit(&mut self, flow: FlowId, len: usize) {
        self.sent.push((self.flows[flow.0 as usize], self.slot[..len].to_vec()));
        self.slot.fill(0xee);
    }
    fn flush(&mut self) -> usize {
        self.flushed = self.sent.len();
        0
    }
    fn recv(&mut self, _scope: RxScope, _f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        0
    }
    fn properties(&self) -> PortProperties {
        PortProperties::default()
    }
    fn report(&self) -> PortReport {
        PortReport::default()
    }
}

struct World {
    hooks: Hooks,
    port: Recorder,
}

/// A packet that reached the transport: source, destination, TOS, bytes.
type Arrived = (String, String, u8, Vec<u8>);

impl World {
    fn new() -> World {
        let room = TxRoom::Open;
        let port =
            Recorder { flows: Vec::new(), slot: vec![0xee; MAX_PACKET], sent: Vec::new(), flushed: 0, room };
        World { hooks: Hooks::new(IFINDEX), port }
    }

    fn with(point: HookPoint, hook: Hook) -> World {
        let mut world = World::new();
        world.hooks.attach(point, hook, false).unwrap();
        world
    }

    /// Returns what reaches the transport of packets of `segment` bytes from `PEER`; one element per
    /// batch.
    fn receive_batches(&mut self, bytes: &[u8], segment: usize) -> Vec<Vec<Arrived>> {
        let (src, dst) = (PEER.parse().unwrap(), US.parse().unwrap());
        let batch = RxBatch {
            src,
            dst,
            dst_port: 4791,
            tos: 3,
            ttl: 9,
            segment,
            ip_id: Some(100),
            queue: RxQueue::Slot,
            ..of_test(bytes)
        };
        let mut batches = Vec::new();
        self.hooks.receive(&batch, &mut |batch| {
            let packet =
                |bytes: &[u8]| (batch.src.to_string(), batch.dst.to_string(), batch.tos, bytes.to_vec());
            batches.push(batch.packets().map(packet).collect());
        });
        self.hooks.send_bounced(&mut self.port);
        batches
    }

    fn receive(&mut self, packet: &[u8]) -> Vec<Arrived> {
        self.receive_batches(packet, packet.len()).concat()
    }

    /// Returns what the port is given of a packet to `PEER`.
    fn send(&mut self, packet: &[u8]) -> Vec<(FlowKey, Vec<u8>)> {
        let flow = self.port.open_flow(&key(PEER), Destination::Elsewhere).unwrap();
        self.port.slot[..packet.len()].copy_from_slice(packet);
        self.hooks.change_flow();
        self.hooks.commit(&mut self.port, flow, packet.len());
        self.hooks.change_flow();
        std::mem::take(&mut self.port.sent)
    }

    fn counters(&self, point: HookPoint) -> HookCounters {
        self.hooks.status().into_iter().find(|status| status.point == point).unwrap().counters
    }

    fn row(&self, name: &str) -> u64 {
        self.hooks.rows().into_iter().find(|row| row.0 == name).unwrap().1
    }
}

/// A batch of 8-byte packets from another host, to vary.
fn of_test(bytes: &[u8]) -> RxBatch<'_> {
    RxBatch {
        src: [192, 0, 2, 1].into(),
        src_port: 0xc123,
        dst: [192, 0, 2, 2].into(),
        dst_port: 1,
        ifindex: 0,
        tos: 2,
        ttl: 64,
        segment: 8,
        macs: None,
        ip_id: None,
        bytes,
        queue: RxQueue::Gsi,
        icrc: Icrc::Present,
    }
}

pub(super) fn key(dst: &str) -> FlowKey {
    let (src, dst) = (US.parse().unwrap(), dst.parse().unwrap());
    FlowKey { src, dst, dst_slot: 0x110, tos: 5, ttl: 64, flush_icrc: FlushIcrc::Iba, above: 0 }
}

/// A packet for QP 0x110042 with this PSN, `len` bytes of payload, and room for an ICRC.
fn packet(psn: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![4, 0, 0xff, 0xff, 0, 0x11, 0, 0x42, 0x80, 0, 0, psn];
    bytes.extend((0..len).map(|at| at as u8 ^ psn));
    bytes.extend([0; 4]);
    bytes
}

fn program(emit: impl FnOnce(&mut Asm)) -> Program {
    let mut asm = Asm::new("test");
    emit(&mut asm);
    asm.finish().unwrap()
}

/// A hook of one program.
fn hook(emit: impl FnOnce(&mut Asm)) -> Hook {
    Hook::program(&program(emit)).unwrap()
}

/// Loads a pointer to the frame into R2.
fn at_frame(asm: &mut Asm) -> &mut Asm {
    asm.load_ctx(Reg::R2, Reg::R1, XdpMd::Data)
}

/// Passes all packets except the one with this PSN.
fn drops_psn(psn: i32) -> Hook {
    hook(|asm| {
        let drop = asm.label();
        at_frame(asm).load(Size::B, Reg::R3, Reg::R2, HEADERS + 11);
        asm.branch(Cond::Eq, Reg::R3, psn, drop).ret(XdpAction::Pass).bind(drop).ret(XdpAction::Drop);
    })
}

#[test]
fn packets_that_pass_stay_together_and_in_order() {
    for (dropped, expected) in [
        (9, vec![vec![0, 1, 2, 3]]),
        (0, vec![vec![1, 2, 3]]),
        (1, vec![vec![0], vec![2, 3]]),
        (3, vec![vec![0, 1, 2]]),
    ] {
        let mut world = World::with(HookPoint::Ingress, drops_psn(dropped));
        // The last packet of a batch may be shorter.
        let packets: Vec<_> = (0..4).map(|psn| packet(psn, if psn == 3 { 100 } else { 1024 })).collect();
        let batches = world.receive_batches(&packets.concat(), packets[0].len());
        let whole = |psn: u8| (PEER.to_owned(), US.to_owned(), 3, packets[usize::from(psn)].clone());
        let expected: Vec<Vec<Arrived>> =
            expected.into_iter().map(|batch| batch.into_iter().map(whole).collect()).collect();
        assert_eq!(batches, expected, "without {dropped}");
        let counters = world.counters(HookPoint::Ingress);
        let count = u64::from(dropped != 9);
        assert_eq!((counters.packets, counters.pass, counters.drop), (4, 4 - count, count));
        let bytes = packets.iter().map(|packet| packet.len() + HEADERS as usize).sum::<usize>();
        assert_eq!(counters.bytes, bytes as u64);
    }
}

#[test]
fn programs_see_a_complete_frame_in_both_directions() {
    // Returns PASS if the last byte before the ICRC, the addresses and the length have the expected
    // values.
    let sees = |source: &str, icrc: u8| {
        let source = u32::from_le_bytes(source.parse::<std::net::Ipv4Addr>().unwrap().octets());
        hook(move |asm| {
            let no = asm.label();
            at_frame(asm).load_ctx(Reg::R3, Reg::R1, XdpMd::DataEnd);
            asm.load(Size::B, Reg::R4, Reg::R3, -5).branch(Cond::Ne, Reg::R4, 199 ^ 8, no);
            asm.load(Size::B, Reg::R4, Reg::R3, -1).branch(Cond::Ne, Reg::R4, i32::from(icrc), no);
            asm.load(Size::W, Reg::R4, Reg::R2, 26).branch32(Cond::Ne, Reg::R4, source as i32, no);
            asm.load(Size::H, Reg::R4, Reg::R2, 12).branch(Cond::Ne, Reg::R4, 8, no);
            asm.alu(AluOp::Sub, Reg::R3, Reg::R2).branch(Cond::Ne, Reg::R3, 42 + 12 + 200 + 4, no);
            asm.load_ctx(Reg::R4, Reg::R1, XdpMd::IngressIfindex).branch(
                Cond::Ne,
                Reg::R4,
                IFINDEX as i32,
                no,
            );
            asm.ret(XdpAction::Pass).bind(no).ret(XdpAction::Drop);
        })
    };
    let mut bytes = packet(8, 200);
    bytes[12 + 200 + 3] = 77;
    let mut world = World::with(HookPoint::Ingress, sees(PEER, 77));
    assert_eq!(world.receive(&bytes).len(), 1);
    // On egress the ICRC is not computed yet.
    let mut world = World::with(HookPoint::Egress, sees(US, 0));
    let sent = world.send(&bytes[..212]);
    assert_eq!(sent, [(key(PEER), bytes[..212].to_vec())]);
}

#[test]
fn a_changed_packet_is_parsed_again() {
    let changes = |asm: &mut Asm| {
        at_frame(asm).store(Size::B, Reg::R2, 15, 0xb8).store(Size::B, Reg::R2, HEADERS + 12, 0x55);
        asm.ret(XdpAction::Pass);
    };
    let mut expected = packet(1, 300);
    expected[12] = 0x55;
    let mut world = World::with(HookPoint::Ingress, hook(changes));
    // Twice, because headers stay in the buffer from packet to packet.
    for _ in 0..2 {
        let arrived = world.receive(&packet(1, 300));
        assert_eq!(arrived, [(PEER.to_owned(), US.to_owned(), 0xb8, expected.clone())]);
    }
    let mut world = World::with(HookPoint::Egress, hook(changes));
    let sent = world.send(&packet(1, 300)[..312]);
    assert_eq!(sent, [(FlowKey { tos: 0xb8, ..key(PEER) }, expected[..312].to_vec())]);
}

#[test]
fn a_packet_that_becomes_invalid_is_dropped() {
    // Another EtherType; another UDP port; a length beyond the packet; truncated after the headers.
    let spoilers: [fn(&mut Asm); 4] = [
        |asm| {
            at_frame(asm).store(Size::B, Reg::R2, 12, 0x99);
        },
        |asm| {
            at_frame(asm).store(Size::B, Reg::R2, 37, 0);
        },
        |asm| {
            at_frame(asm).store(Size::H, Reg::R2, 38, -1);
        },
        |asm| {
            asm.mov(Reg::R2, -(12 + 40 + 4)).call(Helper::XdpAdjustTail);
        },
    ];
    for spoil in spoilers {
        let spoilt = || {
            hook(|asm| {
                spoil(asm);
                asm.ret(XdpAction::Pass);
            })
        };
        let mut world = World::with(HookPoint::Ingress, spoilt());
        assert_eq!(world.receive(&packet(1, 40)), []);
        let mut out = World::with(HookPoint::Egress, spoilt());
        assert_eq!(out.send(&packet(1, 40)[..52]), []);
        for counters in [world.counters(HookPoint::Ingress), out.counters(HookPoint::Egress)] {
            assert_eq!((counters.packets, counters.pass, counters.malformed), (1, 1, 1));
        }
    }
}

#[test]
fn a_second_hook_is_refused_by_name_unless_it_replaces_the_first() {
    let mut world = World::with(HookPoint::Ingress, drops_psn(1));
    let refused = world.hooks.attach(HookPoint::Ingress, drops_psn(2), false).unwrap_err();
    assert_eq!(refused.to_string(), "ingress has a program already: test");
    assert!(refused.remedy().is_some());
    assert_eq!((world.receive(&packet(1, 40)).len(), world.receive(&packet(2, 40)).len()), (0, 1));

    world.hooks.attach(HookPoint::Ingress, drops_psn(2), true).unwrap();
    assert_eq!((world.receive(&packet(1, 40)).len(), world.receive(&packet(2, 40)).len()), (1, 0));
    assert_eq!(world.counters(HookPoint::Ingress).packets, 2, "its own");
    assert_eq!((world.row("rx_xdp_packets"), world.row("rx_xdp_drop")), (4, 2), "the device's");

    assert_eq!(world.hooks.detach(HookPoint::Ingress).unwrap().name(), "test");
    assert!(matches!(world.hooks.detach(HookPoint::Ingress), Err(HookError::NothingThere { .. })));
    assert_eq!((world.receive(&packet(2, 40)).len(), world.row("rx_xdp_packets")), (1, 4));
}

/// Returns verdicts from a list.
#[derive(Debug)]
struct Scripted(VecDeque<Verdict>);

impl Stage for Scripted {
    fn run(&mut self, _packet: &mut HookPacket<'_>) -> Verdict {
        self.0.pop_front().unwrap_or(Verdict::Pass)
    }
}

#[test]
fn a_chain_ends_with_the_first_stage_that_does_not_pass() {
    let first = Hook::new("first", vec![Box::new(Scripted([Verdict::Pass, Verdict::Drop].into()))]);
    let second = Hook::new("second", vec![Box::new(Count::default())]);
    let mut world = World::with(HookPoint::Ingress, first.then(second));
    world.receive_batches(&[packet(1, 40), packet(2, 40)].concat(), 56);
    let status = &world.hooks.status()[0];
    assert_eq!(status.name, "first+second");
    assert_eq!(status.rows, [("packets".to_owned(), 1), ("bytes".to_owned(), 98)]);
}

#[test]
fn ipv6_frames_are_complete_too() {
    let mut world = World::with(
        HookPoint::Ingress,
        hook(|asm| {
            let no = asm.label();
            at_frame(asm).load(Size::H, Reg::R3, Reg::R2, 12).branch(Cond::Ne, Reg::R3, 0xdd86, no);
            asm.load(Size::B, Reg::R3, Reg::R2, 62 + 11).branch(Cond::Ne, Reg::R3, 1, no);
            asm.ret(XdpAction::Pass).bind(no).ret(XdpAction::Drop);
        }),
    );
    let (src, dst) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
    for (psn, expected) in [(1, 1), (2, 0)] {
        let bytes = &packet(psn, 40)[..];
        let batch = RxBatch {
            src,
            dst,
            dst_port: 4791,
            tos: 0,
            segment: bytes.len(),
            queue: RxQueue::Slot,
            ..of_test(bytes)
        };
        let mut count = 0;
        world.hooks.receive(&batch, &mut |_| count += 1);
        assert_eq!(count, expected);
    }
}

#[test]
fn a_program_that_would_be_aborted_is_refused_at_attachment() {
    let refused = |emit: fn(&mut Asm)| {
        let mut asm = Asm::new("doomed");
        emit(&mut asm);
        Hook::program(&asm.finish().unwrap()).unwrap_err()
    };
    let endless = refused(|asm| {
        let again = asm.label();
        asm.bind(again).jump(again);
    });
    assert_eq!(
        endless.to_string(),
        "program doomed: slot 0 (goto pc-1): endless loop: no path leads from here to an exit"
    );
    assert!(endless.remedy().unwrap().contains("roxie xdp attach"));
    let context = refused(|asm| {
        asm.load(Size::W, Reg::R0, Reg::R1, 24).exit();
    });
    assert!(context.to_string().contains("invalid access to 4 bytes of the context at 24"), "{context}");
}

#[test]
fn the_reason_of_the_first_abort_is_kept() {
    let returns = hook(|asm| {
        asm.call(Helper::GetPrandomU32).mov(Reg::R0, 0).exit();
    });
    let mut world = World::with(HookPoint::Ingress, returns);
    assert_eq!(world.hooks.status()[0].notes, Vec::<String>::new());
    world.receive(&packet(1, 40));
    assert_eq!(
        world.hooks.status()[0].notes,
        ["test: the first ABORTED: the program returned XDP_ABORTED".to_owned()]
    );
}

#[test]
fn frames_go_to_an_xskmap_while_there_is_a_reader() {
    let to_xskmap = || {
        hook(|asm| {
            let map = asm.map(bpf::MapDef::xskmap("xsks", 4));
            // PASS on a miss.
            asm.load_map(Reg::R1, map).mov(Reg::R2, 3).mov(Reg::R3, 2).call(Helper::RedirectMap).exit();
        })
    };
    let mut world = World::with(HookPoint::Ingress, to_xskmap());
    world.hooks.attach(HookPoint::Egress, to_xskmap(), false).unwrap();
    assert_eq!(world.receive(&packet(1, 40)).len(), 1, "there is no reader");
    assert_eq!(world.hooks.read_frames(now_ns(), 1 << 20), []);
    assert_eq!(world.receive(&packet(2, 40)), []);
    assert_eq!(world.send(&packet(3, 40)[..52]), []);
    let frames = world.hooks.read_frames(now_ns(), 1 << 20);
    let (received, sent) = (&frames[0], &frames[1]);
    assert_eq!(
        (received.point, received.key, sent.point, frames.len()),
        (HookPoint::Ingress, 3, HookPoint::Egress, 2)
    );
    assert_eq!(received.bytes[HEADERS as usize..], packet(2, 40));
    assert_eq!(received.bytes[12..14], [8, 0], "from the Ethernet header on");
    assert_eq!(sent.bytes[HEADERS as usize..][..52], packet(3, 40)[..52]);
    // Without reads, frames that do not fit are counted, and their source is slowed down.
    let begun = Instant(now_ns());
    while world.row("rx_xdp_redirect_full") == 0 {
        assert_eq!(world.receive(&packet(4, 4000)), []);
    }
    assert!(world.hooks.is_paused(begun));
    assert!(world.row("rx_xdp_redirect_stalls") == 1 && world.row("rx_xdp_redirect_stalled_us") > 0);
    assert_eq!(world.row("rx_xdp_redirect_errors"), 0);
    // The same for packets to send, which other packets do not delay.
    assert!(!world.hooks.is_tx_paused(begun));
    assert_eq!(world.send(&packet(5, 4000)), []);
    assert!(world.hooks.is_tx_paused(begun));
    assert_eq!((world.row("tx_xdp_redirect_full"), world.row("tx_xdp_redirect_stalls")), (1, 1));
    // `roxie hook stats` shows both.
    for hook in world.hooks.status() {
        assert!(hook.rows.contains(&("redirect_stalls".to_owned(), 1)), "{hook:?}");
    }
    assert_eq!(world.hooks.status().len(), 2);
}

#[test]
fn programs_see_the_ethernet_addresses_that_the_port_received() {
    let seen = |macs: Option<[Mac; 2]>| {
        // Passes packets from 02:00:00:00:00:01 to 02:00:00:00:00:02.
        let mut world = World::with(
            HookPoint::Ingress,
            hook(|asm| {
                let no = asm.label();
                at_frame(asm);
                for (off, word) in [(0, 2), (4, 0x0002_0200), (8, 0x0100_0000)] {
                    asm.load(Size::W, Reg::R3, Reg::R2, off).branch(Cond::Ne, Reg::R3, word, no);
                }
                asm.ret(XdpAction::Pass).bind(no).ret(XdpAction::Drop);
            }),
        );
        let bytes = packet(1, 40);
        let batch = RxBatch {
            src: PEER.parse().unwrap(),
            dst: US.parse().unwrap(),
            dst_port: 4791,
            tos: 0,
            segment: bytes.len(),
            macs,
            queue: RxQueue::Slot,
            ..of_test(&bytes)
        };
        let mut count = 0;
        world.hooks.receive(&batch, &mut |_| count += 1);
        count
    };
    let (ours, theirs) = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]));
    assert_eq!([Some([theirs, ours]), Some([ours, theirs]), None].map(seen), [1, 0, 0]);
}
