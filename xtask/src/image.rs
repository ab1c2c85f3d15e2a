//! The context of a container image: the program, for an image from scratch or a layer in another image.

use std::path::PathBuf;

use crate::archive;
use crate::dist::Release;
use crate::shell::{Outcome, at, write};

pub(crate) fn make(release: &Release) -> Outcome<PathBuf> {
    let name = format!("roxie-{}-{}-image", release.version, release.arch.name);
    let work = release.work("image")?;
    let dir = work.join(&name);
    write(&dir.join("Containerfile"), include_bytes!("../../packaging/Containerfile"))?;
    at(&dir, std::fs::copy(release.root.join("packaging/collect"), dir.join("collect")))?;
    at(&dir, std::fs::copy(release.tree.join("bin/roxie"), dir.join("roxie")))?;
    let path = release.out.join(format!("{name}.tar.gz"));
    archive::tar(release, &work, &name, &path)?;
    Ok(path)
}
