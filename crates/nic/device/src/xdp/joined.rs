//! The steering program when xdp-loader has attached it. With libxdp's dispatcher, xdp-loader lets
//! several programs share an interface; `roxie xdp object` writes the object file for it.
//!
//! A dispatcher is a program that calls the others. Each of them replaces one of its functions, and a
//! bpf_link says of which program. The steering program and the contents of its maps outlive this
//! process.

use std::io;

use super::error::program_name;
use super::{Mode, Presence};
use sys::bpf::{Map, Program, extensions_of};
use sys::{AttachedXdp, Netlink, XdpMode};

/// A steering program that this process does not detach.
#[derive(Debug)]
pub(super) struct Joined {
    /// In the order of its definition.
    pub(super) maps: Vec<Map>,
    pub(super) id: u32,
    pub(super) mode: XdpMode,
    /// Id of the program that calls it.
    pub(super) dispatcher: Option<u32>,
    ifindex: u32,
    name: String,
}

impl Joined {
    /// Finds the program on interface `ifindex` that matches `definition` and runs in a mode that `mode`
    /// allows.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN; `ENOENT` if it is removed meanwhile, or lacks the maps of its
    /// definition.
    pub(super) fn find(ifindex: u32, definition: &bpf::Program, mode: Mode) -> io::Result<Option<Joined>> {
        let link = Netlink::new()?.link(ifindex)?;
        let there = link.xdp.first().filter(|there| mode == Mode::Auto || mode == Mode::Only(there.mode));
        let Some(there) = there else { return Ok(None) };
        let Some(program) = named(*there, &definition.name)? else { return Ok(None) };
        let id = program.info()?.id;
        let held: Vec<Map> = program.map_ids()?.into_iter().map(Map::by_id).collect::<io::Result<_>>()?;
        let mut held: Vec<(String, Map)> =
            held.into_iter().map(|map| Ok((map.name()?, map))).collect::<io::Result<_>>()?;
        let mut maps = Vec::new();
        for map in &definition.maps {
            let at = held.iter().position(|(name, there)| *name == map.name && there.kind() == map.kind);
            maps.push(held.swap_remove(at.ok_or(io::ErrorKind::NotFound)?).1);
        }
        let dispatcher = (id != there.program_id).then_some(there.program_id);
        let name = definition.name.clone();
        Ok(Some(Joined { maps, id, mode: there.mode, dispatcher, ifindex, name }))
    }

    /// Whether it is still attached; the dispatcher may be another one by now.
    ///
    /// # Errors
    /// What the kernel says about the interface.
    pub(super) fn presence(&self) -> io::Result<Presence> {
        let link = match Netlink::new()?.link(self.ifindex) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(Presence::Gone),
            link => link?,
        };
        let Some(there) = link.xdp.first() else { return Ok(Presence::Off) };
        match named(*there, &self.name)? {
            Some(program) if program.info()?.id == self.id => Ok(Presence::On),
            _ => {
                let id = there.program_id;
                Ok(Presence::Replaced { id, name: program_name(id), within: false })
            }
        }
    }
}

/// Returns the program of that name: the one on the interface, or one that it calls.
fn named(there: AttachedXdp, name: &str) -> io::Result<Option<Program>> {
    let mut ids = vec![there.program_id];
    ids.extend(extensions_of(there.program_id)?);
    for id in ids {
        let program = Program::by_id(id)?;
        if program.info()?.name == name {
            return Ok(Some(program));
        }
    }
    Ok(None)
}
