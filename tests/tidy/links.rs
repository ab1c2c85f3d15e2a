//! Links of the Markdown files: every relative link leads to a file of the tree.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns one line for each relative link in the root's and `docs/`'s Markdown files that leads nowhere.
/// Fragments are not checked.
pub(crate) fn complaints(root: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    for page in [root.to_path_buf(), root.join("docs")].iter().flat_map(|dir| pages(dir)) {
        let text = fs::read_to_string(&page).expect("Markdown files are UTF-8");
        for target in targets(&text) {
            let file = target.split('#').next().unwrap_or_default();
            let is_elsewhere = file.is_empty() || file.contains("://");
            if let Some(included) = target.strip_prefix("../").filter(|_| is_included_whole(&text)) {
                complaints.extend(links_of_included(&root.join(included)));
            }
            if !is_elsewhere && !page.parent().is_some_and(|dir| dir.join(file).exists()) {
                complaints.push(format!("{}: {target} does not exist", page.display()));
            }
        }
    }
    complaints
}

/// Whether a page of `docs/` consists of a page of the root.
fn is_included_whole(text: &str) -> bool {
    text.starts_with("{{#include ../") && text.trim_end().ends_with(".md}}")
}

/// The relative links of a page that the book includes whole: there they begin in `docs/`.
fn links_of_included(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("the included page exists");
    let relative = targets(&text).into_iter().filter(|target| !target.contains("://"));
    relative.map(|target| format!("{}: {target} leads nowhere in the book", page.display())).collect()
}

/// Returns a complaint if docs/architecture.md, which includes ARCHITECTURE.md, defines other links.
pub(crate) fn architecture(root: &Path) -> Vec<String> {
    let read = |name: &str| fs::read_to_string(root.join(name)).expect("exists");
    let (outer, inner) = (read("ARCHITECTURE.md"), read("docs/architecture.md"));
    let want: Vec<_> = definitions(&outer).map(|(name, target)| format!("[{name}]: ../{target}")).collect();
    let have: Vec<_> = definitions(&inner).map(|(name, target)| format!("[{name}]: {target}")).collect();
    if want == have {
        Vec::new()
    } else {
        vec![format!("docs/architecture.md should end with\n{}", want.join("\n"))]
    }
}

/// Returns the Markdown files of a directory, not of its subdirectories.
fn pages(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("readable").map(|entry| entry.expect("readable").path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Returns the targets of the inline links, definitions and includes of a page, outside of code.
fn targets(text: &str) -> Vec<&str> {
    let mut found: Vec<_> = definitions(text).map(|(_, target)| target).collect();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        if let Some(rest) = line.trim().strip_prefix("{{#include ") {
            found.extend(rest.split(['}', ':']).next());
        }
        if is_code || line.starts_with("    ") {
            continue;
        }
        for prose in line.split('`').step_by(2) {
            found.extend(prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()));
        }
        // The text of a link may be a code span, so that "](" begins a piece of its own.
        found.extend(line.split("`](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()));
    }
    found
}

/// Returns the name and the target of each link definition, `[name]: target`.
fn definitions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
}
