//! Tests with random programs: the machine either rejects them or ends each run with a verdict.

use proptest::prelude::*;

use super::*;
use crate::insn::{Slot, decode};
use crate::{Helper, MapDef, MapKind};

fn maps() -> Vec<MapDef> {
    vec![
        MapDef::array("array", 16, 4),
        MapDef::new("hash", MapKind::LruHash, 4, 8, 4),
        MapDef::new("trie", MapKind::LpmTrie, 8, 4, 4),
        MapDef::ringbuf("ring", 4096),
        MapDef::xskmap("xsks", 4),
        MapDef::percpu_array("percpu", 12, 2),
        MapDef::new("events", MapKind::PerfEventArray, 4, 4, 2),
    ]
}

/// Slots that are mostly instructions, mostly with valid addresses.
fn slot() -> impl Strategy<Value = [u8; 8]> {
    let opcodes: Vec<u8> = (0..=u8::MAX)
        .filter(|&opcode| {
            let slots = [Slot { opcode, ..Slot::default() }, Slot::default()];
            opcode != 0x18 && decode(&slots, 0).is_ok()
        })
        .collect();
    let helpers: Vec<i32> = Helper::ALL.iter().map(|helper| helper.id()).collect();
    let number =
        prop_oneof![-8i32..64, prop::sample::select(vec![0x100_0000, 0x200_0000, 0x300_0100, 0x1000_0000])];
    let plain = (prop::sample::select(opcodes), 0u8..10, 0u8..11, -20i16..20, number.clone())
        .prop_map(|(opcode, dst, src, off, imm)| Slot { opcode, dst, src, off, imm }.to_bytes());
    let call = prop::sample::select(helpers)
        .prop_map(|imm| Slot { opcode: 0x85, imm, ..Slot::default() }.to_bytes());
    let mov =
        (0u8..6, number).prop_map(|(dst, imm)| Slot { opcode: 0xb7, dst, imm, ..Slot::default() }.to_bytes());
    prop_oneof![4 => plain, 2 => call, 3 => mov]
}

/// Clears fields that the instruction does not use, so that more slots decode.
fn repaired(bytes: [u8; 8], len: usize, at: usize) -> Slot {
    let slot = Slot::parse(&bytes);
    let jump = Slot { off: slot.off.rem_euclid((len - at).max(1) as i16), ..slot };
    let candidates = [
        jump,
        Slot { imm: 0, ..slot },
        Slot { src: 0, ..jump },
        Slot { src: 0, off: 0, ..slot },
        Slot { off: 0, imm: 0, ..slot },
        Slot { imm: 0, ..jump },
        Slot { dst: 0, src: 0, off: 0, ..slot },
        Slot { src: 0, off: 0, imm: 0, ..slot },
        Slot { src: 0, off: 0, imm: 16, ..slot },
    ];
    let fits = |slot: &&Slot| decode(&[**slot], 0).is_ok();
    candidates.iter().find(fits).copied().unwrap_or(Slot { opcode: 0xb7, ..Slot::default() })
}

/// Returns outcome, packet, and whether it was changed, for the first run of a program.
fn once(program: &Program, head: &[u8], rest: &[u8]) -> (Outcome, Vec<u8>, bool) {
    let maps = program.maps.iter().map(|def| Map::new(def, 2).unwrap()).collect();
    let image = Image::new(program, maps).unwrap();
    let mut buffer = vec![0; 600];
    buffer[HEADROOM..HEADROOM + head.len()].copy_from_slice(head);
    let buff = XdpBuff::new(&mut buffer, HEADROOM..HEADROOM + head.len()).unwrap();
    let mut buff = buff.with_rest(rest).unwrap();
    let outcome = Machine::new(1).with_budget(10_000).run(&image, &mut buff, &mut Host::default());
    buff.fetch_rest();
    (outcome, buff.packet().to_vec(), buff.is_changed())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Random instructions, followed by an exit.
    #[test]
    fn a_run_of_random_instructions_ends(
        body in prop::collection::vec(slot(), 1..60),
        wide in prop::collection::vec((1u8..6, 0u32..8), 0..4),
        packet in prop::collection::vec(any::<u8>(), 14..200),
        split in 14usize..200,
    ) {
        let mut slots = Vec::new();
        for (dst, map) in wide {
            let mut bytes = Slot { opcode: 0x18, dst, src: 5, imm: map as i32, ..Slot::default() };
            bytes.imm %= maps().len() as i32;
            slots.extend([bytes, Slot::default()]);
        }
        slots.push(Slot { opcode: 0xbf, dst: 6, src: 1, ..Slot::default() });
        let len = body.len();
        slots.extend(body.into_iter().enumerate().map(|(at, bytes)| repaired(bytes, len, at)));
        slots.push(Slot { opcode: 0x95, ..Slot::default() });
        let program = Program {
            name: "garbage".to_owned(),
            kind: Default::default(),
            slots,
            maps: maps(),
            license: String::new(),
            frags: false,
            ..Program::default()
        };
        let maps = program.maps.iter().map(|def| Map::new(def, 2).unwrap()).collect();
        let Ok(image) = Image::new(&program, maps) else { return Ok(()) };
        let mut machine = Machine::new(1).with_budget(10_000);
        let mut buffer = vec![0; 600];
        buffer[256..256 + packet.len()].copy_from_slice(&packet);
        for _ in 0..2 {
            let mut buff = XdpBuff::new(&mut buffer, 256..256 + packet.len()).unwrap();
            let outcome = machine.run(&image, &mut buff, &mut Host::default());
            prop_assert!(outcome.fault.is_none() || outcome.returned == 0);
            prop_assert!(buff.range().end <= 600 && buff.range().len() >= 14);
        }
        if let Some(mut twins) = super::replay::Twins::new(&program) {
            for _ in 0..4 {
                twins.judge(&packet);
            }
        }
        let split = split.min(packet.len());
        let whole = once(&program, &packet, &[]);
        if !whole.2 {
            prop_assert_eq!(&whole.1, &packet, "the packet changed but is not marked as changed");
        }
        let halves = once(&program, &packet[..split], &packet[split..]);
        prop_assert_eq!(whole, halves, "the result depends on where the end of the packet was stored");
        // Reading the rings ends, whatever the program wrote into them.
        for map in &image.maps {
            if let Some(ring) = map.ring() {
                ring.consume(|record| assert!(record.len() as u64 <= ring.bytes()));
            }
        }
    }

    /// Random bytes are rejected or run.
    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<[u8; 8]>(), 0..20)) {
        let mut slots: Vec<Slot> = bytes.iter().map(Slot::parse).collect();
        slots.push(Slot { opcode: 0x95, ..Slot::default() });
        let program = Program {
            name: String::new(),
            kind: Default::default(),
            slots,
            maps: Vec::new(),
            license: String::new(),
            frags: false,
            ..Program::default()
        };
        let _listing = program.listing().to_string();
        if let Ok(image) = Image::new(&program, Vec::new()) {
            let mut buffer = [0; 400];
            let mut buff = XdpBuff::new(&mut buffer, 256..320).unwrap();
            Machine::new(0).with_budget(1000).run(&image, &mut buff, &mut Host::default());
        }
    }
}
