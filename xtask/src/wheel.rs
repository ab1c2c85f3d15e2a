//! The Python wheel: the module of `packaging/python` with the program inside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::Release;
use crate::shell::{Outcome, at, output, run, write};

/// Fixed versions: others may make other files.
const TOOLS: [&str; 2] = ["setuptools==84.2.1", "wheel==0.48.0"];

/// Makes the wheel. `host`: the program needs the C library of this machine.
pub(crate) fn make(release: &Release, program: &Path, host: bool) -> Outcome<PathBuf> {
    let python = tools(&release.root)?;
    let work = release.work("wheel")?;
    let source = release.root.join("packaging/python");
    run(Command::new("cp").arg("-a").arg(source.join(".")).arg(&work))?;
    write(&work.join("VERSION"), &release.version)?;
    let inside = work.join("roxie/bin/roxie");
    at(&work, fs::create_dir_all(work.join("roxie/bin")))?;
    at(program, fs::copy(program, &inside))?;
    run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&work))?;
    run(Command::new("chmod").arg("755").arg(&inside))?;
    let built = work.join("built");
    // The wheel has the modes of the files that setuptools makes.
    run(Command::new("sh")
        .args(["-c", "umask 022; exec \"$@\"", "sh"])
        .arg(&python)
        .args(["-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation", "--no-index"])
        .arg("--wheel-dir")
        .arg(&built)
        .arg(&work)
        .env("SOURCE_DATE_EPOCH", &release.epoch))?;
    let wheel = only_file(&built)?;
    let platform = if host {
        format!("linux_{}", release.arch.name)
    } else {
        format!("manylinux_{}_{}", release.arch.glibc.replace('.', "_"), release.arch.name)
    };
    let tagged = output(
        Command::new(&python)
            .args(["-m", "wheel", "tags", "--remove", "--platform-tag", &platform])
            .arg(&wheel)
            .env("SOURCE_DATE_EPOCH", &release.epoch),
    )?;
    let name = tagged.lines().last().unwrap_or_default().trim();
    let path = release.out.join(name);
    at(&path, fs::copy(built.join(name), &path))?;
    Ok(path)
}

/// A Python with the tools.
fn tools(root: &Path) -> Outcome<PathBuf> {
    let versions = TOOLS.join("-").replace("==", "-");
    let dir = root.join(format!("target/dist-wheel-tools-{versions}"));
    let (python, complete) = (dir.join("bin/python"), dir.join("complete"));
    if complete.is_file() {
        return Ok(python);
    }
    println!("installing {} from PyPI into {}", TOOLS.join(" and "), dir.display());
    at(&dir, fs::create_dir_all(&dir))?;
    run(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
    run(Command::new(dir.join("bin/pip")).args(["--quiet", "install"]).args(TOOLS))?;
    at(&complete, fs::write(&complete, ""))?;
    Ok(python)
}

fn only_file(dir: &Path) -> Outcome<PathBuf> {
    let mut files = at(dir, fs::read_dir(dir))?.flatten().map(|file| file.path());
    files.next().ok_or_else(|| format!("{}: no wheel was made", dir.display()))
}
