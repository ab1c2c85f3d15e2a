//! A program attached by bpf_link: it is attached as long as this value lives, however the process ends.
//!
//! A link never replaces an existing program, neither another tool's nor one of roxie. The mode is always
//! given, because a link without one takes the driver's default.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::AttachError;
use super::error::program_name;
use sys::bpf::{Map, Program, XdpLink, pin};
use sys::{Netlink, XdpMode, generation, xdp_features};

/// The requested mode.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// Native if the driver supports it and accepts the program, else generic.
    #[default]
    Auto,
    /// Only this one.
    Only(XdpMode),
}

/// A program on an interface, with its maps. Dropping it detaches the program.
#[derive(Debug)]
pub struct Attached {
    link: XdpLink,
    program: Program,
    /// The program's maps, in the order of its definition.
    maps: Vec<Map>,
    ifindex: u32,
    id: u32,
    mode: XdpMode,
    /// Why it is not native although that was tried.
    not_native: Option<String>,
    pinned: bool,
    /// Fork generation of the process that attached it.
    generation: u32,
}

/// State of a program on an interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Presence {
    /// It is attached.
    On,
    /// It was detached, and there is no other program.
    Off,
    /// Another program is attached.
    Replaced {
        /// Its id.
        id: u32,
        /// Its name, or why that is not known.
        name: String,
        /// It replaced the program within the same bpf_link, and is detached with that link.
        within: bool,
    },
    /// The interface was removed, or moved to another network namespace.
    Gone,
}

/// Loads `program` and attaches it to interface `ifindex`.
///
/// # Errors
/// [`AttachError::Occupied`] if there is a program already, in any mode.
pub fn attach(ifindex: u32, program: &bpf::Program, mode: Mode) -> Result<Attached, AttachError> {
    let (program, maps) = Program::load_for(program, Some(ifindex))?;
    attach_loaded(ifindex, program, maps, mode)
}

/// Attaches a loaded program to interface `ifindex`; `maps` are those of its definition, in order.
///
/// # Errors
/// As [`attach`].
pub fn attach_loaded(
    ifindex: u32,
    program: Program,
    maps: Vec<Map>,
    mode: Mode,
) -> Result<Attached, AttachError> {
    let id = program.info()?.id;
    let Tried { done: link, mode, not_native } =
        choose_mode(ifindex, mode, |mode| link(ifindex, &program, mode))?;
    Ok(Attached {
        link,
        program,
        maps,
        ifindex,
        id,
        mode,
        not_native,
        pinned: false,
        generation: generation(),
    })
}

/// The result, its mode, and why it is not native if that was tried without success.
pub(super) struct Tried<T> {
    pub(super) done: T,
    pub(super) mode: XdpMode,
    pub(super) not_native: Option<String>,
}

/// Attaches by `on` in the requested mode, which for [`Mode::Auto`] depends on the features that the
/// driver reports and on what it accepts.
pub(super) fn choose_mode<T>(
    ifindex: u32,
    mode: Mode,
    mut on: impl FnMut(XdpMode) -> Result<T, AttachError>,
) -> Result<Tried<T>, AttachError> {
    let mut tried = |mode, not_native| on(mode).map(|done| Tried { done, mode, not_native });
    match mode {
        Mode::Only(mode) => tried(mode, None),
        Mode::Auto => match xdp_features(ifindex) {
            Ok(features) if !features.native() => tried(XdpMode::Generic, None),
            // Kernels that do not report features (before 6.3) are tried as well.
            _ => match tried(XdpMode::Native, None) {
                Err(error @ AttachError::Refused { .. }) => tried(XdpMode::Generic, Some(error.to_string())),
                done => done,
            },
        },
    }
}

/// Returns the error for the program that is there, if the kernel's refusal means that.
pub(super) fn occupied(netlink: &mut Netlink, ifindex: u32, error: &io::Error) -> Option<AttachError> {
    if !matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) {
        return None;
    }
    netlink.link(ifindex).ok()?.xdp.first().map(|there| AttachError::occupied(*there))
}

fn link(ifindex: u32, program: &Program, mode: XdpMode) -> Result<XdpLink, AttachError> {
    let error = match XdpLink::attach(program, ifindex, mode) {
        Ok(link) => return Ok(link),
        Err(error) => error,
    };
    let mut netlink = Netlink::new()?;
    if let Some(occupied) = occupied(&mut netlink, ifindex, &error) {
        return Err(occupied);
    }
    let why = netlink.why_not_attach(ifindex, program.as_fd(), mode);
    Err(AttachError::Refused { mode, error, why })
}

impl Attached {
    /// Replaces it by another program: every packet is seen by the one or the other. Afterwards the maps
    /// are those of the new one.
    ///
    /// # Errors
    /// [`AttachError::Refused`] if another program is attached by now, or the interface was removed.
    pub fn replace(&mut self, program: &bpf::Program) -> Result<(), AttachError> {
        let (program, maps) = Program::load_for(program, Some(self.ifindex))?;
        self.link.replace(&program, Some(&self.program)).map_err(|error| AttachError::Refused {
            mode: self.mode,
            error,
            why: None,
        })?;
        self.id = program.info()?.id;
        (self.program, self.maps) = (program, maps);
        Ok(())
    }

    /// Pins the program to a name in a bpf file system, which keeps it attached after this process;
    /// removing that name detaches it.
    ///
    /// # Errors
    /// Those of [`pin`].
    pub fn pin(&mut self, path: &Path) -> std::io::Result<()> {
        pin(self.link.as_fd(), path)?;
        self.pinned = true;
        Ok(())
    }

    /// Returns a map by its index in the program's definition.
    #[must_use]
    pub fn map(&self, map: bpf::MapRef) -> Option<&Map> {
        self.maps.get(map.index())
    }

    /// Returns the program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Id of the program, as `ip link` and `bpftool` show it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The mode in which it runs.
    #[must_use]
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Why it does not run in the driver, if [`Mode::Auto`] tried that.
    #[must_use]
    pub fn not_native(&self) -> Option<&str> {
        self.not_native.as_deref()
    }

    /// Returns the state of the program: a privileged process can detach or replace it, and the kernel
    /// does not report that. Costs one system call while it is attached.
    ///
    /// # Errors
    /// Those of querying the interface.
    pub fn presence(&self) -> io::Result<Presence> {
        let (id, ifindex) = self.link.info()?;
        let within = ifindex == self.ifindex;
        if within && id == self.id {
            return Ok(Presence::On);
        }
        let link = match Netlink::new()?.link(self.ifindex) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(Presence::Gone),
            link => link?,
        };
        Ok(match link.xdp.first() {
            None => Presence::Off,
            Some(there) => {
                Presence::Replaced { id: there.program_id, name: program_name(there.program_id), within }
            }
        })
    }

    /// Attaches the program again, in its previous mode, after it was detached.
    ///
    /// # Errors
    /// As [`attach`].
    pub fn put_back(&mut self) -> Result<(), AttachError> {
        self.link = link(self.ifindex, &self.program, self.mode)?;
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // A forked child only closes its descriptor; the program belongs to the parent.
        if !self.pinned && self.generation == generation() {
            // The kernel detaches a program some time after the last descriptor was closed; a successor
            // would find the interface occupied. If this fails (the interface was removed), closing does
            // the rest.
            let _later = self.link.detach();
        }
    }
}
