//! System calls.

use core::arch::asm;

/// What opening a file does if it does not exist.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Create {
    /// Fails.
    No,
    /// Creates it; fails if it exists.
    New,
    /// Creates it if necessary; writes go to its end.
    Append,
}

/// Numbers of system calls (asm/unistd.h).
#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const READ: usize = 0;
    pub(super) const WRITE: usize = 1;
    pub(super) const CLOSE: usize = 3;
    pub(super) const GETPID: usize = 39;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const OPENAT: usize = 257;
    pub(super) const UNLINKAT: usize = 263;
    pub(super) const FACCESSAT: usize = 269;
}
#[cfg(target_arch = "powerpc64")]
mod number {
    pub(super) const READ: usize = 3;
    pub(super) const WRITE: usize = 4;
    pub(super) const CLOSE: usize = 6;
    pub(super) const GETPID: usize = 20;
    pub(super) const EXIT_GROUP: usize = 234;
    pub(super) const OPENAT: usize = 286;
    pub(super) const UNLINKAT: usize = 292;
    pub(super) const FACCESSAT: usize = 298;
}
/// Those of asm-generic/unistd.h.
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
mod number {
    pub(super) const UNLINKAT: usize = 35;
    pub(super) const FACCESSAT: usize = 48;
    pub(super) const OPENAT: usize = 56;
    pub(super) const CLOSE: usize = 57;
    pub(super) const READ: usize = 63;
    pub(super) const WRITE: usize = 64;
    pub(super) const EXIT_GROUP: usize = 94;
    pub(super) const GETPID: usize = 172;
}

const AT_FDCWD: usize = -100_isize as usize;
const AT_REMOVEDIR: usize = 0x200;
const O_WRONLY: usize = 1;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_APPEND: usize = 0o2000;
const O_CLOEXEC: usize = 0o200_0000;

/// # Safety
/// Arguments as the system call wants them.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, args: [usize; 4]) -> isize {
    let [a, b, c, d] = args;
    let mut result = number;
    // SAFETY: the convention of syscall(2) for this architecture.
    unsafe {
        asm!("syscall", inlateout("rax") result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result.cast_signed()
}

/// # Safety
/// Arguments as the system call wants them.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, args: [usize; 4]) -> isize {
    let [a, b, c, d] = args;
    let mut result = a;
    // SAFETY: the convention of syscall(2) for this architecture.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") result, in("x1") b, in("x2") c, in("x3") d,
             options(nostack));
    }
    result.cast_signed()
}

/// # Safety
/// Arguments as the system call wants them.
#[cfg(target_arch = "riscv64")]
unsafe fn call(number: usize, args: [usize; 4]) -> isize {
    let [a, b, c, d] = args;
    let mut result = a;
    // SAFETY: the convention of syscall(2) for this architecture.
    unsafe {
        asm!("ecall", in("a7") number, inlateout("a0") result, in("a1") b, in("a2") c, in("a3") d,
             options(nostack));
    }
    result.cast_signed()
}

/// # Safety
/// Arguments as the system call wants them.
#[cfg(target_arch = "powerpc64")]
unsafe fn call(number: usize, args: [usize; 4]) -> isize {
    let [a, b, c, d] = args;
    let mut result = a;
    // The summary overflow bit of CR0 says that the result is an errno.
    // SAFETY: the convention of syscall(2) for this architecture, with the registers that it may change.
    unsafe {
        asm!("sc", "bns+ 2f", "neg 3, 3", "2:",
             inlateout("r0") number => _, inlateout("r3") result, inlateout("r4") b => _,
             inlateout("r5") c => _, inlateout("r6") d => _, lateout("r7") _, lateout("r8") _,
             lateout("r9") _, lateout("r10") _, lateout("r11") _, lateout("r12") _, lateout("ctr") _,
             lateout("xer") _, lateout("cr0") _, options(nostack));
    }
    result.cast_signed()
}

/// Opens a file; `path` ends with a zero.
pub(crate) fn open(path: &[u8], create: Create) -> Option<usize> {
    let flags = match create {
        Create::No => 0,
        Create::New => O_WRONLY | O_CREAT | O_EXCL,
        Create::Append => O_WRONLY | O_CREAT | O_APPEND,
    };
    if path.last() != Some(&0) {
        return None;
    }
    // SAFETY: a string that ends with a zero.
    let file = unsafe { call(number::OPENAT, [AT_FDCWD, path.as_ptr() as usize, flags | O_CLOEXEC, 0o600]) };
    usize::try_from(file).ok()
}

/// Reads once; returns the number of bytes, 0 after an error.
pub(crate) fn read(file: usize, to: &mut [u8]) -> usize {
    // SAFETY: there is room for so many bytes.
    let count = unsafe { call(number::READ, [file, to.as_mut_ptr() as usize, to.len(), 0]) };
    usize::try_from(count).unwrap_or(0)
}

/// Writes once, as far as possible.
pub(crate) fn write(file: usize, bytes: &[u8]) {
    // SAFETY: so many bytes can be read.
    unsafe { call(number::WRITE, [file, bytes.as_ptr() as usize, bytes.len(), 0]) };
}

pub(crate) fn close(file: usize) {
    // SAFETY: no memory is involved.
    unsafe { call(number::CLOSE, [file, 0, 0, 0]) };
}

/// True if the file certainly does not exist; `path` ends with a zero.
pub(crate) fn is_missing(path: &[u8]) -> bool {
    const ENOENT: isize = 2;
    let is_string = path.last() == Some(&0);
    // SAFETY: a string that ends with a zero.
    is_string && unsafe { call(number::FACCESSAT, [AT_FDCWD, path.as_ptr() as usize, 0, 0]) } == -ENOENT
}

/// Removes a file or an empty directory, if it exists; `path` ends with a zero.
pub(crate) fn remove(path: &[u8], is_dir: bool) {
    let flags = if is_dir { AT_REMOVEDIR } else { 0 };
    if path.last() == Some(&0) {
        // SAFETY: a string that ends with a zero.
        unsafe { call(number::UNLINKAT, [AT_FDCWD, path.as_ptr() as usize, flags, 0]) };
    }
}

pub(crate) fn process_id() -> u32 {
    // SAFETY: no memory is involved.
    u32::try_from(unsafe { call(number::GETPID, [0; 4]) }).unwrap_or(0)
}

/// Ends the process.
#[cfg_attr(test, expect(dead_code, reason = "called by the panic handler"))]
pub(crate) fn exit(code: usize) {
    // SAFETY: no memory is involved.
    unsafe { call(number::EXIT_GROUP, [code, 0, 0, 0]) };
}

/// The functions that compiled code calls for memory; the C library is not linked.
#[cfg(not(test))]
mod memory {
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
        for at in 0..count {
            // SAFETY: the caller owns both ranges.
            unsafe { *to.add(at) = *from.add(at) };
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
        for at in 0..count {
            // SAFETY: the caller owns the range.
            unsafe { *to.add(at) = value as u8 };
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
        for at in 0..count {
            // SAFETY: the caller may read both ranges.
            let (left, right) = unsafe { (*left.add(at), *right.add(at)) };
            if left != right {
                return i32::from(left) - i32::from(right);
            }
        }
        0
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
        // SAFETY: as the caller guarantees.
        unsafe { memcmp(left, right, count) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn strlen(string: *const u8) -> usize {
        let mut length = 0;
        // SAFETY: a string that ends with a zero.
        while unsafe { *string.add(length) } != 0 {
            length += 1;
        }
        length
    }
}
