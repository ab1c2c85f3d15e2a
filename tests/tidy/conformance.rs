//! Checks docs/conformance.md: each entry names tests, and the tests exist.

use std::fs;
use std::path::Path;

/// Entries of the first table.
const ENTRIES: usize = 27;

/// The errors of the page.
pub(crate) fn complaints(root: &Path) -> Vec<String> {
    let docs = root.join("docs");
    let page = fs::read_to_string(docs.join("conformance.md")).expect("exists");
    let mut complaints = Vec::new();
    let rows: Vec<_> =
        page.lines().filter(|line| line.starts_with("| ") && !line.contains("| tests |")).collect();
    for number in 1..=ENTRIES {
        if !rows.iter().any(|row| row.starts_with(&format!("| {number} |"))) {
            complaints.push(format!("entry {number} is missing"));
        }
    }
    for row in rows {
        let links = links(row);
        if links.is_empty() {
            complaints.push(format!("no test is named in: {row}"));
        }
        for (name, file) in links {
            let text = fs::read_to_string(docs.join(file)).unwrap_or_default();
            // Cases of the programs suite are functions without `#[test]`.
            let is_case = file.contains("/tests/programs/");
            if !is_test(&text, name, is_case) {
                complaints.push(format!("{file} has no test {name}"));
            }
        }
    }
    complaints
}

/// The links of a line: `[name](file)`.
fn links(line: &str) -> Vec<(&str, &str)> {
    line.split('[')
        .skip(1)
        .filter_map(|rest| rest.split_once("]("))
        .filter_map(|(name, rest)| Some((name, rest.split_once(')')?.0)))
        .collect()
}

fn is_test(text: &str, name: &str, is_case: bool) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.contains(&format!("fn {name}(")));
    at.is_some_and(|at| is_case || lines[..at].iter().rev().take(3).any(|line| *line == "#[test]"))
}
