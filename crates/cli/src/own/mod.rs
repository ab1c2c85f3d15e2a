//! `roxie self`: the program as a file, its libraries, its installation, its pages.

pub(crate) mod args;
mod below;
mod bundle;
#[cfg(test)]
mod bundle_tests;
mod install;
mod pages;
mod unpacked;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::failure::{During, Failure, Outcome};
use crate::library::Libraries;
use crate::terminal;
use args::{BundleArgs, OwnArgs, OwnCommand};

pub(crate) use bundle::Bundle;
pub(crate) use unpacked::unpack;

/// Runs a subcommand of `roxie self`.
pub(crate) fn run(args: &OwnArgs) -> Outcome {
    match &args.command {
        OwnCommand::Install(args) => install::install(args),
        OwnCommand::Check(args) => install::check(args),
        OwnCommand::Remove(args) => install::remove(args),
        OwnCommand::Bundle(args) => make_bundle(args),
        OwnCommand::Man { dir } => pages::write_manual(dir).during(&dir.display().to_string()),
        OwnCommand::Completions { shell } => {
            let script = pages::completions(*shell);
            let mut out = io::stdout().lock();
            if let Err(error) = out.write_all(&script).and_then(|()| out.flush()) {
                terminal::give_up(&error);
            }
            Ok(())
        }
    }
}

/// Writes one file of the program and its libraries.
fn make_bundle(args: &BundleArgs) -> Outcome {
    let (program, libraries) = match &args.from {
        None => (own_program()?, Libraries::find()?),
        Some(dir) => {
            let missing = || {
                Failure::new(format!("{} does not have all libraries", dir.display()))
                    .hint("it must contain roxie, libibverbs.so, librdmacm.so and libroxie_audit.so")
            };
            (dir.join("roxie"), Libraries::inside(dir).ok_or_else(missing)?)
        }
    };
    bundle::write(&program, &libraries.read()?, &args.file).during(&args.file.display().to_string())
}

/// Writes one file of this program and `libraries`.
pub(crate) fn write_bundle(libraries: &Libraries, file: &Path) -> Outcome {
    bundle::write(&own_program()?, &libraries.read()?, file).during(&file.display().to_string())
}

/// The file of this program.
fn own_program() -> Outcome<PathBuf> {
    std::env::current_exe().during("finding my own executable")
}

/// Writes `bytes` to `target` with `mode`, whole or not at all: under another name first, then by a rename.
pub(crate) fn replace(target: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let fresh = target.with_file_name(format!(".{name}.new-{}", std::process::id()));
    // Left by a killed process with the same process id; a link of another user is not followed.
    fs::remove_file(&fresh).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    let written = (&made)
        .write_all(bytes)
        .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&fresh, target));
    if written.is_err() {
        // A part of a file is of no use; the disk may be full.
        fs::remove_file(&fresh).ok();
    }
    written
}
