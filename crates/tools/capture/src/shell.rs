//! Words of shell commands.

use wire::text::is_unsafe;

/// Quotes a word for a POSIX shell. A word with characters that control a terminal has the form `$'...'` of
/// POSIX.1-2024, which bash, zsh, ksh and busybox know.
#[must_use]
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,+=@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if !word.contains(is_unsafe) {
        return format!("'{}'", word.replace('\'', "'\\''"));
    }
    let mut quoted = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            c if is_unsafe(c) => {
                quoted.extend(c.to_string().bytes().map(|byte| format!("\\{byte:03o}")));
            }
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        for (word, quoted) in [
            ("/tmp/roxie-0/lib:/x", "/tmp/roxie-0/lib:/x"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
            ("", "''"),
            ("it's\x1b[31m\\\n\u{9b}", "$'it\\'s\\033[31m\\\\\\012\\302\\233'"),
        ] {
            assert_eq!(quote(word), quoted);
        }
    }
}
