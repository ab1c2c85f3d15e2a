//! Errors of recipes.

use std::fmt;

use crate::asm::AsmError;

/// Reason why a recipe cannot be assembled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RecipeError {
    /// The name does not consist of 1 to 15 letters, digits and `_`, or starts with a digit.
    Name(String),
    /// The stage needs an address: select IP or RoCE.
    NeedsSource(&'static str),
    /// The stage or action needs the destination QPN: select RoCE.
    NeedsDestQp(&'static str),
    /// [`XdpAction::Redirect`](crate::XdpAction::Redirect) was given as a plain verdict or for a miss. It
    /// needs a target.
    NoTarget,
    /// The named number is out of range.
    Range(&'static str),
    /// The blocks contradict each other.
    Asm(AsmError),
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecipeError::Name(name) => {
                write!(f, "'{name}' is not a program name: use 1 to 15 letters, digits and _")
            }
            RecipeError::NeedsSource(what) => write!(f, "{what} needs the addresses: select IP or RoCE"),
            RecipeError::NeedsDestQp(what) => write!(f, "{what} needs the destination QPN: select RoCE"),
            RecipeError::NoTarget => f.write_str("a redirect needs a target"),
            RecipeError::Range(what) => write!(f, "{what} is out of range"),
            RecipeError::Asm(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RecipeError {}

/// Returns the error that the named number is out of range, unless it is in range.
pub(super) fn in_range(is_in_range: bool, what: &'static str) -> Result<(), RecipeError> {
    if is_in_range { Ok(()) } else { Err(RecipeError::Range(what)) }
}

/// Checks a program name. The kernel keeps 15 bytes, and type information needs a C identifier.
pub(super) fn check_name(name: &str) -> Result<(), RecipeError> {
    let identifier = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.as_bytes().first().is_none_or(u8::is_ascii_digit);
    if identifier && name.len() <= 15 { Ok(()) } else { Err(RecipeError::Name(name.to_owned())) }
}
