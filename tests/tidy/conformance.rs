//! Checks docs/conformance.md: each entry names tests, and the tests exist.
//!
//! An entry of the first list begins with its number, an entry of the second list with a dash. The lines
//! below an entry that begin with an indented dash name a test and its file.

use std::fs;
use std::path::Path;

/// Entries of the first list.
const ENTRIES: usize = 27;

/// The errors of the page.
pub(crate) fn complaints(root: &Path) -> Vec<String> {
    let docs = root.join("docs");
    let page = fs::read_to_string(docs.join("conformance.md")).expect("exists");
    let mut complaints = Vec::new();
    let entries = entries(&page);
    for number in 1..=ENTRIES {
        if !entries.iter().any(|entry| entry[0].starts_with(&format!("{number}. "))) {
            complaints.push(format!("entry {number} is missing"));
        }
    }
    for entry in entries {
        let tests: Vec<_> = entry.iter().filter_map(|line| test(line)).collect();
        if tests.is_empty() {
            complaints.push(format!("no test is named in: {}", entry[0]));
        }
        for (name, label) in tests {
            let file = target(&page, label).unwrap_or_default();
            let text = fs::read_to_string(docs.join(file)).unwrap_or_default();
            // Cases of the programs suite are functions without `#[test]`.
            let is_case = file.contains("/tests/programs/");
            if !is_test(&text, name, is_case) {
                complaints.push(format!("{label} has no test {name}"));
            }
        }
    }
    complaints
}

/// The lines of each entry, the first line of the entry included.
fn entries(page: &str) -> Vec<Vec<&str>> {
    let mut entries: Vec<Vec<&str>> = Vec::new();
    for line in page.lines() {
        let is_numbered = line.split_once(". ").is_some_and(|(number, _)| number.parse::<usize>().is_ok());
        if is_numbered || line.starts_with("- ") {
            entries.push(vec![line]);
        } else if let Some(entry) = entries.last_mut().filter(|_| line.starts_with(' ')) {
            entry.push(line);
        }
    }
    entries
}

/// The test that a line names, and the label of its file.
fn test(line: &str) -> Option<(&str, &str)> {
    let (name, label) = line.trim_start().strip_prefix("- `")?.split_once("` in [")?;
    Some((name, label.strip_suffix(']')?))
}

/// The file of a label: `[label]: file`.
fn target<'a>(page: &'a str, label: &str) -> Option<&'a str> {
    let start = format!("[{label}]: ");
    page.lines().find_map(|line| line.strip_prefix(&*start))
}

fn is_test(text: &str, name: &str, is_case: bool) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.contains(&format!("fn {name}(")));
    at.is_some_and(|at| is_case || lines[..at].iter().rev().take(3).any(|line| *line == "#[test]"))
}
