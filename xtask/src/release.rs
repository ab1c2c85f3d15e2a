//! `cargo xtask release`: checks that this commit can be released, and dates its section of CHANGELOG.md.
//! It makes no tag and publishes nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::dist;
use crate::shell::{Outcome, at, output, run, write};

/// How the heading of a section ends until its version has a tag.
const UNDATED: &str = "not tagged yet";

/// Checks the release; `--write` dates the changelog as well.
pub(crate) fn release(words: &[&str]) -> Outcome {
    let dated = match words {
        [] => false,
        ["--write"] => true,
        _ => {
            return Err(format!(
                "'cargo xtask release' has the option --write only, not {}",
                words.join(" ")
            ));
        }
    };
    let root = &dist::root();
    let version = env!("CARGO_PKG_VERSION");
    let git = |words: &[&str]| output(Command::new("git").current_dir(root).args(words));
    let changes = git(&["status", "--porcelain"])?;
    if let Some(first) = changes.lines().next() {
        return Err(format!("uncommitted changes, the first is '{first}'; commit or stash them first"));
    }
    let tag = format!("v{version}");
    if !git(&["tag", "--list", &tag])?.is_empty() {
        return Err(format!("the tag {tag} exists; raise the version in Cargo.toml"));
    }
    let manifest = root.join("Cargo.toml");
    check_versions(&at(&manifest, fs::read_to_string(&manifest))?, version)?;
    let path = root.join("CHANGELOG.md");
    let date = output(Command::new("date").args(["-u", "+%F"]))?;
    let changelog = date_section(&at(&path, fs::read_to_string(&path))?, version, &date)?;
    publish(root)?;
    if dated {
        write(&path, changelog)?;
        println!("CHANGELOG.md: {version} has the date {date}. Commit it, then: git tag {tag}");
    } else {
        println!("{version} can be released. '--write' gives its section of CHANGELOG.md the date {date}");
    }
    Ok(())
}

/// Packages all crates in the order of their dependencies, as for crates.io, and sends nothing.
fn publish(root: &Path) -> Outcome {
    run(Command::new("cargo").current_dir(root).args([
        "publish",
        "--dry-run",
        "--workspace",
        "--no-verify",
        "--locked",
    ]))
}

/// Each crate of the workspace is requested in the version that the workspace has.
fn check_versions(manifest: &str, version: &str) -> Outcome {
    let expected = format!("version = \"{version}\"");
    let wrong = manifest.lines().find(|line| {
        let internal = line.contains("path = \"crates/") && line.contains("version = ");
        (internal || line.starts_with("version = ")) && !line.contains(&expected)
    });
    wrong.map_or(Ok(()), |line| Err(format!("Cargo.toml: the version is not {version}: {line}")))
}

/// The changelog with `date` in the heading of its first section, which must be that of `version`.
fn date_section(changelog: &str, version: &str, date: &str) -> Outcome<String> {
    let heading = changelog.lines().find(|line| line.starts_with("## ")).unwrap_or("no section");
    if heading != format!("## {version} - {UNDATED}") {
        return Err(format!(
            "CHANGELOG.md: the first section must be '## {version} - {UNDATED}'; it is '{heading}'"
        ));
    }
    Ok(changelog.replacen(heading, &format!("## {version} - {date}"), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_section_gets_the_date_and_it_must_be_that_of_the_version() {
        let text = "# Changelog\n\n## 0.2.0 - not tagged yet\n\n- a\n\n## 0.1.0 - 2026-12-01\n";
        let dated = date_section(text, "0.2.0", "2027-01-05").expect("a section without a date");
        assert_eq!(dated, "# Changelog\n\n## 0.2.0 - 2027-01-05\n\n- a\n\n## 0.1.0 - 2026-12-01\n");
        let error = date_section(&dated, "0.2.0", "2027-01-06").expect_err("it has a date");
        assert!(error.ends_with("it is '## 0.2.0 - 2027-01-05'"), "{error}");
        date_section(text, "0.3.0", "2027-01-05").expect_err("another version");
    }

    #[test]
    fn a_crate_requested_in_an_earlier_version_is_named() {
        let manifest = |requested: &str| {
            format!(
                "version = \"0.2.0\"\nlibc = \"0.2\"\nwire = {{ path = \"crates/nic/wire\", version = \
                 \"{requested}\" }}\n"
            )
        };
        assert_eq!(check_versions(&manifest("0.2.0"), "0.2.0"), Ok(()));
        let error = check_versions(&manifest("0.1.0"), "0.2.0").expect_err("an earlier version");
        assert!(error.contains("wire = "), "{error}");
    }
}
