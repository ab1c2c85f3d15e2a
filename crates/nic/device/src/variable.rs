//! Environment variables with an invalid value.

use std::fmt;

/// An environment variable with an invalid value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BadVariable {
    name: &'static str,
    value: String,
    words: &'static [&'static str],
}

impl BadVariable {
    /// Reports that `value` of variable `name` is none of `words`. If there is one word only, it describes
    /// the valid values.
    pub(crate) fn new(name: &'static str, value: &str, words: &'static [&'static str]) -> BadVariable {
        BadVariable { name, value: value.to_owned(), words }
    }

    /// Returns the invalid value; of a list the invalid part.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl fmt::Display for BadVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = if self.words.len() == 1 { "not" } else { "none of" };
        write!(f, "{}={} is {none} {}", self.name, self.value, self.words.join(", "))
    }
}

impl std::error::Error for BadVariable {}
