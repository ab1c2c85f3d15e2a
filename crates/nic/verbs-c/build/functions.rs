//! Finds the functions of this crate by file and line, so that a refusal names the function that was called.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the Rust source of a slice of `(file, line, name)`, by file and line. The name is empty unless
/// the function is `extern "C"`.
pub(crate) fn table(src: &Path) -> String {
    let mut files = Vec::new();
    collect(src, &mut files);
    files.sort();
    let mut rows = String::from("&[\n");
    for path in files {
        let text = fs::read_to_string(&path).expect("a source file");
        let file = path.strip_prefix(src).expect("below src").display().to_string();
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = function_name(line) {
                // `errno.rs` has no function of its own name.
                let is_called = line.contains("extern \"C\"") && file != "errno.rs";
                let name = if is_called { public_name(&file, name) } else { String::new() };
                rows += &format!("    (\"src/{file}\", {}, \"{name}\"),\n", number + 1);
            }
        }
    }
    rows + "]"
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a source directory") {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The name after `fn`, if the line begins a function.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let words = ["pub", "pub(crate)", "pub(super)", "const", "unsafe", "extern", "\"C\""];
    if !before.split_whitespace().all(|word| words.contains(&word)) {
        return None;
    }
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&after[..end])
}

/// The name that applications use: the operations of a context lack the prefix in this crate.
fn public_name(file: &str, name: &str) -> String {
    let bare = name.trim_start_matches('_');
    let is_operation = file.starts_with("ibv/") && !bare.starts_with("ibv_");
    if is_operation { format!("ibv_{bare}") } else { bare.to_string() }
}
