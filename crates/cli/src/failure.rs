//! Why a subcommand failed: a message, what to do about it, and the exit code.

use std::fmt;
use std::io;
use std::path::Path;

use roxie::verbs::remedy;

/// A failed subcommand.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong.
    pub what: String,
    /// More about it, a line each.
    pub lines: Vec<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// Exit code of the process.
    pub code: u8,
}

/// Result of a subcommand.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with exit code 1.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), lines: Vec::new(), hint: None, code: 1 }
    }

    /// Adds what the reader can do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds what the reader can do, where that is known.
    #[must_use]
    pub fn hint_if<T: Into<String>>(self, hint: Option<T>) -> Self {
        hint.into_iter().fold(self, Failure::hint)
    }

    /// Adds lines that say more about it.
    #[must_use]
    pub fn lines(mut self, lines: impl IntoIterator<Item = String>) -> Self {
        self.lines.extend(lines);
        self
    }

    /// Adds what the kernel wrote about it. Names in it may contain newlines, so each line is marked.
    #[must_use]
    pub fn log(self, log: &str) -> Self {
        self.lines(log.lines().map(|line| format!("| {}", line.replace('\t', "    "))))
    }

    /// A failure to open the device: `step: error`, with the remedy.
    pub fn of_device(step: &str, error: &io::Error) -> Self {
        let failure = Self::new(format!("{step}: {error}"));
        failure.hint(remedy(error).unwrap_or_else(|| "'roxie doctor' may know more".to_owned()))
    }

    /// Adds the object that the failure is about: `subject: ...`.
    #[must_use]
    pub fn of(mut self, subject: &str) -> Self {
        self.what = format!("{subject}: {}", self.what);
        self
    }

    /// Changes the exit code.
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Prints the failure on standard error. Its first line alone begins with the name of this program.
    pub fn print(&self) {
        say!("roxie: {}", self.what);
        self.further().for_each(|line| say!("       {line}"));
    }

    fn further(&self) -> impl Iterator<Item = &String> {
        self.lines.iter().chain(&self.hint)
    }
}

impl fmt::Display for Failure {
    /// On one line, as a part of another message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.further().try_for_each(|line| write!(f, "; {}", line.trim_start()))
    }
}

/// How like a name or text must be to be suggested, from 0 to 1. A letter more, less or other in a word of
/// four letters is 0.75; words with nothing in common reach 0.4.
pub(crate) const ALIKE: f64 = 0.6;

/// The name that the user probably meant.
pub(crate) fn nearest<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    let alike = |name| (strsim::normalized_damerau_levenshtein(name, word), name);
    let near = names.iter().copied().map(alike).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (near.0 >= ALIKE).then_some(near.1)
}

/// Names the step in which an error happened.
pub trait During<T> {
    /// `step: error`, exit code 1.
    fn during(self, step: &str) -> Outcome<T>;

    /// `reading path: error`, exit code 1.
    fn reading(self, path: &Path) -> Outcome<T>;

    /// `writing path: error`, exit code 1.
    fn writing(self, path: &Path) -> Outcome<T>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during(self, step: &str) -> Outcome<T> {
        self.map_err(|error| Failure::new(format!("{step}: {error}")))
    }

    fn reading(self, path: &Path) -> Outcome<T> {
        self.during(&format!("reading {}", path.display()))
    }

    fn writing(self, path: &Path) -> Outcome<T> {
        self.during(&format!("writing {}", path.display()))
    }
}
