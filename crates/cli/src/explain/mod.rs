//! `roxie explain`: what a status, vendor_err, errno, NAK, event or reject reason means.

mod table;

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};
use crate::terminal::{self, Terminal};

use table::Entry;

/// Explain a completion status, vendor_err, errno, NAK, event or reject reason
///
/// Takes names as a program or a header prints them (IBV_WC_RETRY_EXC_ERR, EINVAL, RDMA_CM_EVENT_REJECTED;
/// the prefix may be left out, case does not matter) and numbers (0x51, 12). A number can mean several
/// things: each is shown. Without WHAT, lists everything that it knows.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/explain.txt"))]
pub(crate) struct ExplainArgs {
    /// Names or numbers
    #[arg(value_name = "WHAT")]
    what: Vec<String>,
    /// Print one JSON array: an object with kind, name, number, meaning and remedy for each meaning
    #[arg(long)]
    json: bool,
}

/// Prints what each word means.
pub(crate) fn run(args: &ExplainArgs) -> Outcome {
    let entries = table::all();
    let mut found = Vec::new();
    for word in &args.what {
        let before = found.len();
        found.extend(entries.iter().filter(|entry| entry.answers(word)));
        if found.len() == before {
            return Err(unknown(word, &entries));
        }
    }
    if args.what.is_empty() {
        found.extend(&entries);
    }
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

fn unknown(word: &str, entries: &[Entry]) -> Failure {
    let wanted = table::bare(word);
    let near =
        entries.iter().filter(|entry| !wanted.is_empty() && table::bare(&entry.name).contains(&wanted));
    let near: Vec<&str> = near.map(|entry| entry.name.as_str()).take(8).collect();
    let hint = if near.is_empty() {
        "'roxie explain' lists what is known".to_owned()
    } else {
        format!("known are {}", near.join(", "))
    };
    Failure::new(format!("no status, vendor_err, errno, NAK, event or reject reason '{word}'")).hint(hint)
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
        let twelve = meanings("12");
        for name in ["ENOMEM (12)", "IBV_WC_RETRY_EXC_ERR (12)", "IBV_EVENT_PKEY_CHANGE (12)"] {
            assert!(twelve.iter().any(|found| found == name), "{twelve:?}");
        }
    }

    #[test]
    fn an_unknown_word_gets_the_names_that_contain_it() {
        let failure = unknown("retry", &table::all()).to_string();
        assert!(failure.contains("IBV_WC_RETRY_EXC_ERR"), "{failure}");
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
