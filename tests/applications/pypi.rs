//! Packages of PyPI, which `./check` downloads to `target/pypi`.

use std::path::{Path, PathBuf};
use std::process::Command;

use roxie_tests::lab::Lab;

use crate::case::{Need, beside, prepare, source};

/// Debian's Python, for which the packages are downloaded.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

fn downloaded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/pypi").join(name)
}

/// What a case with the package `name` needs.
pub(crate) fn need(name: &str) -> Need {
    Need::Found(downloaded(name).is_dir())
}

/// Directory of the package `name`, where every user may read it: hard links, or copies on another file
/// system.
pub(crate) fn shared(lab: &Lab, name: &str) -> Result<String, String> {
    let (from, to) = (downloaded(name), beside(lab, name));
    if !to.exists() {
        let copy = |flags| prepare(Command::new("cp").arg(flags).arg(&from).arg(&to));
        copy("-rl").or_else(|_| {
            let _ = std::fs::remove_dir_all(&to);
            copy("-r")
        })?;
    }
    Ok(to.display().to_string())
}

/// Path of a copy of this suite's `script` that every user may read.
pub(crate) fn script(lab: &Lab, script: &str) -> Result<String, String> {
    let to = beside(lab, script);
    std::fs::copy(source(script), &to).map_err(|error| format!("{script}: {error}"))?;
    Ok(to.display().to_string())
}
