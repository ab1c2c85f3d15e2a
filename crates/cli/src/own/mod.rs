//! `roxie self`: the program as a file, its libraries, its installation, its pages.

pub(crate) mod args;
pub(crate) mod bundle;
#[cfg(test)]
mod bundle_tests;
mod install;
mod pages;
mod prefix;
pub(crate) mod unpacked;

use std::io::Write;
use std::path::PathBuf;

use crate::elf::Elf;
use crate::failure::{During, Failure, Outcome};
use crate::library::Libraries;
use crate::{output, terminal};
use args::{BundleArgs, OwnArgs, OwnCommand};

/// Runs a subcommand of `roxie self`; `roxie` describes the command line.
pub(crate) fn run(args: &OwnArgs, roxie: &clap::Command) -> Outcome {
    match &args.command {
        OwnCommand::Install(args) => install::install(args, roxie),
        OwnCommand::Check(args) => install::check(args),
        OwnCommand::Remove(args) => install::remove(args),
        OwnCommand::Bundle(args) => make_bundle(args),
        OwnCommand::Man { dir } => pages::write_manual(roxie, dir),
        OwnCommand::Completions { shell } => {
            let script = pages::completions(roxie, *shell);
            let mut out = terminal::data();
            terminal::written(out.write_all(&script).and_then(|()| out.flush()));
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
                Failure::new(format!("{} does not have all libraries", dir.display())).hint(
                    "it must contain roxie, libibverbs.so, librdmacm.so, libroxie_audit.so and \
                         libroxie_preload.so",
                )
            };
            (dir.join("roxie"), Libraries::inside(dir).ok_or_else(missing)?)
        }
    };
    let bytes = bundle::make(&program, &libraries.read()?).reading(&program)?;
    output::replace(&args.file, &bytes, 0o755)?;
    let versions = libraries.files().iter().chain([&program]).filter_map(|file| Elf::read(file)?.glibc);
    if let Some(version) = versions.max() {
        terminal::print(&format!("{} runs with glibc 2.{version} and newer", args.file.display()));
    }
    Ok(())
}

/// This program with `libraries` inside, as one file.
pub(crate) fn with_libraries(libraries: &Libraries) -> Outcome<Vec<u8>> {
    bundle::make(&own_program()?, &libraries.read()?).during("reading my own executable")
}

/// The file of this program.
fn own_program() -> Outcome<PathBuf> {
    std::env::current_exe().during("finding my own executable")
}
