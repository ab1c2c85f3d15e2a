//! `roxie xdp attach`: load, fill, pin, put on the interface.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use roxie::sys::bpf::{LoadError, Map, Program, pin};
use roxie::sys::{Capabilities, Capability, Link, Netlink, XdpFeatures, XdpMode, xdp_features};
use roxie::xdp::{AttachError, attach_loaded, install};

use super::args::{AttachArgs, ModeArg};
use super::interface;
use super::source::{self, Source};
use crate::failure::{During, Failure, Outcome};
use crate::terminal::{self, Terminal};

/// Puts the program on the interface.
pub(super) fn attach(args: &AttachArgs) -> Outcome {
    let source = source::load(&args.source)?;
    if args.dump {
        terminal::print(source.program.listing().to_string().trim_end());
        return Ok(());
    }
    let link = interface(&args.netdev)?;
    promise(&link, args.mode, &source)?;
    let (program, maps) = load(&source.program)?;
    for fill in &source.fill {
        let Some(map) = source.program.map(fill.map()).and_then(|at| maps.get(at.index())) else { continue };
        fill.put(&link, map)?;
    }
    let pins = args.pin.as_deref().map(|dir| Pins::make(dir, &source.program, &maps)).transpose()?;
    let info = program.info().during("program")?;
    let said = |mode: XdpMode, not_native: Option<&str>, rest: &str| {
        if let Some(why) = not_native {
            eprintln!("roxie: warning: not in the driver: {why}");
        }
        let (name, id) = (&info.name, info.id);
        Terminal::stdout().line(&format!("{}: {name} attached (id {id}, {mode} mode){rest}", link.name));
    };
    if args.foreground {
        let attached =
            attach_loaded(link.index, program, maps, args.mode.mode()).map_err(|e| refused(e, &link))?;
        if let Some(pins) = pins {
            pins.keep();
        }
        said(attached.mode(), attached.not_native(), ", until this command ends");
        loop {
            nix::unistd::pause();
        }
    }
    let installed =
        install(link.index, &program, args.mode.mode(), args.replace).map_err(|e| refused(e, &link))?;
    if let Some(pins) = pins {
        pins.keep();
    }
    let replaced = installed.replaced.map_or_else(String::new, |id| format!(", in the place of id {id}"));
    said(installed.mode, installed.not_native.as_deref(), &replaced);
    if let Some(id) = installed.link {
        eprintln!("roxie: warning: bpf_link {id} holds it, and it goes when that does");
    }
    Ok(())
}

/// What the drivers say they can do, before packets find out.
fn promise(link: &Link, mode: ModeArg, source: &Source) -> Outcome {
    // Kernels before 6.3 do not tell.
    let Ok(features) = xdp_features(link.index) else { return Ok(()) };
    let lacks = |what: &str, has: fn(XdpFeatures) -> bool| (!has(features)).then(|| what.to_owned());
    let lacking = match mode {
        ModeArg::Native => lacks("native XDP", XdpFeatures::native),
        ModeArg::Offload => lacks("XDP offload", XdpFeatures::offload),
        ModeArg::Auto | ModeArg::Generic => None,
    };
    if let Some(what) = lacking {
        return Err(Failure::new(format!("{}: the driver has no {what} (it has: {features})", link.name))
            .hint("--mode generic works on every interface"));
    }
    let targets = source.fill.iter().flat_map(|fill| fill.targets());
    for name in targets {
        let target = interface(name)?;
        let native = features.native() && mode != ModeArg::Generic;
        if native && xdp_features(target.index).is_ok_and(|features| !features.xmit()) {
            eprintln!(
                "roxie: warning: the driver of {name} takes no redirected packets now (no ndo_xmit); a veth does once \
                 its peer has an XDP program, or GRO on"
            );
        }
    }
    if !source.program.frags && features.native() && link.mtu > SINGLE_BUFFER_MTU && mode == ModeArg::Auto {
        eprintln!(
            "roxie: warning: the program takes no packets of several buffers, and the MTU is {}",
            link.mtu
        );
    }
    Ok(())
}

