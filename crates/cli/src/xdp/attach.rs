//! `roxie xdp attach`: loads a program, fills its maps, pins them, and attaches the program.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use roxie::xdp::{AttachError, Attached, Installed, Mode, Presence, attach_loaded, install};
use sys::bpf::{LoadError, Map, Program, ProgramInfo, pin};
use sys::{Capability, Dir, Link, Netlink, Untrusted, Walk, XdpMode};

use super::args::AttachArgs;
use super::beside::DISPATCHER;
use super::source;
use super::targets::Targets;
use super::{ability, beside, interface};
use crate::failure::{During, Failure, Outcome};
use crate::terminal::{self, Terminal};
use crate::user_dir::not_trusted;

/// Puts the program on the interface.
pub(super) fn attach(args: &AttachArgs) -> Outcome {
    let source = source::load(&args.source)?;
    if args.dump {
        source.program.listing().lines().for_each(|line| terminal::print(&line));
        return Ok(());
    }
    let link = interface(&args.netdev)?;
    if let Some(there) = beside::dispatcher(args, &link) {
        return beside::attach(&link, there, &source);
    }
    let mode = match ability::check(&link, args.mode, &source)? {
        // The new program runs where the replaced one does.
        Mode::Auto if args.replace => link.xdp.first().map_or(Mode::Auto, |there| Mode::Only(there.mode)),
        mode => mode,
    };
    warn_of_tail_calls(args, &source.program);
    let native = ability::runs_in_driver(&link, mode);
    let on = |program, mode, in_driver| put(args, &link, &source, program, mode, in_driver);
    let done = match &source.plain {
        // If the driver refuses the program, another one runs in the network stack.
        Some(plain) if native && mode == Mode::Auto => {
            match on(&source.program, Mode::Only(XdpMode::Native), true)? {
                Err(why @ AttachError::Refused { .. }) => on(plain, Mode::Only(XdpMode::Generic), false)?
                    .map(|done| Attachment { not_native: Some(why.to_string()), ..done }),
                done => done,
            }
        }
        Some(plain) if !native => on(plain, mode, false)?,
        _ => on(&source.program, mode, native)?,
    };
    let Attachment { mut targets, info, mode, not_native, replaced, link: holder, held } =
        done.map_err(|error| refused(error, &link))?;
    if let Some(why) = not_native {
        say!("roxie: warning: not in the driver: {why}");
    }
    let rest = match (&held, replaced) {
        (Some(_), _) => ", until this command ends".to_owned(),
        (None, Some(id)) => format!(", in the place of id {id}"),
        (None, None) => String::new(),
    };
    let (name, id) = (&info.name, info.id);
    Terminal::stdout().line(&format!("{}: {name} attached (id {id}, {mode} mode){rest}", link.name));
    if let Some(id) = holder {
        say!("roxie: warning: bpf_link {id} holds the program: it is detached with that link");
    }
    held.map_or(Ok(()), |held| stay(&held, &link, &mut targets))
}

/// A program on the interface.
struct Attachment {
    targets: Targets,
    info: ProgramInfo,
    mode: XdpMode,
    /// Why it does not run in the driver, if that was tried.
    not_native: Option<String>,
    /// Id of the replaced program.
    replaced: Option<u32>,
    /// Id of the bpf_link of another process that holds it.
    link: Option<u32>,
    /// The bpf_link of this process that holds it.
    held: Option<Attached>,
}

/// Loads a program of the source, fills and pins its maps, and attaches it. If the kernel does not attach it,
/// nothing of it stays.
fn put(
    args: &AttachArgs,
    link: &Link,
    source: &source::Source,
    program: &bpf::Program,
    mode: Mode,
    in_driver: bool,
) -> Outcome<Result<Attachment, AttachError>> {
    let (loaded, maps) = filled(link, source, program)?;
    let mut targets = Targets::enter(source, &maps, in_driver)?;
    let pins = args.pin.as_deref().map(|dir| Pins::make(dir, program, &maps)).transpose()?;
    let info = loaded.info().during("program")?;
    let done = if args.foreground {
        attach_loaded(link.index, loaded, maps, mode).map(|held| {
            let (mode, not_native) = (held.mode(), held.not_native().map(str::to_owned));
            (Installed { mode, not_native, replaced: None, link: None }, Some(held))
        })
    } else {
        install(link.index, &loaded, mode, args.replace).map(|done| (done, None))
    };
    Ok(done.map(|(Installed { mode, not_native, replaced, link }, held)| {
        if let Some(pins) = pins {
            pins.keep();
        }
        targets.attached(in_driver && mode != XdpMode::Generic, args.foreground);
        Attachment { targets, info, mode, not_native, replaced, link, held }
    }))
}

/// Loads a program of the source, and fills its maps.
fn filled(link: &Link, source: &source::Source, program: &bpf::Program) -> Outcome<(Program, Vec<Map>)> {
    let frags = program.frags;
    let (program, maps) = load(program, Some(link))?;
    for (index, fill) in &source.fill {
        let Some(map) = maps.get(*index) else { continue };
        fill.put(link, map, frags)?;
    }
    Ok((program, maps))
}

