//! The language of comments, messages and pages: `glossary.txt`, and words that name no actor.

use regex::Regex;

use crate::prose;
use crate::tree::File;

/// The table of forbidden expressions.
const GLOSSARY: &str = include_str!("glossary.txt");
/// The tests below quote the glossary.
const EXEMPT: [&str; 1] = ["tests/tidy/language.rs"];
/// The table of the glossary: the page, its header line, and the right column, which quotes forbidden words.
const GLOSSARY_TABLE: (&str, &str) = ("CONTRIBUTING.md", "| write | not |");
/// Most pronouns in the whole tree: the texts of other projects, names of users, a few relative clauses.
const PRONOUNS_MAX: usize = 40;

struct Entry {
    forbidden: Regex,
    allowed: Option<Regex>,
    standard: &'static str,
}

/// Each use of an expression that the glossary forbids: `file:line: "found": say ...`.
pub(crate) fn glossary(files: &[File]) -> Vec<String> {
    let entries = entries();
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !EXEMPT.contains(&&*file.name)) {
        let prose = without_glossary_table(file, prose::split(&file.text, file.language).prose);
        for entry in &entries {
            found.extend(entry.find(&prose).map(|(start, text)| {
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                format!("{}: \"{text}\": say {}", place(file, &prose, start), entry.standard)
            }));
        }
    }
    found
}

/// The prose of a file; in the table of the glossary without the right column.
fn without_glossary_table(file: &File, prose: String) -> String {
    let (page, header) = GLOSSARY_TABLE;
    if file.name != page {
        return prose;
    }
    let mut in_table = false;
    let lines = prose.split('\n').map(|line| {
        in_table = line == header || (in_table && line.starts_with('|'));
        let left = if in_table { line.split('|').nth(1) } else { None };
        left.unwrap_or(line)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Each pronoun that names no actor, if there are too many of them.
pub(crate) fn pronouns(files: &[File]) -> Vec<String> {
    let pattern = expression("who|whom|whose|whoever|nobody|somebody");
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !EXEMPT.contains(&&*file.name)) {
        let prose = prose::split(&file.text, file.language).prose;
        found.extend(
            pattern.find_iter(&prose).map(|m| format!("{}: {}", place(file, &prose, m.start()), m.as_str())),
        );
    }
    if found.len() <= PRONOUNS_MAX {
        return Vec::new();
    }
    found.push(format!("{} in the whole tree, at most {PRONOUNS_MAX}: name the actor", found.len()));
    found
}

impl Entry {
    /// Where the expression is, and its text.
    fn find<'a>(&'a self, prose: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        let allowed: Vec<_> =
            self.allowed.iter().flat_map(|allowed| allowed.find_iter(prose)).map(|m| m.range()).collect();
        self.forbidden
            .find_iter(prose)
            .filter(move |m| !allowed.iter().any(|r| r.start <= m.start() && m.end() <= r.end))
            .map(|m| (m.start(), m.as_str()))
    }
}

fn entries() -> Vec<Entry> {
    let lines = GLOSSARY.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (left, standard) = line.split_once(" => ").expect("a line of the glossary has ` => `");
            let (forbidden, allowed) = left.split_once(" ! ").map_or((left, None), |(f, a)| (f, Some(a)));
            Entry { forbidden: expression(forbidden), allowed: allowed.map(expression), standard }
        })
        .collect()
}

/// Whole words, without regard to case; a space stands for any white space.
fn expression(pattern: &str) -> Regex {
    let pattern = format!(r"(?i-u:\b(?:{})\b)", pattern.replace(' ', r"\s+"));
    Regex::new(&pattern).expect("the glossary has regular expressions")
}

fn place(file: &File, prose: &str, at: usize) -> String {
    let line = prose[..at].matches('\n').count() + 1;
    format!("{}:{line}", file.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prose::Language;

    fn found(text: &str) -> Vec<String> {
        let file = File { name: "f.rs".into(), text: text.into(), language: Language::Rust };
        glossary(&[file])
    }

    #[test]
    fn only_the_right_column_of_the_glossary_table_may_quote_forbidden_words() {
        let (page, header) = GLOSSARY_TABLE;
        let found = |name: &str, text: String| {
            glossary(&[File { name: name.into(), text, language: Language::Text }]).len()
        };
        let table = |row: &str| format!("{header}\n|---|---|\n{row}\n");
        assert_eq!(found(page, table("| burst | train |")), 0);
        assert_eq!(found(page, table("| train | burst |")), 1);
        assert_eq!(found(page, table("| burst | train |") + "\n| burst | train |\n"), 1);
        assert_eq!(found("README.md", table("| burst | train |")), 1);
    }

    #[test]
    fn an_expression_is_found_over_the_end_of_a_line() {
        let hits = found("// The packet was sent\n// again.\n");
        assert_eq!(hits, ["f.rs:1: \"sent again\": say retransmit"]);
    }

    #[test]
    fn a_longer_expression_may_be_allowed() {
        assert!(found("// a scatter/gather list, in its turn\n").is_empty());
        assert_eq!(found("// a gatherer of packets\n").len(), 1);
    }

    #[test]
    fn words_that_contain_a_forbidden_word_are_allowed() {
        assert!(
            found("// alone, training, return, a willing peer, kinds, the whole, history, the QP will be\n")
                .is_empty()
        );
    }
}