/// Longest IP packet that fits a page with XDP's headroom and what the kernel keeps behind it, on most drivers.
const SINGLE_BUFFER_MTU: u32 = 3498;

/// Into the kernel; before 5.18 without fragments.
fn load(program: &bpf::Program) -> Outcome<(Program, Vec<Map>)> {
    match Program::load_with_maps(program) {
        Err(error)
            if program.frags && error.error.raw_os_error() == Some(INVALID) && error.log.is_empty() =>
        {
            let single = bpf::Program { frags: false, ..program.clone() };
            Program::load_with_maps(&single)
        }
        done => done,
    }
    .map_err(|error| unloaded(&program.name, &error))
}

const INVALID: i32 = nix::errno::Errno::EINVAL as i32;

fn unloaded(name: &str, error: &LoadError) -> Failure {
    let failure = Failure::new(format!("{name}: {error}"));
    let capabilities = Capabilities::effective();
    if error.error.kind() != io::ErrorKind::PermissionDenied
        || !error.log.is_empty()
        || capabilities.has(Capability::SysAdmin)
    {
        return failure;
    }
    let missing = [Capability::Bpf, Capability::NetAdmin].into_iter().filter(|one| !capabilities.has(*one));
    let missing: Vec<_> = missing.map(|one| one.to_string()).collect();
    failure.hint(format!("this process lacks {}: try with sudo", missing.join(" and ")))
}

fn refused(error: AttachError, link: &Link) -> Failure {
    let failure = Failure::new(format!("{}: {error}", link.name));
    match &error {
        AttachError::Occupied { .. } => {
            failure.hint(format!("use --replace, or 'roxie xdp detach {}'", link.name))
        }
        error if error.io().is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied) => {
            failure.hint("attaching needs CAP_NET_ADMIN: try with sudo")
        }
        AttachError::Refused { .. } => {
            match Netlink::new().and_then(|mut netlink| netlink.link(link.index)) {
                Ok(now) if !now.xdp.is_empty() => {
                    let modes: Vec<_> = now.xdp.iter().map(|xdp| xdp.mode.to_string()).collect();
                    failure.hint(format!("the program that is there runs in {} mode", modes.join(" and ")))
                }
                _ => failure,
            }
        }
        AttachError::Load(_) | AttachError::Setup(_) => failure,
    }
}

/// Maps under their names; taken back unless kept.
struct Pins {
    paths: Vec<PathBuf>,
    made: Option<PathBuf>,
}

impl Pins {
    fn make(dir: &Path, program: &bpf::Program, maps: &[Map]) -> Outcome<Pins> {
        let made = !dir.exists();
        let hint = |error: io::Error, path: &Path| {
            let failure = Failure::new(format!("pinning {}: {error}", path.display()));
            match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    failure.hint("remove what is there, or choose another directory")
                }
                _ => {
                    failure.hint("the directory must be in a bpf file system: mount -t bpf none /sys/fs/bpf")
                }
            }
        };
        fs::create_dir_all(dir).map_err(|error| hint(error, dir))?;
        let mut pins = Pins { paths: Vec::new(), made: made.then(|| dir.to_owned()) };
        for (def, map) in program.maps.iter().zip(maps) {
            let path = dir.join(def.name.replace('.', "_"));
            pin(map.as_fd(), &path).map_err(|error| hint(error, &path))?;
            pins.paths.push(path);
        }
        Ok(pins)
    }

    fn keep(mut self) {
        self.paths.clear();
        self.made = None;
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        // If one cannot be removed, the failure that brought us here is still the one to tell.
        for path in &self.paths {
            let _still_there = fs::remove_file(path);
        }
        if let Some(dir) = &self.made {
            let _still_there = fs::remove_dir(dir);
        }
    }
}
