//! The steering program: selects the socket of the group that receives a datagram.
//!
//! Classic BPF, which the kernel runs on the UDP payload. Offset 0 is the first payload byte (BTH 12, DETH 8,
//! MAD 24 and body). The program never changes, so no process has to update it. A load beyond the end of a
//! short datagram ends the program with 0, the GSI queue. The first packet of a GSO burst decides for the
//! burst.

use super::SLOTS;
use sys::FilterInsn;

/// Destination QPN: low three bytes of this word.
const DEST_QP: u32 = 4;
/// MAD attribute id of a CM message.
const ATTRIBUTE: u32 = 20 + 16;
/// First word of the CM body: the sender's id; in a SIDR_REP the request id, which is the receiver's.
const FIRST_ID: u32 = 20 + 24;
/// Second word: the receiver's id in all messages but REQ, SIDR_REQ, and the REJ of a REQ that was not
/// understood.
const SECOND_ID: u32 = FIRST_ID + 4;

const REQ: u32 = 0x10;
const SIDR_REQ: u32 = 0x17;
const SIDR_REP: u32 = 0x18;

/// Index 0 is the GSI queue, 1 + s is slot s.
pub(super) const STEERING: [FilterInsn; 18] = [
    load_word(DEST_QP),
    and(0x00ff_ffff),
    jump_if_eq(1, 2, 0),
    shift_right(16),
    jump(9),
    // QP 1: the CM message decides.
    load_half(ATTRIBUTE),
    jump_if_eq(REQ, 10, 0),
    jump_if_eq(SIDR_REQ, 9, 0),
    jump_if_eq(SIDR_REP, 3, 0),
    load_word(SECOND_ID),
    jump_if_eq(0, 6, 0),
    jump(1),
    load_word(FIRST_ID),
    shift_right(24),
    // A slot number.
    jump_if_gt(SLOTS as u32 - 1, 2, 0),
    add(1),
    return_a(),
    // Not a slot: the GSI queue.
    return_value(0),
];

const fn insn(code: u32, jt: u8, jf: u8, k: u32) -> FilterInsn {
    FilterInsn { code: code as u16, jt, jf, k }
}

const fn load_word(offset: u32) -> FilterInsn {
    insn(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

const fn load_half(offset: u32) -> FilterInsn {
    insn(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, offset)
}

const fn and(value: u32) -> FilterInsn {
    insn(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, value)
}

const fn add(value: u32) -> FilterInsn {
    insn(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K, 0, 0, value)
}

const fn shift_right(bits: u32) -> FilterInsn {
    insn(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, bits)
}

/// Skips `skip` instructions.
const fn jump(skip: u32) -> FilterInsn {
    insn(libc::BPF_JMP | libc::BPF_JA, 0, 0, skip)
}

const fn jump_if_eq(value: u32, yes: u8, no: u8) -> FilterInsn {
    insn(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, value)
}

const fn jump_if_gt(value: u32, yes: u8, no: u8) -> FilterInsn {
    insn(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, yes, no, value)
}

const fn return_a() -> FilterInsn {
    insn(libc::BPF_RET | libc::BPF_A, 0, 0, 0)
}

const fn return_value(value: u32) -> FilterInsn {
    insn(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}
