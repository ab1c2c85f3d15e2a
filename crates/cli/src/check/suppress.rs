//! Findings that the user does not want to see: lines of a kind and a function, with `*`.

use std::fs;
use std::path::PathBuf;

use crate::failure::{During, Failure, Outcome};

/// A line of a file.
#[derive(Debug)]
struct Rule {
    kind: String,
    function: Option<String>,
    /// File and line, for messages.
    from: String,
    used: u64,
}

/// The lines of all files.
#[derive(Debug, Default)]
pub(super) struct Suppressions(Vec<Rule>);

impl Suppressions {
    pub(super) fn read(files: &[PathBuf]) -> Outcome<Self> {
        let mut rules = Self::default();
        for path in files {
            let name = path.display().to_string();
            rules.add(&name, &fs::read_to_string(path).reading(path)?)?;
        }
        Ok(rules)
    }

    fn add(&mut self, name: &str, text: &str) -> Outcome {
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> =
                line.split('#').next().unwrap_or_default().split_ascii_whitespace().collect();
            let from = format!("{name}:{}", index + 1);
            let (kind, function) = match words[..] {
                [] => continue,
                [kind] => (kind.to_owned(), None),
                [kind, function] => (kind.to_owned(), Some(function.to_owned())),
                _ => {
                    let failure = Failure::new(format!("{from}: more than a kind and a function"));
                    return Err(failure.code(2));
                }
            };
            self.0.push(Rule { kind, function, from, used: 0 });
        }
        Ok(())
    }

    /// Whether a rule names this finding.
    pub(super) fn names<'a>(&mut self, kind: &str, functions: impl Iterator<Item = &'a str> + Clone) -> bool {
        let fits = |rule: &&mut Rule| {
            let in_function = |pattern: &String| functions.clone().any(|function| matches(pattern, function));
            matches(&rule.kind, kind) && rule.function.as_ref().is_none_or(in_function)
        };
        let found = self.0.iter_mut().find(fits);
        found.map(|rule| rule.used += 1).is_some()
    }

    /// The rules that named nothing.
    pub(super) fn unused(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter(|rule| rule.used == 0).map(|rule| {
            let function =
                rule.function.as_deref().map_or_else(String::new, |function| format!(" {function}"));
            format!("{}: {}{function}", rule.from, rule.kind)
        })
    }
}

/// Whether `pattern`, in which `*` stands for any characters, fits the whole text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|left| {
            rest.is_empty()
                || left.char_indices().any(|(at, _)| matches(rest, &left[at..]))
                || matches(rest, "")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, text, fits) in [
            ("leaked-*", "leaked-mr", true),
            ("leaked-*", "cq-overflow", false),
            ("*", "anything", true),
            ("ab*yz", "abyz", true),
            ("a*c", "abcd", false),
            ("*end", "the end", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn a_rule_without_a_function_names_every_finding_of_its_kind_and_unused_rules_are_told() {
        let mut rules = Suppressions::default();
        rules.add("f", "# known\nleaked-mr\nleaked-qp  setup_*  # old\ncq-overflow\n").expect("valid");
        assert!(rules.names("leaked-mr", ["main"].into_iter()));
        assert!(!rules.names("leaked-qp", ["main"].into_iter()));
        assert!(rules.names("leaked-qp", ["main", "setup_qp"].into_iter()));
        assert_eq!(rules.unused().collect::<Vec<_>>(), ["f:4: cq-overflow"]);
        assert_eq!(rules.add("f", "a b c").expect_err("three words").code, 2);
    }
}
