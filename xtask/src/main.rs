//! `cargo xtask`: tasks of the project that are not tests.
#![forbid(unsafe_code)]

mod archive;
mod build;
mod deb;
mod dist;
mod image;
mod rpm;
mod sbom;
mod shell;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask dist [--out DIR] [--host]

Makes the packages of this commit: roxie (one file), tar.gz, .deb, .rpm, a container context, the list of
dependencies (CycloneDX) and SHA256SUMS. All files have the time of the commit.

  --out DIR   directory of the packages [default: target/dist]
  --host      link to this machine's C library instead of glibc 2.28, without the zig linker

The zig linker comes from PyPI into target/dist-tools-VERSIONS. .rpm needs rpmbuild, .deb needs dpkg-deb;
what is missing is named and left out.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["dist", ref options @ ..] => dist::Options::parse(options).and_then(|options| dist::dist(&options)),
        ["--help" | "-h" | "help"] => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => Err(HELP.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
