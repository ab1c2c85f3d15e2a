//! The tar.gz: the tree of an installation, without manifest, the texts and the book.

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
    // The links of README.md lead there.
    run(Command::new("cp").arg("-a").arg(release.root.join("docs")).arg(work.join(&name)))?;
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

/// Packs `name` of `work` so that two runs make equal files, whatever the umask and its modes are.
pub(crate) fn tar(release: &Release, work: &Path, name: &str, to: &Path) -> Outcome {
    run(Command::new("tar")
        .arg("-C")
        .arg(work)
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"])
        .arg(format!("--mtime=@{}", release.epoch))
        .args(["--use-compress-program=gzip -9n", "-cf"])
        .arg(to)
        .arg(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::arch::Arch;

    /// The packed file of a tree with these modes of directory, text and program.
    fn packed(work: &Path, [dir, text, program]: [u32; 3]) -> Vec<u8> {
        let tree = work.join("tree");
        fs::create_dir_all(&tree).expect("a directory");
        for (path, mode) in [(tree.join("text"), text), (tree.join("program"), program), (tree, dir)] {
            if !path.is_dir() {
                fs::write(&path, "contents").expect("a file");
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
        }
        let release = Release {
            arch: Arch::host().expect("a known architecture"),
            version: String::new(),
            epoch: "1".to_owned(),
            root: PathBuf::new(),
            out: PathBuf::new(),
            tree: PathBuf::new(),
        };
        let path = work.join("packed.tar.gz");
        tar(&release, work, "tree", &path).expect("tar");
        fs::read(path).expect("the archive")
    }

    #[test]
    fn the_umask_of_a_build_does_not_change_its_archive() {
        let work = std::env::temp_dir().join(format!("roxie-xtask-archive-{}", std::process::id()));
        let open = packed(&work, [0o755, 0o644, 0o755]);
        let closed = packed(&work, [0o700, 0o600, 0o700]);
        let plain_program = packed(&work, [0o755, 0o644, 0o644]);
        fs::remove_dir_all(&work).expect("the scratch directory");
        assert!(open == closed, "umask 077 makes another archive than umask 022");
        assert!(open != plain_program, "the mode of a program is part of the archive");
    }
}
