//! Packets that do not run the hook, because it has foretold its verdict.

use super::*;

/// A program that counts packets and bytes; if it `looks`, it drops packets with 0x99 after the headers.
fn counting(looks: bool) -> Hook {
    let mut asm = Asm::new("counting");
    let (map, other) = (asm.map(bpf::MapDef::percpu_array("counters", 16, 1)), asm.label());
    asm.mov(Reg::R6, Reg::R1).store(Size::W, Reg::R10, -4, 0).mov(Reg::R2, Reg::R10).add(Reg::R2, -4);
    asm.load_map(Reg::R1, map).call(Helper::MapLookupElem).branch(Cond::Eq, Reg::R0, 0, other);
    asm.load(Size::Dw, Reg::R1, Reg::R0, 0).add(Reg::R1, 1).store(Size::Dw, Reg::R0, 0, Reg::R1);
    asm.load_ctx(Reg::R7, Reg::R6, XdpMd::Data).load_ctx(Reg::R2, Reg::R6, XdpMd::DataEnd);
    asm.alu(AluOp::Sub, Reg::R2, Reg::R7).load(Size::Dw, Reg::R1, Reg::R0, 8);
    asm.add(Reg::R1, Reg::R2).store(Size::Dw, Reg::R0, 8, Reg::R1);
    if looks {
        asm.load(Size::B, Reg::R1, Reg::R7, HEADERS).branch(Cond::Ne, Reg::R1, 0x99, other);
        asm.ret(XdpAction::Drop);
    }
    asm.bind(other).ret(XdpAction::Pass);
    Hook::program(&asm.finish().unwrap()).unwrap()
}

/// Packets and bytes that the program and the native stage before it have counted.
fn counted(world: &World, point: HookPoint) -> [u64; 4] {
    let hook = world.hooks.status().into_iter().find(|status| status.point == point).unwrap();
    let native = |name: &str| hook.rows.iter().find(|row| row.0 == name).unwrap().1;
    let hook = match point {
        HookPoint::Ingress => &world.hooks.ingress.hook,
        HookPoint::Egress => &world.hooks.egress.hook,
    };
    let value = hook.as_ref().unwrap().map("counters").unwrap().lookup(&[0; 4]).unwrap();
    let number = |at: usize| u64::from_le_bytes(*value[at..].first_chunk().unwrap());
    [number(0), number(8), native("packets"), native("bytes")]
}

#[test]
fn foreseen_packets_are_counted_one_by_one() {
    let stages = |looks| Hook::new("native", vec![Count::default().stage()]).then(counting(looks));
    let frames = |lens: &[u64]| lens.iter().map(|len| len + HEADERS as u64).sum::<u64>();
    for looks in [false, true] {
        let mut world = World::with(HookPoint::Ingress, stages(looks));
        let mut bytes = vec![0; 5 * 40 + 12];
        bytes[2 * 40] = 0x99;
        let arrived = world.receive_batches(&bytes, 40);
        assert_eq!(
            arrived.iter().map(Vec::len).collect::<Vec<_>>(),
            if looks { vec![2, 3] } else { vec![6] }
        );
        let sum = frames(&[40, 40, 40, 40, 40, 12]);
        assert_eq!(counted(&world, HookPoint::Ingress), [6, sum, 6, sum]);
        let HookCounters { packets, bytes, pass, drop, .. } = world.counters(HookPoint::Ingress);
        assert_eq!((packets, bytes, pass, drop), (6, sum, 6 - u64::from(looks), looks.into()));

        let mut world = World::with(HookPoint::Egress, stages(looks));
        let flow = world.port.open_flow(&key(PEER), Destination::Elsewhere).unwrap();
        for (first, len) in [(1, 40), (2, 40), (0x99, 40), (3, 40), (4, 24), (5, 24), (6, 40)] {
            world.port.slot[0] = first;
            world.hooks.commit(&mut world.port, flow, len);
        }
        world.hooks.change_flow();
        let sent: Vec<u8> = world.port.sent.iter().map(|(_, bytes)| bytes[0]).collect();
        assert_eq!(sent, if looks { vec![1, 2, 3, 4, 5, 6] } else { vec![1, 2, 0x99, 3, 4, 5, 6] });
        let sum = frames(&[44, 44, 44, 44, 28, 28, 44]);
        assert_eq!(counted(&world, HookPoint::Egress), [7, sum, 7, sum]);
        let HookCounters { packets, bytes, pass, drop, .. } = world.counters(HookPoint::Egress);
        assert_eq!((packets, bytes, pass, drop), (7, sum, 7 - u64::from(looks), looks.into()));
    }
}
