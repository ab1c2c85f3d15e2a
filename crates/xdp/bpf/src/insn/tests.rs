//! Tests of encoding against decoding, and against known bytes.

use proptest::prelude::*;

use super::*;

fn encoded(insn: Insn) -> Vec<[u8; 8]> {
    let mut slots = Vec::new();
    encode(&insn, &mut slots);
    slots.into_iter().map(Slot::to_bytes).collect()
}

/// Bytes from `clang -target bpf` and the kernel's documentation.
#[test]
fn instructions_encode_to_the_bytes_that_clang_emits() {
    let r = Reg::ALL;
    let mov = Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: r[0], src: 2.into() };
    assert_eq!(encoded(mov), [[0xb7, 0, 0, 0, 2, 0, 0, 0]]);
    assert_eq!(encoded(Insn::Exit), [[0x95, 0, 0, 0, 0, 0, 0, 0]]);
    let load = Insn::Load { size: Size::W, signed: false, dst: r[7], base: r[1], off: 4 };
    assert_eq!(encoded(load), [[0x61, 0x17, 4, 0, 0, 0, 0, 0]]);
    let load = Insn::Load { size: Size::H, signed: true, dst: r[2], base: r[10], off: -8 };
    assert_eq!(encoded(load), [[0x89, 0xa2, 0xf8, 0xff, 0, 0, 0, 0]]);
    let map = Insn::LoadImm64 { dst: r[1], imm: Imm64::MapFd(5) };
    assert_eq!(encoded(map), [[0x18, 0x11, 0, 0, 5, 0, 0, 0], [0; 8]]);
    let value = Insn::LoadImm64 { dst: r[3], imm: Imm64::Value(0x1122_3344_5566_7788) };
    assert_eq!(
        encoded(value),
        [[0x18, 3, 0, 0, 0x88, 0x77, 0x66, 0x55], [0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11]]
    );
    let sdiv = Insn::Alu { width: Width::W32, op: AluOp::SDiv, dst: r[1], src: r[2].into() };
    assert_eq!(encoded(sdiv), [[0x3c, 0x21, 1, 0, 0, 0, 0, 0]]);
    let swap = Insn::Swap { to: Swap::ToBe, size: Size::H, dst: r[1] };
    assert_eq!(encoded(swap), [[0xdc, 1, 0, 0, 16, 0, 0, 0]]);
    let swap = Insn::Swap { to: Swap::Always, size: Size::Dw, dst: r[1] };
    assert_eq!(encoded(swap), [[0xd7, 1, 0, 0, 64, 0, 0, 0]]);
    let atomic = Insn::Atomic { width: Width::W64, op: AtomicOp::CmpXchg, base: r[1], off: 8, src: r[2] };
    assert_eq!(encoded(atomic), [[0xdb, 0x21, 8, 0, 0xf1, 0, 0, 0]]);
    assert_eq!(encoded(Insn::JumpLong { off: -2 }), [[0x06, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]]);
    assert_eq!(encoded(Insn::CallLocal { off: 7 }), [[0x85, 0x10, 0, 0, 7, 0, 0, 0]]);
    let branch = Insn::Branch { width: Width::W32, cond: Cond::SLe, dst: r[4], src: 9.into(), off: 3 };
    assert_eq!(encoded(branch), [[0xd6, 4, 3, 0, 9, 0, 0, 0]]);
}

#[test]
fn malformed_slots_are_refused() {
    let refused = |bytes: [u8; 8]| decode(&[Slot::parse(&bytes), Slot::default()], 0).unwrap_err().kind;
    assert_eq!(refused([0xb7, 0x0b, 0, 0, 0, 0, 0, 0]), DecodeErrorKind::Register(11));
    assert_eq!(refused([0xb7, 0x10, 0, 0, 0, 0, 0, 0]), DecodeErrorKind::Reserved);
    assert_eq!(refused([0x20, 0, 0, 0, 0, 0, 0, 0]), DecodeErrorKind::Opcode(0x20));
    assert_eq!(refused([0x99, 0x10, 0, 0, 0, 0, 0, 0]), DecodeErrorKind::Opcode(0x99));
    assert_eq!(refused([0xdb, 0x21, 0, 0, 0xe0, 0, 0, 0]), DecodeErrorKind::Opcode(0xdb));
    assert_eq!(refused([0x95, 0, 0, 0, 1, 0, 0, 0]), DecodeErrorKind::Reserved);
    let alone = [Slot { opcode: 0x18, ..Slot::default() }];
    assert_eq!(decode(&alone, 0).unwrap_err().kind, DecodeErrorKind::Truncated);
    assert_eq!(decode(&alone, 1).unwrap_err().kind, DecodeErrorKind::Truncated);
}

proptest! {
    /// Encoding a decoded instruction gives the same slots: no bit is lost and none is added.
    #[test]
    fn every_accepted_slot_is_encoded_to_the_same_bytes(words: [[u8; 8]; 2], tame: bool) {
        let mut slots = words.map(|word| Slot::parse(&word));
        if tame {
            // Random slots are rarely instructions; zeros in some fields make them more likely.
            slots[0].dst %= 11;
            slots[0].src %= 11;
            slots[0].imm &= 0x1f1;
            slots[0].off &= 0x38;
            slots[1] = Slot { imm: slots[1].imm, ..Slot::default() };
        }
        if let Ok(insn) = decode(&slots, 0) {
            let mut again = Vec::new();
            encode(&insn, &mut again);
            prop_assert_eq!(&again[..], &slots[..insn.slots()]);
        }
    }
}

/// The opcode bytes that decode are exactly those that the kernel accepts in some form: the table of RFC 9669
/// plus acquire and release.
#[test]
fn the_number_of_opcodes_agrees_with_the_standard() {
    let mut accepted = std::collections::BTreeSet::new();
    for opcode in 0..=u8::MAX {
        for (off, imm) in [(0, 0), (0, 16), (0, 0x100)] {
            for src in [0, 1] {
                let slots = [Slot { opcode, dst: 0, src, off, imm }, Slot::default()];
                if decode(&slots, 0).is_ok() {
                    accepted.insert(opcode);
                }
            }
        }
    }
    let of_class = |class: u8| accepted.iter().filter(|&&code| code & 7 == class).count();
    // ld: the 64-bit immediate. ldx: four plain, three signed. stx: four plain, four atomic.
    assert_eq!((of_class(0), of_class(1), of_class(2), of_class(3)), (1, 7, 4, 8));
    // Twelve binary operations with two operand kinds, neg, and two or one byte swaps.
    assert_eq!((of_class(4), of_class(7)), (27, 26));
    // Eleven conditions with two operand kinds, ja; in class jmp also call and exit.
    assert_eq!((of_class(5), of_class(6)), (25, 23));
}
