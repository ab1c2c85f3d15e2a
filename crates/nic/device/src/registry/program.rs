//! The steering program: selects the socket of the group that receives a datagram.
//!
//! Classic BPF, which the kernel runs on the UDP payload. Offset 0 is the first payload byte (BTH 12, DETH 8,
//! MAD 24 and body). The program never changes while the group exists, so no process has to update it. A load
//! beyond the end of a short datagram ends the program with 0, the GSI queue. The first packet of a GSO burst
//! decides for the burst.
//!
//! For a slot without a page the number of the socket is too high, and the kernel selects
//! some socket of the group by a hash. Most have no owner, and drop the datagram; an owner finds that
//! the packet is not for its slots.

use super::SLOTS;
use super::key::Key;
use sys::FilterInsn;
use transport::numbering::{ID_SHIFT, QPN_SHIFT};

/// Destination QPN: low three bytes of this word.
const DEST_QP: u32 = 4;
/// QPN in a DREQ: high three bytes of this word. A probe names QPN 0.
const DREQ_QPN: u32 = 20 + 24 + 8;
/// MAD attribute id of a CM message.
const ATTRIBUTE: u32 = 20 + 16;
/// First word of the CM body: the sender's id; in a SIDR_REP the request id, which is the receiver's.
const FIRST_ID: u32 = 20 + 24;
/// Second word: the receiver's id in all messages but REQ, SIDR_REQ, and the REJ of a REQ that was not
/// understood.
const SECOND_ID: u32 = FIRST_ID + 4;

const REQ: u32 = 0x10;
const DREQ: u32 = 0x15;
const SIDR_REQ: u32 = 0x17;
const SIDR_REP: u32 = 0x18;

/// Operation codes (linux/bpf_common.h).
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const MULTIPLY: u32 = libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K;
const ADD: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K;
const SHIFT_RIGHT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const JUMP_IF_EQ: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_IF_GT: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const RETURN_A: u32 = libc::BPF_RET | libc::BPF_A;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Returns the program of a group. Socket 0 is the GSI queue, and 1 + p has the slot with position p.
/// Jumps skip so many instructions.
pub(super) const fn steering(key: Key) -> [FilterInsn; 25] {
    [
        insn(LOAD_WORD, DEST_QP),
        insn(AND, 0x00ff_ffff),
        branch(JUMP_IF_EQ, 1, 2, 0),
        insn(SHIFT_RIGHT, QPN_SHIFT),
        insn(JUMP, 13),
        // QP 1: the CM message decides.
        insn(LOAD_HALF, ATTRIBUTE),
        branch(JUMP_IF_EQ, REQ, 17, 0),
        branch(JUMP_IF_EQ, SIDR_REQ, 16, 0),
        branch(JUMP_IF_EQ, SIDR_REP, 7, 0),
        // Any process gets a probe, and replies if the host has no process with the slot.
        branch(JUMP_IF_EQ, DREQ, 0, 3),
        insn(LOAD_WORD, DREQ_QPN),
        insn(AND, 0xffff_ff00),
        branch(JUMP_IF_EQ, 0, 11, 0),
        insn(LOAD_WORD, SECOND_ID),
        branch(JUMP_IF_EQ, 0, 9, 0),
        insn(JUMP, 1),
        insn(LOAD_WORD, FIRST_ID),
        insn(SHIFT_RIGHT, ID_SHIFT),
        // A slot number.
        branch(JUMP_IF_GT, SLOTS as u32 - 1, 5, 0),
        // Its position.
        insn(MULTIPLY, key.factor as u32),
        insn(ADD, key.summand as u32),
        insn(AND, Key::MASK as u32),
        insn(ADD, 1),
        insn(RETURN_A, 0),
        // Not a slot: the GSI queue.
        insn(RETURN, 0),
    ]
}

const fn insn(code: u32, k: u32) -> FilterInsn {
    branch(code, k, 0, 0)
}

const fn branch(code: u32, k: u32, yes: u8, no: u8) -> FilterInsn {
    FilterInsn { code: code as u16, jt: yes, jf: no, k }
}
