//! Installs, checks and removes the files of roxie below a prefix.
//!
//! The manifest `lib/roxie/manifest` has one line for each file: CRC-32, length, path below the prefix.

use std::fmt::Write as _;
use std::io::{Error, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::json;
use sys::Untrusted;

use super::args::{InstallArgs, PrefixArgs, RemoveArgs};
use super::bundle::Bundle;
use super::prefix::Prefix;
use super::{pages, unpacked, with_libraries};
use crate::failure::{During, Failure, Outcome};
use crate::hook::loaded;
use crate::library::Libraries;
use crate::program::search;
use crate::terminal::{self, Terminal, Tone};

/// The installed program, below the prefix.
const PROGRAM: &str = "bin/roxie";
/// The list of installed files, below the prefix.
const MANIFEST: &str = "lib/roxie/manifest";

/// One installed file.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Installed {
    crc: u32,
    len: u64,
    /// Below the prefix.
    path: PathBuf,
}

impl Installed {
    fn of(path: &Path, bytes: &[u8]) -> Self {
        Self { crc: crc32fast::hash(bytes), len: bytes.len() as u64, path: path.to_owned() }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(3, ' ');
        let crc = u32::from_str_radix(words.next()?, 16).ok()?;
        let len = words.next()?.parse().ok()?;
        let path = PathBuf::from(words.next()?);
        // A path that leaves the prefix is never removed.
        let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        (inside && path.components().next().is_some()).then_some(Self { crc, len, path })
    }

    /// What is wrong with the file below `prefix`.
    fn fault(&self, prefix: &Prefix) -> Option<&'static str> {
        match prefix.open(&self.path) {
            Ok((dir, name)) => self.fault_of(dir.read(name)),
            Err(Untrusted::Link { .. }) => Some("behind a symbolic link"),
            Err(why) => match why.kind() {
                Some(ErrorKind::NotFound | ErrorKind::NotADirectory) => Some("missing"),
                Some(_) => Some("not readable"),
                None => Some("in a directory of other users"),
            },
        }
    }

    fn fault_of(&self, contents: std::io::Result<Vec<u8>>) -> Option<&'static str> {
        match contents {
            Err(error) if error.kind() == ErrorKind::NotFound => Some("missing"),
            // Another file, or a link, is in its place.
            Err(error)
                if error.kind() == ErrorKind::InvalidInput
                    || error.raw_os_error() == Some(nix::libc::ELOOP) =>
            {
                Some("changed")
            }
            Err(_) => Some("not readable"),
            Ok(bytes) if bytes.len() as u64 != self.len || crc32fast::hash(&bytes) != self.crc => {
                Some("changed")
            }
            Ok(_) => None,
        }
    }
}

/// Installs this program.
pub(super) fn install(args: &InstallArgs, roxie: &clap::Command) -> Outcome {
    let prefix = Prefix::of(args.prefix.as_deref())?;
    let old = read_manifest(&prefix)?.unwrap_or_default();
    let pages = pages::of_installation(roxie).during("making the manual pages")?;
    let paths = || pages.iter().map(|(path, _)| Path::new(path)).chain([Path::new(PROGRAM)]);
    let foreign = |path: &&Path| {
        prefix.join(path).symlink_metadata().is_ok() && !old.iter().any(|file| file.path == **path)
    };
    if let Some(path) = paths().find(foreign).filter(|_| !args.force) {
        return Err(Failure::new(format!(
            "{} exists and is not of an installation",
            prefix.join(path).display()
        ))
        .hint("remove it, choose another --prefix, or replace it with --force"));
    }
    if let Some(link) = paths().find_map(|path| prefix.refused_link(path)) {
        return Err(Failure::new(format!(
            "{} is a symbolic link, and root follows none there",
            link.display()
        ))
        .hint("choose the directory that it leads to with --prefix, or install as another user"));
    }
    let program_bytes = with_libraries(&Libraries::find()?)?;
    let mut files: Vec<_> = pages.iter().map(|(path, text)| Installed::of(Path::new(path), text)).collect();
    let stale = |file: &&Installed| !files.iter().any(|new| new.path == file.path);
    let stale: Vec<_> = old.iter().filter(stale).cloned().collect();
    // If a later step fails, the next installation or removal knows these files.
    write_manifest(&prefix, &[&files[..], &stale].concat())?;
    for (path, text) in &pages {
        prefix.write(Path::new(path), text, 0o644)?;
    }
    let program = prefix.join(PROGRAM);
    prefix.write(Path::new(PROGRAM), &program_bytes, 0o755)?;
    files.push(Installed::of(Path::new(PROGRAM), &program_bytes));
    write_manifest(&prefix, &files)?;
    let is_ours =
        |file: &&Installed| file.path != Path::new(PROGRAM) && file.fault(&prefix) != Some("changed");
    stale.iter().filter(is_ours).for_each(|file| drop(prefix.remove(&file.path)));

    terminal::print(&format!("installed {} ({} files)", program.display(), files.len()));
    match search(Path::new("roxie")) {
        None => {
            let dir = dir_of(&program).display();
            terminal::print(&format!("PATH does not name its directory: export PATH=\"{dir}:$PATH\""));
        }
        Some(first) if !same_file(&first, &program) => {
            terminal::print(&format!("PATH finds {} first", first.display()));
        }
        Some(_) => {}
    }
    terminal::print("next: roxie demo; remove it with 'roxie self remove'");
    Ok(())
}

