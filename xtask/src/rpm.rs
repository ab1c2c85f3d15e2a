//! The RPM package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive;
use crate::dist::Release;
use crate::shell::{Outcome, at, run, write};

pub(crate) fn make(release: &Release) -> Outcome<PathBuf> {
    let work = release.work("rpm")?;
    archive::copy_tree(&release.tree, &work.join("files/usr"))?;
    archive::texts(release, &work.join("files/usr/share/doc/roxie"))?;
    run(Command::new("gzip").args(["-9", "-n", "-r"]).arg(work.join("files/usr/share/man/man1")))?;
    run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(work.join("files")))?;
    let spec = work.join("roxie.spec");
    write(&spec, spec_text(release))?;
    // rpmbuild finds no files below a directory with a space in its path, which the source may have.
    let top = std::env::temp_dir().join(format!("roxie-rpm-{}", std::process::id()));
    at(&top, fs::create_dir(&top))?;
    let built = build(release, &work, &top, &spec);
    at(&top, fs::remove_dir_all(&top))?;
    built
}

/// Builds the package of `work` with `top` as the directory of rpmbuild.
fn build(release: &Release, work: &Path, top: &Path, spec: &Path) -> Outcome<PathBuf> {
    run(Command::new("rpmbuild")
        .args(["-bb", "--quiet", "--target", release.arch.name])
        .arg("--define")
        .arg(format!("_topdir {}", top.display()))
        .arg("--define")
        .arg(format!("staged {}", work.join("files").display()))
        .arg(spec)
        .env("SOURCE_DATE_EPOCH", &release.epoch))?;
    let name = format!("roxie-{}-1.{}.rpm", release.version, release.arch.name);
    let (from, to) = (top.join("RPMS").join(release.arch.name).join(&name), release.out.join(&name));
    at(&from, fs::copy(&from, &to))?;
    Ok(to)
}

fn spec_text(release: &Release) -> String {
    format!(
        "%define __strip /bin/true\n\
         %define __os_install_post %{{nil}}\n\
         %define debug_package %{{nil}}\n\
         %define _build_id_links none\n\
         %define use_source_date_epoch_as_buildtime 1\n\
         %define clamp_mtime_to_source_date_epoch 1\n\
         %define _buildhost localhost\n\
         Name: roxie\n\
         Version: {}\n\
         Release: 1\n\
         Summary: RDMA device (RoCEv2) in user space for any program\n\
         License: MIT OR Apache-2.0\n\
         AutoReqProv: no\n\
         Requires: glibc >= {}, libgcc\n\n\
         %description\n\
         Gives programs that use libibverbs or librdmacm an RDMA device without RDMA\n\
         hardware, kernel module or privileges. The libraries of the system stay as\n\
         they are.\n\n\
         %install\n\
         cp -a '%{{staged}}/.' %{{buildroot}}/\n\n\
         %files\n\
         /usr/bin/roxie\n\
         /usr/share/man/man1/roxie*.1.gz\n\
         /usr/share/bash-completion/completions/roxie\n\
         /usr/share/zsh/site-functions/_roxie\n\
         /usr/share/fish/vendor_completions.d/roxie.fish\n\
         /usr/share/pkgconfig/roxie.pc\n\
         /usr/share/cmake/roxie\n\
         %doc /usr/share/doc/roxie\n",
        release.version, release.arch.glibc
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;
    use crate::shell::{exists, output};

    #[test]
    fn the_source_may_be_in_a_directory_with_a_space() {
        if !exists("rpmbuild") {
            println!("skipped: needs rpmbuild");
            return;
        }
        let dir = std::env::temp_dir().join(format!("roxie-xtask-rpm-{}", std::process::id()));
        let root = dir.join("my source");
        let (tree, out) = (root.join("tree"), root.join("out"));
        for name in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            write(&root.join(name), name).expect("a text");
        }
        for name in [
            "bin/roxie",
            "share/man/man1/roxie.1",
            "share/bash-completion/completions/roxie",
            "share/zsh/site-functions/_roxie",
            "share/fish/vendor_completions.d/roxie.fish",
            "share/pkgconfig/roxie.pc",
            "share/cmake/roxie/roxie.cmake",
        ] {
            write(&tree.join(name), name).expect("an installed file");
        }
        fs::create_dir(&out).expect("a directory");
        let release = Release {
            arch: Arch::host().expect("a known architecture"),
            version: "0.1.0".to_owned(),
            epoch: "1".to_owned(),
            root,
            out,
            tree,
        };
        let made = make(&release);
        let files = made.and_then(|path| output(Command::new("rpm").args(["-qpl"]).arg(path)));
        fs::remove_dir_all(&dir).expect("the scratch directory");
        let files = files.expect("a package");
        let has = |name: &str| files.lines().any(|line| line == name);
        assert!(has("/usr/bin/roxie") && has("/usr/share/man/man1/roxie.1.gz"), "{files}");
    }
}
