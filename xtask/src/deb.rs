//! The Debian package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive;
use crate::dist::Release;
use crate::shell::{Outcome, at, output, run, write};

pub(crate) fn make(release: &Release) -> Outcome<PathBuf> {
    let work = release.work("deb")?;
    let usr = work.join("usr");
    archive::copy_tree(&release.tree, &usr)?;
    // Debian has completions of zsh in another directory.
    rename(&usr.join("share/zsh/site-functions"), &usr.join("share/zsh/vendor-completions"))?;
    let docs = usr.join("share/doc/roxie");
    write(&docs.join("copyright"), copyright(release)?)?;
    write(&docs.join("changelog"), changelog(release)?)?;
    at(&docs, fs::copy(release.root.join("README.md"), docs.join("README.md")))?;
    for dir in [docs.join("changelog"), usr.join("share/man/man1")] {
        run(Command::new("gzip").args(["-9", "-n", "-r"]).arg(dir))?;
    }
    // Kilobytes, as policy 5.6.20 wants them.
    let size = output(Command::new("du").args(["-sk", "--apparent-size"]).arg(&usr))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    write(&work.join("DEBIAN/control"), control(release, &size))?;
    let sums = "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";
    write(
        &work.join("DEBIAN/md5sums"),
        output(Command::new("sh").current_dir(&work).args(["-c", sums]))? + "\n",
    )?;
    let path = release.out.join(format!("roxie_{}_{}.deb", release.version, release.arch.deb));
    run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&work))?;
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&work)
        .arg(&path)
        .env("SOURCE_DATE_EPOCH", &release.epoch)
        .stdout(std::process::Stdio::null()))?;
    Ok(path)
}

fn rename(from: &Path, to: &Path) -> Outcome {
    at(from, fs::rename(from, to))
}

fn control(release: &Release, size: &str) -> String {
    format!(
        "Package: roxie\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: The roxie developers <maintainers@roxie.invalid>\n\
         Installed-Size: {size}\n\
         Depends: libc6 (>= {}), libgcc-s1 | libgcc1\n\
         Suggests: ibverbs-utils, perftest, rdmacm-utils\n\
         Section: net\n\
         Priority: optional\n\
         Description: RDMA device (RoCEv2) in user space for any program\n \
         Gives programs that use libibverbs or librdmacm an RDMA device without\n \
         RDMA hardware, kernel module or privileges: \"roxie run -- ib_write_bw\".\n \
         On the wire it is RoCEv2, so Soft-RoCE and RoCE adapters are its peers.\n \
         .\n \
         The package leaves libibverbs1 and librdmacm1 of the system alone.\n",
        release.version, release.arch.deb, release.arch.glibc
    )
}

fn copyright(release: &Release) -> Outcome<String> {
    let read = |name: &str| {
        let path = release.root.join(name);
        at(&path, fs::read_to_string(&path))
    };
    let indented: String = read("LICENSE-MIT")?
        .lines()
        .map(|line| if line.trim().is_empty() { " .\n".to_owned() } else { format!(" {line}\n") })
        .collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: roxie\n\n\
         Files: *\n\
         Copyright: The roxie developers\n\
         License: MIT or Apache-2.0\n\n\
         License: MIT\n{indented}\n\
         License: Apache-2.0\n \
         On Debian systems the text of the Apache License 2.0 is in\n \
         /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

fn changelog(release: &Release) -> Outcome<String> {
    let date = output(Command::new("date").args(["-u", "-R", "-d"]).arg(format!("@{}", release.epoch)))?;
    Ok(format!(
        "roxie ({}) unstable; urgency=medium\n\n  * CHANGELOG.md of the source lists the changes.\n\n \
         -- The roxie developers <maintainers@roxie.invalid>  {date}\n",
        release.version
    ))
}
