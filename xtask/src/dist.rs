//! `cargo xtask dist`: all packages of this commit.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::Arch;
use crate::shell::{Outcome, at, exists, output, run, write};
use crate::{archive, build, deb, image, rpm, sbom, wheel};

/// What the command line says.
#[derive(Debug, Default)]
pub(crate) struct Options {
    out: Option<PathBuf>,
    host: bool,
    arch: Option<&'static Arch>,
    program: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Outcome<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--host" => options.host = true,
                "--arch" => options.arch = Some(Arch::named(words.next().ok_or("--arch needs a name")?)?),
                "--out" => options.out = Some(words.next().ok_or("--out needs a directory")?.into()),
                "--program" => {
                    options.program = Some(words.next().ok_or("--program needs a file")?.into());
                }
                other => return Err(format!("unknown option {other}; see 'cargo xtask --help'")),
            }
        }
        if options.host && options.arch.is_some() {
            return Err("--host and --arch exclude each other".to_owned());
        }
        Ok(options)
    }

    /// Whether the command line names neither the directory of the packages nor a program.
    pub(crate) fn is_default_place(&self) -> bool {
        self.out.is_none() && self.program.is_none()
    }

    /// The directory of the packages.
    pub(crate) fn place(&self, root: &Path) -> Outcome<PathBuf> {
        match (&self.out, self.arch) {
            (Some(dir), _) => at(dir, std::path::absolute(dir)),
            (None, None) => Ok(root.join("target/dist")),
            (None, Some(arch)) => Ok(root.join(format!("target/dist-{}", arch.name))),
        }
    }
}

/// What the packages have in common.
pub(crate) struct Release {
    /// What the program runs on.
    pub(crate) arch: &'static Arch,
    /// The version, as in `Cargo.toml`.
    pub(crate) version: String,
    /// Seconds since 1970 of the commit: the time of all files in the packages.
    pub(crate) epoch: String,
    /// The root of the source.
    pub(crate) root: PathBuf,
    /// The directory of the packages.
    pub(crate) out: PathBuf,
    /// A tree as `roxie self install --prefix` makes it.
    pub(crate) tree: PathBuf,
}

impl Release {
    /// Scratch space for one package.
    pub(crate) fn work(&self, name: &str) -> Outcome<PathBuf> {
        let dir = self.root.join("target/dist-work").join(name);
        if dir.exists() {
            at(&dir, fs::remove_dir_all(&dir))?;
        }
        at(&dir, fs::create_dir_all(&dir))?;
        Ok(dir)
    }
}

/// The root of the source.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root of the source").to_owned()
}

/// The release of this commit in `options.out`, still without a tree.
fn release(options: &Options) -> Outcome<Release> {
    let root = root();
    let out = options.place(&root)?;
    at(&out, fs::create_dir_all(&out))?;
    let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => epoch,
        Err(_) => output(Command::new("git").current_dir(&root).args(["log", "-1", "--format=%ct"]))?,
    };
    let arch = options.arch.map_or_else(Arch::host, Ok)?;
    Ok(Release {
        arch,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch,
        tree: PathBuf::new(),
        root,
        out,
    })
}

/// Makes the Python wheel of a program that `roxie self bundle` has made.
pub(crate) fn wheel(options: &Options) -> Outcome {
    let release = release(options)?;
    let program = options.program.as_ref().ok_or("'cargo xtask wheel' needs --program FILE")?;
    println!("{}", wheel::make(&release, program, options.host)?.display());
    Ok(())
}

/// Makes all packages.
pub(crate) fn dist(options: &Options) -> Outcome {
    if options.program.is_some() {
        return Err("--program is for 'cargo xtask wheel': dist builds the program".to_owned());
    }
    let mut release = release(options)?;
    warn_if_dirty(&release.root);
    let built = build::build(&release.root, &release.out, release.arch, options.host, &release.epoch)?;
    release.tree = release.work("tree")?;
    run(release
        .arch
        .command(built.program.clone())?
        .args(["self", "install", "--prefix"])
        .arg(&release.tree))?;

    let wheel = wheel::make(&release, &built.program, options.host)?;
    let mut made: Vec<PathBuf> = built.static_program.into_iter().collect();
    made.extend([built.program, sbom::write(&release)?, archive::make(&release)?, wheel]);
    made.push(image::make(&release)?);
    for (program, package, make) in [
        ("dpkg-deb", "the .deb", deb::make as fn(&Release) -> Outcome<PathBuf>),
        ("rpmbuild", "the .rpm", rpm::make),
    ] {
        if exists(program) {
            made.push(make(&release)?);
        } else {
            println!("skipped: {package} needs {program}");
        }
    }
    let sums = sums(&release.out, &made)?;
    made.push(sums);
    for path in made {
        println!("{:>10}  {}", at(&path, fs::metadata(&path))?.len(), path.display());
    }
    Ok(())
}

/// Warns if the packages contain changes that are not committed. A source archive has no commit to compare
/// with.
fn warn_if_dirty(root: &Path) {
    let changes = output(Command::new("git").current_dir(root).args(["status", "--porcelain"]));
    if let Some(warning) = dirty_warning(&changes.unwrap_or_default()) {
        eprintln!("{warning}");
    }
}

/// The warning for what `git status --porcelain` printed.
fn dirty_warning(changes: &str) -> Option<String> {
    let (count, first) = (changes.lines().count(), changes.lines().next()?);
    let name = first.get(3..).unwrap_or(first);
    let files = if count == 1 { name.to_owned() } else { format!("{name} and {} more", count - 1) };
    Some(format!(
        "warning: uncommitted changes ({files}): the packages differ from those of the \
         commit; commit or stash the changes first"
    ))
}

/// Writes SHA256SUMS.
fn sums(out: &Path, made: &[PathBuf]) -> Outcome<PathBuf> {
    let mut text = String::new();
    for path in made {
        let sum = output(Command::new("sha256sum").arg(path))?;
        let sum = sum.split_whitespace().next().unwrap_or_default();
        let name = path.strip_prefix(out).unwrap_or(path).display();
        writeln!(text, "{sum}  {name}").expect("writing to a string");
    }
    let path = out.join("SHA256SUMS");
    write(&path, text)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dirty_tree_gives_a_warning_and_a_clean_one_none() {
        assert_eq!(dirty_warning(""), None);
        let one = dirty_warning("?? src/new.rs").expect("a warning");
        assert!(one.contains("(src/new.rs)"), "{one}");
        let three = dirty_warning("?? a\n?? b\n?? c").expect("a warning");
        assert!(three.contains("(a and 2 more)"), "{three}");
    }
}
