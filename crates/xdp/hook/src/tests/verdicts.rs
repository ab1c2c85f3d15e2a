//! The effect of each verdict.

use super::*;
use bpf::TapHeader;
use sys::RecordReader;

use crate::TapFilter;
use roxie::runtime::Runtime;

/// Swaps the IPv4 addresses.
fn swaps_addresses(asm: &mut Asm) {
    at_frame(asm).load(Size::W, Reg::R3, Reg::R2, 26).load(Size::W, Reg::R4, Reg::R2, 30);
    asm.store(Size::W, Reg::R2, 26, Reg::R4).store(Size::W, Reg::R2, 30, Reg::R3);
}

#[test]
fn tx_sends_the_packet_back_through_egress() {
    let mut world = World::with(
        HookPoint::Ingress,
        hook(|asm| {
            swaps_addresses(asm);
            asm.ret(XdpAction::Tx);
        }),
    );
    let count = || Hook::new("count", vec![Box::new(Count::default())]);
    world.hooks.attach(HookPoint::Egress, count(), false).unwrap();
    assert_eq!(world.receive(&packet(1, 40)), []);
    let back = FlowKey { tos: 3, ttl: 9, ..key(PEER) };
    assert_eq!(world.port.sent, [(back, packet(1, 40)[..52].to_vec())]);
    assert_eq!(world.port.flushed, 1);
    assert_eq!((world.row("rx_xdp_tx"), world.row("tx_xdp_xmit"), world.row("tx_xdp_packets")), (1, 1, 1));

    // Without a source address of this host it cannot leave.
    let mut world = World::with(
        HookPoint::Ingress,
        hook(|asm| {
            asm.ret(XdpAction::Tx);
        }),
    );
    assert_eq!((world.receive(&packet(1, 40)), world.port.sent.len()), (vec![], 0));
    assert_eq!((world.row("rx_xdp_tx"), world.row("tx_xdp_xmit_errors")), (1, 1));
}

#[test]
fn every_other_verdict_ends_the_packet_and_is_counted() {
    type Counter = fn(&HookCounters) -> u64;
    let cases: [(&str, Counter, i32); 4] = [
        ("aborted", |c| c.aborted, 0),
        ("drop", |c| c.drop, 1),
        ("redirect", |c| c.redirect_errors, 4),
        ("invalid", |c| c.invalid, 99),
    ];
    for (name, counter, number) in cases {
        // As a constant, and as the result of an instruction.
        for constant in [true, false] {
            let returns = || {
                hook(|asm| {
                    if !constant {
                        at_frame(asm).load(Size::B, Reg::R3, Reg::R2, 0);
                    }
                    asm.mov(Reg::R0, number).exit();
                })
            };
            let mut world = World::with(HookPoint::Ingress, returns());
            assert_eq!(
                world.receive_batches(&[packet(1, 40), packet(2, 40)].concat(), 56),
                Vec::<Vec<_>>::new()
            );
            assert_eq!(counter(&world.counters(HookPoint::Ingress)), 2, "{name}");
            let mut world = World::with(HookPoint::Egress, returns());
            assert_eq!(world.send(&packet(1, 40)[..52]), []);
            assert_eq!(counter(&world.counters(HookPoint::Egress)), 1, "{name}");
        }
    }
    let mut world = World::with(
        HookPoint::Egress,
        hook(|asm| {
            asm.ret(XdpAction::Tx);
        }),
    );
    assert_eq!((world.send(&packet(1, 40)[..52]), world.counters(HookPoint::Egress).invalid), (vec![], 1));
}

#[test]
fn a_redirect_goes_to_the_entry_of_the_map() {
    // CPUMAP: a process by its slot. DEVMAP: an interface.
    let to = |kind: fn(&str, u32) -> bpf::MapDef, entry: u32, value: u32| {
        let hook = hook(|asm| {
            let map = asm.map(kind("map", 16));
            asm.load_map(Reg::R1, map).mov(Reg::R2, entry as i32).mov(Reg::R3, 0);
            asm.call(Helper::RedirectMap).exit();
        });
        let mut bytes = u64::from(value).to_le_bytes().to_vec();
        bytes.resize(8, 0);
        hook.map("map").unwrap().update(&entry.to_le_bytes(), &bytes, bpf::UpdateMode::Any).unwrap();
        let mut world = World::with(HookPoint::Ingress, hook);
        world.hooks.set_engine(5, Runtime::Kernel);
        world
    };
    let mut world = to(bpf::MapDef::cpumap, 3, 64);
    assert_eq!(world.receive(&packet(1, 40)), []);
    let redirected = world.hooks.take_redirected();
    assert_eq!(
        redirected.iter().map(|one| (one.slot, one.packet.batch().bytes)).collect::<Vec<_>>(),
        [(3, &packet(1, 40)[..])]
    );
    assert_eq!((world.row("rx_xdp_redirect"), world.row("rx_xdp_redirect_errors")), (1, 0));
    // The device's own slot: the packet is where it belongs.
    assert_eq!(to(bpf::MapDef::cpumap, 5, 64).receive(&packet(1, 40)).len(), 1);
    // The device's own interface, where it cannot leave without a local source address; and an unknown
    // interface.
    let mut world = to(bpf::MapDef::devmap, 3, IFINDEX);
    assert_eq!(world.receive(&packet(1, 40)), []);
    assert_eq!((world.row("rx_xdp_redirect"), world.row("tx_xdp_xmit_errors")), (1, 1));
    let mut world = to(bpf::MapDef::devmap, 3, IFINDEX + 1);
    assert_eq!(world.receive(&packet(1, 40)), []);
    assert_eq!(world.row("rx_xdp_redirect_errors"), 1);
}

