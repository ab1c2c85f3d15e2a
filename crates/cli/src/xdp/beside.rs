//! Attaches a recipe beside the programs that libxdp runs on an interface.
//!
//! libxdp attaches a dispatcher, a program that calls the others. `xdp-loader` puts a new dispatcher with one
//! more program in its place. This command writes the object file before, and fills the maps after.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;

use nix::sys::memfd::{MFdFlags, memfd_create};
use roxie::xdp::Mode;
use sys::bpf::{Map, Program, extensions_of};
use sys::{AttachedXdp, Link, XdpMode};

use super::ability::is_veth;
use super::args::AttachArgs;
use super::source::Source;
use super::targets::Targets;
use super::{interface, known_as};
use crate::failure::{During, Failure, Outcome};
use crate::terminal::Terminal;

/// Name of libxdp's program that calls several others.
pub(super) const DISPATCHER: &str = "xdp_dispatcher";

/// The dispatcher on an interface, unless the command replaces it, or does what xdp-loader cannot.
pub(super) fn dispatcher(args: &AttachArgs, link: &Link) -> Option<AttachedXdp> {
    let is_plain = !args.replace && !args.foreground && args.pin.is_none() && args.source.recipe.is_some();
    let there = link.xdp.first().copied().filter(|there| match args.mode {
        Mode::Auto => true,
        Mode::Only(mode) => mode == there.mode,
    });
    there.filter(|there| is_plain && known_as(there.program_id) == DISPATCHER)
}

/// Lets xdp-loader add a program of the source to the dispatcher `there`, and fills its maps.
pub(super) fn attach(link: &Link, there: AttachedXdp, source: &Source) -> Outcome {
    let in_driver = there.mode != XdpMode::Generic;
    // Checksums are completed in functions, which cannot join. Only the packets of a veth need that.
    let is_plain = !in_driver || !is_veth(link);
    let program = source.plain.as_ref().filter(|_| is_plain).unwrap_or(&source.program);
    let before = extensions_of(there.program_id).during("programs of the dispatcher")?;
    load(link, there.mode, program)?;
    let now = interface(&link.name)?;
    let there = now.xdp.first().ok_or_else(|| Failure::new(format!("{}: no XDP program", link.name)))?;
    let all = extensions_of(there.program_id).during("programs of the dispatcher")?;
    let mut new = all.into_iter().filter(|id| !before.contains(id));
    let id = new.find(|id| known_as(*id) == program.name);
    let id = id.ok_or_else(|| Failure::new(format!("{}: xdp-loader has not added it", program.name)))?;
    if let Err(failure) = fill_maps(link, id, source, program, in_driver) {
        let stays = format!("{}: {} stays attached, with incomplete maps", link.name, program.name);
        let unloaded = loader(&["unload", &link.name, "--id", &id.to_string()], stays);
        return Err(match unloaded {
            Ok(()) => failure,
            Err(stays) => failure.log(&stays.to_string()),
        });
    }
    let (name, mode) = (&program.name, there.mode);
    let others = format!("beside others in dispatcher {}", there.program_id);
    Terminal::stdout().line(&format!("{}: {name} attached (id {id}, {mode} mode), {others}", link.name));
    Ok(())
}

fn load(link: &Link, mode: XdpMode, program: &bpf::Program) -> Outcome {
    let file = bpf::object::write(program).map_err(|error| {
        Failure::new(format!("{}: {error}", link.name)).hint(
            "a recipe of one function joins the others: attach the parts of a joined one by themselves; on a \
             veth, those that redirect packets join in generic mode only",
        )
    })?;
    let fd = memfd_create(c"recipe", MFdFlags::MFD_CLOEXEC).map_err(std::io::Error::from).during("memory")?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    std::fs::File::from(fd.try_clone().during("memory")?).write_all(&file).during("object file")?;
    let mode = if mode == XdpMode::Generic { "skb" } else { "native" };
    let failed = format!("{}: xdp-loader cannot add {}", link.name, program.name);
    loader(&["load", "-m", mode, &link.name, &path], failed)
}

/// Runs xdp-loader; `failed` says what it did not do.
fn loader(words: &[&str], failed: String) -> Outcome {
    let done = Command::new("xdp-loader").args(words).output().map_err(|error| {
        Failure::new(format!("xdp-loader: {error}")).hint("it is in the Debian package xdp-tools")
    })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(Failure::new(failed).log(&said))
}

/// Fills the maps of the loaded program `id`.
fn fill_maps(link: &Link, id: u32, source: &Source, program: &bpf::Program, in_driver: bool) -> Outcome {
    let maps = Program::by_id(id).and_then(|loaded| maps_of(&loaded, program)).during("maps")?;
    for (index, fill) in &source.fill {
        let Some(map) = maps.get(*index) else { continue };
        fill.put(link, map, program.frags)?;
    }
    Targets::enter(source, &maps, in_driver)?.attached(in_driver, false);
    Ok(())
}

/// The maps of a loaded program, in the order of its definition.
fn maps_of(loaded: &Program, program: &bpf::Program) -> std::io::Result<Vec<Map>> {
    let mut held = Vec::new();
    for id in loaded.map_ids()? {
        let map = Map::by_id(id)?;
        held.push((map.name()?, map));
    }
    let mut find = |def: &bpf::MapDef| {
        // The kernel keeps 15 bytes.
        let at = held.iter().position(|(name, map)| def.name.starts_with(name) && map.kind() == def.kind);
        at.map(|at| held.swap_remove(at).1).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    };
    program.maps.iter().map(&mut find).collect()
}
