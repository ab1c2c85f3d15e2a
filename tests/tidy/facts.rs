//! What pages and help texts state of the code: files exist, numbers equal the constants. For options see
//! `crates/cli/src/pages_tests.rs`.

use std::fs;
use std::process::Command;

use regex::Regex;

use crate::prose::Language;
use crate::tree::{self, File};

/// A number of the code, and the sentences that state it.
struct Constant {
    file: &'static str,
    /// The text before the number; the number may be written `1_000` or `1 << 12`.
    before: &'static str,
    /// Files, and the words around the number, which stands for `{}`. White space does not count.
    stated: &'static [(&'static str, &'static str)],
}

const CONSTANTS: [Constant; 9] = [
    Constant {
        file: "crates/nic/device/src/engine/group.rs",
        before: "const DESCRIPTORS_EACH: u64 = ",
        stated: &[
            ("crates/xdp/hook/tests/hooks.rs", "const DESCRIPTORS_EACH: usize = {};"),
            ("crates/cli/src/nic_args.rs", "its descriptors, of which each takes {}."),
            ("docs/reference.md", "engines of {} descriptors"),
            ("docs/containers.md", "at most {} descriptors per engine"),
            ("ARCHITECTURE.md", "costs a slot, {} descriptors and a thread"),
        ],
    },
    Constant {
        file: "crates/nic/device/src/registry/error.rs",
        before: "const FOR_FIRST_START: u64 = ",
        stated: &[
            ("docs/limits.md", "`RLIMIT_NOFILE` must be {} when a device starts"),
            ("docs/limits.md", "| `RLIMIT_NOFILE` | `-n` | {}, as above"),
            ("docs/containers.md", "so the hard limit must be {} or more"),
        ],
    },
    Constant {
        file: "crates/nic/device/src/registry/key.rs",
        before: "const PAGE_SLOTS: usize = ",
        stated: &[
            ("docs/limits.md", "Each {0} slots need {0} UDP sockets"),
            ("ARCHITECTURE.md", "of a socket pair, {} in each"),
        ],
    },
    Constant {
        file: "crates/nic/device/src/shm.rs",
        before: "const RINGS_MAX: usize = ",
        stated: &[("docs/limits.md", "shared-memory rings to at most {} others")],
    },
    Constant {
        file: "crates/nic/device/src/verbs/quota.rs",
        before: "const PD_MAX: u32 = ",
        stated: &[("docs/limits.md", "{} protection domains")],
    },
    Constant {
        file: "crates/nic/device/src/verbs/quota.rs",
        before: "const AH_MAX: u32 = ",
        stated: &[("docs/limits.md", "{} address handles")],
    },
    Constant {
        file: "crates/nic/device/src/verbs/quota.rs",
        before: "const SRQ_MAX: u32 = ",
        stated: &[("docs/limits.md", "{} shared receive queues and")],
    },
    Constant {
        file: "check",
        before: "    seeds=",
        stated: &[
            ("docs/testing.md", "`roxie sim --devices`, with {} seeds in every `./check`"),
            ("crates/lab/sim/tests/devices.rs", "runs {} seeds and"),
        ],
    },
    Constant {
        file: "crates/lab/sim/tests/seeds.rs",
        before: "else { return ",
        stated: &[("docs/testing.md", "`crates/lab/sim/tests/seeds.rs` with {} seeds")],
    },
];

/// The number at the beginning of `text`: `18;`, `10_000`, `1 << 16;`.
fn number(text: &str) -> Option<u64> {
    let digits = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        Some((text[..end].replace('_', "").parse::<u64>().ok()?, text[end..].to_owned()))
    };
    let (value, rest) = digits(text)?;
    match rest.strip_prefix(" << ") {
        Some(shift) => Some(value << digits(shift)?.0),
        None => Some(value),
    }
}

/// Words separated by one space, without the signs of comments and with numbers without separators.
fn plain(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !["//", "///", "//!"].contains(word));
    let text = words.collect::<Vec<_>>().join(" ");
    Regex::new(r"([0-9])[,_]([0-9]{3})").expect("a pattern").replace_all(&text, "$1$2").into_owned()
}

#[test]
fn numbers_in_pages_equal_the_constants() {
    let read = |name: &str| fs::read_to_string(tree::root().join(name)).expect("the table names files");
    let mut wrong = Vec::new();
    for Constant { file, before, stated } in &CONSTANTS {
        let text = read(file);
        let Some(value) = text.split_once(before).and_then(|(_, rest)| number(rest)) else {
            wrong.push(format!("{file} has no number after {before:?}"));
            continue;
        };
        for (page, sentence) in *stated {
            let sentence = sentence.replace("{}", &value.to_string()).replace("{0}", &value.to_string());
            if !plain(&read(page)).contains(&plain(&sentence)) {
                wrong.push(format!("{page} should state, as {file} does: {sentence}"));
            }
        }
    }
    crate::none("correct the page, or the table of tests/tidy/facts.rs", &wrong);
}

#[test]
fn tables_of_figures_equal_their_result_files() {
    let script = tree::root().join("bench/tables");
    let Ok(done) = Command::new(&script).arg("--check").output() else {
        return println!("skipped: needs python3");
    };
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn source_files_that_pages_and_comments_name_exist() {
    let files = tree::files();
    let named = Regex::new(r"`([A-Za-z0-9_./-]+\.rs)`").expect("a pattern");
    let exists = |name: &str| {
        let below = format!("/{name}");
        files.iter().any(|file| file.name == name || file.name.ends_with(&below))
    };
    let mut missing = Vec::new();
    for file in &files {
        for (index, line) in file.text.lines().enumerate() {
            let names = named.captures_iter(line).map(|found| found.extract::<1>().1[0]);
            missing.extend(
                names.filter(|name| !exists(name)).map(|name| format!("{}:{}: {name}", file.name, index + 1)),
            );
        }
    }
    crate::none("these files do not exist", &missing);
}

/// Users see these names in `roxie top`, `roxie metrics` and `ROXIE_STATS`.
#[test]
fn counters_have_the_words_of_the_glossary() {
    let name = Regex::new("\"([a-z]+_[a-z_0-9]+)\"").expect("a pattern");
    let is_table = |file: &File| file.name.ends_with("rows.rs") || file.name.ends_with("counters.rs");
    let as_prose = |file: File| {
        let names = name.captures_iter(&file.text).map(|found| found.extract::<1>().1[0].replace('_', " "));
        File { text: names.collect::<Vec<_>>().join(". "), language: Language::Text, ..file }
    };
    let tables: Vec<_> = tree::files().into_iter().filter(is_table).map(as_prose).collect();
    crate::none("rename these counters", &crate::language::glossary(&tables));
}
