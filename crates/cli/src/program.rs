//! The program of a command: which file it is, and its start.

use std::ffi::OsString;
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::unistd::Uid;

use crate::command_dir;
use crate::elf::Elf;
use crate::failure::{Failure, Outcome};

/// Exit codes for a command that could not be started, as shells use them.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Executes a command with `variables` in its environment; returns only if that failed.
pub(crate) fn become_command(command: &[OsString], variables: Vec<(&'static str, OsString)>) -> Outcome {
    let mut process = process(command, &variables)?;
    Err(not_started(command, &process.exec()))
}

/// The command as a process to be started, with `variables` in its environment.
pub(crate) fn process(command: &[OsString], variables: &[(&'static str, OsString)]) -> Outcome<Command> {
    let (program, arguments) = command.split_first().ok_or_else(|| Failure::new("no command given"))?;
    if program.is_empty() {
        return Err(Failure::new("the command is an empty word").code(NOT_FOUND));
    }
    // Without the variables the command must not see the device.
    let shall_see = variables.iter().any(|(key, _)| *key == "LD_LIBRARY_PATH");
    if let Some(warning) = found(command).filter(|_| shall_see).and_then(|program| blind_to_us(&program)) {
        say!("roxie: warning: {warning}");
    }
    let mut process = Command::new(program);
    // The audit library makes and removes files in it, so another directory is not passed on.
    if !is_in_another_run() {
        process.env_remove("ROXIE_RUN");
    }
    process.args(arguments).envs(variables.iter().map(|(key, value)| (key, value)));
    Ok(process)
}

/// Why a command could not be started.
pub(crate) fn not_started(command: &[OsString], error: &Error) -> Failure {
    let found = found(command);
    let name = command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    // execvp reports "permission denied" for a missing command if it may not search one directory of PATH.
    let bare = !name.contains('/');
    match error.kind() {
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
        _ => {
            let failure = Failure::new(format!("{name}: {error}")).code(NOT_EXECUTABLE);
            // `roxie check` and others start the command as a process of its own.
            match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EMFILE) => failure.hint("raise the limit of open descriptors: ulimit -n 1024"),
                Some(Errno::EAGAIN) => failure.hint("raise the limit of processes: ulimit -u unlimited"),
                _ => failure,
            }
        }
    }
}

/// Whether a `roxie run` of this user has started this process, as in `roxie run -- ctest` with tests that
/// are commands of `roxie run`. The outer one then says at its end whether any of them used RDMA.
pub(crate) fn is_in_another_run() -> bool {
    std::env::var_os("ROXIE_RUN").is_some_and(|dir| command_dir::is_of_a_run(Path::new(&dir)))
}

/// The file of a command's program.
pub(crate) fn found(command: &[OsString]) -> Option<PathBuf> {
    search(Path::new(command.first()?))
}

/// The file that `execvp` executes.
pub(crate) fn search(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 || program.is_absolute() {
        return program.is_file().then(|| program.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0))
}

/// The reason that a program does not load roxie's libraries, if there is one.
pub(crate) fn blind_to_us(program: &Path) -> Option<String> {
    let meta = fs::metadata(program).ok()?;
    let name = program.display();
    let raised = meta.mode() & 0o4000 != 0 && meta.uid() != Uid::effective().as_raw()
        || meta.mode() & 0o2000 != 0 && meta.gid() != nix::unistd::Gid::effective().as_raw();
    if raised {
        return Some(format!(
            "{name} is setuid or setgid: the loader ignores LD_LIBRARY_PATH, so it does not see the device"
        ));
    }
    match Elf::read(program)?.loader {
        None => {
            Some(format!("{name} is statically linked: it loads no libraries, so it does not see the device"))
        }
        Some(loader) if loader.contains("ld-musl") && !cfg!(target_arch = "x86_64") => Some(format!(
            "{name} uses the C library musl, which roxie serves on x86-64 only: it does not see the device"
        )),
        Some(_) => None,
    }
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
}
