//! Names and texts that others chose, in every subcommand: none of them reaches the terminal as they are, and
//! none begins a line. `tests/tidy.rs` checks that no other code writes to the terminal.

mod rows;
mod told;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[path = "../../../../tests/golden/capture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod golden;

/// Stands for the hostile name in a word of a command line.
const PLACE: &str = "{}";
/// Shown by every output that shows the name.
const SHOWN: &str = "RED";
/// The line that the name tries to print.
const FORGED: &str = "roxie: all is well";
/// The name: a colour, CSI as one character, bell, a carriage return, a line of its own, and a change of the
/// direction.
const NAME: &str = "x\x1b[31mRED\u{9b}2J\x07\rroxie: all is well\nroxie: all is well\n\u{202e}y";

/// The name with a byte at its end that is no UTF-8.
fn name() -> OsString {
    OsString::from_vec([NAME.as_bytes(), &[0xff]].concat())
}

/// A directory for one test, with the files that its rows name.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let name = format!("hostile-{test}-{}", std::process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&dir).expect("writable");
        Self(dir)
    }

    /// Writes a file, with [`PLACE`] in its name.
    fn write(&self, file: &str, contents: &[u8]) {
        fs::write(self.0.join(placed(file, &name())), contents).expect("writable");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _leftover = fs::remove_dir_all(&self.0);
    }
}

/// `word` with `name` in the place of [`PLACE`].
fn placed(word: &str, name: &OsStr) -> OsString {
    let Some((before, after)) = word.split_once(PLACE) else { return word.into() };
    OsString::from_vec([before.as_bytes(), name.as_bytes(), after.as_bytes()].concat())
}

/// What a command wrote.
struct Said {
    row: String,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Said {
    /// What is wrong with the output; `None` if nothing is.
    fn fault(&self) -> Option<String> {
        [&self.out, &self.err].into_iter().find_map(|bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return Some("is no UTF-8".to_owned()) };
            let control = text.chars().find(|c| wire::text::is_unsafe(*c) && *c != '\n');
            control.map(|c| format!("has {c:?}")).or_else(|| {
                let forged = text.lines().any(|line| line.trim_start().starts_with(FORGED));
                forged.then(|| "has a forged line".to_owned())
            })
        })
    }

    fn shows(&self, text: &str) -> bool {
        [&self.out, &self.err].iter().any(|bytes| String::from_utf8_lossy(bytes).contains(text))
    }
}

/// What subcommands say that need the libraries, which a build of this crate alone does not make.
const WITHOUT_LIBRARIES: &str = "are not beside";

/// Runs `roxie` in the directory with words in which `name` has the place of [`PLACE`].
fn said(place: &Place, row: &str, name: &OsStr, variable: Option<&str>) -> Said {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "60", env!("CARGO_BIN_EXE_roxie")]);
    command.args(row.split_whitespace().map(|word| placed(word, name)));
    command.envs(variable.map(|variable| (variable, name)));
    let output = command.current_dir(&place.0).stdin(Stdio::null()).output().expect("timeout runs");
    let row = format!("{} roxie {row}", variable.unwrap_or_default());
    Said { row: row.trim_start().to_owned(), out: output.stdout, err: output.stderr }
}

/// Fails with the commands that show the name as it is, or not at all, so that the row tests nothing.
fn check(all: &[Said]) {
    let skipped = all.iter().filter(|said| said.shows(WITHOUT_LIBRARIES)).count();
    if skipped > 0 {
        println!("skipped: {skipped} commands need the libraries beside roxie (cargo build)");
    }
    let faults: Vec<String> = all
        .iter()
        .filter_map(|said| {
            let silent = !said.shows(SHOWN) && !said.shows(WITHOUT_LIBRARIES);
            let silent = silent.then(|| "does not show the name".to_owned());
            let (out, err) = (said.out.escape_ascii(), said.err.escape_ascii());
            said.fault().or(silent).map(|fault| format!("{}: {fault}\n  {out:.600}\n  {err:.600}", said.row))
        })
        .collect();
    assert!(faults.is_empty(), "{} of {} commands:\n{}", faults.len(), all.len(), faults.join("\n"));
}

#[test]
fn the_name_of_a_file_is_shown_as_numbers() {
    let place = Place::new("files");
    place.write("{}.pcap", &golden::file("loss-write-ack-v4"));
    place.write("{}.txt", b"one two three four\n");
    place.write("{}.o", b"\x7fELF");
    symlink("/nowhere", place.0.join(placed("{}.link", &name()))).expect("a link");
    check(&rows::FILES.map(|row| said(&place, row, &name(), None)));
}

#[test]
fn a_word_that_the_command_line_does_not_have_is_shown_as_numbers() {
    let place = Place::new("words");
    check(&rows::WORDS.map(|row| said(&place, row, OsStr::new(NAME), None)));
    // A word that is no UTF-8 is refused, and not repeated.
    for row in rows::WORDS {
        let said = said(&place, row, &name(), None);
        assert_eq!(said.fault(), None, "{row}");
    }
}

#[test]
fn the_value_of_a_variable_is_shown_as_numbers() {
    let place = Place::new("variables");
    check(&rows::VARIABLES.map(|(variable, row)| said(&place, row, OsStr::new(NAME), Some(variable))));
}
