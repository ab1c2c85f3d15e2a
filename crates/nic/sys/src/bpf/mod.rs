//! eBPF in the kernel: maps, programs, BTF, links (bpf(2), linux/bpf.h).
//!
//! Loading needs CAP_BPF and CAP_NET_ADMIN (or CAP_SYS_ADMIN); using a descriptor that another process
//! made needs no privilege. The kernel verifies programs before it loads them, so nothing here can be
//! unsound.

mod link;
mod map;
mod object;
mod perf;
mod program;
mod ring;
mod tcx;
mod types;

pub use link::{XdpLink, extensions_of};
pub use map::{Map, possible_cpus};
pub use object::{get_pinned, pin, program_ids};
pub use perf::PerfReader;
pub use program::{LoadError, Program, ProgramInfo, TestOutcome, TestRun};
pub use ring::RingReader;
pub use tcx::{Direction, TcxLink};

use std::io;
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd};

use super::check;

/// Commands of bpf(2).
#[derive(Clone, Copy)]
#[repr(u32)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgLoad = 5,
    ObjPin = 6,
    ObjGet = 7,
    ProgTestRun = 10,
    ProgNextId = 11,
    ProgFdById = 13,
    MapFdById = 14,
    ObjInfo = 15,
    BtfLoad = 18,
    BtfFdById = 19,
    MapFreeze = 22,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkFdById = 30,
    LinkNextId = 31,
    LinkDetach = 34,
}

/// The arguments of one command, in the layout of `union bpf_attr`.
///
/// # Safety
/// Every pointer in an implementor is valid for what the command reads or writes there, for as long as it
/// lives.
unsafe trait Attr {}

/// Issues one command. The kernel's `union bpf_attr` may be shorter or longer: fields that it does not
/// know must be zero, or it returns `E2BIG`.
fn call<A: Attr>(command: Command, attr: &mut A) -> io::Result<libc::c_int> {
    let (pointer, size) = (std::ptr::from_mut(attr), mem::size_of::<A>());
    loop {
        // SAFETY: `attr` is valid for its size, and so are the pointers in it (see `Attr`).
        let ret = unsafe { libc::syscall(libc::SYS_bpf, command as u32, pointer, size) };
        match check(ret as libc::c_int) {
            // The verifier stops when a signal arrives.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR)) => {}
            done => return done,
        }
    }
}

/// Issues a command that returns a new descriptor, which has close-on-exec set.
fn call_fd<A: Attr>(command: Command, attr: &mut A) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    // SAFETY: the kernel has just installed it for this process, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Names in the kernel have at most 15 characters of `[A-Za-z0-9_.]`; others are replaced, the rest is
/// cut.
fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    for (slot, byte) in name[..15].iter_mut().zip(text.bytes()) {
        *slot = if byte.is_ascii_alphanumeric() || b"_.".contains(&byte) { byte } else { b'_' };
    }
    name
}

/// A name as the kernel returns it.
fn text(name: &[u8]) -> String {
    let len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..len]).into_owned()
}

fn pointer<T>(slice: &[T]) -> u64 {
    if slice.is_empty() { 0 } else { slice.as_ptr() as u64 }
}

fn pointer_mut<T>(slice: &mut [T]) -> u64 {
    if slice.is_empty() { 0 } else { slice.as_mut_ptr() as u64 }
}

#[cfg(test)]
mod object_tests;
#[cfg(test)]
mod tests;
