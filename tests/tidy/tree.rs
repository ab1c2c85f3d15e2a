//! The files of the project: sources, scripts and pages, by the path below the root.

use std::fs;
use std::path::{Path, PathBuf};

use crate::prose::Language;

/// Directories that hold what is built, recorded or found by a fuzzer.
const OTHERS: [&str; 5] = [".git", "target", "corpus", "mutants.out", "proptest-regressions"];

/// A file that people read.
pub(crate) struct File {
    /// Below the root, with `/`.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) language: Language,
}

impl File {
    pub(crate) fn is_rust(&self) -> bool {
        self.language == Language::Rust
    }

    pub(crate) fn is_toml(&self) -> bool {
        self.name.ends_with(".toml")
    }
}

/// The directory of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests are a member of the workspace")
        .to_path_buf()
}

/// Sources (Rust, C, Python, scripts), Markdown and TOML files, in the order of their names.
pub(crate) fn files() -> Vec<File> {
    let root = root();
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    let files: Vec<_> = paths.iter().filter_map(|path| file(&root, path)).collect();
    assert!(
        files.iter().filter(|file| file.is_rust()).count() > 50,
        "the source tree was not found at {root:?}"
    );
    files
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("directories of the project are readable") {
        let entry = entry.expect("directories of the project are readable");
        let is_other = OTHERS.iter().any(|name| entry.file_name() == *name);
        match entry.file_type().expect("a file has a type") {
            kind if kind.is_dir() && !is_other => walk(&entry.path(), out),
            kind if kind.is_file() => out.push(entry.path()),
            _ => {}
        }
    }
}

fn file(root: &Path, path: &Path) -> Option<File> {
    let name = path.strip_prefix(root).expect("found below the root").to_string_lossy().into_owned();
    let by_name = match path.extension().and_then(|e| e.to_str()) {
        Some("rs") => Some(Language::Rust),
        Some("c" | "h") => Some(Language::C),
        Some("py") => Some(Language::Python),
        Some("md" | "toml") => Some(Language::Text),
        // What the program prints.
        Some("txt") if name.starts_with("crates/cli/src/") => Some(Language::Text),
        Some(_) => return None,
        None => None,
    };
    let text = fs::read(path).ok().and_then(|bytes| String::from_utf8(bytes).ok())?;
    let language = by_name.or_else(|| script(&text))?;
    Some(File { name, text, language })
}

/// The language that the first line of a script names.
fn script(text: &str) -> Option<Language> {
    let first = text.lines().next()?.strip_prefix("#!")?;
    Some(if first.contains("python") { Language::Python } else { Language::Text })
}
