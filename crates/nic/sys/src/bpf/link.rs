//! Attaching XDP programs by bpf_link: the program stays on the interface while any process holds the
//! link.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::object::{self, Info};
use super::{Attr, Command, Program, call, call_fd};
use crate::XdpMode;

/// A program on an interface. Dropping the last descriptor detaches it, also when the process dies; a pin
/// keeps it.
#[derive(Debug)]
pub struct XdpLink(OwnedFd);

#[repr(C)]
#[derive(Default)]
struct CreateAttr {
    program_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct UpdateAttr {
    link_fd: u32,
    new_program_fd: u32,
    flags: u32,
    old_program_fd: u32,
}

// SAFETY: no pointers.
unsafe impl Attr for CreateAttr {}
// SAFETY: no pointers.
unsafe impl Attr for UpdateAttr {}

#[repr(C)]
struct DetachAttr {
    link_fd: u32,
}

// SAFETY: no pointers.
unsafe impl Attr for DetachAttr {}

/// Start of `struct bpf_link_info`, for links to interfaces (XDP, TCX) and of extensions.
#[derive(Default)]
#[repr(C)]
pub(super) struct RawInfo {
    kind: u32,
    id: u32,
    program_id: u32,
    padding: u32,
    /// 0 if the interface no longer exists; of an extension something else.
    pub(super) ifindex: u32,
    /// The program that is extended.
    target_id: u32,
}

// SAFETY: integers only.
unsafe impl Info for RawInfo {}

/// linux/bpf.h
const BPF_LINK_TYPE_TRACING: u32 = 2;
const BPF_LINK_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_F_REPLACE: u32 = 4;

/// Returns the ids of the programs that replace a function of this one (`BPF_PROG_TYPE_EXT`), or trace
/// it.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn extensions_of(program_id: u32) -> io::Result<Vec<u32>> {
    let mut extensions = Vec::new();
    for id in object::link_ids()? {
        // It may have been removed since.
        let Ok(fd) = object::link_by_id(id) else { continue };
        let raw: RawInfo = object::info(fd.as_fd())?;
        if (raw.kind, raw.target_id) == (BPF_LINK_TYPE_TRACING, program_id) {
            extensions.push(raw.program_id);
        }
    }
    Ok(extensions)
}

impl XdpLink {
    /// Attaches `program` to interface `ifindex`, in this mode and no other.
    ///
    /// # Errors
    /// `EBUSY` if there is a program; `EEXIST` if there is one in another mode; `EOPNOTSUPP` if the
    /// driver cannot do it; `ERANGE` if the MTU is too large for a program that cannot handle fragments;
    /// `ENODEV`.
    pub fn attach(program: &Program, ifindex: u32, mode: XdpMode) -> io::Result<XdpLink> {
        let mut attr = CreateAttr {
            program_fd: program.as_fd().as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: BPF_XDP,
            flags: mode.flags(),
        };
        call_fd(Command::LinkCreate, &mut attr).map(XdpLink)
    }

    /// Wraps the descriptor of an existing link.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> XdpLink {
        XdpLink(fd)
    }

    /// Returns the link that holds a program on interface `ifindex` of any network namespace, and its id,
    /// if there is one.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN.
    pub fn on(ifindex: u32, program_id: u32) -> io::Result<Option<(u32, XdpLink)>> {
        for id in object::link_ids()? {
            // It may have been removed since.
            let Ok(fd) = object::link_by_id(id) else { continue };
            let raw: RawInfo = object::info(fd.as_fd())?;
            if (raw.kind, raw.ifindex, raw.program_id) == (BPF_LINK_TYPE_XDP, ifindex, program_id) {
                return Ok(Some((id, XdpLink(fd))));
            }
        }
        Ok(None)
    }

    /// Replaces the program atomically: each packet is seen by the old or by the new one. With `old`,
    /// only if that program is attached.
    ///
    /// # Errors
    /// `EPERM` if `old` is not attached; `EINVAL`; `ENOLINK` if the interface no longer exists.
    pub fn replace(&self, program: &Program, old: Option<&Program>) -> io::Result<()> {
        let mut attr = UpdateAttr {
            link_fd: self.0.as_raw_fd() as u32,
            new_program_fd: program.as_fd().as_raw_fd() as u32,
            flags: if old.is_some() { BPF_F_REPLACE } else { 0 },
            old_program_fd: old.map_or(0, |old| old.as_fd().as_raw_fd() as u32),
        };
        call(Command::LinkUpdate, &mut attr).map(drop)
    }

    /// Detaches the program at once, even if other processes hold the link.
    ///
    /// # Errors
    /// `EINVAL` on kernels before 5.9.
    pub fn detach(&self) -> io::Result<()> {
        let link_fd = self.0.as_raw_fd() as u32;
        call(Command::LinkDetach, &mut DetachAttr { link_fd }).map(drop)
    }

    /// Returns the id of the program, and the interface it is on: 0 if that no longer exists.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is no link.
    pub fn info(&self) -> io::Result<(u32, u32)> {
        let raw: RawInfo = object::info(self.0.as_fd())?;
        Ok((raw.program_id, raw.ifindex))
    }
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
