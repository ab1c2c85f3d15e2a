//! The tar.gz: the tree of an installation, without manifest, and the texts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::Release;
use crate::shell::{Outcome, at, run};

/// The texts that every package has.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

pub(crate) fn make(release: &Release) -> Outcome<PathBuf> {
    let name = format!("roxie-{}-{}-linux", release.version, release.arch.name);
    let work = release.work("archive")?;
    copy_tree(&release.tree, &work.join(&name))?;
    texts(release, &work.join(&name))?;
    let path = release.out.join(format!("{name}.tar.gz"));
    tar(release, &work, &name, &path)?;
    Ok(path)
}

/// Copies the installed files, without the manifest: what packages install, packages remove.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Outcome {
    at(to, fs::create_dir_all(to))?;
    for name in ["bin", "share"] {
        run(Command::new("cp").args(["-a"]).arg(from.join(name)).arg(to))?;
    }
    Ok(())
}

/// Copies the texts into `to`.
pub(crate) fn texts(release: &Release, to: &Path) -> Outcome {
    at(to, fs::create_dir_all(to))?;
    for name in TEXTS {
        at(to, fs::copy(release.root.join(name), to.join(name)))?;
    }
    Ok(())
}

/// Packs `name` of `work` so that two runs make equal files.
pub(crate) fn tar(release: &Release, work: &Path, name: &str, to: &Path) -> Outcome {
    run(Command::new("tar")
        .arg("-C")
        .arg(work)
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=go-w"])
        .arg(format!("--mtime=@{}", release.epoch))
        .args(["--use-compress-program=gzip -9n", "-cf"])
        .arg(to)
        .arg(name))
}
