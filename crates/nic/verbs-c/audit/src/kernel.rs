//! System calls.

use core::arch::asm;
use core::ffi::c_char;

/// Numbers of system calls (asm/unistd.h).
#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const WRITE: usize = 1;
    pub(super) const CLOSE: usize = 3;
    pub(super) const MMAP: usize = 9;
    pub(super) const MUNMAP: usize = 11;
    pub(super) const RT_SIGPROCMASK: usize = 14;
    pub(super) const GETPID: usize = 39;
    pub(super) const EXECVE: usize = 59;
    pub(super) const FCNTL: usize = 72;
    pub(super) const FLOCK: usize = 73;
    pub(super) const RT_SIGPENDING: usize = 127;
    pub(super) const RT_SIGTIMEDWAIT: usize = 128;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const OPENAT: usize = 257;
    pub(super) const UNLINKAT: usize = 263;
    pub(super) const SYMLINKAT: usize = 266;
    pub(super) const READLINKAT: usize = 267;
    pub(super) const FACCESSAT: usize = 269;
}
#[cfg(target_arch = "powerpc64")]
mod number {
    pub(super) const WRITE: usize = 4;
    pub(super) const CLOSE: usize = 6;
    pub(super) const EXECVE: usize = 11;
    pub(super) const GETPID: usize = 20;
    pub(super) const FCNTL: usize = 55;
    pub(super) const MMAP: usize = 90;
    pub(super) const MUNMAP: usize = 91;
    pub(super) const FLOCK: usize = 143;
    pub(super) const RT_SIGPROCMASK: usize = 174;
    pub(super) const RT_SIGPENDING: usize = 175;
    pub(super) const RT_SIGTIMEDWAIT: usize = 176;
    pub(super) const EXIT_GROUP: usize = 234;
    pub(super) const OPENAT: usize = 286;
    pub(super) const UNLINKAT: usize = 292;
    pub(super) const SYMLINKAT: usize = 295;
    pub(super) const READLINKAT: usize = 296;
    pub(super) const FACCESSAT: usize = 298;
}
/// Those of asm-generic/unistd.h.
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
mod number {
    pub(super) const FCNTL: usize = 25;
    pub(super) const FLOCK: usize = 32;
    pub(super) const UNLINKAT: usize = 35;
    pub(super) const SYMLINKAT: usize = 36;
    pub(super) const FACCESSAT: usize = 48;
    pub(super) const OPENAT: usize = 56;
    pub(super) const CLOSE: usize = 57;
    pub(super) const WRITE: usize = 64;
    pub(super) const READLINKAT: usize = 78;
    pub(super) const EXIT_GROUP: usize = 94;
    pub(super) const RT_SIGPROCMASK: usize = 135;
    pub(super) const RT_SIGPENDING: usize = 136;
    pub(super) const RT_SIGTIMEDWAIT: usize = 137;
    pub(super) const GETPID: usize = 172;
    pub(super) const MUNMAP: usize = 215;
    pub(super) const EXECVE: usize = 221;
    pub(super) const MMAP: usize = 222;
}

const AT_FDCWD: usize = -100_isize as usize;
const AT_REMOVEDIR: usize = 0x200;
const O_WRONLY: usize = 1;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_CLOEXEC: usize = 0o200_0000;
const PROT_READ_WRITE: usize = 1 | 2;
const MAP_PRIVATE: usize = 2;
const MAP_ANONYMOUS: usize = 0x20;
const F_DUPFD_CLOEXEC: usize = 1030;
const LOCK_EX: usize = 2;
const LOCK_NB: usize = 4;
const EAGAIN: isize = 11;
const SIG_BLOCK: usize = 0;
const SIG_SETMASK: usize = 2;
/// SIGPIPE and SIGXFSZ, which a write may raise, as a signal set.
const SIGNALS_OF_WRITE: u64 = 1 << (13 - 1) | 1 << (25 - 1);
const SIGNAL_SET_LEN: usize = size_of::<u64>();
/// Descriptors of ours have at least one of these numbers: programs count on low ones. With a lower limit
/// (ulimit -n) all are for the program.
const DESCRIPTORS: [usize; 2] = [512, 64];

/// Calls the kernel; further arguments are 0.
///
/// # Safety
/// Arguments as the system call wants them.
unsafe fn call<const N: usize>(number: usize, args: [usize; N]) -> isize {
    let mut all = [0; 6];
    all.iter_mut().zip(args).for_each(|(to, from)| *to = from);
    // SAFETY: the caller's.
    unsafe { call_with(number, all) }
}

