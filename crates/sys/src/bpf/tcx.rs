//! Attaching classifiers by bpf_link (TCX, Linux 6.6 and later): before a socket's packet leaves, or after XDP has passed one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::link::RawInfo;
use super::object;
use super::{Attr, Command, Program, call_fd};

/// Which packets of an interface a classifier sees.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Direction {
    /// Those that arrive, behind XDP and in front of everything else.
    Ingress,
    /// Those that leave, in front of the queueing discipline; none of AF_XDP sockets.
    Egress,
}

/// A classifier on an interface. Dropping it takes it off, also when the process dies.
#[derive(Debug)]
pub struct TcxLink(OwnedFd);

#[repr(C)]
#[derive(Default)]
struct CreateAttr {
    program_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative_fd: u32,
    padding: u32,
    expected_revision: u64,
}

// SAFETY: no pointers.
unsafe impl Attr for CreateAttr {}

/// linux/bpf.h
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
/// In front of all others.
const BPF_F_BEFORE: u32 = 1 << 3;

impl TcxLink {
    /// Puts `program` on interface `ifindex`: on the way in as the first, on the way out as the last, where packets are as
    /// the wire will see them.
    ///
    /// # Errors
    /// `EINVAL` on kernels before 6.6; `ENODEV`; `EPERM`.
    pub fn attach(program: &Program, ifindex: u32, direction: Direction) -> io::Result<TcxLink> {
        let (attach_type, flags) = match direction {
            Direction::Ingress => (BPF_TCX_INGRESS, BPF_F_BEFORE),
            Direction::Egress => (BPF_TCX_EGRESS, 0),
        };
        let mut attr = CreateAttr {
            program_fd: program.as_fd().as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type,
            flags,
            ..CreateAttr::default()
        };
        call_fd(Command::LinkCreate, &mut attr).map(TcxLink)
    }

    /// Whether the interface is still there.
    ///
    /// # Errors
    /// None at present.
    pub fn is_attached(&self) -> io::Result<bool> {
        let raw: RawInfo = object::info(self.0.as_fd())?;
        Ok(raw.ifindex != 0)
    }
}
