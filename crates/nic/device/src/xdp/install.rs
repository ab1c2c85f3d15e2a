//! Installing a program on an interface as `ip link set dev .. xdp` does: no process holds it, and it
//! stays until it is detached or the interface is deleted.

use std::io;
use std::os::fd::AsFd;

use super::attach::{Tried, choose_mode, occupied};
use super::{AttachError, Mode};
use sys::bpf::{Program, XdpLink};
use sys::{AttachedXdp, Netlink, XdpMode};

/// What [`install`] did.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Installed {
    /// The mode in which the program runs.
    pub mode: XdpMode,
    /// Why it does not run in the driver, if [`Mode::Auto`] tried that.
    pub not_native: Option<String>,
    /// Id of the replaced program.
    pub replaced: Option<u32>,
    /// Id of the bpf_link that holds it, if the replaced one was held by a link: it is detached with that
    /// link.
    pub link: Option<u32>,
}

/// Attaches `program` to interface `ifindex`; with `replace` instead of the present one, if there is one,
/// so that every packet is seen by the one or the other.
///
/// # Errors
/// [`AttachError::Occupied`] without `replace` if there is a program already, in any mode.
pub fn install(ifindex: u32, program: &Program, mode: Mode, replace: bool) -> Result<Installed, AttachError> {
    let mut netlink = Netlink::new()?;
    let there = netlink.link(ifindex)?.xdp.first().copied();
    if let (Some(there), true) = (there, replace) {
        return instead(&mut netlink, ifindex, program, mode, there);
    }
    let Tried { done: (), mode, not_native } = choose_mode(ifindex, mode, |mode| {
        netlink.attach_xdp(ifindex, program.as_fd(), mode).map_err(|error| {
            let why = netlink.explanation().map(str::to_owned);
            occupied(&mut netlink, ifindex, &error).unwrap_or(AttachError::Refused { mode, error, why })
        })
    })?;
    Ok(Installed { mode, not_native, replaced: None, link: None })
}

fn instead(
    netlink: &mut Netlink,
    ifindex: u32,
    program: &Program,
    mode: Mode,
    there: AttachedXdp,
) -> Result<Installed, AttachError> {
    // If the requested mode differs from that of the present program, the kernel refuses and explains it.
    let mode = match mode {
        Mode::Auto => there.mode,
        Mode::Only(mode) => mode,
    };
    let old = Program::by_id(there.program_id)?;
    let done = |link| Installed { mode, not_native: None, replaced: Some(there.program_id), link };
    let error = match netlink.replace_xdp(ifindex, program.as_fd(), old.as_fd(), mode) {
        Ok(()) => return Ok(done(None)),
        Err(error) => error,
    };
    let why = netlink.explanation().map(str::to_owned);
    if error.raw_os_error() == Some(libc::EBUSY)
        && let Some((id, link)) = XdpLink::on(ifindex, there.program_id)?
    {
        let refused = |error| AttachError::Refused { mode, error, why: None };
        return link.replace(program, Some(&old)).map(|()| done(Some(id))).map_err(refused);
    }
    Err(AttachError::Refused { mode, error, why })
}

/// Detaches a program, whichever tool attached it. `there` comes from [`Netlink::link`]. A program that
/// is held by a bpf_link is detached only with `force`: its owner may be running and depend on it.
///
/// # Errors
/// [`RemoveError::Held`] without `force`; the kernel's error.
pub fn remove(ifindex: u32, there: AttachedXdp, force: bool) -> Result<(), RemoveError> {
    let mut netlink = Netlink::new().map_err(RemoveError::Kernel)?;
    let error = match netlink.detach_xdp(ifindex, there.mode) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    if error.raw_os_error() == Some(libc::EBUSY)
        && let Ok(Some((id, link))) = XdpLink::on(ifindex, there.program_id)
    {
        return if force { link.detach().map_err(RemoveError::Kernel) } else { Err(RemoveError::Held(id)) };
    }
    Err(RemoveError::Kernel(error))
}

/// Why a program was not detached.
#[derive(Debug)]
pub enum RemoveError {
    /// The bpf_link with this id holds it.
    Held(u32),
    /// The kernel refuses.
    Kernel(io::Error),
}

impl std::fmt::Display for RemoveError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RemoveError::Held(id) => write!(f, "the program is held by bpf_link {id}"),
            RemoveError::Kernel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RemoveError {}