/// # Safety
/// Arguments as the system call wants them.
#[cfg(target_arch = "x86_64")]
unsafe fn call_with(number: usize, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    let mut result = number;
    // SAFETY: the convention of syscall(2) for this architecture.
    unsafe {
        asm!("syscall", inlateout("rax") result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result.cast_signed()
}

/// # Safety
/// Arguments as the system call wants them.
#[cfg(target_arch = "aarch64")]
unsafe fn call_with(number: usize, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    let mut result = a;
    // SAFETY: the convention of syscall(2) for this architecture.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") result, in("x1") b, in("x2") c, in("x3") d,
             in("x4") e, in("x5") f, options(nostack));
    }
    result.cast_signed()
}

/// # Safety
/// Arguments as the system call wants them.
#[cfg(target_arch = "riscv64")]
unsafe fn call_with(number: usize, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    let mut result = a;
    // SAFETY: the convention of syscall(2) for this architecture.
    unsafe {
        asm!("ecall", in("a7") number, inlateout("a0") result, in("a1") b, in("a2") c, in("a3") d,
             in("a4") e, in("a5") f, options(nostack));
    }
    result.cast_signed()
}

/// # Safety
/// Arguments as the system call wants them.
#[cfg(target_arch = "powerpc64")]
unsafe fn call_with(number: usize, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    let mut result = a;
    // The summary overflow bit of CR0 says that the result is an errno.
    // SAFETY: the convention of syscall(2) for this architecture, with the registers that it may change.
    unsafe {
        asm!("sc", "bns+ 2f", "neg 3, 3", "2:",
             inlateout("r0") number => _, inlateout("r3") result, inlateout("r4") b => _,
             inlateout("r5") c => _, inlateout("r6") d => _, inlateout("r7") e => _,
             inlateout("r8") f => _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
             lateout("r12") _, lateout("ctr") _,
             lateout("xer") _, lateout("cr0") _, options(nostack));
    }
    result.cast_signed()
}

/// Opens a file or directory; `path` ends with a zero.
fn open(path: &[u8], flags: usize) -> Option<usize> {
    if path.last() != Some(&0) {
        return None;
    }
    // SAFETY: a string that ends with a zero.
    let file = unsafe { call(number::OPENAT, [AT_FDCWD, path.as_ptr() as usize, flags | O_CLOEXEC, 0o600]) };
    usize::try_from(file).ok()
}

/// Creates an empty file; returns false if it exists or cannot be created. `path` ends with a zero.
pub(crate) fn create_new(path: &[u8]) -> bool {
    open(path, O_WRONLY | O_CREAT | O_EXCL).map(close).is_some()
}

/// Creates a symbolic link; returns false if it exists or cannot be created. Both strings end with a zero.
pub(crate) fn link(target: &[u8], path: &[u8]) -> bool {
    let are_strings = target.last() == Some(&0) && path.last() == Some(&0);
    let args = [target.as_ptr() as usize, AT_FDCWD, path.as_ptr() as usize];
    // SAFETY: strings that end with a zero.
    are_strings && unsafe { call(number::SYMLINKAT, args) } == 0
}

/// The target of a symbolic link, as far as it fits; `None` if there is no such link. `path` ends with a
/// zero.
pub(crate) fn target<'a>(path: &[u8], to: &'a mut [u8]) -> Option<&'a [u8]> {
    if path.last() != Some(&0) {
        return None;
    }
    let args = [AT_FDCWD, path.as_ptr() as usize, to.as_mut_ptr() as usize, to.len()];
    // SAFETY: a string that ends with a zero, and room for so many bytes.
    let count = unsafe { call(number::READLINKAT, args) };
    to.get(..usize::try_from(count).ok()?)
}

/// Locks a directory until this process ends or executes another program (flock(2)); false if another process
/// has the lock, for example a forked child. `path` ends with a zero.
pub(crate) fn lock(path: &[u8]) -> bool {
    // Without a descriptor to spare there is no lock.
    let Some(low) = open(path, 0) else { return true };
    let high = DESCRIPTORS.into_iter().find_map(|least| {
        // SAFETY: no memory is involved.
        usize::try_from(unsafe { call(number::FCNTL, [low, F_DUPFD_CLOEXEC, least]) }).ok()
    });
    close(low);
    let Some(file) = high else { return true };
    // SAFETY: no memory is involved.
    let locked = unsafe { call(number::FLOCK, [file, LOCK_EX | LOCK_NB]) };
    if locked != 0 {
        close(file);
    }
    locked != -EAGAIN
}

