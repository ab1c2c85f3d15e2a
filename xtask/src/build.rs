//! Builds the program and its libraries for an old C library, and makes one file of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::Arch;
use crate::shell::{Outcome, at, run};

/// Where the built files are.
pub(crate) struct Built {
    /// `roxie` with its libraries inside.
    pub(crate) program: PathBuf,
    /// The same without a C library, for systems that have another one than glibc. x86-64 only: there the
    /// libraries serve programs with musl, too.
    pub(crate) static_program: Option<PathBuf>,
}

/// Builds for `arch` and bundles the program into `out`. `host` links to this machine's C library.
pub(crate) fn build(root: &Path, out: &Path, arch: &Arch, host: bool, epoch: &str) -> Outcome<Built> {
    let target = root.join("target/dist-build");
    // Paths of this machine stand in messages of panics otherwise, and two builds would differ.
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .map_err(|_| "neither CARGO_HOME nor HOME is set".to_owned())?;
    let flags = remap_flags(root, &home);
    let settings = |cargo: &mut Command, flags: &str| {
        cargo
            .current_dir(root)
            .args(["--release", "--locked", "-p", "roxie-cli"])
            .env("CARGO_ENCODED_RUSTFLAGS", flags)
            .env("CARGO_PROFILE_RELEASE_STRIP", "true")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env("SOURCE_DATE_EPOCH", epoch);
    };
    let mut cargo = Command::new("cargo");
    let release = if host {
        cargo.arg("build");
        target.join("release")
    } else {
        let tools = tools(root)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([tools.join("bin")].into_iter().chain(std::env::split_paths(&path)))
            .map_err(|error| error.to_string())?;
        cargo.env("PATH", path).args(["zigbuild", "--target"]).arg(format!("{}.{}", arch.target, arch.glibc));
        target.join(arch.target).join("release")
    };
    settings(&mut cargo, &flags);
    cargo.arg("--target-dir").arg(&target);
    run(cargo.args([
        "-p",
        "roxie-ibverbs",
        "-p",
        "roxie-rdmacm",
        "-p",
        "roxie-audit",
        "-p",
        "roxie-preload",
    ]))?;
    // A program finds its libraries beside itself.
    let bundle = |program: PathBuf, name: &str| -> Outcome<PathBuf> {
        let file = out.join(name);
        run(arch.command(program)?.args(["self", "bundle"]).arg(&file))?;
        Ok(file)
    };
    let program = bundle(release.join("roxie"), "roxie")?;
    let static_program = if !host && arch.name == "x86_64" && *arch == *Arch::host()? {
        let target = root.join("target/dist-build-static");
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--target", arch.target, "--target-dir"]).arg(&target);
        settings(&mut cargo, &format!("{flags}\x1f-Ctarget-feature=+crt-static"));
        run(&mut cargo)?;
        let program = release.join("roxie-static");
        at(&program, std::fs::copy(target.join(arch.target).join("release/roxie"), &program))?;
        Some(bundle(program, "roxie-static")?)
    } else {
        None
    };
    Ok(Built { program, static_program })
}

/// Replaces the paths of this machine in the built files. Unlike RUSTFLAGS, CARGO_ENCODED_RUSTFLAGS separates
/// its arguments by the byte 1f, so a path may contain spaces.
fn remap_flags(root: &Path, home: &str) -> String {
    format!("--remap-path-prefix={}=/roxie\x1f--remap-path-prefix={home}=/cargo", root.display())
}

/// A Python environment with the zig linker and `cargo zigbuild`.
fn tools(root: &Path) -> Outcome<PathBuf> {
    let dir = root.join("target").join(tools_dir());
    if dir.join("bin/cargo-zigbuild").is_file() {
        return Ok(dir);
    }
    println!("installing ziglang and cargo-zigbuild from PyPI into {}", dir.display());
    at(&dir, std::fs::create_dir_all(&dir))?;
    run(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
    run(Command::new(dir.join("bin/pip")).args(["--quiet", "install"]).args(TOOLS))?;
    Ok(dir)
}

/// Fixed versions: another linker makes other files.
const TOOLS: [&str; 2] = ["ziglang==0.17.1", "cargo-zigbuild==0.24.0"];

/// The directory of the tools. Its name contains their versions, so that other versions are installed anew.
fn tools_dir() -> String {
    format!("dist-tools-{}", TOOLS.join("-").replace("==", "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_directory_with_spaces_stays_one_argument() {
        let flags = remap_flags(Path::new("/my source"), "/home/a b/.cargo");
        let expected =
            ["--remap-path-prefix=/my source=/roxie", "--remap-path-prefix=/home/a b/.cargo=/cargo"];
        assert!(flags.split('\x1f').eq(expected), "{flags:?}");
    }

    #[test]
    fn the_directory_of_the_tools_names_each_version() {
        let dir = tools_dir();
        for tool in TOOLS {
            let (_, version) = tool.split_once("==").expect("a fixed version");
            assert!(dir.contains(version) && !dir.contains('='), "{dir}");
        }
    }
}
