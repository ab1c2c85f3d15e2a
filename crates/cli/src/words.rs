//! Options with the words of a table as values.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A word of an option, its value, and its help.
pub(crate) type Word<T> = (&'static str, T, &'static str);

/// A parser of the words of a table.
pub(crate) fn one_of<T: Copy + Send + Sync>(words: &'static [Word<T>]) -> impl TypedValueParser<Value = T> {
    let values = words.iter().map(|(word, _, help)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(values)
        .map(|given| words.iter().find(|(word, ..)| *word == given).expect("a possible value").1)
}