/// Whether the limits of the process permit so many more addresses, and so many bytes of data among them.
pub(crate) fn has_memory(addresses: usize, data: usize) -> bool {
    let is_mapped = |protection, len| {
        let args = [0, len, protection, MAP_PRIVATE | MAP_ANONYMOUS, usize::MAX, 0];
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { call(number::MMAP, args) };
        // Error numbers are below 4096, and addresses on some systems above half of the range.
        let is_mapped = !(-4095..0).contains(&start);
        if is_mapped {
            // SAFETY: the mapping from above, which nothing uses.
            unsafe { call(number::MUNMAP, [start as usize, len]) };
        }
        is_mapped
    };
    is_mapped(0, addresses) && is_mapped(PROT_READ_WRITE, data)
}

/// Maps so many zero bytes, for as long as the process executes this program.
pub(crate) fn memory(len: usize) -> Option<*mut u8> {
    let args = [0, len, PROT_READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, usize::MAX, 0];
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { call(number::MMAP, args) };
    (!(-4095..0).contains(&start)).then_some(start as *mut u8)
}

/// Executes a program; returns only if that failed. `path` ends with a zero.
///
/// # Safety
/// NULL-terminated arrays of strings.
pub(crate) unsafe fn execute(path: &[u8], argv: *const *const c_char, envp: *const *const c_char) {
    if path.last() == Some(&0) {
        // SAFETY: a string that ends with a zero, and the caller's arrays.
        unsafe { call(number::EXECVE, [path.as_ptr() as usize, argv as usize, envp as usize]) };
    }
}

/// Writes once to standard error, as far as possible. A closed pipe, or a file of which the limit (ulimit -f)
/// is reached, has no effect on the program: it did not ask for this output.
pub(crate) fn say(bytes: &[u8]) {
    let (mut before, mut pending) = (0_u64, 0_u64);
    let blocked = SIGNALS_OF_WRITE;
    // SAFETY: sets of so many bytes, of which the kernel writes two.
    unsafe {
        call(number::RT_SIGPENDING, [&raw mut pending as usize, SIGNAL_SET_LEN]);
        let blocked = &raw const blocked as usize;
        call(number::RT_SIGPROCMASK, [SIG_BLOCK, blocked, &raw mut before as usize, SIGNAL_SET_LEN]);
    }
    // SAFETY: so many bytes can be read.
    unsafe { call(number::WRITE, [2, bytes.as_ptr() as usize, bytes.len()]) };
    // The write has raised at most one signal, for this thread. It raised none that was pending already.
    let raised = SIGNALS_OF_WRITE & !pending;
    let at_once = [0_u64; 2];
    // SAFETY: a set and a time that the kernel reads, and the set from above.
    unsafe {
        let raised = &raw const raised as usize;
        call(number::RT_SIGTIMEDWAIT, [raised, 0, at_once.as_ptr() as usize, SIGNAL_SET_LEN]);
        call(number::RT_SIGPROCMASK, [SIG_SETMASK, &raw const before as usize, 0, SIGNAL_SET_LEN]);
    }
}

fn close(file: usize) {
    // SAFETY: no memory is involved.
    unsafe { call(number::CLOSE, [file]) };
}

/// True if the file certainly does not exist; `path` ends with a zero.
pub(crate) fn is_missing(path: &[u8]) -> bool {
    const ENOENT: isize = 2;
    let is_string = path.last() == Some(&0);
    // SAFETY: a string that ends with a zero.
    is_string && unsafe { call(number::FACCESSAT, [AT_FDCWD, path.as_ptr() as usize]) } == -ENOENT
}

/// Removes a file or an empty directory, if it exists; `path` ends with a zero.
pub(crate) fn remove(path: &[u8], is_dir: bool) {
    let flags = if is_dir { AT_REMOVEDIR } else { 0 };
    if path.last() == Some(&0) {
        // SAFETY: a string that ends with a zero.
        unsafe { call(number::UNLINKAT, [AT_FDCWD, path.as_ptr() as usize, flags]) };
    }
}

pub(crate) fn process_id() -> u32 {
    // SAFETY: no memory is involved.
    u32::try_from(unsafe { call(number::GETPID, []) }).unwrap_or(0)
}

/// Ends the process.
#[cfg_attr(test, expect(dead_code, reason = "called by the panic handler"))]
pub(crate) fn exit(code: usize) {
    // SAFETY: no memory is involved.
    unsafe { call(number::EXIT_GROUP, [code]) };
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
