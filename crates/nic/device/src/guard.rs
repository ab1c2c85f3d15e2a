//! Whether faults of accesses to application memory are caught: `ROXIE_GUARD`.

use std::env;
use std::sync::OnceLock;

use sys::guarded;

use crate::variable::BadVariable;

const WORDS: &[&str] = &["on", "off"];

/// Reads `ROXIE_GUARD`; on if it is unset or empty.
///
/// # Errors
/// The variable has another value than `on` and `off`.
pub(crate) fn from_env() -> Result<bool, BadVariable> {
    from_word(&env::var_os("ROXIE_GUARD").unwrap_or_default().to_string_lossy())
}

fn from_word(word: &str) -> Result<bool, BadVariable> {
    match word {
        "" | "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(BadVariable::new("ROXIE_GUARD", word, WORDS)),
    }
}

/// Returns whether a transfer that reaches unmapped memory fails. Otherwise it ends the process.
pub(crate) fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    // No device opens with another value.
    guarded::AVAILABLE && *ON.get_or_init(|| from_env().unwrap_or(true))
}

/// Installs the handlers if the application does not forbid it. Call it before the device may access memory
/// of the application, and when the application may have installed handlers of its own since.
pub(crate) fn watch() {
    if is_on() {
        guarded::watch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_words_are_valid() {
        assert_eq!((from_word(""), from_word("on"), from_word("off")), (Ok(true), Ok(true), Ok(false)));
        let wrong = from_word("no").expect_err("no such word").to_string();
        assert_eq!(wrong, "ROXIE_GUARD=no is none of on, off");
    }
}
