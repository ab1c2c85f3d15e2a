//! Attaching classifiers by bpf_link (TCX, Linux 6.6 and later): to packets that sockets send, or that
//! XDP has passed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::link::RawInfo;
use super::object;
use super::{Attr, Command, Program, call_fd};

/// Which packets of an interface a classifier sees.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Direction {
    /// Arriving packets, after XDP and before all other processing.
    Ingress,
    /// Leaving packets, before the queueing discipline; packets of AF_XDP sockets are not seen.
    Egress,
}

/// A classifier on an interface. Dropping it detaches it, also when the process dies.
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
/// Before all other classifiers.
const BPF_F_BEFORE: u32 = 1 << 3;

impl TcxLink {
    /// Attaches `program` to interface `ifindex`: on ingress as the first, on egress as the last, where
    /// packets have their final form.
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

    /// Whether the interface still exists.
    ///
    /// # Errors
    /// None at present.
    pub fn is_attached(&self) -> io::Result<bool> {
        let raw: RawInfo = object::info(self.0.as_fd())?;
        Ok(raw.ifindex != 0)
    }
}
