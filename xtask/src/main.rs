//! `cargo xtask`: tasks of the project that are not tests.
#![forbid(unsafe_code)]

mod arch;
mod archive;
mod build;
mod deb;
mod dist;
mod image;
mod release;
mod reproduce;
mod rpm;
mod sbom;
mod shell;
mod wheel;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask dist [--arch NAME | --host] [--out DIR]
       cargo xtask reproduce [--arch NAME | --host]
       cargo xtask wheel --program FILE [--arch NAME | --host] [--out DIR]
       cargo xtask release [--write]

dist makes the packages of this commit: roxie (one file), tar.gz, .deb, .rpm, a Python wheel, a container
context, the list of dependencies (CycloneDX) and SHA256SUMS. All files have the time of the commit.
reproduce builds the packages of the last commit twice, in two directories and with two environments, and
fails if a file differs. Equal packages are put where dist puts them.
wheel makes only the Python wheel, of a program that 'roxie self bundle FILE' has made.
release checks versions, CHANGELOG.md and the archives of all crates, and lists the crates in the order of
their dependencies. It makes no tag and publishes nothing.

  --arch NAME      architecture: x86_64, aarch64, ppc64le or riscv64 [default: that of this machine].
                   Others need qemu-user-static and Debian's libc6-*-cross of the architecture
  --host           link to this machine's C library instead of glibc 2.28, without the zig linker
  --out DIR        directory of the packages [default: target/dist, or target/dist-NAME]
  --program FILE   the program in the wheel
  --write          give the section of this version in CHANGELOG.md the date of today

The zig linker and setuptools come from PyPI into target/dist-*tools*. .rpm needs rpmbuild, .deb needs
dpkg-deb; what is missing is named and left out.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["dist", ref options @ ..] => dist::Options::parse(options).and_then(|options| dist::dist(&options)),
        ["wheel", ref options @ ..] => {
            dist::Options::parse(options).and_then(|options| dist::wheel(&options))
        }
        ["reproduce", ref options @ ..] => reproduce::reproduce(options),
        ["release", ref options @ ..] => release::release(options),
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