#[test]
fn a_hostile_program_affects_only_its_own_packets() {
    let hostile: [fn(&mut Asm); 3] = [
        // An almost endless loop.
        |asm| {
            let again = asm.label();
            asm.load_imm64(Reg::R2, u64::MAX).mov(Reg::R0, 2);
            asm.bind(again).add(Reg::R2, -1).branch(Cond::Ne, Reg::R2, 0, again).exit();
        },
        // An access after the end of the packet.
        |asm| {
            at_frame(asm).load(Size::Dw, Reg::R0, Reg::R2, 30_000).exit();
        },
        // An access through a number that is no address.
        |asm| {
            asm.call(Helper::KtimeGetNs)
                .alu(AluOp::Or, Reg::R0, -1)
                .store(Size::Dw, Reg::R0, 0, Reg::R0)
                .exit();
        },
    ];
    for emit in hostile {
        let mut world = World::with(HookPoint::Ingress, hook(emit));
        assert_eq!(world.receive(&packet(1, 40)), []);
        assert_eq!(world.counters(HookPoint::Ingress).aborted, 1);
        let status = &world.hooks.status()[0];
        assert_eq!(status.rows, [("faults".to_owned(), 1)]);
        assert!(status.notes[0].starts_with("test: the first ABORTED: slot "), "{:?}", status.notes);
        world.hooks.attach(HookPoint::Ingress, drops_psn(9), true).unwrap();
        assert_eq!(world.receive(&packet(1, 40)).len(), 1);
    }
    // Longer than any valid packet: no program sees it, and it is not delivered.
    let mut world = World::with(HookPoint::Ingress, drops_psn(9));
    assert_eq!(world.receive(&packet(1, MAX_PACKET)), []);
    assert_eq!(world.counters(HookPoint::Ingress).aborted, 1);
}

/// Drops a packet without a receive time, and sends back one with a time of the past.
fn judges_by_receive_time(asm: &mut Asm) {
    let (none, past) = (asm.label(), asm.label());
    let kfunc = Kfunc { name: "bpf_xdp_metadata_rx_timestamp".to_owned(), id: None };
    asm.store(Size::Dw, Reg::R10, -8, 0).mov(Reg::R2, Reg::R10).add(Reg::R2, -8).call_kfunc(&kfunc);
    asm.branch(Cond::Ne, Reg::R0, 0, none).load(Size::Dw, Reg::R6, Reg::R10, -8);
    asm.load_imm64(Reg::R1, now_ns()).branch(Cond::Lt, Reg::R6, Reg::R1, past).ret(XdpAction::Pass);
    asm.bind(none).ret(XdpAction::Drop).bind(past).ret(XdpAction::Tx);
}

#[test]
fn a_received_packet_has_a_receive_time_and_a_packet_to_send_has_none() {
    let mut world = World::with(HookPoint::Ingress, hook(judges_by_receive_time));
    for _ in 0..3 {
        assert_eq!(world.receive(&packet(1, 40)).len(), 1);
    }
    let mut world = World::with(HookPoint::Egress, hook(judges_by_receive_time));
    world.send(&packet(1, 40));
    assert_eq!((world.port.sent.len(), world.row("tx_xdp_drop")), (0, 1));
}

#[test]
fn packets_that_hooks_do_not_pass_are_copied_with_the_verdict() {
    let filter = TapFilter { verdicts: true, ..TapFilter::default() };
    let (writer, memory) = filter.memory().unwrap();
    let mut reader = RecordReader::new(memory).unwrap();
    let returns = |number: i32| {
        hook(move |asm| {
            at_frame(asm).load(Size::B, Reg::R3, Reg::R2, 0).mov(Reg::R0, number).exit();
        })
    };
    let mut world = World::with(HookPoint::Ingress, returns(1));
    world.hooks.attach(HookPoint::Egress, returns(0), false).unwrap();
    world.hooks.tap(1, filter, writer).unwrap();
    assert_eq!(world.receive(&packet(1, 40)), []);
    let sent = packet(2, 40);
    assert_eq!(world.send(&sent[..52]).len(), 0);
    world.hooks.detach(HookPoint::Ingress).unwrap();
    assert_eq!(world.receive(&packet(1, 40)).len(), 1, "a packet that passes has no verdict");
    let mut judged = Vec::new();
    reader.read(usize::MAX, |record| {
        let (header, copy) = TapHeader::parse(record).unwrap();
        let payload = &copy[header.outer_len as usize..];
        assert_eq!(copy.len(), header.len as usize);
        judged.extend(header.verdict.map(|verdict| (header.outbound, verdict, payload.to_vec())));
    });
    let [(false, 1, received), (true, 0, left)] = &judged[..] else { panic!("{judged:?}") };
    assert_eq!((&received[..], &left[..52]), (&packet(1, 40)[..], &sent[..52]));
    assert_eq!(left.len(), 56, "with its ICRC");
}

#[test]
fn packets_that_are_sent_back_to_a_full_port_slow_down_reception() {
    let mut world = World::with(
        HookPoint::Ingress,
        hook(|asm| {
            swaps_addresses(asm);
            asm.ret(XdpAction::Tx);
        }),
    );
    world.receive(&packet(1, 40));
    assert!(world.port.sent.len() == 1 && !world.hooks.is_paused(Instant(now_ns())));
    world.port.room = TxRoom::PortFull;
    let before_ns = now_ns();
    world.receive(&packet(2, 40));
    assert!(world.hooks.is_paused(Instant(before_ns)));
    assert_eq!((world.row("rx_xdp_redirect_full"), world.row("rx_xdp_redirect_stalls")), (0, 1));
}
