//! Why a subcommand ended, in words for people, with what to do about it and the exit code.

use std::fmt;
use std::io;

use roxie::verbs::remedy;

/// A failed subcommand.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) hint: Option<String>,
    /// Exit code of the process.
    pub(crate) code: u8,
}

/// Result of a subcommand.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with exit code 1.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, code: 1 }
    }

    /// Adds what the reader can do.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The device cannot be had: `step: error`, with what can be done about it.
    pub(crate) fn of_device(step: &str, error: &io::Error) -> Self {
        let failure = Self::new(format!("{step}: {error}"));
        failure.hint(remedy(error).unwrap_or_else(|| "'roxie doctor' may know more".to_owned()))
    }

    /// Changes the exit code.
    #[must_use]
    pub(crate) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.hint {
            Some(hint) => write!(f, "\n       {hint}"),
            None => Ok(()),
        }
    }
}

/// Names the step an error happened in.
pub(crate) trait During<T> {
    /// `step: error`, exit code 1.
    fn during(self, step: &str) -> Outcome<T>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during(self, step: &str) -> Outcome<T> {
        self.map_err(|error| Failure::new(format!("{step}: {error}")))
    }
}
