//! `roxie explain`: what a status, vendor_err, errno, NAK, event, reject reason or message means.

mod table;
mod text;

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use crate::failure::{ALIKE, Failure, Outcome};
use crate::terminal::{self, Terminal};

use table::Entry;

/// Explain what a program printed: a status, vendor_err, errno, NAK, event, reject reason or message
///
/// Takes names as a program or a header prints them (IBV_WC_RETRY_EXC_ERR, EINVAL, RDMA_CM_EVENT_REJECTED;
/// the prefix may be left out, case does not matter), numbers (0x51, 12, -110), and whole lines of a
/// program's output. A number alone can mean several things: each is shown. Without WHAT, lists everything
/// that it knows.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/explain.txt"))]
pub(crate) struct ExplainArgs {
    /// Names, numbers or a line of a program's output
    #[arg(value_name = "WHAT", allow_negative_numbers = true)]
    what: Vec<String>,
    /// Print one JSON array: an object with kind, name, number, meaning and remedy for each meaning
    #[arg(long)]
    json: bool,
}

/// Prints what each word means.
pub(crate) fn run(args: &ExplainArgs) -> Outcome {
    let entries = table::all();
    let found = if args.what.is_empty() { entries.iter().collect() } else { named(&args.what, &entries)? };
    if args.json {
        let rows: Vec<Value> = found.into_iter().map(Entry::json).collect();
        return terminal::json_lines(&rows);
    }
    let terminal = Terminal::stdout();
    for entry in found {
        let head = format!("{} {}", entry.kind, entry.title());
        if args.what.is_empty() {
            terminal.line(&head);
            continue;
        }
        terminal.heading(&head);
        for text in [&entry.meaning, &entry.remedy].into_iter().filter(|text| !text.is_empty()) {
            lines(text).iter().for_each(|line| terminal.line(&format!("  {line}")));
        }
    }
    Ok(())
}

/// Returns what the words mean: each for itself, or all together as a line that was not quoted, if the first
/// word alone means nothing.
fn named<'a>(words: &[String], entries: &'a [Entry]) -> Result<Vec<&'a Entry>, Failure> {
    let mut found = Vec::new();
    for word in words {
        let mut of_word: Vec<&Entry> = entries.iter().filter(|entry| entry.answers(word)).collect();
        if of_word.is_empty() {
            of_word = text::find(word, entries);
        }
        if of_word.is_empty() {
            let line = if found.is_empty() { words.join(" ") } else { word.clone() };
            let of_line = text::find(&line, entries);
            return if of_line.is_empty() { Err(unknown(&line, entries)) } else { Ok(of_line) };
        }
        found.extend(of_word);
    }
    Ok(found)
}

fn unknown(line: &str, entries: &[Entry]) -> Failure {
    let wanted = table::bare(line);
    let likeness = |phrase: &str| {
        let phrase = table::bare(phrase);
        let contains = !wanted.is_empty() && phrase.contains(&wanted);
        if contains { 1.0 } else { strsim::normalized_damerau_levenshtein(&phrase, &wanted) }
    };
    let likest = |entry: &Entry| {
        entry.texts.iter().chain([&entry.name]).map(|phrase| likeness(phrase)).fold(0.0, f64::max)
    };
    let mut near: Vec<(f64, &str)> = entries
        .iter()
        .map(|entry| (likest(entry), entry.name.as_str()))
        .filter(|near| near.0 >= ALIKE)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<&str> = near.into_iter().map(|(_, name)| name).take(8).collect();
    let hint = if near.is_empty() {
        "'roxie explain' lists what is known".to_owned()
    } else {
        format!("known are {}", near.join(", "))
    };
    Failure::new(format!("no status, vendor_err, errno, NAK, event, reject reason or message '{line}'"))
        .hint(hint)
}

/// Columns of the explanations.
const WIDTH: usize = 98;

fn lines(text: &str) -> Vec<String> {
    terminal::wrap(text.split_whitespace(), " ", WIDTH)
}

impl Entry {
    fn title(&self) -> String {
        match (&self.number, self.is_hex) {
            (Some(number), true) => format!("{number:#x} ({})", self.name),
            (Some(number), false) => format!("{} ({number})", self.name),
            (None, _) => self.name.clone(),
        }
    }

    fn json(&self) -> Value {
        json!({ "kind": self.kind, "name": self.name, "number": self.number, "meaning": self.meaning,
                "remedy": self.remedy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meanings(word: &str) -> Vec<String> {
        let entries = table::all();
        entries.iter().filter(|entry| entry.answers(word)).map(|entry| entry.title()).collect()
    }

    #[test]
    fn names_are_found_with_and_without_their_prefix() {
        for word in ["IBV_WC_RETRY_EXC_ERR", "retry_exc_err", "Retry-Exc-Err"] {
            assert_eq!(meanings(word), ["IBV_WC_RETRY_EXC_ERR (12)"], "{word}");
        }
        assert_eq!(meanings("RDMA_CM_EVENT_REJECTED"), ["RDMA_CM_EVENT_REJECTED (8)"]);
        assert_eq!(meanings("einval"), ["EINVAL (22)"]);
    }

    #[test]
    fn a_number_has_each_of_its_meanings() {
        assert_eq!(meanings("0x51"), ["0x51 (NoAnswer)"]);
        assert_eq!(meanings("-110"), ["ETIMEDOUT (110)"]);
        let twelve = meanings("12");
        for name in ["ENOMEM (12)", "IBV_WC_RETRY_EXC_ERR (12)", "IBV_EVENT_PKEY_CHANGE (12)"] {
            assert!(twelve.iter().any(|found| found == name), "{twelve:?}");
        }
    }

    #[test]
    fn an_unknown_word_behind_a_known_one_is_an_error() {
        let entries = table::all();
        let named = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let names = |found: Vec<&Entry>| found.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>();
            named(&words, &entries).map(names).map_err(|failure| failure.to_string())
        };
        let failure = named("einval nonsense").unwrap_err();
        assert!(failure.contains("'nonsense'"), "{failure}");
        assert_eq!(named("einval enomem"), Ok(vec!["EINVAL".to_owned(), "ENOMEM".to_owned()]));
        assert_eq!(named("Failed status 12:"), Ok(vec!["IBV_WC_RETRY_EXC_ERR".to_owned()]));
    }

    #[test]
    fn an_unknown_word_gets_the_names_that_contain_it() {
        let failure = unknown("retry", &table::all()).to_string();
        assert!(failure.contains("IBV_WC_RETRY_EXC_ERR"), "{failure}");
        for (near, name) in [("retry exceded", "IBV_WC_RETRY_EXC_ERR"), ("ENIVAL", "EINVAL")] {
            let failure = unknown(near, &table::all()).to_string();
            assert!(failure.contains(name), "{failure}");
        }
        assert!(unknown("", &table::all()).to_string().contains("lists what is known"));
    }

    #[test]
    fn every_entry_says_something_in_lines_that_fit() {
        for entry in table::all() {
            assert!(entry.meaning.ends_with('.'), "{}", entry.name);
            let lines = super::lines(&entry.remedy);
            assert!(lines.iter().all(|line| line.len() <= WIDTH), "{lines:?}");
        }
    }
}
