//! Links of the Markdown files: every relative link leads to a file of the tree, and to a heading of it.
//! Every page of `docs/` is in the book, and a page that includes a file of the root has its links, too.
//! `packaging/book` checks the finished book as well, where mdbook is installed.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns one line for each relative link in the root's and `docs/`'s Markdown files that leads nowhere.
pub(crate) fn complaints(root: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    for page in all_pages(root) {
        let text = whole(&page);
        for target in targets(&text) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") {
                continue;
            }
            let path = if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            if !path.exists() {
                complaints.push(format!("{}: {target} does not exist", page.display()));
            } else if !heading.is_empty() && is_page(&path) && !anchors(&whole(&path)).contains(heading) {
                complaints.push(format!("{}: {target}: no such heading", page.display()));
            }
        }
    }
    complaints
}

/// Returns one line for each page of `docs/` that docs/SUMMARY.md does not list.
pub(crate) fn summary(root: &Path) -> Vec<String> {
    let docs = root.join("docs");
    let text = whole(&docs.join("SUMMARY.md"));
    let listed: BTreeSet<_> = targets(&text).into_iter().map(|target| docs.join(target)).collect();
    let unlisted =
        pages(&docs).into_iter().filter(|page| !listed.contains(page) && !page.ends_with("SUMMARY.md"));
    unlisted.map(|page| format!("docs/SUMMARY.md does not list {}", page.display())).collect()
}

/// Returns the Markdown files of the root, and all below `docs/`.
fn all_pages(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).expect("readable").map(|entry| entry.expect("readable").path());
    entries.filter(|path| is_page(path)).chain(pages(&root.join("docs"))).collect()
}

/// Returns the Markdown files of a directory and of its subdirectories.
fn pages(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("readable").map(|entry| entry.expect("readable").path());
    let inner = |path: PathBuf| if path.is_dir() { pages(&path) } else { vec![path] };
    entries.flat_map(inner).filter(|path| is_page(path)).collect()
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// Returns the text of a page with the Markdown files that it includes, as mdbook does: whole, or from
/// `ANCHOR: name` to `ANCHOR_END: name`. A link in an included file leads from the page that includes it.
fn whole(page: &Path) -> String {
    let text = fs::read_to_string(page).expect("Markdown files are UTF-8");
    let include = |line: &str| {
        let words = line.trim().strip_prefix("{{#include ")?.strip_suffix("}}")?;
        let (file, anchor) = words.split_once(':').unwrap_or((words, ""));
        let path = page.with_file_name("").join(file);
        if !is_page(&path) {
            return None;
        }
        let text = whole(&path);
        let from = format!("<!-- ANCHOR: {anchor} -->");
        let part =
            text.split_once(&from).map(|(_, rest)| rest.split("<!-- ANCHOR_END").next().unwrap_or(rest));
        Some(part.unwrap_or(&text).to_owned())
    };
    text.lines().map(|line| include(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

/// Returns the names that lead to the headings of a page, as GitHub and mdbook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let prose = without_code(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let names = headings.map(|line| {
        let kept = line.trim_start_matches('#').trim().chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
            _ => None,
        });
        let name: String = kept.collect();
        let earlier = counts.entry(name.clone()).or_default();
        *earlier += 1;
        if *earlier == 1 { name } else { format!("{name}-{}", *earlier - 1) }
    });
    names.collect()
}

/// Returns the lines of a page outside of fenced code.
fn without_code(text: &str) -> String {
    let mut is_code = false;
    let prose = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code
    });
    prose.map(|line| format!("{line}\n")).collect()
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

/// Returns the targets of the inline links, definitions and includes of a page, outside of code. Of several
/// definitions of a name, the first counts.
fn targets(text: &str) -> Vec<&str> {
    let mut names = BTreeSet::new();
    let first = definitions(text).filter(|(name, _)| names.insert(*name));
    let mut found: Vec<_> = first.map(|(_, target)| target).collect();
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
