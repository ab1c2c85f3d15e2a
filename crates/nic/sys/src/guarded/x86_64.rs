//! The instructions that touch application memory. They push nothing, so `roxie_guard_refused` can return
//! to the caller wherever one of them faults.

use std::arch::global_asm;

pub(super) use super::entry::{compare_swap, fetch_add, resume_at};

// Arguments are in the System V ABI's registers: rdi, rsi, rdx, rcx. Copies go upwards; the last block
// overlaps the one before it and stores the same bytes again.
global_asm!(
    ".pushsection .text.roxie_guard, \"ax\", @progbits",
    ".p2align 6",
    ".hidden roxie_guard_begin",
    ".globl roxie_guard_begin",
    "roxie_guard_begin:",
    ".hidden roxie_guard_copy_avx",
    ".globl roxie_guard_copy_avx",
    "roxie_guard_copy_avx:",
    "cmp rdx, 128",
    "jb roxie_guard_copy_sse",
    "lea r8, [rdi + rdx - 128]",
    "lea r9, [rsi + rdx - 128]",
    "jmp 3f",
    ".p2align 5",
    "2:",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm2, [rsi + 64]",
    "vmovdqu ymm3, [rsi + 96]",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + 32], ymm1",
    "vmovdqu [rdi + 64], ymm2",
    "vmovdqu [rdi + 96], ymm3",
    "add rsi, 128",
    "add rdi, 128",
    "3:",
    "cmp rdi, r8",
    "jb 2b",
    "vmovdqu ymm0, [r9]",
    "vmovdqu ymm1, [r9 + 32]",
    "vmovdqu ymm2, [r9 + 64]",
    "vmovdqu ymm3, [r9 + 96]",
    "vmovdqu [r8], ymm0",
    "vmovdqu [r8 + 32], ymm1",
    "vmovdqu [r8 + 64], ymm2",
    "vmovdqu [r8 + 96], ymm3",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    ".p2align 5",
    ".hidden roxie_guard_copy_sse",
    ".globl roxie_guard_copy_sse",
    "roxie_guard_copy_sse:",
    "cmp rdx, 16",
    "jb 4f",
    "lea r8, [rdi + rdx - 16]",
    "lea r9, [rsi + rdx - 16]",
    "jmp 3f",
    "2:",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "3:",
    "cmp rdi, r8",
    "jb 2b",
    "movups xmm0, [r9]",
    "movups [r8], xmm0",
    "xor eax, eax",
    "ret",
    "4:",
    "cmp rdx, 8",
    "jb 5f",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    "5:",
    "test rdx, rdx",
    "jz 7f",
    "6:",
    "mov al, [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec rdx",
    "jnz 6b",
    "7:",
    "xor eax, eax",
    "ret",
    ".hidden roxie_guard_fetch_add",
    ".globl roxie_guard_fetch_add",
    "roxie_guard_fetch_add:",
    "lock xadd [rdi], rsi",
    "mov [rdx], rsi",
    "xor eax, eax",
    "ret",
    ".hidden roxie_guard_compare_swap",
    ".globl roxie_guard_compare_swap",
    "roxie_guard_compare_swap:",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov [rcx], rax",
    "xor eax, eax",
    "ret",
    ".hidden roxie_guard_refused",
    ".globl roxie_guard_refused",
    "roxie_guard_refused:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

unsafe extern "sysv64" {
    fn roxie_guard_copy_avx(to: *mut u8, from: *const u8, len: usize) -> u32;
    fn roxie_guard_copy_sse(to: *mut u8, from: *const u8, len: usize) -> u32;
}

/// Returns 0 when `len` bytes are copied, 1 after a fault.
///
/// # Safety
/// As [`super::read`] and [`super::write`].
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> u32 {
    // SAFETY: upheld by the caller; the instructions exist on this machine.
    unsafe {
        if is_x86_feature_detected!("avx") {
            roxie_guard_copy_avx(to, from, len)
        } else {
            roxie_guard_copy_sse(to, from, len)
        }
    }
}