/// Compares the installed files with the manifest, and unpacks the libraries.
pub(super) fn check(args: &PrefixArgs) -> Outcome {
    let prefix = Prefix::of(args.prefix.as_deref())?;
    let files = read_manifest(&prefix)?.ok_or_else(|| not_installed(&prefix))?;
    let faults: Vec<_> = files.iter().filter_map(|file| Some((file, file.fault(&prefix)?))).collect();
    let libraries = unpacked_libraries(&prefix.join(PROGRAM));
    let ok = faults.is_empty() && libraries.is_ok();
    if args.json {
        let faults: Vec<_> =
            faults.iter().map(|(file, fault)| json!({"path": file.path, "fault": fault})).collect();
        let value = json!({
            "prefix": prefix.path(),
            "files": files.len(),
            "faults": faults,
            "libraries": libraries.as_ref().ok(),
            "error": libraries.as_ref().err().map(ToString::to_string),
            "ok": ok,
        });
        terminal::json(&value);
    } else {
        let out = Terminal::stdout();
        for (file, fault) in &faults {
            out.line(&format!("{}: {}", out.paint(Tone::Bad, fault), prefix.join(&file.path).display()));
        }
        if let Ok(dir) = &libraries {
            out.line(&format!("libraries in {}", dir.display()));
        }
        out.line(&format!("{}: {} files, {} faults", prefix.path().display(), files.len(), faults.len()));
    }
    match libraries {
        Err(failure) => Err(failure),
        Ok(_) if !ok => {
            Err(Failure::new("the installation is damaged").hint("run 'roxie self install' again"))
        }
        Ok(_) => Ok(()),
    }
}

/// Unpacks the libraries of an installed program, and returns their directory.
fn unpacked_libraries(program: &Path) -> Outcome<PathBuf> {
    let name = program.display().to_string();
    let bundle = Bundle::open(program).during(&name)?;
    unpacked::unpack(&mut bundle.ok_or_else(|| Failure::new(format!("{name} contains no libraries")))?)
}

/// Removes the files of the manifest, directories that are empty then, unpacked libraries and hooks.
pub(super) fn remove(args: &RemoveArgs) -> Outcome {
    let prefix = Prefix::of(args.prefix.as_deref())?;
    let files = read_manifest(&prefix)?.ok_or_else(|| not_installed(&prefix))?;
    let manifest = Installed { crc: 0, len: 0, path: MANIFEST.into() };
    let (mut removed, mut kept) = (0, 0);
    for file in files.iter().chain([&manifest]) {
        let path = prefix.join(&file.path);
        if args.dry_run {
            terminal::print(&format!("would remove {}", path.display()));
            continue;
        }
        let fault = file.fault(&prefix).filter(|_| file.path != manifest.path);
        if let Some(fault @ ("changed" | "behind a symbolic link")) = fault {
            say!("roxie: {} is {fault} since the installation: kept", path.display());
            kept += 1;
            continue;
        }
        match prefix.remove(&file.path) {
            Ok(()) => removed += 1,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(Failure::new(format!("removing {}: {error}", path.display()))),
        }
        prefix.remove_empty_parents(&file.path);
    }
    if args.dry_run {
        return Ok(());
    }
    let now = SystemTime::now();
    let bases = unpacked::bases();
    let sweep =
        |prefix| bases.iter().flat_map(move |base| unpacked::sweep(base, prefix, now, Duration::ZERO));
    let unpacked = sweep(unpacked::PREFIX).count();
    sweep(loaded::PREFIX).for_each(drop);
    let changed = if kept == 0 { String::new() } else { format!(", {kept} kept") };
    terminal::print(&format!(
        "removed {removed} files below {}{changed}, and the libraries of {} builds",
        prefix.path().display(),
        unpacked
    ));
    Ok(())
}

fn not_installed(prefix: &Prefix) -> Failure {
    Failure::new(format!("roxie is not installed below {} (no {MANIFEST} there)", prefix.path().display()))
        .hint("'roxie self install' installs it; --prefix names another directory")
}

/// The installed files; `None` without an installation.
fn read_manifest(prefix: &Prefix) -> Outcome<Option<Vec<Installed>>> {
    let path = prefix.join(MANIFEST);
    let read = prefix.open(Path::new(MANIFEST)).map_err(Error::from).and_then(|(dir, name)| dir.read(name));
    let text = match read {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error).reading(&path),
    };
    let parse = |(index, line)| {
        Installed::parse(line).ok_or_else(|| {
            Failure::new(format!("{}:{}: not a line of a manifest: {line:.80}", path.display(), index + 1))
                .hint("remove the installed files by hand, or install again after removing this file")
        })
    };
    text.lines().enumerate().map(parse).collect::<Outcome<Vec<_>>>().map(Some)
}

fn write_manifest(prefix: &Prefix, files: &[Installed]) -> Outcome {
    let mut text = String::new();
    for file in files {
        writeln!(text, "{:08x} {} {}", file.crc, file.len, file.path.display()).expect("writing to a string");
    }
    prefix.write(Path::new(MANIFEST), text.as_bytes(), 0o644)
}

fn dir_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_line_that_leaves_the_prefix_is_refused() {
        let line = |path: &str| Installed::parse(&format!("00ff00ff 12 {path}"));
        assert_eq!(line("bin/roxie").expect("inside").path, Path::new("bin/roxie"));
        assert!(line("a file").is_some_and(|file| file.path == Path::new("a file")));
        for path in ["../x", "/etc/passwd", "bin/../../x", ""] {
            assert_eq!(line(path), None, "{path}");
        }
        assert_eq!(Installed::parse("xyz 12 bin/roxie"), None);
        assert_eq!(Installed::parse("00ff00ff bin/roxie"), None);
    }
}
