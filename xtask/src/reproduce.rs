//! `cargo xtask reproduce`: builds the packages of this commit twice, in two directories and with two
//! environments, and compares them.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::{self, Options};
use crate::shell::{Outcome, at, run};

/// The two builds: directory below `target/reproduce`, umask, time zone, locale. Their lengths differ.
const BUILDS: [(&str, &str, &str, &str); 2] =
    [("a", "022", "UTC", "C"), ("another directory/b", "077", "Asia/Tokyo", "C.UTF-8")];

/// Builds twice with the options `words` of `dist`; an error names the files that differ. The equal packages
/// are put where `dist` puts them.
pub(crate) fn reproduce(words: &[&str]) -> Outcome {
    let options = Options::parse(words)?;
    if !options.is_default_place() {
        return Err("'cargo xtask reproduce' has neither --out nor --program".to_owned());
    }
    let root = &dist::root();
    let work = root.join("target/reproduce");
    if work.exists() {
        at(&work, fs::remove_dir_all(&work))?;
    }
    let mut sums = Vec::new();
    for (dir, umask, zone, locale) in BUILDS {
        let source = work.join(dir);
        println!("building in {}", source.display());
        run(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(root).arg(&source))?;
        link_tools(root, &source)?;
        run(Command::new("sh")
            .current_dir(&source)
            .args(["-c", "umask \"$1\"; shift; exec cargo xtask dist \"$@\"", "sh", umask])
            .args(words)
            .args(["--out", "target/dist"])
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("SOURCE_DATE_EPOCH")
            .env("TZ", zone)
            .env("LC_ALL", locale))?;
        let path = source.join("target/dist/SHA256SUMS");
        sums.push(at(&path, fs::read_to_string(&path))?);
    }
    let [one, other] = [&sums[0], &sums[1]];
    if let Some(differences) = differences(one, other) {
        return Err(format!("two builds differ; they stay in {}\n{differences}", work.display()));
    }
    let out = options.place(root)?;
    replace_dir(&work.join(BUILDS[0].0).join("target/dist"), &out)?;
    at(&work, fs::remove_dir_all(&work))?;
    println!("two builds are equal; {} has the packages:\n{one}", out.display());
    Ok(())
}

/// Moves a directory to `to`, in place of the directory that is there.
fn replace_dir(from: &Path, to: &Path) -> Outcome {
    if to.exists() {
        at(to, fs::remove_dir_all(to))?;
    }
    at(to, fs::rename(from, to))
}

/// Lets the build in `source` use the tools from PyPI that this directory already has.
fn link_tools(root: &Path, source: &Path) -> Outcome {
    let (from, to) = (root.join("target"), source.join("target"));
    at(&to, fs::create_dir_all(&to))?;
    let tools = at(&from, fs::read_dir(&from))?.flatten().map(|entry| entry.path());
    for dir in tools.filter(|path| is_tools(path)) {
        let link: PathBuf = to.join(dir.file_name().unwrap_or_default());
        at(&link, symlink(&dir, &link))?;
    }
    Ok(())
}

fn is_tools(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("dist-tools-") || name.starts_with("dist-wheel-tools-")
}

/// The lines that only one of two lists of checksums has.
fn differences(one: &str, other: &str) -> Option<String> {
    let mut text = String::new();
    for (name, list, reference) in [("first", one, other), ("second", other, one)] {
        for line in list.lines().filter(|line| !reference.lines().any(|known| known == *line)) {
            writeln!(text, "  {name} build: {line}").expect("writing to a string");
        }
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_that_differs_or_is_missing_is_named() {
        assert_eq!(differences("1  a\n2  b\n", "2  b\n1  a\n"), None);
        let text = differences("1  a\n2  b\n", "1  a\n3  b\n4  c\n").expect("a difference");
        assert_eq!(text, "  first build: 2  b\n  second build: 3  b\n  second build: 4  c\n");
    }

    #[test]
    fn the_packages_of_an_earlier_build_are_replaced() {
        let dir = std::env::temp_dir().join(format!("roxie-xtask-reproduce-{}", std::process::id()));
        let (new, old) = (dir.join("new"), dir.join("old"));
        crate::shell::write(&new.join("roxie-0.2.0"), "new").expect("a file");
        crate::shell::write(&old.join("roxie-0.1.0"), "old").expect("a file");
        replace_dir(&new, &old).expect("a move");
        let names: Vec<_> =
            fs::read_dir(&old).expect("its files").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["roxie-0.2.0"]);
        assert!(!new.exists());
        fs::remove_dir_all(&dir).expect("the scratch directory");
    }
}
