//! Tests of the listing against the verifier log.

use crate::insn::{Slot, decode};
use crate::{Asm, MapDef, ProgramKind, Recipe, Reg};

fn text(bytes: [u8; 8]) -> String {
    let slots = [Slot::parse(&bytes), Slot { imm: 0x1234, ..Slot::default() }];
    decode(&slots, 0).unwrap().to_string()
}

/// The right-hand sides are lines of a verifier log of Linux 6.18.
#[test]
fn instructions_are_formatted_as_in_the_verifier_log() {
    for (bytes, line) in [
        ([0xb7, 0x00, 0, 0, 2, 0, 0, 0], "r0 = 2"),
        ([0xb4, 0x01, 0, 0, 0xff, 0xff, 0xff, 0xff], "w1 = -1"),
        ([0xc7, 0x01, 0, 0, 3, 0, 0, 0], "r1 s>>= 3"),
        ([0x3f, 0x21, 1, 0, 0, 0, 0, 0], "r1 s/= r2"),
        ([0x87, 0x03, 0, 0, 0, 0, 0, 0], "r3 = -r3"),
        ([0xbc, 0x21, 8, 0, 0, 0, 0, 0], "w1 = (s8)w2"),
        ([0xdc, 0x01, 0, 0, 16, 0, 0, 0], "r1 = be16 r1"),
        ([0xd7, 0x01, 0, 0, 32, 0, 0, 0], "r1 = bswap32 r1"),
        ([0x61, 0x17, 4, 0, 0, 0, 0, 0], "r7 = *(u32 *)(r1 +4)"),
        ([0x91, 0x17, 4, 0, 0, 0, 0, 0], "r7 = *(s8 *)(r1 +4)"),
        ([0x63, 0x1a, 0xfc, 0xff, 0, 0, 0, 0], "*(u32 *)(r10 -4) = r1"),
        ([0x7a, 0x0a, 0xf8, 0xff, 5, 0, 0, 0], "*(u64 *)(r10 -8) = 5"),
        ([0xdb, 0x21, 0, 0, 0, 0, 0, 0], "lock *(u64 *)(r1 +0) += r2"),
        ([0xc3, 0x21, 0, 0, 1, 0, 0, 0], "r2 = atomic_fetch_add((u32 *)(r1 +0), r2)"),
        ([0xdb, 0x21, 8, 0, 0xf1, 0, 0, 0], "r0 = atomic64_cmpxchg((u64 *)(r1 +8), r0, r2)"),
        ([0xdb, 0x21, 8, 0, 0x00, 1, 0, 0], "r1 = load_acquire((u64 *)(r2 +8))"),
        ([0xdb, 0x21, 8, 0, 0x10, 1, 0, 0], "store_release((u64 *)(r1 +8), r2)"),
        ([0x05, 0, 3, 0, 0, 0, 0, 0], "goto pc+3"),
        ([0x06, 0, 0, 0, 0xfd, 0xff, 0xff, 0xff], "gotol pc-3"),
        ([0x15, 0x01, 2, 0, 0xff, 0xff, 0xff, 0xff], "if r1 == 0xffffffff goto pc+2"),
        ([0x6e, 0x21, 2, 0, 0, 0, 0, 0], "if w1 s> w2 goto pc+2"),
        ([0x85, 0, 0, 0, 1, 0, 0, 0], "call bpf_map_lookup_elem#1"),
        ([0x85, 0x10, 0, 0, 7, 0, 0, 0], "call pc+7"),
        ([0x18, 0x03, 0, 0, 5, 0, 0, 0], "r3 = 0x123400000005"),
    ] {
        assert_eq!(text(bytes), line);
    }
}

/// The listing of the steering program shows which bytes of a packet it reads, in which order.
#[test]
fn the_listing_of_the_steering_program_is_unchanged() {
    let program = Recipe::steer(4791, 64).program("roxie_steer", ProgramKind::Xdp).unwrap();
    assert_eq!(program.listing().to_string(), include_str!("steer.txt"));
}

#[test]
fn the_listing_names_functions_and_maps_and_shows_invalid_slots() {
    let mut asm = Asm::new("main");
    let map = asm.map(MapDef::array("config", 16, 1));
    let inner = asm.declare("inner", 0);
    asm.load_map_value(Reg::R1, map, 8).call_function(inner).exit();
    asm.function(inner).mov(Reg::R0, 2).exit();
    let mut program = asm.finish().unwrap();
    program.slots.push(Slot { opcode: 0x8d, ..Slot::default() });
    assert_eq!(
        program.listing().to_string(),
        "main:\n   0: (18) r1 = map[config][0]+8\n   2: (85) call pc+1#inner\n   3: (95) exit\n\
         inner:\n   4: (b7) r0 = 2\n   5: (95) exit\n   6: (8d) ?? Opcode(141)\n"
    );
}