/// Waits until a signal ends this command (and its bpf_link), or the program is detached. Meanwhile its map
/// follows the targets.
fn stay(attached: &Attached, link: &Link, targets: &mut Targets) -> Outcome {
    let name = &link.name;
    let mut replaced_by = None;
    loop {
        std::thread::sleep(LOOK_INTERVAL);
        targets.follow();
        match attached.presence().during(name)? {
            Presence::On => {}
            Presence::Off => {
                return Err(Failure::new(format!("{name}: another command detached the program")));
            }
            Presence::Gone => {
                return Err(Failure::new(format!("interface {name} was removed, and the program with it")));
            }
            Presence::Replaced { id, name: theirs, within: false } => {
                return Err(Failure::new(format!(
                    "{name}: another command replaced the program ({theirs}, id {id})"
                )));
            }
            // The command that replaced the program has printed a warning about the bpf_link, so this command
            // keeps running.
            Presence::Replaced { id, name: theirs, within: true } => {
                if replaced_by.replace(id) != Some(id) {
                    say!(
                        "roxie: warning: {name}: another program ({theirs}, id {id}) replaced this one; \
                         it is detached when this command ends"
                    );
                }
            }
        }
    }
}

/// Interval of the check: the kernel sends no notification when a program is detached. When the driver of a
/// target begins to refuse packets, they are lost during it. Half: twice the CPU time. Double: more are lost.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Loads the program; kernels before 5.18 get one without fragments.
pub(super) fn load(program: &bpf::Program, link: Option<&Link>) -> Outcome<(Program, Vec<Map>)> {
    let ifindex = link.map(|link| link.index);
    match Program::load_for(program, ifindex) {
        Err(error)
            if program.frags && error.error.raw_os_error() == Some(INVALID) && error.log.is_empty() =>
        {
            let single = bpf::Program { frags: false, ..program.clone() };
            Program::load_for(&single, ifindex)
        }
        done => done,
    }
    .map_err(|error| unloaded(program, &error))
}

/// The kernel empties a program array when no process and no pin holds it.
fn warn_of_tail_calls(args: &AttachArgs, program: &bpf::Program) {
    if !program.tails.is_empty() && !args.foreground && args.pin.is_none() {
        say!(
            "roxie: warning: the kernel empties the program arrays of {} when this command ends, and its \
             tail calls have no effect; keep them with --pin DIR or --foreground",
            program.name
        );
    }
}

const INVALID: i32 = nix::errno::Errno::EINVAL as i32;
const NOT_SUPPORTED: i32 = nix::errno::Errno::EOPNOTSUPP as i32;

fn unloaded(program: &bpf::Program, error: &LoadError) -> Failure {
    let is_denied = error.error.kind() == io::ErrorKind::PermissionDenied && error.log.is_empty();
    let missing = is_denied.then(|| ability::missing(&[Capability::Bpf, Capability::NetAdmin]));
    let failure = Failure::new(format!("{}: {error:#}", program.name));
    if program.is_device_bound() && error.error.raw_os_error() == Some(NOT_SUPPORTED) {
        return failure.hint(
            "it asks for receive hints, which the driver of this interface does not give; 'roxie doctor' \
             lists those that do",
        );
    }
    failure.log(&error.log).hint_if(missing.flatten())
}

fn refused(error: AttachError, link: &Link) -> Failure {
    let failure = Failure::new(format!("{}: {error}", link.name));
    match &error {
        AttachError::Occupied { name, .. } if name == DISPATCHER => failure.hint(format!(
            "it runs several programs: 'xdp-loader load {} FILE.o' adds one; --replace takes all of them off",
            link.name
        )),
        AttachError::Occupied { .. } => {
            failure.hint(format!("use --replace, or 'roxie xdp detach {}'", link.name))
        }
        error if error.io().is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied) => {
            failure.hint("attaching needs CAP_NET_ADMIN: try with sudo")
        }
        AttachError::Refused { .. } => {
            let now = Netlink::new().and_then(|mut netlink| netlink.link(link.index));
            let there = now.map(|link| link.xdp).unwrap_or_default();
            failure.hint_if(there.first().map(|there| {
                format!(
                    "the program that is there runs in {0} mode: use --mode {0}, or first \
                     'roxie xdp detach {1}'",
                    there.mode, link.name
                )
            }))
        }
        AttachError::Load(_) | AttachError::Setup(_) => failure,
    }
}

/// The pinned maps; they are unpinned unless kept.
struct Pins {
    dir: Dir,
    names: Vec<OsString>,
    /// The directory did not exist.
    made: bool,
}

impl Pins {
    fn make(dir: &Path, program: &bpf::Program, maps: &[Map]) -> Outcome<Pins> {
        let made = !dir.exists();
        let hint = |error: io::Error, path: &Path| {
            Failure::new(format!("pinning {}: {error}", path.display())).hint(match error.kind() {
                io::ErrorKind::AlreadyExists => "remove what is there, or choose another directory",
                _ => "the directory must be in a bpf file system: mount -t bpf none /sys/fs/bpf",
            })
        };
        // The kernel pins by path: no other user may put another directory there.
        let rules = Walk { make: Some(0o700), ..Walk::default() };
        let dir = Dir::prove(dir, rules).map_err(|why| match why {
            Untrusted::Failed { path, error } => hint(error, &path),
            why => not_trusted(&why),
        })?;
        let mut pins = Pins { dir, names: Vec::new(), made };
        for (def, map) in program.maps.iter().zip(maps) {
            let name = def.name.replace('.', "_");
            let path = pins.dir.path().join(&name);
            pin(map.as_fd(), &path).map_err(|error| hint(error, &path))?;
            pins.names.push(name.into());
        }
        Ok(pins)
    }

    fn keep(mut self) {
        self.names.clear();
        self.made = false;
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        // If a pin cannot be removed, the original failure is still reported.
        for name in &self.names {
            let _still_there = self.dir.remove_file(name);
        }
        let (path, rules) = (self.dir.path(), Walk::default());
        if let (true, Some(parent), Some(name)) = (self.made, path.parent(), path.file_name()) {
            let _still_there = Dir::prove(parent, rules).map(|parent| parent.remove_dir(name));
        }
    }
}
