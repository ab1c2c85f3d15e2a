//! The instructions that touch application memory. They push nothing and keep the return address in x30, so
//! `roxie_guard_refused` can return to the caller wherever one of them faults.

use std::arch::global_asm;

pub(super) use super::entry::{compare_swap, fetch_add, resume_at};

// Arguments are in x0 to x3 (AAPCS64). Copies go upwards; the last block overlaps the one before it and
// stores the same bytes again. The atomics use exclusive loads and stores, which every ARMv8 CPU has;
// `compare_swap` stores in either case, so read-only memory faults as it does on x86-64.
global_asm!(
    ".pushsection .text.roxie_guard, \"ax\", @progbits",
    ".p2align 6",
    ".hidden roxie_guard_begin",
    ".globl roxie_guard_begin",
    "roxie_guard_begin:",
    ".hidden roxie_guard_copy",
    ".globl roxie_guard_copy",
    "roxie_guard_copy:",
    "cmp x2, #64",
    "b.lo 4f",
    "add x8, x0, x2",
    "sub x8, x8, #64",
    "add x9, x1, x2",
    "sub x9, x9, #64",
    "b 3f",
    "2:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x1, x1, #64",
    "add x0, x0, #64",
    "3:",
    "cmp x0, x8",
    "b.lo 2b",
    "ldp q0, q1, [x9]",
    "ldp q2, q3, [x9, #32]",
    "stp q0, q1, [x8]",
    "stp q2, q3, [x8, #32]",
    "mov w0, #0",
    "ret",
    "4:",
    "cmp x2, #16",
    "b.lo 7f",
    "add x8, x0, x2",
    "sub x8, x8, #16",
    "add x9, x1, x2",
    "sub x9, x9, #16",
    "b 6f",
    "5:",
    "ldp x10, x11, [x1], #16",
    "stp x10, x11, [x0], #16",
    "6:",
    "cmp x0, x8",
    "b.lo 5b",
    "ldp x10, x11, [x9]",
    "stp x10, x11, [x8]",
    "mov w0, #0",
    "ret",
    "7:",
    "cmp x2, #8",
    "b.lo 8f",
    "add x8, x0, x2",
    "add x9, x1, x2",
    "ldr x10, [x1]",
    "ldur x11, [x9, #-8]",
    "str x10, [x0]",
    "stur x11, [x8, #-8]",
    "mov w0, #0",
    "ret",
    "8:",
    "cbz x2, 22f",
    "9:",
    "ldrb w10, [x1], #1",
    "strb w10, [x0], #1",
    "subs x2, x2, #1",
    "b.ne 9b",
    "22:",
    "mov w0, #0",
    "ret",
    ".hidden roxie_guard_fetch_add",
    ".globl roxie_guard_fetch_add",
    "roxie_guard_fetch_add:",
    "2:",
    "ldaxr x8, [x0]",
    "add x9, x8, x1",
    "stlxr w10, x9, [x0]",
    "cbnz w10, 2b",
    "str x8, [x2]",
    "mov w0, #0",
    "ret",
    ".hidden roxie_guard_compare_swap",
    ".globl roxie_guard_compare_swap",
    "roxie_guard_compare_swap:",
    "2:",
    "ldaxr x8, [x0]",
    "cmp x8, x1",
    "csel x9, x2, x8, eq",
    "stlxr w10, x9, [x0]",
    "cbnz w10, 2b",
    "str x8, [x3]",
    "mov w0, #0",
    "ret",
    ".hidden roxie_guard_refused",
    ".globl roxie_guard_refused",
    "roxie_guard_refused:",
    "mov w0, #1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn roxie_guard_copy(to: *mut u8, from: *const u8, len: usize) -> u32;
}

/// Returns 0 when `len` bytes are copied, 1 after a fault.
///
/// # Safety
/// As [`super::read`] and [`super::write`].
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> u32 {
    // SAFETY: upheld by the caller.
    unsafe { roxie_guard_copy(to, from, len) }
}
