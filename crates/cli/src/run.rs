//! `roxie run`: replaces itself with a program that loads roxie's verbs libraries.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Uid;

use crate::args::RunArgs;
use crate::failure::{Failure, Outcome};
use crate::{device_files, devinfo, env};

/// Exit codes for a command that could not be started, as shells use them.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Executes the command; returns only if that failed.
pub(crate) fn run(args: &RunArgs) -> Outcome {
    let variables = env::variables(&args.device, &args.port, &args.hooks, &args.traffic)?;
    if args.device_files {
        device_files::make(&devinfo::open(&args.device, None)?)?;
    }
    become_command(&args.command, variables)
}

/// Executes a command with `variables` in its environment; returns only if that failed.
pub(crate) fn become_command(command: &[OsString], variables: Vec<(&'static str, OsString)>) -> Outcome {
    let (program, arguments) = command.split_first().ok_or_else(|| Failure::new("no command given"))?;
    if program.is_empty() {
        return Err(Failure::new("the command is an empty word").code(NOT_FOUND));
    }
    let found = search(Path::new(program));
    // Without the variables the command must not see the device.
    let shall_see = variables.iter().any(|(key, _)| *key == "LD_LIBRARY_PATH");
    let warning = found.as_deref().filter(|_| shall_see).and_then(blind_to_us);
    if let Some(warning) = warning {
        eprintln!("roxie: warning: {warning}");
    }
    let error = Command::new(program).args(arguments).envs(variables).exec();
    let name = program.to_string_lossy();
    // execvp reports "permission denied" for a missing command if it may not search one directory of PATH.
    let bare = !name.contains('/');
    Err(match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied if bare && found.is_none() => {
            Failure::new(format!("{name}: command not found")).code(NOT_FOUND)
        }
        ErrorKind::NotFound if found.is_some() => {
            Failure::new(format!("{name}: its interpreter or loader is missing")).code(NOT_FOUND)
        }
        ErrorKind::NotFound => Failure::new(format!("{name}: no such file")).code(NOT_FOUND),
        ErrorKind::PermissionDenied => {
            Failure::new(format!("{name}: not executable ({error})")).code(NOT_EXECUTABLE)
        }
        _ => Failure::new(format!("{name}: {error}")).code(NOT_EXECUTABLE),
    })
}

/// The file that `execvp` executes.
fn search(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 || program.is_absolute() {
        return program.is_file().then(|| program.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0))
}

/// The reason that a program does not load roxie's libraries, if there is one.
fn blind_to_us(program: &Path) -> Option<String> {
    let meta = fs::metadata(program).ok()?;
    let name = program.display();
    let raised = meta.mode() & 0o4000 != 0 && meta.uid() != Uid::effective().as_raw()
        || meta.mode() & 0o2000 != 0 && meta.gid() != nix::unistd::Gid::effective().as_raw();
    if raised {
        return Some(format!(
            "{name} is setuid or setgid: the loader ignores LD_LIBRARY_PATH, so it does not see the device"
        ));
    }
    (interpreted(program)? == Elf::Static)
        .then(|| format!("{name} is statically linked: it loads no libraries, so it does not see the device"))
}

#[derive(Debug, Eq, PartialEq)]
enum Elf {
    Dynamic,
    Static,
}

/// Whether a 64-bit ELF file names a loader (`PT_INTERP`, elf(5)); `None` for anything else.
fn interpreted(program: &Path) -> Option<Elf> {
    const PT_INTERP: u32 = 3;
    let mut file = File::open(program).ok()?;
    let mut header = [0; 64];
    file.read_exact(&mut header).ok()?;
    if header[..6] != *b"\x7fELF\x02\x01" {
        return None;
    }
    let table = u64::from_le_bytes(header[32..40].try_into().ok()?);
    let size = u16::from_le_bytes(header[54..56].try_into().ok()?);
    let count = u16::from_le_bytes(header[56..58].try_into().ok()?);
    for row in 0..count {
        let mut ty = [0; 4];
        let at = table.checked_add(u64::from(row) * u64::from(size))?;
        file.read_exact_at(&mut ty, at).ok()?;
        if u32::from_le_bytes(ty) == PT_INTERP {
            return Some(Elf::Dynamic);
        }
    }
    Some(Elf::Static)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_along_the_path_or_at_its_place() {
        assert!(search(Path::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(search(Path::new("/bin/sh")), Some("/bin/sh".into()));
        assert_eq!(search(Path::new("no-such-program-at-all")), None);
    }

    #[test]
    fn ordinary_programs_are_dynamic_and_scripts_are_no_elf() {
        assert_eq!(interpreted(Path::new("/bin/sh")), Some(Elf::Dynamic));
        assert_eq!(interpreted(Path::new("/etc/passwd")), None);
    }
}
