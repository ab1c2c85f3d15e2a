//! A program on an interface, by bpf_link: it is there as long as this value lives, however the process ends.
//!
//! A link never replaces what is there, neither another tool's program nor one of ours; and the mode is always named,
//! because a link without one takes whatever the driver has.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::AttachError;
use super::error::program_name;
use sys::bpf::{Map, Program, XdpLink, pin};
use sys::{Netlink, XdpMode, generation, xdp_features};

/// Which mode to attach in.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// Native if the driver has it and takes the program, else generic.
    #[default]
    Auto,
    /// This one or none.
    Only(XdpMode),
}

/// A program on an interface, with its maps. It comes off on drop.
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
    /// The process that attached it.
    generation: u32,
}

/// What became of a program on an interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Presence {
    /// It is there.
    On,
    /// Somebody took it off, and nothing is there.
    Off,
    /// Another program is there.
    Replaced {
        /// Its id.
        id: u32,
        /// Its name, or why that is not known.
        name: String,
        /// It took its place within our link, and goes when that does.
        within: bool,
    },
    /// The interface is gone, or in another network namespace.
    Gone,
}

/// Loads `program` and puts it on interface `ifindex`.
///
/// # Errors
/// [`AttachError::Occupied`] if there is a program already, in whichever mode.
pub fn attach(ifindex: u32, program: &bpf::Program, mode: Mode) -> Result<Attached, AttachError> {
    let (program, maps) = Program::load_with_maps(program)?;
    attach_loaded(ifindex, program, maps, mode)
}

/// Puts a loaded program on interface `ifindex`; `maps` are those of its definition, in order.
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

/// What worked, in which mode, and why not natively if that was tried in vain.
pub(super) struct Tried<T> {
    pub(super) done: T,
    pub(super) mode: XdpMode,
    pub(super) not_native: Option<String>,
}

/// Attaches by `on` in the mode that is wanted, which for [`Mode::Auto`] depends on what the driver says it can do and
/// on what it takes.
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
            // Kernels that do not tell (before 6.3) are tried as well.
            _ => match tried(XdpMode::Native, None) {
                Err(error @ AttachError::Refused { .. }) => tried(XdpMode::Generic, Some(error.to_string())),
                done => done,
            },
        },
    }
}

/// The program that is there, if that is what the kernel's refusal means.
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
    /// Puts another program in its place: every packet sees the one or the other. The maps are those of the new one
    /// afterwards.
    ///
    /// # Errors
    /// [`AttachError::Refused`] if something else is there by now, or the interface is gone.
    pub fn replace(&mut self, program: &bpf::Program) -> Result<(), AttachError> {
        let (program, maps) = Program::load_with_maps(program)?;
        self.link.replace(&program, Some(&self.program)).map_err(|error| AttachError::Refused {
            mode: self.mode,
            error,
            why: None,
        })?;
        self.id = program.info()?.id;
        (self.program, self.maps) = (program, maps);
        Ok(())
    }

    /// Keeps the program on the interface beyond this process, under a name in a bpf file system; removing that name
    /// takes it off.
    ///
    /// # Errors
    /// Those of [`pin`].
    pub fn pin(&mut self, path: &Path) -> std::io::Result<()> {
        pin(self.link.as_fd(), path)?;
        self.pinned = true;
        Ok(())
    }

    /// A map by its place in the program's definition.
    #[must_use]
    pub fn map(&self, map: bpf::MapRef) -> Option<&Map> {
        self.maps.get(map.index())
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Id of the program, as `ip link` and `bpftool` show it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Where it runs.
    #[must_use]
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Why it does not run in the driver, if [`Mode::Auto`] tried that.
    #[must_use]
    pub fn not_native(&self) -> Option<&str> {
        self.not_native.as_deref()
    }

    /// What became of the program: whoever may do so can take it off or put another in its place, and the kernel tells
    /// nobody. Costs one system call while it is there.
    ///
    /// # Errors
    /// Those of asking the kernel about the interface.
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

    /// Puts the program back, in the mode in which it was, after somebody took it off.
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
        // A forked child closes its descriptor; the program is the parent's.
        if !self.pinned && self.generation == generation() {
            // The kernel takes a program off some time after the last descriptor is closed; a successor would find the
            // interface occupied. If this fails (the interface is gone), closing does the rest.
            let _later = self.link.detach();
        }
    }
}
